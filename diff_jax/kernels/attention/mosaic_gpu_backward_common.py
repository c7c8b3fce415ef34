# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the two backward Hopper kernels share."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from diff_jax.kernels.attention import mosaic_gpu_common as common
from diff_jax.kernels.attention.mosaic_gpu_backward_config import WARPGROUPS

LOADER = WARPGROUPS  # The warpgroup after those that compute.
# Of a thread; 128 x (2 x 240 + 24) of 65,536 in all.
COMPUTE_REGISTERS, LOAD_REGISTERS = 240, 24


class Inputs(NamedTuple):
  """Arrays in global memory; b1 is 1 or b."""

  order: jax.Array  # [b1, outer, inner], see `common.Tables`
  counts: jax.Array  # [b1, outer, 2]
  q_side: jax.Array  # [b1, r, rows]
  kv_side: jax.Array  # [b1, r, keys]
  q: jax.Array  # [b, t, n * c, h], scaled
  k: jax.Array  # [b, s, k * ck, h]
  v: jax.Array  # [b, s, k, e]
  do: jax.Array  # [b, t, n, e]
  stats: jax.Array  # [b, n, 3c, rows], fp32


def launch(program, name: str, grid: dict[str, int], out_type, scratch, inputs):
  """Runs a kernel of two warpgroups that compute and one that loads.

  Args:
    program: makes, of the references to inputs and scratch, what has `load()`
      and `compute(warpgroup, *outputs)`.
    name: of the kernel.
    grid: names and lengths of its axes; the last one varies fastest.
    out_type: list of outputs.
    scratch: named tuple of types.
    inputs: arrays, whole `Inputs`.
  """

  def kernel(*refs):
    refs, scratch_refs = refs[: -len(scratch)], refs[-len(scratch) :]
    refs, outputs = refs[: len(inputs)], refs[len(inputs) :]
    one = program(Inputs(*refs), type(scratch)(*scratch_refs))
    warpgroup = lax.axis_index("warpgroup")

    @pl.when(warpgroup == LOADER)
    def _():
      plgpu.set_max_registers(LOAD_REGISTERS, action="decrease")
      one.load()

    @pl.when(warpgroup < WARPGROUPS)
    def _():
      plgpu.set_max_registers(COMPUTE_REGISTERS, action="increase")
      one.compute(warpgroup, *outputs)

  return plgpu.kernel(
      kernel,
      out_type=out_type,
      scratch_types=scratch,
      grid=tuple(grid.values()),
      grid_names=tuple(grid),
      num_threads=WARPGROUPS + 1,
      thread_name="warpgroup",
      compiler_params=plgpu.CompilerParams(approx_math=True),
      kernel_name=name,
  )(*inputs)


def zeros(shape):
  """An accumulator of zeros."""
  return common.full(shape, 0.0, common.WGMMA)


def products(*sums):
  """[total + x @ y + ... of (total, operands, ...) for each], all under way.

  Each `operands` is a function that returns x, in registers or shared memory,
  and y, in shared memory: an index that is a constant has to be made inside of
  the region that the compiler sees.
  """
  if common._INTERPRETED.get():
    return [
        functools.reduce(
            lambda total, operands: common.accumulate(total, *operands()),
            pairs,
            total,
        )
        for total, *pairs in sums
    ]

  def compute(sum_refs):
    for sum_ref, (_, *pairs) in zip(sum_refs, sums, strict=True):
      for operands in pairs:
        plgpu.wgmma(sum_ref, *operands())

  totals = tuple(plgpu.ACC.init(total) for total, *_ in sums)
  return list(pl.run_state(compute)(totals))


def opaque(*scalars):
  """The same scalars, of which the compiler knows nothing.

  Else it computes the addresses of all operands that stay, one for each 16
  lanes, before the loop, and keeps them in registers that the sums need.
  """
  return lax.optimization_barrier(scalars)


def slot_of(step, stages: int):
  return lax.rem(step, jnp.asarray(stages, step.dtype))


def wait_until_free(barrier, step, stages: int):
  """The loader's, before it fills a slot again; the first time it is free."""

  @pl.when(step >= stages)
  def _():
    plgpu.barrier_wait(barrier.at[slot_of(step, stages)])


def seen(shape, inputs, batch, rows, keys, tile, *, keys_by_queries=False):
  """Which pairs of a tile are seen; rows and keys are slices."""
  layouts = [common.OF_ROWS, common.OF_COLUMNS]
  of_queries, of_keys = layouts[::-1] if keys_by_queries else layouts
  return common.visible(
      shape,
      tile,
      common.side_rows(inputs.q_side, batch, rows, of_queries),
      common.side_rows(inputs.kv_side, batch, keys, of_keys),
      keys_by_queries=keys_by_queries,
  )
