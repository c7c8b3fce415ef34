# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Decoding in plain XLA: a few queries against a long cache, read once.

The time is that of reading the cache, so nothing of its size may be copied.
Every kv head therefore has its own products, over slices of the cache as it
lies: XLA would transpose the cache for a product batched over heads. The rows
of a product are the queries of all maps and groups that share the slice.

The cache is read in tiles, from the first to the last that a sequence sees; on
CPU they stay in the core's cache. On GPU the slices of a dense cache fuse into
the products, and the capacity is one tile.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from diff_jax.kernels.attention import masking as masking_lib
from diff_jax.kernels.attention import target, varying

MIB = 2**20
CPU_TILE_BYTES = 2 * MIB  # of the cache; its slices are copied once
TILE_BYTES = 64 * MIB  # large enough to hide the loop's own cost
MIN_BLOCK = 64  # positions


class Cache(NamedTuple):
  """Rows K1|K2|V (or K|V), one a position and kv head."""

  rows: jax.Array  # [b,s,k,r], or pages [p,page_size,k,r]
  page_table: jax.Array | None  # [b,pages of a sequence]

  @property
  def page_size(self) -> int:
    return 1 if self.page_table is None else self.rows.shape[1]

  @property
  def capacity(self) -> int:
    """Positions of a sequence."""
    if self.page_table is None:
      return self.rows.shape[1]
    return self.page_table.shape[1] * self.page_size

  def read(self, begin, length: int, end) -> jax.Array:
    """Rows [b,length,k,r] of positions from `begin`, both whole pages.

    Of pages, positions from `end` [b] on are 0: they may never have been
    written, and 0 * NaN is NaN.
    """
    if self.page_table is None:
      return jax.lax.dynamic_slice_in_dim(self.rows, begin, length, axis=1)
    pages = jax.lax.dynamic_slice_in_dim(
        self.page_table,
        begin // self.page_size,
        length // self.page_size,
        axis=1,
    )
    # Entries past the end may be anything: any page will do.
    rows = jnp.take(self.rows, pages, axis=0, mode="clip")
    rows = rows.reshape(rows.shape[0], length, *rows.shape[3:])
    written = begin + jnp.arange(length)[None] < end[:, None]
    return jnp.where(written[:, :, None, None], rows, 0)


def append(new_kv, cache: Cache, lengths) -> jax.Array:
  """The rows with new_kv [b,t,k,r] at positions lengths, lengths + 1, ...

  In place if the caller donates the cache. What does not fit is dropped.
  """
  b, t = new_kv.shape[:2]
  positions = masking_lib.positions(lengths, t)
  if cache.page_table is None:
    index = (jnp.arange(b)[:, None], positions)
  else:
    pages = jnp.take_along_axis(
        cache.page_table,
        positions // cache.page_size,
        axis=1,
        mode="fill",
        fill_value=cache.rows.shape[0],  # no page
    )
    index = (pages, positions % cache.page_size)
  return cache.rows.at[index].set(
      new_kv, mode="drop", unique_indices=True, wrap_negative_indices=False
  )


def attend(
    q, new_kv, cache: Cache, weights, first, *, value_dim: int, window, scale
) -> jax.Array:
  """out [b,t,n,e] in q's dtype, of queries at positions first, first + 1, ...

  Args:
    q: [b,t,n,c,h].
    new_kv: rows [b,t,k,r] of the queries' own positions; None: the cache has
      them. A cache that was just written would be copied slice by slice on GPU.
    cache: the rows before them.
    weights: broadcastable to [b,t,n,c].
    first: [b]; a query at a position below 0 sees nothing.
    value_dim: e.
    window, scale: as for `api.attention`.
  """
  b, t, n, c, h = q.shape
  kv_heads, dtype = cache.rows.shape[2], masking_lib.accumulation_dtype(q.dtype)
  scale = h**-0.5 if scale is None else scale
  block = _block_size(b, cache)
  rows_q = _rows(q, kv_heads)
  seen = masking_lib.positions(first, t)  # the last that each query sees
  held = first + t if new_kv is None else first  # positions of the cache

  def fold(carry, rows, positions, is_new=True):
    """Adds rows [b,s,k,r] at positions [b1,s], as far as they are new."""
    masking = masking_lib.Masking(seen, positions, None, None)
    mask = masking_lib.visible(masking, causal=True, window=window)
    mask = (mask & is_new).repeat(n // kv_heads, axis=1)
    scores = scale * _scores(rows_q, rows[..., :-value_dim], dtype)
    scores = jnp.where(jnp.tile(mask, (1, c, 1))[:, None], scores, -jnp.inf)
    return _online_softmax(carry, scores, rows[..., -value_dim:])

  def tile(j, carry):
    # The last tile begins early: what the one before it saw is not new.
    begin = jnp.minimum(j * block, cache.capacity - block)
    positions = begin + jnp.arange(block)[None]
    is_new = (positions >= j * block) & (positions < held[:, None])
    rows = cache.read(begin, block, held)
    return fold(carry, rows, positions, is_new[:, None])

  zeros = functools.partial(varying.zeros, dtype=dtype, like=(q, cache, first))
  shape = rows_q.shape[:3]
  carry = zeros(shape) - jnp.inf, zeros(shape), zeros((*shape, value_dim))
  if block == cache.capacity:
    carry = tile(0, carry)
  else:
    earliest = 0 if window is None else jnp.min(first) - window + 1
    carry = jax.lax.fori_loop(
        jnp.maximum(earliest, 0) // block,
        -(-jnp.minimum(jnp.max(held), cache.capacity) // block),
        tile,
        carry,
    )
  if new_kv is not None:
    carry = fold(carry, new_kv, seen)
  _, total, acc = carry
  o = acc / jnp.where(total > 0, total, 1)[..., None]
  return _weighted_sum(o, weights, q.shape).astype(q.dtype)


def _block_size(b: int, cache: Cache) -> int:
  """Positions of a tile: whole pages, at most the capacity."""
  platform = target.platform()
  if platform == "gpu" and cache.page_table is None:
    return cache.capacity
  position_bytes = b * cache.rows.dtype.itemsize
  position_bytes *= cache.rows.shape[2] * cache.rows.shape[3]
  tile_bytes = CPU_TILE_BYTES if platform == "cpu" else TILE_BYTES
  block = max(tile_bytes // position_bytes, MIN_BLOCK)
  block = -(-block // cache.page_size) * cache.page_size
  return min(block, cache.capacity)


def _rows(q, kv_heads: int):
  """[b,t,n,c,h] -> [b,k,r,h], r = (c,t,g): the rows that share a V."""
  q = masking_lib.split_heads(q, kv_heads, axis=2)  # b t k g c h
  q = q.transpose(0, 2, 4, 1, 3, 5)
  return q.reshape(*q.shape[:2], -1, q.shape[-1])


def _scores(q, keys, dtype):
  """q [b,k,r,h], keys [b,s,k,(ck h)] -> [b,k,r,s].

  Keys are the left operand: on CPU the right one is copied column by column.
  """
  h = q.shape[3]
  key_maps = keys.shape[3] // h

  def head(i):
    rows = jnp.split(q[:, i], key_maps, axis=1)
    scores = [
        jnp.einsum(
            "bsh,brh->bsr",
            keys[:, :, i, m * h : (m + 1) * h],
            rows[m],
            preferred_element_type=dtype,
        )
        for m in range(key_maps)
    ]
    return jnp.concatenate(scores, axis=2).swapaxes(1, 2)

  return jnp.stack([head(i) for i in range(q.shape[1])], axis=1)


def _online_softmax(carry, scores, v):
  """Maxima, sums [b,k,r] and values [b,k,r,e] after scores [b,k,r,s]."""
  highest, total, acc = carry
  raised = jnp.maximum(highest, scores.max(-1))
  # A row that has seen no key yet has highest = -inf: exp(-inf - 0) = 0.
  shift = jnp.where(raised == -jnp.inf, 0, raised)
  probs = jnp.exp(scores - shift[..., None])
  decay = jnp.exp(highest - shift)
  gathered = _gathered(probs, v, acc.dtype)
  total = decay * total + probs.sum(-1)
  return raised, total, decay[..., None] * acc + gathered


def _gathered(probs, v, dtype):
  """probs [b,k,r,s], v [b,s,k,e] -> [b,k,r,e]."""
  probs = probs.astype(v.dtype)
  gathered = [
      jnp.einsum(
          "brs,bse->bre",
          probs[:, i],
          v[:, :, i],
          preferred_element_type=dtype,
      )
      for i in range(v.shape[2])
  ]
  return jnp.stack(gathered, axis=1)


def _weighted_sum(o, weights, shape):
  """o [b,k,(c t g),e], weights to [b,t,n,c] -> [b,t,n,e]."""
  b, t, n, c, _ = shape
  weights = jnp.broadcast_to(weights, shape[:-1]).astype(o.dtype)
  o = o.reshape(*o.shape[:2], c, t, -1, o.shape[-1])  # b k c t g e
  o = o.transpose(0, 3, 1, 4, 2, 5).reshape(b, t, n, c, -1)
  # Term by term, as in `xla.py`: cheaper than a `sum`.
  return sum(o[..., i, :] * weights[..., i, None] for i in range(c))
