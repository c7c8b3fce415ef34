# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The definition of the attention op, in fp64 numpy, one row at a time.

Written from the formula and the mask rules alone, for people to read and for
the tests to compare every implementation with:

  out[b,t,n] = sum_c weights[b,t,n,c] *
      softmax_s(scale * q[b,t,n,c] . k[b,s,k(n),c] + bias ; sink[n,c])
      @ v[b,s,k(n)]
"""

import numpy as np


def positions(offset, b, length):
  """Positions [b, length] of an axis's rows.

  Args:
    offset: int or scalar; or [b], one a sequence; or [1 or b, m], one for each
      of the m equal chunks of the axis.
    b: number of sequences.
    length: length of the axis.
  """
  offset = np.asarray(offset)
  if offset.ndim < 2:
    offset = offset.reshape(-1, 1)
  offset = np.broadcast_to(offset, (b, offset.shape[1]))
  chunk = length // offset.shape[1]
  result = np.empty((b, length), np.int64)
  for row, index in np.ndindex(b, length):
    result[row, index] = offset[row, index // chunk] + index % chunk
  return result


def visible(b, t, s, *, causal, window, segment_ids, q_offset, kv_offset):
  """Which keys each query sees, bool [b, t, s], and i - j [b, t, s]."""
  i = positions(q_offset, b, t)
  j = positions(kv_offset, b, s)
  if segment_ids is None:
    q_ids, kv_ids = np.ones((b, t), int), np.ones((b, s), int)
  elif isinstance(segment_ids, tuple):
    q_ids, kv_ids = (np.asarray(ids) for ids in segment_ids)
  else:
    q_ids = kv_ids = np.asarray(segment_ids)
  sees = np.empty((b, t, s), bool)
  distance = np.empty((b, t, s), np.int64)
  for row, query in np.ndindex(b, t):
    away = distance[row, query] = i[row, query] - j[row]
    mask = (q_ids[row, query] == kv_ids[row]) & (q_ids[row, query] != 0)
    if causal:
      mask &= away >= 0
    if window is not None:
      mask &= np.abs(away) < window
    sees[row, query] = mask
  return sees, distance


def logits(
    q,
    k,
    *,
    causal=True,
    window=None,
    segment_ids=None,
    q_offset=0,
    kv_offset=0,
    scale=None,
    bias_slopes=None,
):
  """scale * q.k + bias, [b, t, n, c, s]; -inf where the key is not visible."""
  q, k = (np.asarray(x, np.float64) for x in (q, k))
  b, t, n, c, h = q.shape
  s, k_heads, k_maps = k.shape[1:4]
  scale = h**-0.5 if scale is None else scale
  slopes = np.zeros(n) if bias_slopes is None else np.asarray(bias_slopes)
  sees, distance = visible(
      b,
      t,
      s,
      causal=causal,
      window=window,
      segment_ids=segment_ids,
      q_offset=q_offset,
      kv_offset=kv_offset,
  )
  result = np.empty((b, t, n, c, s))
  for row, query, head, one in np.ndindex(b, t, n, c):
    keys = k[row, :, head // (n // k_heads), one if k_maps > 1 else 0]
    score = scale * (keys @ q[row, query, head, one])
    score -= np.float64(slopes[head]) * distance[row, query]
    result[row, query, head, one] = np.where(sees[row, query], score, -np.inf)
  return result


def parts(q, k, v, *, sink=None, **masks):
  """Each map's own output and log-sum-exp: [b, t, n, c, e], [b, t, n, c]."""
  v = np.asarray(v, np.float64)
  scores = logits(q, k, **masks)
  b, t, n, c, _ = scores.shape
  group = n // v.shape[2]
  out = np.zeros((b, t, n, c, v.shape[3]))
  lse = np.full((b, t, n, c), -np.inf)
  for row, query, head, one in np.ndindex(b, t, n, c):
    score = scores[row, query, head, one]
    top = score.max()
    if top == -np.inf:
      continue  # No visible key: out is 0 and lse is -inf, with a sink too.
    extra = -np.inf if sink is None else np.float64(sink[head, one])
    top = max(top, extra)
    total = np.exp(score - top).sum() + np.exp(extra - top)
    probs = np.exp(score - top) / total
    out[row, query, head, one] = probs @ v[row, :, head // group]
    lse[row, query, head, one] = top + np.log(total)
  return out, lse


def attention(q, k, v, weights=None, *, sink=None, **masks):
  """The op: out [b, t, n, e] and lse [b, t, n, c], both fp64."""
  out, lse = parts(q, k, v, sink=sink, **masks)
  weights = 1.0 if weights is None else np.asarray(weights, np.float64)
  weights = np.broadcast_to(weights, lse.shape)
  return (weights[..., None] * out).sum(axis=3), lse
