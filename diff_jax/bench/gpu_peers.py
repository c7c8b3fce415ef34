# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What is timed side by side: our kernels, and libraries' in their best use.

Every candidate of a group computes the same from the same numbers:

  DIFF         out = (softmax(q1 k1) - lambda softmax(q2 k2)) v
  Transformer  the ordinary heads that DIFF replaces: two of width (h, h) for a
               pair with e = 2h; one for a pair that shares its keys
  wide         heads of width (2h, 2h), which only serve to tell a rate
"""

import dataclasses
import functools
import importlib.util
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp

from diff_jax.bench.gpu_features import SIZES
from diff_jax.kernels.attention import api

OURS = "mosaic_gpu"


@dataclasses.dataclass(frozen=True)
class Candidate:
  """One way to compute a group's result: op(q, k, v, weights) -> out."""

  group: Literal["DIFF", "Transformer", "wide"]
  name: str
  op: Callable[..., jax.Array]
  kernel_size: str = ""  # Of ours: the name in SIZES of what must be correct.


def candidates(size: str, rehearse: bool) -> list[Candidate]:
  """In a group the first is what the others must agree with."""
  h, e, maps, _ = SIZES[size]
  assert maps == 2
  library = functools.partial(_cudnn, rehearse)
  found = [
      Candidate("DIFF", "xla", _ours("xla")),
      Candidate("DIFF", OURS, _ours(OURS), size),
      Candidate("DIFF", "cuDNN, values split", _two(library, "split")),
      Candidate("Transformer", "cuDNN", _one(library)),
      Candidate("Transformer", OURS, _ours(OURS), f"({h},{h}) one map"),
  ]
  if e > h:
    found += [
        Candidate("DIFF", "cuDNN, keys padded", _two(library, "pad")),
        Candidate("wide", "cuDNN", _one(library)),
    ]
  if importlib.util.find_spec("tokamax"):
    found += [
        Candidate("DIFF", "tokamax, two calls", _two(_tokamax, "wide")),
        Candidate("Transformer", "tokamax", _one(_tokamax)),
    ]
  return found


def make_inputs(
    size: str, group: str, b: int, t: int, n: int, seed: int
) -> tuple[jax.Array, ...]:
  """q [b,t,n,c,h], k [b,t,n,ck,h], v [b,t,n,e], weights [b,t,n,c], dO.

  The groups have the same numbers in other shapes; n are pairs of maps.
  """
  h, e, c, key_maps = SIZES[size]
  keys = jax.random.split(jax.random.key(seed), 5)
  q = jax.random.normal(keys[0], (b, t, n, c, h), jnp.bfloat16)
  k = jax.random.normal(keys[1], (b, t, n, key_maps, h), jnp.bfloat16)
  v, dout = (
      jax.random.normal(key, (b, t, n, e), jnp.bfloat16) for key in keys[2:4]
  )
  lam = jax.random.uniform(keys[4], (b, t, n), minval=0.2, maxval=0.8)
  weights = jnp.stack([jnp.ones_like(lam), -lam], axis=-1)
  if group == "DIFF":
    return q, k, v, weights, dout
  if group == "Transformer" and key_maps == 1:
    q = q[:, :, :, :1]
  if group == "Transformer":
    q, k = (x.reshape(b, t, -1, 1, h) for x in (q, k))
    v, dout = (x.reshape(b, t, -1, h) for x in (v, dout))
  else:
    q, k = (x.reshape(b, t, n, 1, 2 * h) for x in (q, k))
  return q, k, v, jnp.ones(q.shape[:-1]), dout


def flops_per_pair(size: str, group: str) -> tuple[float, float]:
  """(forward, backward) useful FLOPs of a pair of maps for a visible pair."""
  h, e, c, key_maps = SIZES[size]
  if group == "DIFF":
    return 2.0 * c * (h + e), 6.0 * c * h + 4 * e
  heads, width = (1, 2 * h) if group == "wide" else (3 - 2 // key_maps, h)
  return heads * 4.0 * width, heads * 10.0 * width


# The ops.


def _ours(name: str):
  def op(q, k, v, weights):
    if weights.shape[-1] == 2:
      weights = (1, weights[..., 1])
    else:
      weights = None
    return api.attention(q, k, v, weights, implementation=name)

  return op


def _one(call):
  """A library's call for heads of one map."""

  def op(q, k, v, weights):
    del weights
    return call(q[:, :, :, 0], k[:, :, :, 0], v, scale=q.shape[-1] ** -0.5)

  return op


def _two(call, values: Literal["split", "pad", "wide"]):
  """A call for each map.

  Args:
    call: of one map.
    values: where a library wants values as wide as the keys, `split` makes
      calls for each slice of the values and `pad` fills up the keys with
      zeros; `wide`: the library takes them.
  """

  def one_map(q, k, v):
    h, e = q.shape[-1], v.shape[-1]
    of_map = functools.partial(call, scale=h**-0.5)
    if values == "split" and e > h:
      slices = jnp.split(v, e // h, axis=-1)
      return jnp.concatenate([of_map(q, k, x) for x in slices], axis=-1)
    if values == "pad":
      q, k = (jnp.pad(x, ((0, 0),) * 3 + ((0, e - h),)) for x in (q, k))
    return of_map(q, k, v)

  def op(q, k, v, weights):
    first, second = (
        one_map(q[:, :, :, c], k[:, :, :, min(c, k.shape[3] - 1)], v)
        for c in range(2)
    )
    second = weights[..., 1, None] * second.astype(jnp.float32)
    return (first.astype(jnp.float32) + second).astype(q.dtype)

  return op


def _cudnn(rehearse: bool, q, k, v, *, scale: float):
  return jax.nn.dot_product_attention(
      q, k, v, scale=scale, is_causal=True,
      implementation="xla" if rehearse else "cudnn",
  )  # fmt: skip


def _tokamax(q, k, v, *, scale: float) -> Any:
  import tokamax

  return tokamax.dot_product_attention(
      q, k, v, scale=scale, is_causal=True, implementation="mosaic"
  )
