# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Held-out documents on random lengths, and mixtures as they are written."""

import numpy as np
import pytest

from diff_jax.config import ConfigError
from diff_jax.data import splits
from diff_jax.data.packing import Spans


def spans_of(lengths):
  ends = np.cumsum(lengths)
  return Spans(ends - lengths, np.asarray(lengths))


def documents(spans):
  return list(zip(spans.starts.tolist(), spans.lengths.tolist(), strict=True))


def split(lengths, share):
  spans = spans_of(lengths)
  train, held_out = splits.hold_out(spans, share, "corpus")
  again = splits.hold_out(spans, share, "corpus")
  assert documents(again[1]) == documents(held_out)
  both = documents(train) + documents(held_out)
  assert sorted(both) == documents(spans)
  assert documents(train) == sorted(documents(train))
  assert documents(train) and documents(held_out)
  return int(held_out.lengths.sum())


def test_whole_documents_are_held_out():
  rng = np.random.default_rng(0)
  for _ in range(200):
    lengths = rng.integers(1, 1 + rng.integers(1, 1000), rng.integers(2, 40))
    split(lengths, rng.uniform(0.01, 0.99))


def test_the_eval_split_has_about_its_share():
  rng = np.random.default_rng(1)
  for _ in range(50):
    lengths = np.ceil(rng.lognormal(5, 1.5, 1000)).astype(int)
    share = rng.uniform(0.05, 0.5)
    held_out = split(lengths, share)
    # Nearest to the target: half a document off at most.
    assert abs(held_out - share * lengths.sum()) <= lengths.max() / 2 + 1


def test_a_large_corpus_holds_out_a_bounded_part(monkeypatch):
  monkeypatch.setattr(splits, "MAX_EVAL_TOKENS", 500)
  assert split(np.full(10_000, 10), 0.1) == 500


def test_a_giant_among_documents_is_not_held_out():
  assert split([1000, 5, 900, 7], 0.1) == 12
  assert split([500, 400, 600], 0.1) == 400
  assert split([3, 3], 0.9) == 3


def test_documents_are_chosen_without_regard_to_their_place():
  lengths = np.full(20_000, 4)
  _, held_out = splits.hold_out(spans_of(lengths), 0.1, "corpus")
  place = held_out.starts / lengths.sum()
  # Four standard errors of the mean, and of a mean of signs, of 2000 places.
  assert abs(place.mean() - 0.5) < 4 * (12 * 2000) ** -0.5
  odd = held_out.starts // 4 % 2
  assert abs(odd.mean() - 0.5) < 4 * (4 * 2000) ** -0.5


def test_one_document_is_cut_in_two():
  rng = np.random.default_rng(2)
  for _ in range(50):
    length, share = int(rng.integers(3, 300)), rng.uniform(0.01, 0.99)
    train, held_out = splits.hold_out(spans_of([length]), share, "corpus")
    assert train.starts == 0 and held_out.starts == train.lengths
    assert train.lengths + held_out.lengths == length
    assert train.lengths >= 1 and held_out.lengths >= 2
    wanted = np.clip(round(share * length), 2, length - 1)
    assert held_out.lengths == wanted
  with pytest.raises(
      ConfigError, match="path=corpus .* one document of 2 token"
  ):
    splits.hold_out(spans_of([2]), 0.5, "corpus")


def test_long_documents_do_not_count_their_separator():
  spans = spans_of([3, 12, 10, 11])
  long, short = splits.by_length(spans, 10)
  assert documents(long) == [(3, 12)]
  assert documents(short) == [(0, 3), (15, 10), (25, 11)]


@pytest.mark.parametrize(
    ("path", "parts"),
    [
        ("a", [("a", None)]),
        ("a@2", [("a", 2.0)]),
        ("a@x", [("a@x", None)]),
        ("a@x@0.5", [("a@x", 0.5)]),
        ("a@0.7,b/c@3e-1", [("a", 0.7), ("b/c", 0.3)]),
        ("a b , c", [("a b", None), ("c", None)]),
    ],
)
def test_mixtures_are_read(path, parts):
  assert splits.parse_mixture(path) == parts
