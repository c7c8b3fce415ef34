# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The forward TPU kernel: one pass over K and V for all maps of a head.

Arrays are [b, heads, t, width], the maps of a head side by side in lanes: see
README.md for what other layouts cost in the rest of a layer. Scores are in units
of log 2, their scale is part of q. Each map keeps its running maximum and sum,
one copy (or part of the sum) a lane, and its own fp32 accumulator; the maps
are weighted, subtracted and rounded once, when a block of queries is done.
"""

import functools
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from diff_jax.kernels.attention import tile_visits
from diff_jax.kernels.attention.block_sizes import LANES
from diff_jax.kernels.attention.mosaic_tpu_common import (
    MASKED_SCORE,
    NN,
    NT,
    Shape,
    column,
    dot,
    entry,
    has,
    pieces,
    run_tile,
    visible,
)
from diff_jax.kernels.attention.varying import out_struct, varying_like
from diff_jax.kernels.attention.weighted_gradient import LN_2


class _Tables(NamedTuple):
  """In scalar memory: the visits, and the kv head of each query head."""

  q_blocks: Any
  kv_blocks: Any
  kinds: Any
  kv_heads: Any


class _Inputs(NamedTuple):
  q: Any
  k: Any
  v: Any
  weights: Any
  q_side: Any
  kv_side: Any


class _Outputs(NamedTuple):
  out: Any
  lse: Any
  parts: Any  # Outputs of the saved maps.


class _Sums(NamedTuple):
  """Scratch: what is known of a block of queries after some of its keys."""

  top: Any  # [c, q, LANES], the maximum, one copy a lane
  total: Any  # [c, q, LANES], of exp2(score - top), a part in each lane
  acc: Any  # [c, q, e], of exp2(score - top) times v


def _kernel(tables, inputs, outputs, sums, *, shape: Shape, sizes):
  kinds = tables.kinds
  kind = kinds[entry(kinds, pl.program_id(0), pl.program_id(2))]

  @pl.when(has(kind, tile_visits.FIRST))
  def _():
    sums.top[...] = jnp.full_like(sums.top, MASKED_SCORE)
    sums.total[...] = jnp.zeros_like(sums.total)
    sums.acc[...] = jnp.zeros_like(sums.acc)

  run_tile(
      kind,
      pieces(sizes),
      functools.partial(_add_piece, shape, inputs, sums),
  )

  @pl.when(has(kind, tile_visits.LAST))
  def _():
    _write(shape, inputs.weights, sums, outputs)


def _add_piece(shape: Shape, inputs, sums, rows, keys, masked: bool):
  """Adds some keys to the sums of some queries."""
  if masked:
    seen = visible(shape, inputs, rows, keys, keys_first=False)
  v = inputs.v[keys]
  for c in range(shape.maps):
    scores = dot(
        shape.select(inputs.q[rows, shape.q_lanes(c)], c),
        inputs.k[keys, shape.k_lanes(c)],
        NT,
    )
    if masked:
      scores = jnp.where(seen, scores, MASKED_SCORE)
    before = sums.top[c, rows]
    top = jnp.maximum(before, scores.max(-1, keepdims=True))
    decay = jnp.exp2(before - top)
    probs = jnp.exp2(scores - _tile(top, scores.shape[1]))
    parts = sum(
        probs[:, x : x + LANES] for x in range(0, probs.shape[1], LANES)
    )
    sums.top[c, rows] = top
    sums.total[c, rows] = decay * sums.total[c, rows] + parts
    gathered = dot(probs.astype(v.dtype), v, NN)
    sums.acc[c, rows] = (
        _tile(decay, sums.acc.shape[2]) * sums.acc[c, rows] + gathered
    )


def _write(shape: Shape, weights, sums, outputs):
  """Turns the sums of a block of queries into its outputs."""
  out = None
  for c in range(shape.maps):
    top = sums.top[c, :, :1]
    total = sums.total[c].sum(-1, keepdims=True)
    blind = top < MASKED_SCORE / 2  # It has seen no key.
    o = sums.acc[c] * jnp.where(blind, 0.0, 1 / total)
    lse = jnp.where(blind, -jnp.inf, LN_2 * (top + jnp.log2(total)))
    outputs.lse[c : c + 1] = jnp.broadcast_to(lse, (lse.shape[0], LANES)).T[:1]
    if c in shape.saved_maps:
      part = outputs.parts[shape.saved_maps.index(c)]
      part[...] = o.astype(part.dtype)
    if c or not shape.first_weight_is_one:
      o = o * column(weights[c : c + 1])
    out = o if out is None else out + o
  outputs.out[...] = out.astype(outputs.out.dtype)


def _tile(x, width):
  """Repeats one copy a lane up to `width` lanes."""
  return jnp.tile(x, (1, width // x.shape[1]))


def _specs(shape: Shape, sizes, sides) -> tuple[_Inputs, _Outputs]:
  """The blocks that a step of the grid (b, n, visits) reads and writes."""

  def q_index(b, n, s, tables):
    return b, n, tables.q_blocks[entry(tables.q_blocks, b, s)], 0

  def kv_index(b, n, s, tables):
    block = tables.kv_blocks[entry(tables.kv_blocks, b, s)]
    return b, tables.kv_heads[n], block, 0

  def row_index(b, n, s, tables):
    return b, n, 0, tables.q_blocks[entry(tables.q_blocks, b, s)]

  def q_side_index(b, n, s, tables):
    block = tables.q_blocks[entry(tables.q_blocks, b, s)]
    return *entry(sides.q, b, 0), block

  def kv_side_index(b, n, s, tables):
    block = tables.kv_blocks[entry(tables.kv_blocks, b, s)]
    return *entry(sides.kv, b, 0), block

  e = shape.value_width
  rows = pl.BlockSpec((None, None, shape.maps, sizes.q), row_index)
  out = pl.BlockSpec((None, None, sizes.q, e), q_index)
  inputs = _Inputs(
      q=pl.BlockSpec((None, None, sizes.q, shape.q_width), q_index),
      k=pl.BlockSpec((None, None, sizes.kv, shape.k_width), kv_index),
      v=pl.BlockSpec((None, None, sizes.kv, e), kv_index),
      weights=rows,
      q_side=pl.BlockSpec((None, sides.q.shape[1], sizes.q), q_side_index),
      kv_side=pl.BlockSpec((None, sides.kv.shape[1], sizes.kv), kv_side_index),
  )
  return inputs, _Outputs(out, rows, [out] * len(shape.saved_maps))


def forward(shape: Shape, sizes, visits, sides, q, k, v, weights):
  """Runs the kernel on arrays that are padded to whole blocks.

  Args:
    shape: static facts.
    sizes: `BlockSizes`.
    visits: of (q blocks, kv blocks).
    sides: positions and segments.
    q: [b, n, t, q_width], scaled.
    k: [b, k, s, k_width].
    v: [b, k, s, e].
    weights: [b, n, c, t], fp32.

  Returns:
    out [b, n, t, e], lse [b, n, c, t] and o [b, n, t, e] of each saved map.
  """
  b, n, t, _ = q.shape
  e = shape.value_width
  kv_heads = jnp.arange(n, dtype=jnp.int32) // shape.groups
  tables = _Tables(*visits[:3], varying_like(kv_heads, visits))
  inputs = _Inputs(q, k, v, weights, *sides)
  in_specs, out_specs = _specs(shape, sizes, sides)
  like = (inputs, visits)
  part = out_struct((b, n, t, e), v.dtype, like)
  of_maps = pltpu.VMEM((shape.maps, sizes.q, LANES), jnp.float32)
  acc = pltpu.VMEM((shape.maps, sizes.q, e), jnp.float32)
  (outputs,) = pl.pallas_call(
      functools.partial(_kernel, shape=shape, sizes=sizes),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=1,
          grid=(b, n, visits.count),
          in_specs=(in_specs,),
          out_specs=(out_specs,),
          scratch_shapes=(_Sums(top=of_maps, total=of_maps, acc=acc),),
      ),
      out_shape=(
          _Outputs(
              out=out_struct((b, n, t, e), shape.out_dtype, like),
              lse=out_struct((b, n, shape.maps, t), jnp.float32, like),
              parts=[part] * len(shape.saved_maps),
          ),
      ),
      compiler_params=pltpu.CompilerParams(
          dimension_semantics=("parallel", "parallel", "arbitrary"),
          vmem_limit_bytes=shape.vmem_limit_bytes,
      ),
      name="diff_attention_forward",
  )(tables, inputs)
  return outputs.out, outputs.lse, *outputs.parts
