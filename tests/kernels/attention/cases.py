# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Named calls of the attention op, and how far two results may differ."""

import dataclasses
import functools
import types
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from tests.kernels.attention import numpy_attention

LENGTH = 301  # Odd, no block divides it, several blocks of block_sizes.
CHUNK = 43


@dataclasses.dataclass(frozen=True)
class Case:
  """Shapes, optional arrays and keyword arguments of one call."""

  b: int = 1
  t: int = LENGTH
  s: int = LENGTH
  n: int = 2
  k: int = 2
  c: int = 2
  k_maps: int = 2  # Maps of k: c, or 1 where the maps share their keys.
  h: int = 8
  e: int = 16
  weights: tuple[int | None, ...] | None = (2,)  # None: not given.
  bias_slopes: bool = False
  sink: bool = False
  q_factor: float = 1.0  # Multiplies q: 0 for equal logits, 100 for huge ones.
  options: Mapping[str, Any] = types.MappingProxyType({})


def _ids(*lengths_and_ids):
  """[1, t] segment ids from (length, id) pairs."""
  return np.concatenate(
      [np.full((1, length), i, np.int32) for length, i in lengths_and_ids], 1
  )


_PACKED = _ids((100, 1), (1, 2), (150, 3), (50, 4))
_PADDED = np.concatenate(
    [_ids((120, 1), (181, 0)), _ids((7, 0), (200, 1), (90, 2), (4, 0))]
)
_PAIR = (
    _ids((5, 0), (20, 2), (42, 1), (9, 7)),
    _ids((200, 1), (80, 2), (21, 0)),
)


def _offsets(*rows):
  return np.array(rows, np.int32)


CASES = {
    # Maps, heads and widths.
    "one_map": Case(c=1, k_maps=1, e=8, weights=None),
    "two_maps": Case(b=2),
    "three_maps": Case(c=3, k_maps=3, weights=(3,), t=37, s=37),
    "shared_keys": Case(k_maps=1, e=8, weights=(1, LENGTH, 2, 2)),
    "two_groups": Case(n=4, k=2, weights=(4, 1)),
    "four_groups_full": Case(n=4, k=1, options=dict(causal=False)),
    # Lengths, offsets.
    "single_token": Case(t=1, s=1),
    "decode": Case(b=2, t=1, options=dict(q_offset=LENGTH - 1)),
    "decode_per_sequence": Case(
        b=2, t=1, options=dict(q_offset=_offsets(17, 250))
    ),
    "cross": Case(t=37, h=16, e=8, options=dict(causal=False)),
    "continued": Case(t=150, options=dict(q_offset=np.int32(LENGTH - 150))),
    "zigzag": Case(
        t=2 * CHUNK,
        s=8 * CHUNK,
        options=dict(q_offset=_offsets([CHUNK, 6 * CHUNK])),
    ),
    "chunks_per_sequence": Case(
        b=2,
        t=2 * CHUNK,
        s=4 * CHUNK,
        options=dict(
            q_offset=_offsets([CHUNK, 3 * CHUNK], [2 * CHUNK, 0]),
            kv_offset=_offsets(
                [0, CHUNK, 2 * CHUNK, 3 * CHUNK],
                [3 * CHUNK, CHUNK, 0, 2 * CHUNK],
            ),
        ),
    ),
    # Masks.
    "window": Case(options=dict(window=50)),
    "window_of_one": Case(t=37, s=37, options=dict(window=1)),
    "window_two_sided": Case(options=dict(causal=False, window=50)),
    "segments": Case(options=dict(segment_ids=_PACKED)),
    "padding": Case(b=2, options=dict(segment_ids=_PADDED)),
    "segments_pair": Case(t=76, options=dict(segment_ids=_PAIR, causal=False)),
    # Rows without a visible key.
    "late_keys": Case(options=dict(kv_offset=100)),
    "late_keys_sink": Case(sink=True, options=dict(kv_offset=100)),
    "nothing_visible": Case(t=37, options=dict(kv_offset=100)),
    "window_passed": Case(
        t=37, sink=True, options=dict(q_offset=290, window=9)
    ),
    # Score functions.
    "alibi": Case(bias_slopes=True),
    "alibi_full": Case(bias_slopes=True, options=dict(causal=False, window=30)),
    "sink": Case(n=4, k=2, sink=True),
    "scale": Case(t=37, s=37, weights=(), options=dict(scale=0.1)),
    # Numerics.
    "huge_logits": Case(q_factor=100.0),
    "equal_logits": Case(q_factor=0.0),
    "everything": Case(
        b=2,
        t=2 * CHUNK,
        n=4,
        k=2,
        k_maps=1,
        weights=(2, 2 * CHUNK, 4, 2),
        bias_slopes=True,
        sink=True,
        options=dict(
            q_offset=_offsets([CHUNK, 6 * CHUNK], [0, 3 * CHUNK]),
            kv_offset=_offsets(5, 0),
            window=100,
            segment_ids=(
                np.repeat(_ids((50, 1), (30, 2), (6, 0)), 2, axis=0),
                np.repeat(_ids((90, 1), (200, 2), (11, 0)), 2, axis=0),
            ),
            scale=0.5,
        ),
    ),
}


def make_inputs(name, case):
  """Differentiable arguments and output cotangents: two dicts of fp32 arrays.

  Standard normal draws, seeded by the case's name.
  """
  rng = np.random.default_rng(zlib.crc32(name.encode()))

  def normal(*shape):
    return rng.standard_normal(shape).astype(np.float32)

  inputs = dict(
      q=case.q_factor * normal(case.b, case.t, case.n, case.c, case.h),
      k=normal(case.b, case.s, case.k, case.k_maps, case.h),
      v=normal(case.b, case.s, case.k, case.e),
  )
  inputs["q"] = inputs["q"].astype(np.float32)
  if case.weights is not None:
    inputs["weights"] = normal(*case.weights)
  if case.bias_slopes:
    inputs["bias_slopes"] = 0.1 * np.abs(normal(case.n))
  if case.sink:
    inputs["sink"] = normal(case.n, case.c)
  cotangents = dict(
      out=normal(case.b, case.t, case.n, case.e),
      lse=normal(case.b, case.t, case.n, case.c),
  )
  return inputs, cotangents


def relative_tolerance(name, case):
  """Rounding error of the op in fp32, relative to the size of its terms.

  4 x eps x sqrt(t + s + h) x (1 + largest visible |logit|): a result passes
  four roundings (dot product, exponential, division, sum), the sums are over h
  products and t or s terms whose errors add up like a random walk, and an error
  of a logit, eps times its size, is a relative error of its probability.
  """
  inputs, _ = make_inputs(name, case)
  slopes = inputs.get("bias_slopes")
  scores = numpy_attention.logits(
      inputs["q"], inputs["k"], bias_slopes=slopes, **case.options
  )
  largest = np.abs(scores[np.isfinite(scores)]).max(initial=0)
  length = case.t + case.s + case.h
  return 4 * np.finfo(np.float32).eps * length**0.5 * (1 + largest)


@functools.cache
def definition(name):
  """(out, lse, relative tolerance) of one of `CASES`; do not write to them."""
  case = CASES[name]
  inputs, _ = make_inputs(name, case)
  out, lse = numpy_attention.attention(**inputs, **case.options)
  return out, lse, relative_tolerance(name, case)


def relative_error(actual, expected):
  """||actual - expected|| / ||expected||, 0 / 0 = 0, in fp64."""
  actual, expected = (np.asarray(x, np.float64) for x in (actual, expected))
  difference = np.linalg.norm(actual - expected)
  return difference / np.linalg.norm(expected) if difference else 0.0
