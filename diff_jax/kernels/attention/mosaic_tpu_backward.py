# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The backward TPU kernel: all gradients in one pass over the tiles.

With E_c = |w_c| P_c, signs s_c of the weights, and s_1 = 1 (it is in dO):

    dP = dO V^T (once)               dS_c = s_c E_c (dP - delta_c)
    dV = (sum_c s_c E_c)^T dO (once) dQ_c = dS_c K_c,  dK_c = dS_c^T Q_c

so two maps cost five products of the width of a pair: what the Transformer's
two heads cost. |w_c| is part of the log-sum-exp that a row brings. Tiles lie
keys by queries, so that what belongs to a query is a row of lanes.

A step of the grid holds one block of keys, whose dK and dV stay in fast memory
while the queries of all heads of its group pass. The sums for dQ live in main
memory, in fp32, and are fetched and written back by the kernel itself, in the
order of `tile_visits.add_transfers`: the result does not depend on timing.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from diff_jax.kernels.attention import tile_visits
from diff_jax.kernels.attention.block_sizes import BlockSizes
from diff_jax.kernels.attention.mosaic_tpu_common import (
    MASKED_SCORE,
    NN,
    NT,
    TN,
    Shape,
    dot,
    entry,
    has,
    pieces,
    run_tile,
    visible,
)
from diff_jax.kernels.attention.mosaic_tpu_transfers import Transfers
from diff_jax.kernels.attention.varying import out_struct, varying_like
from diff_jax.kernels.attention.weighted_gradient import LN_2


class _Tables(NamedTuple):
  """In scalar memory: the visits, and arithmetic that refs do instead."""

  kv_blocks: Any
  heads: Any  # Of its group.
  q_blocks: Any
  kinds: Any
  steps_after: Any  # [visits], 1, 2, ...
  first_heads: Any  # [k], of the group that a kv head serves


class _Inputs(NamedTuple):
  q: Any
  k: Any
  v: Any
  do: Any
  stats: Any
  q_side: Any
  kv_side: Any


class _Outputs(NamedTuple):
  dq: Any  # In main memory, see `Transfers`.
  dk: Any
  dv: Any


class _Sums(NamedTuple):
  """Scratch, fp32."""

  dq: Any  # [slots, q, q_width]
  dk: Any
  dv: Any
  load_semaphores: Any  # One a slot.
  store_semaphores: Any


def _kernel(tables, inputs, outputs, sums, *, shape: Shape, sizes: BlockSizes):
  transfers = Transfers(tables, outputs.dq, sums, sizes)
  transfers.begin()

  @pl.when(has(transfers.kind, tile_visits.FIRST))
  def _():
    sums.dk[...] = jnp.zeros_like(sums.dk)
    sums.dv[...] = jnp.zeros_like(sums.dv)

  run_tile(
      transfers.kind,
      pieces(sizes, keys_first=True),
      functools.partial(
          _add_piece, shape, inputs, sums, sums.dq.at[transfers.slot]
      ),
  )

  @pl.when(has(transfers.kind, tile_visits.LAST))
  def _():
    outputs.dk[...] = (LN_2 * sums.dk[...]).astype(outputs.dk.dtype)
    outputs.dv[...] = sums.dv[...].astype(outputs.dv.dtype)

  transfers.end()


def _add_piece(shape: Shape, inputs, sums, dq, rows, keys, masked: bool):
  """Adds the gradients of some queries and keys to their sums."""

  def stat(row):
    return inputs.stats[row : row + 1, rows]

  if masked:
    seen = visible(shape, inputs, rows, keys, keys_first=True)
  do = inputs.do[rows]
  dp = dot(inputs.v[keys], do, NT)
  mixed = None
  for c in range(shape.maps):
    q = shape.select(inputs.q[rows, shape.q_lanes(c)], c)
    k = inputs.k[keys, shape.k_lanes(c)]
    scores = dot(k, q, NT)
    if masked:
      scores = jnp.where(seen, scores, MASKED_SCORE)
    probs = jnp.exp2(scores - stat(c))
    if c:
      probs = probs * stat(2 * shape.maps + c)
    mixed = probs if mixed is None else mixed + probs
    ds = (probs * (dp - stat(shape.maps + c))).astype(q.dtype)
    sums.dk[keys, shape.k_lanes(c)] += dot(ds, q, NN)
    dq[rows, shape.q_lanes(c)] += dot(ds, shape.select(k, c), TN)
  sums.dv[keys] += dot(mixed.astype(do.dtype), do, NN)


def _specs(shape: Shape, sizes, sides, stats) -> tuple[_Inputs, _Outputs]:
  """The blocks that a step of the grid (b, k, visits) reads and writes."""

  def q_place(b, kv_head, s, tables):
    visit = entry(tables.heads, b, s)
    head = tables.first_heads[kv_head] + tables.heads[visit]
    return head, tables.q_blocks[visit]

  def q_index(b, *place):
    head, block = q_place(b, *place)
    return b, head, block, 0

  def row_index(b, *place):
    head, block = q_place(b, *place)
    return b, head, 0, block

  def q_side_index(b, *place):
    _, block = q_place(b, *place)
    return *entry(sides.q, b, 0), block

  def kv_index(b, kv_head, s, tables):
    return b, kv_head, tables.kv_blocks[entry(tables.kv_blocks, b, s)], 0

  def kv_side_index(b, *place):
    *_, block, _ = kv_index(b, *place)
    return *entry(sides.kv, b, 0), block

  e = shape.value_width
  k = pl.BlockSpec((None, None, sizes.kv, shape.k_width), kv_index)
  v = pl.BlockSpec((None, None, sizes.kv, e), kv_index)
  inputs = _Inputs(
      q=pl.BlockSpec((None, None, sizes.q, shape.q_width), q_index),
      k=k,
      v=v,
      do=pl.BlockSpec((None, None, sizes.q, e), q_index),
      stats=pl.BlockSpec((None, None, stats.shape[2], sizes.q), row_index),
      q_side=pl.BlockSpec((None, sides.q.shape[1], sizes.q), q_side_index),
      kv_side=pl.BlockSpec((None, sides.kv.shape[1], sizes.kv), kv_side_index),
  )
  return inputs, _Outputs(pl.BlockSpec(memory_space=pl.ANY), k, v)


def _scratch(shape: Shape, sizes) -> _Sums:
  slots = tile_visits.NUM_SLOTS
  return _Sums(
      dq=pltpu.VMEM((slots, sizes.q, shape.q_width), jnp.float32),
      dk=pltpu.VMEM((sizes.kv, shape.k_width), jnp.float32),
      dv=pltpu.VMEM((sizes.kv, shape.value_width), jnp.float32),
      load_semaphores=pltpu.SemaphoreType.DMA((slots,)),
      store_semaphores=pltpu.SemaphoreType.DMA((slots,)),
  )


def backward(shape: Shape, sizes, visits, sides, q, k, v, do, stats):
  """Runs the kernel on arrays that are padded to whole blocks.

  Args:
    shape: static facts.
    sizes: `BlockSizes`.
    visits: of (kv blocks, g * q blocks), with transfers.
    sides: positions and segments.
    q: [b, n, t, q_width], scaled.
    k: [b, k, s, k_width].
    v: [b, k, s, e].
    do: [b, n, t, e], times the sign of the first weight.
    stats: [b, n, 3c, t], fp32: in rows c the log2-sum-exp less log2 |w_c|, then
      delta_c, then the sign of w_c over that of w_1.

  Returns:
    dq [b, n, t, q_width] in fp32, without the scale; dk and dv as k and v.
  """
  b, n, t, _ = q.shape
  blocks = t // sizes.q
  first_heads = jnp.arange(0, n, shape.groups, dtype=jnp.int32)
  steps_after = jnp.arange(1, visits.kind.shape[1] + 1, dtype=jnp.int32)
  tables = _Tables(
      kv_blocks=visits.outer,
      heads=visits.inner // blocks,
      q_blocks=visits.inner % blocks,
      kinds=visits.kind,
      steps_after=varying_like(steps_after, visits),
      first_heads=varying_like(first_heads, visits),
  )
  inputs = _Inputs(q, k, v, do, stats, *sides)
  in_specs, out_specs = _specs(shape, sizes, sides, stats)
  like = (inputs, visits)
  (outputs,) = pl.pallas_call(
      functools.partial(_kernel, shape=shape, sizes=sizes),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=1,
          grid=(b, k.shape[1], visits.count),
          in_specs=(in_specs,),
          out_specs=(out_specs,),
          scratch_shapes=(_scratch(shape, sizes),),
      ),
      out_shape=(
          _Outputs(
              dq=out_struct(q.shape, jnp.float32, like),
              dk=out_struct(k.shape, k.dtype, like),
              dv=out_struct(v.shape, v.dtype, like),
          ),
      ),
      compiler_params=pltpu.CompilerParams(
          dimension_semantics=("parallel", "parallel", "arbitrary"),
          vmem_limit_bytes=shape.vmem_limit_bytes,
      ),
      name="diff_attention_backward",
  )(tables, inputs)
  return tuple(outputs)
