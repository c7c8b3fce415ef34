# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Named calls of `decode`, and what they must give by the definition."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from diff_jax.kernels.attention.decode import decode
from tests.kernels.attention import cases, numpy_attention

CAPACITY, PAGE_SIZE = 88, 8


def case(t, **shapes):
  """Sequences that hold nothing, something, and all but t positions."""
  lengths = np.array([0, (CAPACITY - t) // 2, CAPACITY - t], np.int32)
  options = dict(q_offset=lengths) | shapes.pop("options", {})
  return cases.Case(b=3, t=t, s=CAPACITY, options=options, **shapes)


CASES = {
    "1": case(1),
    "1_three_maps": case(1, c=3, k_maps=3, weights=(3,), h=4),
    "3_grouped_window": case(3, n=4, k=2, options=dict(window=9)),
    "3_one_map": case(
        3, c=1, k_maps=1, e=8, weights=None, options=dict(scale=0.1)
    ),
    "16_shared_keys": case(16, n=4, k=1, k_maps=1, e=8, weights=(3, 16, 4, 2)),
    "17_window": case(17, n=4, k=2, weights=(4, 1), options=dict(window=20)),
    "64_shared_keys": case(64, n=4, k=2, k_maps=1, e=8),
}


def pack(k, v):
  """Rows [b,s,k,r] = K1|K2|V."""
  return np.concatenate([k.reshape(*k.shape[:3], -1), v], axis=-1)


def paged(rows, lengths):
  """The first `lengths` rows of each sequence in pages, and their table.

  All else is NaN, all other entries of the table are out of range.
  """
  b, s, *row = rows.shape
  count = s // PAGE_SIZE
  table = np.random.default_rng(0).permutation(2 * b * count)[: b * count]
  table = table.reshape(b, count).astype(np.int32)
  pages = np.full((2 * b * count, PAGE_SIZE, *row), np.nan, rows.dtype)
  for i, length in enumerate(lengths):
    for position in range(length):
      page, slot = divmod(position, PAGE_SIZE)
      pages[table[i, page], slot] = rows[i, position]
  return pages, table


def arguments(name, layout, dtype=np.float32, new=True):
  """Arguments of `decode` for a case; without `new`, the cache has them."""
  x = CASES[name]
  inputs, _ = cases.make_inputs(name, x)
  rows = pack(inputs["k"], inputs["v"])
  lengths = x.options["q_offset"]
  after = lengths + x.t
  new_kv = np.stack(
      [r[i : i + x.t] for r, i in zip(rows, lengths, strict=True)]
  )
  written = np.arange(x.s) < (lengths if new else after)[:, None]
  result = dict(q=inputs["q"], new_kv=new_kv if new else None)
  if layout == "dense":
    garbage = np.float32(1e30)
    result["cache"] = np.where(written[:, :, None, None], rows, garbage)
  else:
    result["cache"], table = paged(rows, lengths if new else after)
    first_unused = -(-after // PAGE_SIZE)
    unused = np.arange(table.shape[1]) >= first_unused[:, None]
    wild = np.where(np.arange(table.size) % 2, 10**9, -7).reshape(table.shape)
    result["page_table"] = np.where(unused, wild, table).astype(np.int32)
  result = {
      key: x if key == "page_table" or x is None else jnp.asarray(x, dtype)
      for key, x in result.items()
  }
  result["lengths"] = lengths if new else after
  return result | dict(weights=inputs.get("weights"))


def options(name):
  x = CASES[name]
  static = {k: v for k, v in x.options.items() if k != "q_offset"}
  return dict(value_dim=x.e) | static


@functools.cache
def definition(name):
  inputs, _ = cases.make_inputs(name, CASES[name])
  out, _ = numpy_attention.attention(**inputs, **CASES[name].options)
  weights = np.abs(inputs.get("weights", np.ones(1))).sum(-1).max()
  tolerance = cases.relative_tolerance(name, CASES[name])
  return out, tolerance * weights * np.abs(inputs["v"]).max()


def run(name, given, **more):
  function = functools.partial(decode, **options(name), **more)
  return jax.jit(function)(**given)


def check(name, given, **more):
  """Compares with the definition; returns the cache."""
  expected, tolerance = definition(name)
  out, cache = run(name, given, **more)
  np.testing.assert_allclose(out, expected, rtol=0, atol=tolerance)
  return np.asarray(cache)


def rows_of(cache, given):
  """The rows [b,s,k,r] of a dense or paged cache."""
  table = given.get("page_table")
  if table is None:
    return cache
  pages = cache[np.clip(table, 0, cache.shape[0] - 1)]
  return pages.reshape(table.shape[0], -1, *cache.shape[2:])


def assert_written(cache, given):
  """The new rows are where they belong, and nothing else has changed."""
  cache, before = np.asarray(cache), np.asarray(given["cache"])
  t = given["new_kv"].shape[1]
  assert differs(cache, before).sum() == t * len(given["lengths"])
  actual = rows_of(cache, given)
  for i, length in enumerate(given["lengths"]):
    np.testing.assert_array_equal(
        actual[i, length : length + t], given["new_kv"][i]
    )


def differs(cache, before):
  """Which positions of a cache are not what they were, NaN being NaN."""
  same = (cache == before) | (np.isnan(cache) & np.isnan(before))
  return ~same.all((-2, -1))
