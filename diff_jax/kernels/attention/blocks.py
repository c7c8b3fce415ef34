# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Operands and masks cut into blocks, and the key blocks worth visiting.

The rows of a query block are (t, g): grouped queries are more rows of one
product. Letters before the block's own axes: i query block, j key block.
"""

import dataclasses
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from diff_jax.kernels.attention import layout
from diff_jax.kernels.attention import masking as masking_lib

# A tile of scores that stays near a CPU's cache is up to 4x faster than a whole
# map; below 64 rows the loop's own cost shows, above 512 nothing is gained.
MAX_TILE_SCORES = 2**20
MIN_BLOCK, MAX_BLOCK = 64, 512
VECTOR = 16  # fp32 numbers of a CPU's vector


@dataclasses.dataclass(frozen=True)
class Static:
  """What is known at trace time."""

  causal: bool
  window: int | None
  scale: float
  block_q: int
  block_kv: int


class Operands(NamedTuple):
  """Differentiable arguments of both entry points, in the public layout."""

  q: jax.Array
  k: jax.Array
  v: jax.Array
  bias_slopes: jax.Array | None
  sink: jax.Array | None


def prepare(
    q, k, v, *, causal=True, window=None, segment_ids=None, q_offset=0,
    kv_offset=0, scale=None, bias_slopes=None, sink=None,
):  # fmt: skip
  (b, t, n, c, h), s = q.shape, k.shape[1]
  static = Static(
      causal=causal,
      window=window,
      scale=h**-0.5 if scale is None else scale,
      block_q=_block_size(t, b * n * c),
      block_kv=_block_size(s, b * n * c),
  )
  masking = masking_lib.make_masking(t, s, segment_ids, q_offset, kv_offset)
  return static, masking, Operands(q, k, v, bias_slopes, sink)


def _block_size(length: int, maps: int) -> int:
  """Equal blocks of whole vectors, so that little is padded.

  `maps` maps are computed at once.
  """
  block = math.isqrt(MAX_TILE_SCORES // maps)
  fewest = -(-length // min(max(block, MIN_BLOCK), MAX_BLOCK))
  if fewest == 1:
    return length

  def size(blocks):
    return VECTOR * -(-length // (blocks * VECTOR))

  return size(min(range(fewest, 2 * fewest), key=lambda n: n * size(n)))


class Blocks(NamedTuple):
  """Queries in row blocks, keys and values in key blocks."""

  q: jax.Array  # i b k c r h
  k: jax.Array  # j b k c s h, or j b k s h
  v: jax.Array  # j b k s e
  slopes: jax.Array | None  # k r


class Rows(NamedTuple):
  """One query block's view of the mask."""

  positions: jax.Array  # i b1 r
  segments: jax.Array | None  # i b r
  first: jax.Array  # i, the first key block to visit
  last: jax.Array  # i, one past the last


class KeyMask(NamedTuple):
  positions: jax.Array  # j b1 s
  segments: jax.Array | None  # j b s


def block_operands(static: Static, operands: Operands) -> Blocks:
  q, k, v, bias_slopes, _ = operands
  kv_heads, groups = k.shape[2], q.shape[2] // k.shape[2]
  q = layout.to_rows(q, kv_heads, static.block_q)
  k = layout.to_rows(k, kv_heads, static.block_kv)
  v = layout.to_rows(v[:, :, :, None], kv_heads, static.block_kv)[:, :, :, 0]
  if k.shape[3] == 1:
    k = k[:, :, :, 0]
  slopes = None
  if bias_slopes is not None:
    slopes = masking_lib.split_heads(bias_slopes, kv_heads, axis=0)
    slopes = jnp.tile(
        slopes.astype(masking_lib.accumulation_dtype(q.dtype)),
        (1, static.block_q),
    )
    assert slopes.shape == (kv_heads, static.block_q * groups)
  return Blocks(q, k, v, slopes)


def block_masking(static: Static, masking, t, s, groups):
  """The masks of query and key blocks, and which key blocks matter."""
  q_segments, kv_segments = masking.q_segments, masking.kv_segments
  if q_segments is None and s % static.block_kv:
    q_segments = jnp.ones((1, t), jnp.int32)
    kv_segments = jnp.ones((1, s), jnp.int32)
  q_positions = layout.split(masking.q_positions, 1, static.block_q, "edge")
  kv_positions = layout.split(masking.kv_positions, 1, static.block_kv, "edge")
  if q_segments is not None:
    q_segments = layout.split(q_segments, 1, static.block_q)
    kv_segments = layout.split(kv_segments, 1, static.block_kv)
  first, last = _visited(
      static, q_positions, kv_positions, q_segments, kv_segments
  )

  def repeat(x):
    return None if x is None else jnp.repeat(x, groups, axis=2)

  rows = Rows(repeat(q_positions), repeat(q_segments), first, last)
  return rows, KeyMask(kv_positions, kv_segments)


def _visited(static, q_positions, kv_positions, q_segments, kv_segments):
  """For each query block, the range of key blocks it may see in any row."""
  shape = (q_positions.shape[0], kv_positions.shape[0])
  needed = jnp.ones(shape, bool)

  def pairs(rule, q_side, kv_side):
    met = rule(q_side[:, None], kv_side[None, :])  # i j b1
    return jnp.any(met, axis=-1)

  low_q, high_q = q_positions.min(-1), q_positions.max(-1)
  low_kv, high_kv = kv_positions.min(-1), kv_positions.max(-1)
  if static.causal:
    needed &= pairs(jnp.greater_equal, high_q, low_kv)
  if static.window is not None:
    needed &= pairs(lambda i, j: i - j < static.window, low_q, high_kv)
    needed &= pairs(lambda i, j: j - i < static.window, high_q, low_kv)
  if q_segments is not None:
    beyond = jnp.iinfo(jnp.int32).max

    def low(segments):
      return jnp.where(segments == 0, beyond, segments).min(-1)

    needed &= jnp.any(
        (low(q_segments)[:, None] <= kv_segments.max(-1)[None])
        & (low(kv_segments)[None] <= q_segments.max(-1)[:, None]),
        axis=-1,
    )
  found = jnp.any(needed, axis=1)
  first = jnp.argmax(needed, axis=1)
  last = shape[1] - jnp.argmax(needed[:, ::-1], axis=1)
  return jnp.where(found, first, 0), jnp.where(found, last, 0)
