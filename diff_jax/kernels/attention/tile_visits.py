# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Which tiles of the score matrix a kernel visits, in order, as small tables.

A TPU kernel's grid walks these tables, which are prefetched into scalar memory:
a tile that no query can see costs nothing, not even a grid step. Positions and
segments may be traced, so the program itself computes the tables.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int

# Bits of `Visits.kind`: of the tile,
FIRST, LAST, COMPUTE, MASKED = 1, 2, 4, 8  # first, last: of an outer block
# and of sums for the inner blocks, see `add_transfers`.
LOAD, WAIT, PREFETCH, RUN_START, RUN_END = 16, 32, 64, 128, 256
SECOND_RUN, THIRD_RUN, DRAIN, SLOT_SHIFT = 512, 1024, 2048, 12
NUM_SLOTS = 3

# A position that no query reaches: that of keys which pad the last block.
NOWHERE = 2**30


class Visits(NamedTuple):
  """Tiles in the order of their visits; a row for each sequence, or for all.

  Past its own count a row repeats its last tile with kind 0: nothing to do.
  """

  outer: Int[Array, "b1 visits"]
  inner: Int[Array, "b1 visits"]
  kind: Int[Array, "b1 visits"]
  count: Int[Array, ""]  # The longest row's.


class Sides(NamedTuple):
  """Positions (row 0) and segments (row 1, if any) of whole blocks."""

  q: Int[Array, "b1 r t"]
  kv: Int[Array, "b1 r s"]


def pad_sides(masking, padded_t: int, padded_s: int) -> Sides:
  """Masks with rows for the padding: its queries see what the last one does.

  Keys of the padding stand where no query reaches, in segment 0.
  """

  def pad(x, length, **mode):
    return jnp.pad(x, ((0, 0), (0, length - x.shape[1])), **mode)

  def stack(positions, segments):
    if segments is None:
      return positions[:, None]
    b = max(positions.shape[0], segments.shape[0])
    rows = (positions, segments)
    return jnp.stack([jnp.broadcast_to(x, (b, x.shape[1])) for x in rows], 1)

  q_segments, kv_segments = masking.q_segments, masking.kv_segments
  if q_segments is not None:
    q_segments = pad(q_segments.astype(jnp.int32), padded_t, mode="edge")
    kv_segments = pad(kv_segments.astype(jnp.int32), padded_s)
  kv_positions = pad(masking.kv_positions, padded_s, constant_values=NOWHERE)
  return Sides(
      stack(pad(masking.q_positions, padded_t, mode="edge"), q_segments),
      stack(kv_positions, kv_segments),
  )


def visible(q, kv, *, causal: bool, window: int | None):
  """Whether queries see keys.

  Args:
    q: rows of `Sides.q`, position and perhaps segment, each [t, 1] or [1, t].
    kv: the same of the keys, along the other axis.
    causal: as in `api.attention`.
    window: as in `api.attention`.
  """
  seen = kv[0] <= q[0] if causal else kv[0] < NOWHERE
  if window is not None:
    seen &= jnp.abs(q[0] - kv[0]) < window
  if len(q) > 1:
    seen &= (q[1] == kv[1]) & (q[1] != 0)
  return seen


def _extent(x, block):
  """The least and the greatest of each block."""
  x = x.reshape(x.shape[0], -1, block)
  return x.min(-1), x.max(-1)


def tiles(
    sides: Sides, block_q: int, block_kv: int, *, causal, window
) -> tuple[Bool[Array, "b1 i j"], Bool[Array, "b1 i j"]]:
  """Which tiles hold a visible pair, and which hold nothing else.

  Where segments are not in order, the first may name a tile too many; the
  second never does.
  """
  q, kv = sides.q[:, 0], sides.kv[:, 0]
  low_q, high_q = (x[:, :, None] for x in _extent(q, block_q))
  low_kv, high_kv = (x[:, None] for x in _extent(kv, block_kv))
  real_kv = jnp.where(kv == NOWHERE, -NOWHERE, kv)
  last_kv = _extent(real_kv, block_kv)[1][:, None]
  everywhere = jnp.ones(jnp.broadcast_shapes(low_q.shape, low_kv.shape), bool)
  needed = everywhere & (low_kv <= high_q if causal else low_kv < NOWHERE)
  full = everywhere & (high_kv <= low_q if causal else high_kv < NOWHERE)
  if window is not None:
    needed &= (low_q - last_kv < window) & (low_kv - high_q < window)
    full &= (high_q - low_kv < window) & (high_kv - low_q < window)
  if sides.q.shape[1] > 1:
    met, same = _segment_tiles(sides.q[:, 1], sides.kv[:, 1], block_q, block_kv)
    needed, full = needed & met, full & same
  return needed, full


def _segment_tiles(q, kv, block_q, block_kv):
  """Tiles whose ranges of segments meet, and those of one segment."""
  low_q, high_q = (x[:, :, None] for x in _extent(q, block_q))
  low_kv, high_kv = (x[:, None] for x in _extent(kv, block_kv))
  same = (low_q == high_q) & (low_kv == high_kv) & (low_q == low_kv)
  same &= low_q != 0
  beyond = jnp.iinfo(jnp.int32).max
  low_q = _extent(jnp.where(q == 0, beyond, q), block_q)[0][:, :, None]
  low_kv = _extent(jnp.where(kv == 0, beyond, kv), block_kv)[0][:, None]
  return (low_q <= high_kv) & (low_kv <= high_q), same


def visit(
    needed: Bool[Array, "b1 outer inner"], full: Bool[Array, "b1 outer inner"]
) -> Visits:
  """Tables that walk the needed tiles, the inner axis fastest.

  An outer block without a needed tile is visited once, so that its output is
  written.
  """
  b1, _, inner = needed.shape
  leftmost = jnp.arange(inner)[None, None] == 0
  lonely = ~needed.any(-1, keepdims=True) & leftmost
  needed, full = (needed | lonely).reshape(b1, -1), full.reshape(b1, -1)
  counts = needed.sum(-1, dtype=jnp.int32)[:, None]
  steps = jnp.arange(needed.shape[1], dtype=jnp.int32)[None]
  order = jnp.argsort(~needed, axis=-1, stable=True).astype(jnp.int32)
  order = jnp.take_along_axis(order, jnp.minimum(steps, counts - 1), axis=1)
  masked = ~jnp.take_along_axis(full, order, axis=1)
  outer, active = order // inner, steps < counts
  first, last = _ends(outer, active)
  kind = FIRST * first + LAST * last + (COMPUTE + MASKED * masked) * active
  return Visits(outer, order % inner, kind.astype(jnp.int32), counts.max())


def _ends(blocks, active):
  """Where a run of visits of one block begins, and where it ends."""
  change = blocks[:, 1:] != blocks[:, :-1]
  edge = jnp.ones((blocks.shape[0], 1), bool)
  first = jnp.concatenate([edge, change], 1)
  last = jnp.concatenate([change | ~active[:, 1:], edge], 1)
  return first & active, last & active


def add_transfers(visits: Visits) -> Visits:
  """Plans how a kernel keeps sums for the *inner* blocks in main memory.

  Consecutive visits of one inner block are a run, which holds the block's sums
  in a slot of fast memory: loaded at the run's start (zero, the first time),
  written at its end. Three slots take turns. At the start of a run the write of
  the run before the last is waited for, which frees the next run's slot; that
  run is then loaded one visit ahead, unless the previous run may still be
  writing what it would read: it waits for its turn (WAIT).
  """
  outer, inner, kind, count = visits
  active = kind > 0
  start, end = _ends(inner, active)
  run = jnp.cumsum(start, axis=1, dtype=jnp.int32) - 1
  seen, two_before = jax.vmap(_history)(inner, active, start, run)
  load = start & seen
  wait = load & (two_before == inner)
  next_ahead = _shift(load & ~wait)
  kind = (
      kind
      + LOAD * load
      + WAIT * wait
      + PREFETCH * next_ahead
      + RUN_START * start
      + RUN_END * end
      + SECOND_RUN * (active & (run >= 1))
      + THIRD_RUN * (active & (run >= 2))
      + DRAIN * (active & ~_shift(active))
      + ((run % NUM_SLOTS) << SLOT_SHIFT) * active
  )
  return Visits(outer, inner, kind, count)


def _shift(x):
  """The next visit's value; False after the last."""
  return jnp.pad(x[:, 1:], ((0, 0), (0, 1)))


def _history(inner, active, start, run):
  """Of one row: was a block seen before; the block two runs ago, or -1."""
  size = inner.shape[0]
  beyond = size  # An index that is out of bounds: its update is dropped.
  steps = jnp.arange(size)
  earliest = jnp.full(size, size).at[jnp.where(active, inner, beyond)]
  earliest = earliest.min(steps, mode="drop")
  block = jnp.full(size, -1, inner.dtype)
  block = block.at[jnp.where(start, run, beyond)].set(inner, mode="drop")
  two_before = jnp.where(run >= 2, block[jnp.maximum(run - 2, 0)], -1)
  return earliest[inner] < steps, two_before
