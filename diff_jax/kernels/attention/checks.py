# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Checks of the op's arguments, at trace time.

Every message names the argument, its value and what it must be.
"""

import jax.numpy as jnp

DTYPES = ("bfloat16", "float16", "float32", "float64")


def check_masks(
    q, k, v, causal, window, segment_ids, q_offset, kv_offset, scale,
    bias_slopes, sink,
):  # fmt: skip
  """Checks everything but the weights; returns the masking keywords."""
  _check_arrays(q, k, v)
  (b, t, n, c, _), s = q.shape, k.shape[1]
  if not isinstance(causal, bool):
    raise ValueError(f"{causal=} must be True or False.")
  if window is not None and (type(window) is not int or window < 1):
    raise ValueError(f"{window=} must be None or an int of at least 1 token.")
  if scale is not None and not isinstance(scale, int | float):
    raise ValueError(
        f"{scale=} must be None or a Python number; multiply q by a scale that"
        " is an array."
    )
  segment_ids = _check_segments(segment_ids, b, t, s)
  for name, x, shape in (
      ("bias_slopes", bias_slopes, (n,)),
      ("sink", sink, (n, c)),
  ):
    if x is not None and jnp.shape(x) != shape:
      raise ValueError(f"{name}.shape={jnp.shape(x)} must be {shape}.")
  return dict(
      causal=causal,
      window=window,
      segment_ids=segment_ids,
      q_offset=_check_offset("q_offset", q_offset, b, t),
      kv_offset=_check_offset("kv_offset", kv_offset, b, s),
      scale=scale,
      bias_slopes=None if bias_slopes is None else jnp.asarray(bias_slopes),
      sink=None if sink is None else jnp.asarray(sink),
  )


def _check_arrays(q, k, v):
  for name, x, axes in (("q", q, "btnch"), ("k", k, "bskch"), ("v", v, "bske")):
    if x.ndim != len(axes):
      raise ValueError(
          f"{name}.shape={x.shape} must have {len(axes)} axes"
          f" [{', '.join(axes)}]."
      )
    if x.dtype.name not in DTYPES:
      raise ValueError(f"{name}.dtype={x.dtype} must be one of {DTYPES}.")
    if x.dtype != q.dtype:
      raise ValueError(f"{name}.dtype={x.dtype} must be q's, {q.dtype}.")
    if 0 in x.shape:
      raise ValueError(f"{name}.shape={x.shape} must not have an empty axis.")
  b, _, n, c, h = q.shape
  _, s, kv_heads, ck, _ = k.shape
  if ck not in (1, c):
    raise ValueError(
        f"k.shape={k.shape} must have 1 or {c} maps on axis 3, as q has {c}."
    )
  if k.shape != (b, s, kv_heads, ck, h):
    raise ValueError(
        f"k.shape={k.shape} must have q's batch {b} and key width {h}:"
        f" q.shape={q.shape}."
    )
  if v.shape[:3] != (b, s, kv_heads):
    raise ValueError(
        f"v.shape={v.shape} must begin with {(b, s, kv_heads)}, as"
        f" k.shape={k.shape}."
    )
  if n % kv_heads:
    raise ValueError(
        f"k.shape={k.shape} has {kv_heads} kv heads, which must divide q's"
        f" {n} heads."
    )


def _check_segments(segment_ids, b, t, s):
  if segment_ids is None:
    return None
  if not isinstance(segment_ids, tuple | list):
    segment_ids = (segment_ids, segment_ids)
  if len(segment_ids) != 2:
    raise ValueError(
        f"segment_ids={segment_ids} must be one array or a pair of arrays."
    )
  q_segments, kv_segments = map(jnp.asarray, segment_ids)
  if q_segments.shape != (b, t) or kv_segments.shape != (b, s):
    raise ValueError(
        f"segment_ids of shapes {q_segments.shape} for queries and"
        f" {kv_segments.shape} for keys must be {(b, t)} and {(b, s)}; one"
        " array serves both only if t == s."
    )
  for x in (q_segments, kv_segments):
    if not jnp.issubdtype(x.dtype, jnp.integer):
      raise ValueError(f"segment_ids.dtype={x.dtype} must be an integer.")
  return q_segments, kv_segments


def _check_offset(name, offset, b, length):
  """An array; a Python number stays one, known at trace time."""
  if type(offset) is int:
    return offset
  offset = jnp.asarray(offset)
  if not jnp.issubdtype(offset.dtype, jnp.integer):
    raise ValueError(f"{name}.dtype={offset.dtype} must be an integer.")
  fits = (
      offset.ndim == 0
      or offset.shape == (b,)
      or (
          offset.ndim == 2
          and offset.shape[0] in (1, b)
          and offset.shape[1] > 0
          and length % offset.shape[1] == 0
      )
  )
  if not fits:
    raise ValueError(
        f"{name}.shape={offset.shape} must be (), ({b},) for one offset a"
        f" sequence, or (1, m) or ({b}, m) for m equal chunks, m a divisor of"
        f" the length {length}."
    )
  return offset


def check_weights(weights, q):
  """Weights with four axes, each of q's size or 1; is the first map's 1?"""
  if isinstance(weights, tuple | list):
    weights, first_is_one = _check_each_weight(weights, q)
  else:
    first_is_one = weights is None
    weights = _real("weights", 1.0 if weights is None else weights)
  _check_broadcasts("weights", weights, q.shape[:4], "[b, t, n, c]")
  weights = weights.reshape((1,) * (4 - weights.ndim) + weights.shape)
  return weights, first_is_one


def _check_each_weight(weights, q):
  """One array [...,c] of one weight a map."""
  if len(weights) != q.shape[3]:
    raise ValueError(
        f"weights has {len(weights)} entries, which must be one for each of"
        f" the {q.shape[3]} maps of q.shape={q.shape}."
    )
  entries = []
  for i, weight in enumerate(weights):
    entries.append(_real(f"weights[{i}]", weight))
    _check_broadcasts(f"weights[{i}]", entries[i], q.shape[:3], "[b, t, n]")
  first_is_one = isinstance(weights[0], int | float) and weights[0] == 1
  return jnp.stack(jnp.broadcast_arrays(*entries), axis=-1), first_is_one


def check_lambda(q, lam):
  """Lambda as an array that broadcasts to [b,t,n], for q with two maps."""
  if q.ndim != 5 or q.shape[3] != 2:
    raise ValueError(
        f"q.shape={q.shape} must be [b, t, n, 2, h]: a differential head has"
        " two maps."
    )
  lam = _real("lam", lam)
  _check_broadcasts("lam", lam, q.shape[:3], "[b, t, n]")
  return lam


def _real(name, x):
  """An array of a floating dtype; integers become fp32."""
  x = jnp.asarray(x)
  if jnp.issubdtype(x.dtype, jnp.integer):
    x = x.astype(jnp.float32)
  if x.dtype.name not in DTYPES:
    raise ValueError(f"{name}.dtype={x.dtype} must be one of {DTYPES}.")
  return x


def _check_broadcasts(name, x, full, axes):
  shape = (1,) * (len(full) - x.ndim) + x.shape
  if len(shape) != len(full) or any(
      size not in (1, most) for size, most in zip(shape, full, strict=True)
  ):
    raise ValueError(
        f"{name}.shape={x.shape} must broadcast to {axes} = {full}."
    )
