# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The forward TPU kernel: one pass over K and V for all maps of a head.

Arrays are [b, t, heads * width]: the maps of a head lie side by side in lanes,
so that no transpose is needed on the way in or out. Scores are in units of
log 2, their scale is part of q. Each map keeps its running maximum and sum,
one copy (or part of the sum) a lane, and its own fp32 accumulator; the maps
are weighted, subtracted and rounded once, when a block of queries is done.
"""

import functools

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from diff_jax.kernels.attention import tile_visits
from diff_jax.kernels.attention.block_sizes import LANES
from diff_jax.kernels.attention.mosaic_tpu_common import (
    LN_2,
    MASKED_SCORE,
    NN,
    NT,
    Shape,
    column,
    dot,
    entry,
    out_struct,
    varying_like,
)


def _kernel(
    # Tables in scalar memory.
    q_blocks, kv_blocks, kinds, kv_heads_of,
    # Inputs.
    q_ref, k_ref, v_ref, weight_ref, q_side_ref, kv_side_ref,
    # Outputs, then scratch.
    *refs,
    shape: Shape,
    sizes,
):  # fmt: skip
  out_ref, lse_ref, *part_refs = refs[: 2 + len(shape.saved_maps)]
  top_ref, total_ref, acc_ref = refs[2 + len(shape.saved_maps) :]
  del q_blocks, kv_blocks, kv_heads_of
  kind = kinds[entry(kinds, pl.program_id(0), pl.program_id(2))]

  def has(bit):
    return kind & bit != 0

  @pl.when(has(tile_visits.FIRST))
  def _():
    top_ref[...] = jnp.full_like(top_ref, MASKED_SCORE)
    total_ref[...] = jnp.zeros_like(total_ref)
    acc_ref[...] = jnp.zeros_like(acc_ref)

  def tile(masked: bool):
    for i in range(sizes.q // sizes.q_compute):
      for j in range(sizes.kv // sizes.kv_compute):
        piece(
            pl.ds(i * sizes.q_compute, sizes.q_compute),
            pl.ds(j * sizes.kv_compute, sizes.kv_compute),
            masked,
        )

  def piece(rows, keys, masked):
    if masked:
      seen = tile_visits.visible(
          [column(q_side_ref[r : r + 1, rows])
           for r in range(q_side_ref.shape[0])],
          [kv_side_ref[r : r + 1, keys] for r in range(kv_side_ref.shape[0])],
          causal=shape.causal,
          window=shape.window,
      )  # fmt: skip
    v = v_ref[keys]
    for c in range(shape.maps):
      scores = dot(
          shape.select(q_ref[rows, shape.q_lanes(c)], c),
          k_ref[keys, shape.k_lanes(c)],
          NT,
      )
      if masked:
        scores = jnp.where(seen, scores, MASKED_SCORE)
      before = top_ref[c, rows]
      top = jnp.maximum(before, scores.max(-1, keepdims=True))
      decay = jnp.exp2(before - top)
      probs = jnp.exp2(scores - _tile(top, scores.shape[1]))
      parts = sum(
          probs[:, x : x + LANES] for x in range(0, probs.shape[1], LANES)
      )
      top_ref[c, rows] = top
      total_ref[c, rows] = decay * total_ref[c, rows] + parts
      gathered = dot(probs.astype(v.dtype), v, NN)
      acc_ref[c, rows] = (
          _tile(decay, acc_ref.shape[2]) * acc_ref[c, rows] + gathered
      )

  @pl.when(has(tile_visits.COMPUTE) & ~has(tile_visits.MASKED))
  def _():
    tile(masked=False)

  @pl.when(has(tile_visits.MASKED))
  def _():
    tile(masked=True)

  @pl.when(has(tile_visits.LAST))
  def _():
    out = None
    for c in range(shape.maps):
      top = top_ref[c, :, :1]
      total = total_ref[c].sum(-1, keepdims=True)
      blind = top < MASKED_SCORE / 2  # It has seen no key.
      o = acc_ref[c] * jnp.where(blind, 0.0, 1 / total)
      lse = jnp.where(blind, -jnp.inf, LN_2 * (top + jnp.log2(total)))
      lse_ref[c : c + 1] = jnp.broadcast_to(lse, (lse.shape[0], LANES)).T[:1]
      if c in shape.saved_maps:
        part_ref = part_refs[shape.saved_maps.index(c)]
        part_ref[...] = o.astype(part_ref.dtype)
      if c or not shape.first_weight_is_one:
        o = o * column(weight_ref[c : c + 1])
      out = o if out is None else out + o
    out_ref[...] = out.astype(out_ref.dtype)


def _tile(x, width):
  """Repeats one copy a lane up to `width` lanes."""
  return jnp.tile(x, (1, width // x.shape[1]))


def forward(shape: Shape, sizes, visits, sides, q, k, v, weights):
  """Runs the kernel on arrays that are padded to whole blocks.

  Args:
    shape: static facts.
    sizes: `BlockSizes`.
    visits: of (q blocks, kv blocks).
    sides: positions and segments.
    q: [b, t, n * q_width], scaled.
    k: [b, s, k * k_width].
    v: [b, s, k * e].
    weights: [b, n, c, t], fp32.

  Returns:
    out [b, t, n * e], lse [b, n, c, t] and o [b, t, n * e] of each saved map.
  """
  b, t, _ = q.shape
  n, e = shape.heads, shape.value_width

  kv_heads_of = jnp.arange(n, dtype=jnp.int32) // shape.groups
  tables = (*visits[:3], varying_like(kv_heads_of, visits))

  def q_index(b, n, s, q_blocks, *_):
    return b, q_blocks[entry(q_blocks, b, s)], n

  def kv_index(b, n, s, _, kv_blocks, __, kv_heads_of):
    return b, kv_blocks[entry(kv_blocks, b, s)], kv_heads_of[n]

  def row_index(b, n, s, q_blocks, *_):
    return b, n, 0, q_blocks[entry(q_blocks, b, s)]

  def q_side_index(b, n, s, q_blocks, *_):
    return entry(sides.q, b, 0) + (q_blocks[entry(q_blocks, b, s)],)

  def kv_side_index(b, n, s, _, kv_blocks, *__):
    return entry(sides.kv, b, 0) + (kv_blocks[entry(kv_blocks, b, s)],)

  row_spec = pl.BlockSpec((None, None, shape.maps, sizes.q), row_index)
  out_spec = pl.BlockSpec((None, sizes.q, e), q_index)
  parts = len(shape.saved_maps)
  like = (q, k, v, weights, sides, visits)
  return pl.pallas_call(
      functools.partial(_kernel, shape=shape, sizes=sizes),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=len(tables),
          grid=(b, n, visits.count),
          in_specs=[
              pl.BlockSpec((None, sizes.q, shape.q_width), q_index),
              pl.BlockSpec((None, sizes.kv, shape.k_width), kv_index),
              pl.BlockSpec((None, sizes.kv, e), kv_index),
              row_spec,
              pl.BlockSpec((None, sides.q.shape[1], sizes.q), q_side_index),
              pl.BlockSpec((None, sides.kv.shape[1], sizes.kv), kv_side_index),
          ],
          out_specs=[out_spec, row_spec] + [out_spec] * parts,
          scratch_shapes=[
              pltpu.VMEM((shape.maps, sizes.q, LANES), jnp.float32),
              pltpu.VMEM((shape.maps, sizes.q, LANES), jnp.float32),
              pltpu.VMEM((shape.maps, sizes.q, e), jnp.float32),
          ],
      ),
      out_shape=[
          out_struct((b, t, n * e), shape.out_dtype, like),
          out_struct((b, n, shape.maps, t), jnp.float32, like),
          *[out_struct((b, t, n * e), v.dtype, like)] * parts,
      ],
      compiler_params=pltpu.CompilerParams(
          dimension_semantics=("parallel", "parallel", "arbitrary"),
          vmem_limit_bytes=shape.vmem_limit_bytes,
      ),
      name="diff_attention_forward",
  )(*tables, q, k, v, weights, *sides)
