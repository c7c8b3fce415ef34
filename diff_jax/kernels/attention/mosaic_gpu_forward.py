# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The forward Hopper kernel: one pass over K and V for all maps of a head.

A program has one block of queries of one head. Its third warpgroup loads
blocks of keys and values through a ring of `stages` slots; the other two
compute, on both maps of 64 queries each, or on one map each of the same 64
(`ForwardConfig`). Scores are in units of log 2, their scale is part of q. The
maps are weighted, subtracted and rounded once, at the end.

Barriers, and why nothing waits for ever: the loader and both computing
warpgroups read the same two counts from the table and so make the same steps.
Of a step's slot, `*_ready` completes when the loader's copies have arrived, one
arrival for each copy, and is waited for once by each computing warpgroup;
`*_free` completes when both have read the slot, and is waited for by the loader
before it fills the slot again: never for a slot's first filling, so that the
arrivals of a slot's last reading are not waited for. The last barriers,
`loops_done` and `exchanged`, are passed once.
"""

import functools

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from diff_jax.kernels.attention import mosaic_gpu_common as common
from diff_jax.kernels.attention.mosaic_gpu_common import (
    Shape,
    Tables,
)
from diff_jax.kernels.attention.mosaic_gpu_config import (
    WGMMA_ROWS,
    ForwardConfig,
)
from diff_jax.kernels.attention.mosaic_gpu_forward_worker import (
    Inputs,
    Outputs,
    Place,
    Scratch,
    Worker,
)
from diff_jax.kernels.attention.mosaic_tpu_common import out_struct

# Of a thread; 128 x (2 x 240 + 24) of 65,536 in all.
COMPUTE_REGISTERS, LOAD_REGISTERS = 240, 24


def _kernel(*refs, shape: Shape, config: ForwardConfig):
  count = len(Inputs._fields), len(Scratch._fields)
  inputs = Inputs(*refs[: count[0]])
  out_ref, lse_ref, *saved_refs = refs[count[0] : -count[1]]
  scratch = Scratch(*refs[-count[1] :])
  block = lax.axis_index("blocks")
  if shape.causal:  # The longest first.
    block = inputs.counts.shape[1] - 1 - block
  place = Place(lax.axis_index("batch"), lax.axis_index("heads"), block)
  row = common.entry(inputs.counts, place.batch), block
  unmasked, visited = inputs.counts[*row, 0], inputs.counts[*row, 1]
  warpgroup = lax.axis_index("warpgroup")

  @pl.when(warpgroup < config.warpgroups)
  def _():
    plgpu.set_max_registers(COMPUTE_REGISTERS, action="increase")
    worker = Worker(shape, config, inputs, scratch, place)
    sums = worker.gather(unmasked, visited)
    plgpu.barrier_arrive(scratch.loops_done)
    plgpu.barrier_wait(scratch.loops_done)
    worker.finish(sums, Outputs(out_ref, lse_ref, saved_refs))

  @pl.when(warpgroup == config.warpgroups)
  def _():
    plgpu.set_max_registers(LOAD_REGISTERS, action="decrease")
    _load(shape, config, inputs, scratch, place, visited)


def _load(shape, config, inputs, scratch, place, visited):
  """The loading warpgroup: q once, then every visited block of k and v."""
  batch, head, block = place
  k_smem, v_smem = scratch.union[0]
  kv_head = lax.div(head, jnp.asarray(shape.groups, head.dtype))
  for group in range(config.block_q // WGMMA_ROWS):
    for c in range(shape.maps):
      first = block * config.block_q + group * WGMMA_ROWS
      plgpu.copy_gmem_to_smem(
          inputs.q.at[batch, pl.ds(first, WGMMA_ROWS), head * shape.maps + c],
          scratch.q.at[group, c],
          scratch.q_ready,
      )
  table = common.entry(inputs.order, batch), block

  @pl.loop(0, visited)
  def _(step):
    slot = lax.rem(step, jnp.asarray(config.stages, step.dtype))
    keys = pl.ds(inputs.order[*table, step] * config.block_kv, config.block_kv)

    @pl.when(step >= config.stages)
    def _():
      plgpu.barrier_wait(scratch.k_free.at[slot])

    for c in range(shape.key_maps):
      plgpu.copy_gmem_to_smem(
          inputs.k.at[batch, keys, kv_head * shape.key_maps + c],
          k_smem.at[slot, c],
          scratch.k_ready.at[slot],
      )

    @pl.when(step >= config.stages)
    def _():
      plgpu.barrier_wait(scratch.v_free.at[slot])

    plgpu.copy_gmem_to_smem(
        inputs.v.at[batch, keys, kv_head],
        v_smem.at[slot],
        scratch.v_ready.at[slot],
    )


def _scratch(shape: Shape, config: ForwardConfig, dtype):
  """`Scratch` and what it reuses, as types."""
  groups = config.block_q // WGMMA_ROWS
  maps = 1 if config.split_maps else shape.maps
  width, e = shape.map_width, shape.value_width
  operand = functools.partial(common.tiled_smem, dtype=dtype)
  loaded = (
      operand((config.stages, shape.key_maps, config.block_kv, width)),
      operand((config.stages, config.block_kv, e)),
  )
  written = [
      plgpu.SMEM((config.warpgroups, maps, WGMMA_ROWS), jnp.float32),
      common.tiled_smem((groups, WGMMA_ROWS, e), shape.out_dtype),
  ]
  if shape.saved_maps:
    written.append(operand((groups, len(shape.saved_maps), WGMMA_ROWS, e)))
  if config.split_maps:
    written.append(common.tiled_smem((WGMMA_ROWS, e), jnp.float32))
  ring = functools.partial(plgpu.Barrier, num_barriers=config.stages)
  return Scratch(
      q=operand((groups, shape.maps, WGMMA_ROWS, width)),
      union=plgpu.RefUnion(loaded, tuple(written)),
      q_ready=plgpu.Barrier(num_arrivals=groups * shape.maps),
      k_ready=ring(num_arrivals=shape.key_maps),
      v_ready=ring(num_arrivals=1),
      k_free=ring(num_arrivals=config.warpgroups),
      v_free=ring(num_arrivals=config.warpgroups),
      loops_done=plgpu.Barrier(num_arrivals=config.warpgroups),
      exchanged=plgpu.Barrier(num_arrivals=1),
  )


def forward(
    shape: Shape, config: ForwardConfig, tables: Tables, q, k, v, weights
):
  """Runs the kernel.

  TMA reads zeros past the end of q, k and v, and writes nothing there; t and s
  are multiples of `TILE_ROWS`.

  Args:
    shape: static facts.
    config: tiles.
    tables: of blocks of queries and blocks of keys.
    q: [b, t, n * c, h], scaled.
    k: [b, s, k * ck, h].
    v: [b, s, k, e].
    weights: [b, n, c, rows], fp32, padded to whole blocks.

  Returns:
    out [b, t, n, e], lse [b, n, c, rows] in nats and o [b, t, n, e] of each
    saved map.
  """
  inputs = Inputs(*tables, q, k, v, weights)
  b, t, _, _ = q.shape
  rows, blocks = weights.shape[-1], tables.counts.shape[1]
  wide = b, t, shape.heads, shape.value_width
  scratch = _scratch(shape, config, q.dtype)
  out, lse, *saved = plgpu.kernel(
      functools.partial(_kernel, shape=shape, config=config),
      out_type=[
          out_struct(wide, shape.out_dtype, inputs),
          out_struct((b, shape.heads, shape.maps, rows), jnp.float32, inputs),
          *[out_struct(wide, v.dtype, inputs)] * len(shape.saved_maps),
      ],
      scratch_types=scratch,
      # The last axis varies fastest: blocks of one head share its keys in L2.
      grid=(b, shape.heads, blocks),
      grid_names=("batch", "heads", "blocks"),
      num_threads=config.warpgroups + 1,
      thread_name="warpgroup",
      compiler_params=plgpu.CompilerParams(approx_math=True),
      kernel_name="diff_attention_forward",
  )(*inputs)
  return out, lse, saved
