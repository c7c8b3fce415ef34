# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a kernel's gradient of a weighted sum of maps needs, as plain XLA.

With E_c = |w_c| P_c and signs s_c of the weights, a backward kernel computes

    dS_c = s_c E_c (dP - delta_c),    delta_c = dw_c - dlse_c / w_c

from `row_stats`, the weights' own gradient dw_c = rowsum(dO O_c) included.
"""

import math

import jax.numpy as jnp

# A weight of 0 has no logarithm; this one changes no fp32 sum.
MIN_WEIGHT = 2.0**-64
LN_2 = math.log(2)


def rows(x):
  """[b,t,n,c] -> [b,n,c,t]: what belongs to a query lies in rows."""
  return jnp.moveaxis(x, 1, 3)


def unrows(x):
  """Undoes `rows`."""
  return jnp.moveaxis(x, 3, 1)


def dot_outputs(dout, out, saved, weights, *, first_weight_is_one: bool):
  """rowsum(dO O_c) of every map, the gradient of its weight.

  Args:
    dout: [b,t,n,e].
    out: [b,t,n,e].
    saved: [b,t,n,e] of each map, without the first if its weight is one.
    weights: [b,n,c,t].
    first_weight_is_one: then O_1 is O less the others: it need not be kept.

  Returns:
    [b,n,c,t], fp32.
  """
  dout = dout.astype(jnp.float32)

  def dot_rows(o):
    return jnp.moveaxis((dout * o.astype(jnp.float32)).sum(-1), 1, 2)

  found = [dot_rows(o) for o in saved]
  if first_weight_is_one:
    others = [weights[:, :, c + 1] * row for c, row in enumerate(found)]
    found = [dot_rows(out) - sum(others), *found]
  return jnp.stack(found, axis=2)


def row_stats(weights, lse, dweights, dlse):
  """What a backward kernel knows of each query, and the sign of w_1.

  |w_c| P_c = exp(score - (lse_c - log |w_c|)).

  Args:
    weights, lse, dweights, dlse: [b,n,c,t], fp32, lse in nats.

  Returns:
    stats: [b,n,3c,t]: in rows c lse_c - log |w_c| in units of log 2, then
      s_1 delta_c, then s_1 s_c.
    sign: s_1 [b,n,t], which multiplies dO.
  """
  size = jnp.maximum(jnp.abs(weights), MIN_WEIGHT)
  sign = jnp.where(weights < 0, -1.0, 1.0)
  first = sign[:, :, :1]
  # A row that sees no key has no gradient: exp(score - inf) = 0.
  lse = jnp.where(lse == -jnp.inf, jnp.inf, lse)
  stats = (
      lse / LN_2 - jnp.log2(size),
      first * (dweights - dlse / (sign * size)),
      first * sign,
  )
  return jnp.concatenate(stats, axis=2), first[:, :, 0]


def parts_by_heads(one_map, q, k, v):
  """`api.parts` by a kernel for heads of one map each.

  Their outputs have gradients of their own: nothing is shared but K and V.

  Args:
    one_map: (q, k, v, weights of 1) -> (o [b,t,n,e], lse [b,t,n,1]).
    q, k, v: of several maps.

  Returns:
    o [b,t,n,c,e] and lse [b,t,n,c].
  """
  kv_heads, maps = k.shape[2], q.shape[3]
  q, k, v = _maps_to_heads(q, k, v)
  o, lse = one_map(q, k, v, jnp.ones_like(q[..., 0], jnp.float32))
  o, lse = (_heads_to_maps(x, kv_heads, maps) for x in (o, lse))
  return o, lse[..., 0]


def _maps_to_heads(q, k, v):
  """Every map as a head of its own, (k, c, g) of them, with its own gradients.

  Args:
    q: [b,t,n,c,h].
    k: [b,s,k,ck,h].
    v: [b,s,k,e].

  Returns:
    q [b,t,n*c,1,h], k [b,s,k*c,1,h] and v [b,s,k*c,e].
  """
  b, t, n, c, h = q.shape
  kv_heads = k.shape[2]
  q = jnp.moveaxis(q.reshape(b, t, kv_heads, n // kv_heads, c, h), 4, 3)
  k = jnp.broadcast_to(k, (*k.shape[:3], c, h))
  return (
      q.reshape(b, t, n * c, 1, h),
      k.reshape(*k.shape[:2], kv_heads * c, 1, h),
      jnp.repeat(v, c, axis=2),
  )


def _heads_to_maps(x, kv_heads: int, maps: int):
  """[b,t,n*c,w] of `_maps_to_heads` -> [b,t,n,c,w]."""
  b, t, heads, width = x.shape
  x = x.reshape(b, t, kv_heads, maps, heads // (kv_heads * maps), width)
  return jnp.moveaxis(x, 3, 4).reshape(b, t, heads // maps, maps, width)
