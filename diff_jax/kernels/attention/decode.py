# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention of new tokens over a cache of keys and values.

One row of the cache holds all that a position has of one kv head, K1|K2|V, so
that decoding is one stream through memory, read once for all maps: as many
bytes a token as the Transformer of the same size reads. Calls of an ordinary
attention library, one for each map, would read V twice.
"""

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from diff_jax.kernels.attention import api, decode_xla
from diff_jax.kernels.attention.checks import check_masks, check_weights
from diff_jax.kernels.attention.decode_xla import Cache

# More queries are a chunk of a prompt, whose time is that of arithmetic.
MAX_TOKENS = 16


def decode(
    q: Float[Array, "b t n c h"],
    new_kv: Float[Array, "b t k r"] | None,
    cache: Float[Array, "b s k r"] | Float[Array, "p page_size k r"],
    weights: api.Weights = None,
    *,
    lengths: Int[Array, " b"],
    value_dim: int,
    window: int | None = None,
    page_table: Int[Array, "b i"] | None = None,
    scale: float | None = None,
    implementation: api.Implementation | None = None,
) -> tuple[Float[Array, "b t n e"], Float[Array, "..."]]:
  """Appends t tokens to a cache and attends to all that it holds of them.

  What `api.attention` gives for the last t queries of the whole sequences:

      cache = jnp.zeros((b, capacity, k, r), dtype)
      out, cache = decode(q, new_kv, cache, weights, lengths=lengths, ...)
      lengths = lengths + t

  Jit it with the cache donated, else every call copies the cache. Up to 16
  tokens the cache is read once; more are handed to `api.attention`. Gradients
  are not tested.

  Args:
    q: queries of the new tokens, c maps for each head.
    new_kv: their rows, r = (keys, value_dim) wide: c * h keys if the maps have
      their own (K1|K2|V), h if they share them (K|V). None: the cache holds
      them already.
    cache: rows of all positions, every number finite; or, with `page_table`,
      pages of all sequences, where what was never written may be anything.
    weights: of the maps, as for `api.attention`.
    lengths: tokens that the cache holds of each sequence before this call.
      Token i goes to position lengths + i; beyond the capacity it is dropped
      and its output means nothing, since a traced length cannot raise. With
      `new_kv=None` the queries are the last t of these tokens; one before the
      first sees nothing and its output is 0.
    value_dim: e, the width of V in a row.
    window: a query sees itself and the window - 1 tokens before; None: all.
    page_table: pages of each sequence in order, page_size positions each.
      Entries past the last position may be anything. No page that is written
      may belong to two sequences.
    scale: multiplies q . k; None means h ** -0.5.
    implementation: None or `xla` is the one pass up to 16 tokens. Another name
      hands any number of tokens to that implementation of `api.attention`.

  Returns:
    out [b,t,n,e] in q's dtype, and the cache.

  Raises:
    ValueError: for a shape, dtype, value or sharding that does not fit.
  """
  key_maps = _check_rows(q, new_kv, cache, value_dim)
  lengths, page_table = _check_places(q, new_kv, cache, lengths, page_table)
  _check_options(q, cache, window, scale, key_maps, value_dim)
  layout = _layout(q, cache, page_table)
  first = lengths - (q.shape[1] if new_kv is None else 0)
  if q.shape[1] > MAX_TOKENS or implementation not in (None, "xla"):
    k, v, cache = _on_mesh(
        layout,
        functools.partial(_appended_keys, key_maps, value_dim, q.shape[1]),
        (new_kv, cache, first, page_table),
        ("b.k.", layout.cache, "b", ".."),
        ("b.k..", "b.k.", layout.cache),
    )
    out = api.attention(
        q,
        k,
        v,
        weights,
        window=window,
        q_offset=first,
        scale=scale,
        implementation=implementation,
    )
    return out, cache
  weights, _ = check_weights(weights, q)
  b, _, n, _ = weights.shape  # 1 where they are broadcast
  of_weights = f"{'b' if b > 1 else '.'}.{'n' if n > 1 else '.'}."
  options = dict(value_dim=value_dim, window=window, scale=scale)
  return _on_mesh(
      layout,
      functools.partial(_one_pass, options),
      (new_kv, cache, first, page_table, q, weights),
      ("b.k.", layout.cache, "b", "..", "b.n..", of_weights),
      ("b.n.", layout.cache),
  )


# On one device.


def _one_pass(options, new_kv, rows, first, page_table, q, weights):
  cache = Cache(rows, page_table)
  out = decode_xla.attend(q, new_kv, cache, weights, first, **options)
  if new_kv is not None:
    # Else XLA might write first, and copy the cache for the reading.
    out, new_kv = jax.lax.optimization_barrier((out, new_kv))
    rows = decode_xla.append(new_kv, cache, first)
  return out, rows


def _appended_keys(key_maps, value_dim, t, new_kv, rows, first, page_table):
  """k [b,s,k,ck,h] and v [b,s,k,e] of the whole capacity, and the cache."""
  cache = Cache(rows, page_table)
  if new_kv is not None:
    cache = cache._replace(rows=decode_xla.append(new_kv, cache, first))
  rows = cache.read(0, cache.capacity, first + t)
  k, v = rows[..., :-value_dim], rows[..., -value_dim:]
  return k.reshape(*k.shape[:3], key_maps, -1), v, cache.rows


# On a mesh.


class _Layout(NamedTuple):
  """The mesh axes of sequences and heads; None: XLA partitions, or no mesh."""

  batch: str | tuple[str, ...] | None
  heads: str | tuple[str, ...] | None
  cache: str  # letters of the cache's axes
  is_explicit: bool

  def spec(self, letters: str) -> P:
    """`b.k.`: batch on axis 0, heads (n, k) on axis 2."""
    axes = {"b": self.batch, "n": self.heads, "k": self.heads}
    return P(*(axes.get(letter) for letter in letters))


def _layout(q, cache, page_table) -> _Layout:
  """Where q lies on an explicit mesh, which the cache must share."""
  letters = "b.k." if page_table is None else "..k."
  mesh = jax.sharding.get_abstract_mesh()
  if AxisType.Explicit not in mesh.axis_types:
    return _Layout(None, None, letters, is_explicit=False)

  def used(axes):
    """Names of the axes that split something."""
    axes = (axes,) if isinstance(axes, str) else axes or ()
    return tuple(axis for axis in axes if mesh.shape[axis] > 1)

  spec = jax.typeof(q).sharding.spec
  batch, length, heads = (*spec, None, None, None)[:3]
  if used(length):
    raise ValueError(
        f"q is sharded as {spec}: its length (axis 1) must not be sharded."
    )
  if page_table is not None and used(batch):
    raise ValueError(
        f"q is sharded as {spec}: with page_table its batch (axis 0) must not"
        " be sharded; call decode in a jax.shard_map in which every device has"
        " pages of its own."
    )
  layout = _Layout(batch, heads, letters, is_explicit=True)
  kv_heads = cache.shape[2]
  shards = math.prod(mesh.shape[axis] for axis in used(heads))
  if kv_heads % shards:
    raise ValueError(
        f"cache.shape={cache.shape} has {kv_heads} kv heads, which must be a"
        f" multiple of the {shards} devices that q's heads are sharded over."
    )
  actual, expected = jax.typeof(cache).sharding.spec, layout.spec(letters)
  if [*map(used, (*actual, *[None] * 4)[:4])] != [*map(used, expected)]:
    raise ValueError(
        f"cache is sharded as {actual}, which must be {expected}, as q is: it"
        " is too large to be moved at every call."
    )
  return layout


def _on_mesh(layout, local, arguments, letters, out_letters):
  """Calls `local` on each device's sequences and heads."""
  if not layout.is_explicit:
    return local(*arguments)
  in_specs = tuple(map(layout.spec, letters))
  arguments = tuple(
      None if x is None else jax.reshard(x, spec)
      for x, spec in zip(arguments, in_specs, strict=True)
  )
  out_specs = tuple(map(layout.spec, out_letters))
  return jax.shard_map(local, in_specs=in_specs, out_specs=out_specs)(
      *arguments
  )


# Checks, at trace time.


def _check_rows(q, new_kv, cache, value_dim) -> int:
  """The maps of the keys, 1 if they are shared."""
  for name, x, axes in (
      ("q", q, "btnch"),
      ("new_kv", new_kv, "btkr"),
      ("cache", cache, "bskr"),
  ):
    if x is not None and x.ndim != len(axes):
      raise ValueError(
          f"{name}.shape={x.shape} must have {len(axes)} axes"
          f" [{', '.join(axes)}]."
      )
    if x is not None and x.dtype != q.dtype:
      raise ValueError(f"{name}.dtype={x.dtype} must be q's, {q.dtype}.")
  b, t, n, c, h = q.shape
  kv_heads, row = cache.shape[2:]
  if type(value_dim) is not int or not 0 < value_dim < row:
    raise ValueError(
        f"{value_dim=} must be an int between 1 and {row - 1}: a row of"
        f" cache.shape={cache.shape} holds keys too."
    )
  if row - value_dim not in (h, c * h):
    raise ValueError(
        f"cache.shape={cache.shape} has rows {row} wide: {row - value_dim}"
        f" beside {value_dim=}, which must be {c * h} for keys of each of q's"
        f" {c} maps or {h} for keys that they share."
    )
  if new_kv is not None and new_kv.shape != (b, t, kv_heads, row):
    raise ValueError(
        f"new_kv.shape={new_kv.shape} must be {(b, t, kv_heads, row)}, as"
        f" q.shape={q.shape} and cache.shape={cache.shape}."
    )
  if n % kv_heads:
    raise ValueError(
        f"cache.shape={cache.shape} has {kv_heads} kv heads, which must divide"
        f" q's {n} heads."
    )
  return (row - value_dim) // h


def _check_places(q, new_kv, cache, lengths, page_table):
  """lengths and page_table as int32 arrays."""
  b, t = q.shape[:2]
  lengths = jnp.asarray(lengths)
  if lengths.shape != (b,) or not jnp.issubdtype(lengths.dtype, jnp.integer):
    raise ValueError(
        f"lengths of shape {lengths.shape} and dtype {lengths.dtype} must be"
        f" integers of shape {(b,)}."
    )
  if page_table is None:
    if cache.shape[0] != b:
      raise ValueError(
          f"cache.shape={cache.shape} must begin with q's batch {b}, or"
          " page_table must say which pages a sequence has."
      )
  else:
    page_table = jnp.asarray(page_table)
    if page_table.ndim != 2 or page_table.shape[0] != b:
      raise ValueError(
          f"page_table.shape={page_table.shape} must be ({b}, pages of a"
          " sequence)."
      )
    if not jnp.issubdtype(page_table.dtype, jnp.integer):
      raise ValueError(
          f"page_table.dtype={page_table.dtype} must be an integer."
      )
    page_table = page_table.astype(jnp.int32)
  capacity = Cache(cache, page_table).capacity
  if t > capacity:
    raise ValueError(
        f"q.shape={q.shape} has {t} tokens, which must fit in the"
        f" {capacity} positions of cache.shape={cache.shape}."
    )
  return lengths.astype(jnp.int32), page_table


def _check_options(q, cache, window, scale, key_maps, value_dim):
  """As the op would check them."""
  b, kv_heads, h = q.shape[0], cache.shape[2], q.shape[4]
  k = jax.ShapeDtypeStruct((b, 1, kv_heads, key_maps, h), q.dtype)
  v = jax.ShapeDtypeStruct((b, 1, kv_heads, value_dim), q.dtype)
  check_masks(q, k, v, True, window, None, 0, 0, scale, None, None)
