# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The forward Hopper kernel: one pass over K and V for all maps of a head.

A program has one block of queries of one head. Blocks of keys and values go
through a ring of slots (`mosaic_gpu_ring.Ring`). Two warpgroups compute, on
both maps of 64 queries each, or on one map each of the same 64
(`ForwardConfig`). Scores are in units of log 2, their scale is part of q. The
maps are weighted, subtracted and rounded once, at the end.

Barriers, and why nothing waits for ever: both warpgroups read the same two
counts from the table and so make the same steps. `q_ready` completes once. Of a
step's slot, `k_ready` and `v_ready` complete when the copies have arrived, one
arrival for each copy, and are waited for once by each warpgroup; a slot is
filled again only after both have, so that none gets two completions ahead of a
waiter. `loops_done` and `exchanged` are passed once: outputs take the place of
keys and values, which both warpgroups have read, and whose copies have all been
waited for.
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
from diff_jax.kernels.attention.mosaic_gpu_ring import Ring
from diff_jax.kernels.attention.varying import out_struct


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
  ring = Ring(
      config.stages,
      visited,
      lax.axis_index("warpgroup"),
      scratch.free,
      functools.partial(_load, shape, config, inputs, scratch, place),
  )
  ring.start(functools.partial(_load_q, shape, config, inputs, scratch, place))
  worker = Worker(shape, config, inputs, scratch, place, ring)
  sums = worker.gather(unmasked, visited)
  plgpu.barrier_arrive(scratch.loops_done)
  plgpu.barrier_wait(scratch.loops_done)
  worker.finish(sums, Outputs(out_ref, lse_ref, saved_refs))


def _load_q(shape, config, inputs, scratch, place):
  """Begins the copies of a program's queries."""
  batch, head, block = place
  for group in range(config.block_q // WGMMA_ROWS):
    for c in range(shape.maps):
      first = block * config.block_q + group * WGMMA_ROWS
      plgpu.copy_gmem_to_smem(
          inputs.q.at[batch, pl.ds(first, WGMMA_ROWS), head * shape.maps + c],
          scratch.q.at[group, c],
          scratch.q_ready,
      )


def _load(shape, config, inputs, scratch, place, step, slot):
  """Begins the copies of a step's keys and values."""
  batch, head, block = place
  k_smem, v_smem = scratch.union[0]
  kv_head = lax.div(head, jnp.asarray(shape.groups, head.dtype))
  table = common.entry(inputs.order, batch), block
  keys = pl.ds(inputs.order[*table, step] * config.block_kv, config.block_kv)
  for c in range(shape.key_maps):
    plgpu.copy_gmem_to_smem(
        inputs.k.at[batch, keys, kv_head * shape.key_maps + c],
        k_smem.at[slot, c],
        scratch.k_ready.at[slot],
    )
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
      free=ring(num_arrivals=config.warpgroups),
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
      num_threads=config.warpgroups,
      thread_name="warpgroup",
      compiler_params=plgpu.CompilerParams(approx_math=True),
      kernel_name="diff_attention_forward",
  )(*inputs)
  return out, lse, saved
