# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The calls that the kernels must get right on a GPU, by name."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from diff_jax.bench import check_gpu

# h, e, maps, maps of the keys
SIZES = check_gpu.SIZES | {"(96,96) one map": (96, 96, 1, 1)}
# Whose kernels differ most: both maps in a warpgroup, and a map in each.
FEATURE_SIZES = ("(64,128)", "(128,256)")
# On a CPU, lengths are divided, and cut.
REHEARSED, LONGEST = 16, 256


def _nothing(b, t, s):
  del b, t, s
  return {}


@dataclasses.dataclass(frozen=True)
class Feature:
  """Shapes and masks of one call."""

  b: int = 2
  t: int = 1000
  s: int | None = None  # None: t.
  n: int = 4
  k: int = 4
  dtype: Literal["bfloat16", "float16"] = "bfloat16"
  causal: bool = True
  window: int | None = None
  arrays: Callable[[int, int, int], dict[str, Any]] = _nothing  # Of b, t, s.
  # Lambda of each row beside a first weight of 1, or two weights of each row.
  weights: Literal["lambda", "rows"] = "lambda"
  how: Literal["plain", "parts", "vmap", "shard_map"] = "plain"
  factor: float = 2.0  # Times the error of unfused attention.


def _segments(b, t, s):
  """Documents, padding before, between and after; none ends with a tile."""
  del s
  borders = np.array([0, 0.03, 0.31, 0.32, 0.7, 0.75, 0.97, 1]) * t
  ids = np.repeat([0, 1, 2, 3, 0, 4, 0], np.diff(borders.astype(int)))
  return {"segment_ids": jnp.asarray(np.tile(ids, (b, 1)), jnp.int32)}


def _chunks(b, t, s):
  """The first and the last but one of eight chunks, as zigzag has them."""
  del b
  chunk = s // 8
  assert t == 2 * chunk
  return {"q_offset": jnp.array([[chunk, 6 * chunk]], jnp.int32)}


def _offsets(b, t, s):
  return {"q_offset": jnp.asarray(np.linspace(s - t, 0, b), jnp.int32)}


def _late_keys(b, t, s):
  del b, s
  return {"kv_offset": jnp.asarray(t // 3, jnp.int32)}


def _last(b, t, s):
  del b
  return {"q_offset": jnp.asarray(s - t, jnp.int32)}


FEATURES = {
    "full": Feature(causal=False),
    "window": Feature(window=300),
    "window, both sides": Feature(window=300, causal=False),
    "segments": Feature(arrays=_segments),
    "query groups": Feature(n=8, k=2),
    "odd length": Feature(t=1001),
    "t < s, full": Feature(t=333, s=1000, causal=False),
    "t > s, full": Feature(t=1000, s=333, causal=False),
    "offset of each sequence": Feature(t=512, s=1024, arrays=_offsets),
    "offset of each chunk": Feature(t=512, s=2048, arrays=_chunks),
    "rows that see nothing": Feature(arrays=_late_keys),
    # A few numbers, where chance does not even out.
    "one query": Feature(t=1, s=1000, arrays=_last, factor=8.0),
    # Its dS is what rounding leaves of dO V^T - rowsum(dO O).
    "one query and key": Feature(t=1, s=1, factor=8.0),
    "fp16": Feature(dtype="float16"),
    "weights of each row": Feature(weights="rows"),
    "parts": Feature(how="parts"),
    "vmap": Feature(how="vmap"),
    "shard_map": Feature(how="shard_map"),
    "16K": Feature(b=1, t=16_384, n=1, k=1),
}
# Every tuned size; more programs than a GPU runs at a time.
CAUSAL = Feature(b=1, t=4096, n=6, k=6)


def find(name: str, rehearse: bool) -> Feature:
  """A feature by name, `causal` or one of FEATURES; small to rehearse."""
  feature = FEATURES.get(name, CAUSAL)
  if not rehearse:
    return feature

  def small(length):
    return length and min(-(-length // REHEARSED), LONGEST)

  n = 2 if feature.n > feature.k else 1
  return dataclasses.replace(
      feature,
      t=small(feature.t),
      s=small(feature.s),
      window=small(feature.window),
      n=n,
      k=1,
  )


def make_inputs(feature: Feature, size: str, seed: int = 0) -> dict[str, Any]:
  """q, k, v, weights [b,t,n,c], cotangents of both outputs, and arrays."""
  h, e, c, key_maps = SIZES[size]
  b, t, n = feature.b, feature.t, feature.n
  s = feature.s or t
  keys = iter(jax.random.split(jax.random.key(seed), 7))

  def normal(*shape, dtype=feature.dtype):
    return jax.random.normal(next(keys), shape, dtype)

  q, k = normal(b, t, n, c, h), normal(b, s, feature.k, key_maps, h)
  v = normal(b, s, feature.k, e)
  weights = jax.random.uniform(next(keys), (b, t, n, c), minval=0.2)
  weights = weights * jnp.where(jnp.arange(c) % 2, -1, 1)
  if feature.weights == "lambda":
    weights = weights.at[..., 0].set(1)
  of_maps = (c,) if feature.how == "parts" else ()
  dout = normal(b, t, n, *of_maps, e, dtype=jnp.float32)
  return dict(
      q=q,
      k=k,
      v=v,
      weights=weights,
      dout=dout.astype(feature.dtype).astype(jnp.float32),
      dlse=normal(b, t, n, c, dtype=jnp.float32),
      arrays=feature.arrays(b, t, s),
  )
