# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Positions and segments: which key a query sees, for every implementation."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int


class Masking(NamedTuple):
  """Where queries and keys stand. A leading axis of 1 serves every sequence.

  Segment 0 is padding: it sees nothing and nothing sees it. `None` segments
  mean that every position belongs to one sequence.
  """

  q_positions: Int[Array, "b1 t"]
  kv_positions: Int[Array, "b1 s"]
  q_segments: Int[Array, "b t"] | None
  kv_segments: Int[Array, "b s"] | None


def positions(offset, length: int) -> Int[Array, "b1 length"]:
  """Positions of `length` rows from an offset.

  Args:
    offset: scalar; [b], one for each sequence; or [1 or b, m], one for each of
      m equal chunks of the rows, as zigzag context parallelism needs.
    length: the number of rows; a multiple of m.
  """
  offset = jnp.asarray(offset, jnp.int32)
  if offset.ndim < 2:
    offset = offset.reshape(-1, 1)
  chunks = offset.shape[1]
  steps = jnp.arange(length // chunks, dtype=jnp.int32)
  return (offset[:, :, None] + steps[None, None, :]).reshape(-1, length)


def make_masking(t, s, segment_ids, q_offset, kv_offset) -> Masking:
  """Masking of t queries and s keys from the op's public arguments."""
  if segment_ids is None:
    segment_ids = (None, None)
  elif not isinstance(segment_ids, tuple | list):
    segment_ids = (segment_ids, segment_ids)
  q_segments, kv_segments = segment_ids
  return Masking(
      positions(q_offset, t), positions(kv_offset, s), q_segments, kv_segments
  )


def visible(
    masking: Masking, *, causal: bool, window: int | None
) -> Bool[Array, "b1 t s"] | None:
  """True where query t sees key s; None if every query sees every key."""
  i = masking.q_positions[:, :, None]
  j = masking.kv_positions[:, None, :]
  rules = []
  if causal:
    rules.append(i >= j)
  if window is not None:
    rules.append(jnp.abs(i - j) < window)
  if masking.q_segments is not None:
    q_segments = masking.q_segments[:, :, None]
    kv_segments = masking.kv_segments[:, None, :]
    rules.append((q_segments == kv_segments) & (q_segments != 0))
  mask = None
  for rule in rules:
    mask = rule if mask is None else mask & rule
  return mask


def distances(masking: Masking) -> Int[Array, "b1 t s"]:
  """i - j, the distance that the ALiBi bias multiplies."""
  return masking.q_positions[:, :, None] - masking.kv_positions[:, None, :]


def accumulation_dtype(dtype) -> jnp.dtype:
  """fp32, or fp64 for fp64 inputs: the precision of softmax and of sums."""
  return jnp.promote_types(dtype, jnp.float32)


def split_heads(x: jax.Array, kv_heads: int, axis: int) -> jax.Array:
  """Splits an axis of n heads into (k, g): head n reads kv head n // g."""
  shape = x.shape
  groups = shape[axis] // kv_heads
  return x.reshape(*shape[:axis], kv_heads, groups, *shape[axis + 1 :])
