# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the two backward Hopper kernels share."""

from typing import NamedTuple

import jax
from jax import lax
from jax.experimental.pallas import mosaic_gpu as plgpu

from diff_jax.kernels.attention import mosaic_gpu_common as common
from diff_jax.kernels.attention.mosaic_gpu_backward_config import WARPGROUPS
from diff_jax.kernels.attention.mosaic_gpu_ring import Ring


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
  """Runs a kernel of two warpgroups.

  Args:
    program: makes, of the references to inputs and scratch, what has
      `load_own()`, `load(step, slot)` (see `Ring`), `visited`, the
      number of steps, and `compute(warpgroup, ring, *outputs)`.
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
    warpgroup, free = lax.axis_index("warpgroup"), one.scratch.free
    stages = one.config.stages
    ring = Ring(stages, one.visited, warpgroup, free, one.load)
    ring.start(one.load_own)
    one.compute(warpgroup, ring, *outputs)

  return plgpu.kernel(
      kernel,
      out_type=out_type,
      scratch_types=scratch,
      grid=tuple(grid.values()),
      grid_names=tuple(grid),
      num_threads=WARPGROUPS,
      thread_name="warpgroup",
      compiler_params=plgpu.CompilerParams(approx_math=True),
      kernel_name=name,
  )(*inputs)


def zeros(shape):
  """An accumulator of zeros."""
  return common.full(shape, 0.0, common.WGMMA)


def opaque(*scalars):
  """The same scalars, of which the compiler knows nothing.

  Else it computes the addresses of all operands that stay, one for each 16
  lanes, before the loop, and keeps them in registers that the sums need.
  """
  return lax.optimization_barrier(scalars)


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
