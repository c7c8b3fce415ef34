# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Packing on random lengths: every token once, as few rows as the textbook."""

import types

import numpy as np
import pytest

from diff_jax.config import ConfigError
from diff_jax.data import packing
from diff_jax.data.packing import PackedRows, Spans

PACKINGS = tuple(packing.PLANS)
SEPARATOR = -7


class Positions:
  """A corpus whose token at each position is the position."""

  tokenizer = types.SimpleNamespace(separator=SEPARATOR)

  def __init__(self):
    self.reads = []

  def read(self, start, stop):
    self.reads.append((start, stop))
    return np.arange(start, stop, dtype=np.int32)


def random_spans(rng, num_spans, longest):
  """Documents of a stream, of which every third is another split's."""
  lengths = 1 + np.floor(longest * rng.random(2 * num_spans) ** 3).astype(int)
  ends = np.cumsum(lengths)
  mine = np.sort(rng.permutation(2 * num_spans)[:num_spans])
  return Spans((ends - lengths)[mine], lengths[mine])


def cases():
  rng = np.random.default_rng(0)
  for _ in range(20):
    num_spans, longest = rng.integers(1, 60), rng.integers(1, 80)
    spans = random_spans(rng, num_spans, longest)
    yield spans, int(rng.integers(1, 40))
  yield Spans(np.array([5]), np.array([1])), 1
  yield Spans(np.array([0, 8]), np.array([8, 8])), 8
  yield Spans(np.array([0, 8]), np.array([8, 8])), 16


@pytest.fixture(params=list(cases()), ids=lambda case: f"seq_len={case[1]}")
def case(request):
  return request.param


def positions_of(spans):
  return np.concatenate(
      [np.arange(s, s + n) for s, n in zip(*spans, strict=True)]
  )


def used(row):
  """Tokens of a row without its padding, which must be at the end."""
  count = int(row["loss_weights"].sum())
  np.testing.assert_array_equal(row["loss_weights"][:count], 1)
  for name, padding in (
      ("loss_weights", 0),
      ("segment_ids", 0),
      ("positions", 0),
      ("tokens", SEPARATOR),
      ("targets", SEPARATOR),
  ):
    np.testing.assert_array_equal(row[name][count:], padding)
  np.testing.assert_array_equal(
      row["targets"][:count], row["tokens"][:count] + 1
  )
  return row["tokens"][:count]


@pytest.mark.parametrize("name", PACKINGS)
def test_every_token_is_in_one_row(case, name):
  spans, seq_len = case
  rows = PackedRows(Positions(), spans, seq_len, name)
  found = [used(rows[i]) for i in range(len(rows))]
  assert all(len(row) for row in found), "no row is empty"
  wanted = positions_of(spans)
  if name == "whole_documents":
    starts, lengths = spans
    kept = Spans(starts, np.minimum(lengths, seq_len))
    assert rows.left_out_tokens == (lengths - kept.lengths).sum()
    wanted = positions_of(kept)
  else:
    assert rows.left_out_tokens == 0
  np.testing.assert_array_equal(np.sort(np.concatenate(found)), wanted)
  if name == "concat_then_split":
    np.testing.assert_array_equal(np.concatenate(found), wanted)
    assert all(len(row) == seq_len for row in found[:-1])


@pytest.mark.parametrize("name", PACKINGS)
def test_segments_are_slices_of_documents(case, name):
  spans, seq_len = case
  rows = PackedRows(Positions(), spans, seq_len, name)
  document = np.full(spans.starts[-1] + spans.lengths[-1], -1)
  for i, (start, length) in enumerate(zip(*spans, strict=True)):
    document[start : start + length] = i
  pieces = np.zeros(len(spans.starts), int)
  for i in range(len(rows)):
    row = rows[i]
    tokens = used(row)
    ids = row["segment_ids"][: len(tokens)]
    assert ids[0] == 1 and np.isin(np.diff(ids), (0, 1)).all()
    for segment in range(1, ids[-1] + 1):
      at = np.flatnonzero(ids == segment)
      np.testing.assert_array_equal(np.diff(tokens[at]), 1)
      np.testing.assert_array_equal(row["positions"][at], np.arange(len(at)))
      (mine,) = set(document[tokens[at]])
      pieces[mine] += 1
      if name == "whole_documents":
        assert tokens[at[0]] == spans.starts[mine]
    # One segment a document: else it would be two, with one end as a start.
    assert len(set(document[tokens])) == ids[-1]
  if name == "best_fit":
    np.testing.assert_array_equal(pieces, -(-spans.lengths // seq_len))
  if name == "whole_documents":
    np.testing.assert_array_equal(pieces, 1)


@pytest.mark.parametrize("name", PACKINGS)
def test_crossing_documents_makes_a_row_one_segment(case, name):
  spans, seq_len = case
  apart = PackedRows(Positions(), spans, seq_len, name)
  rows = PackedRows(Positions(), spans, seq_len, name, cross_documents=True)
  for i in range(len(rows)):
    tokens = used(rows[i])
    np.testing.assert_array_equal(tokens, used(apart[i]))
    np.testing.assert_array_equal(rows[i]["segment_ids"][: len(tokens)], 1)
    np.testing.assert_array_equal(
        rows[i]["positions"][: len(tokens)], np.arange(len(tokens))
    )


def test_slices_that_follow_each_other_are_read_together():
  spans = Spans(np.array([0, 4, 20, 24]), np.array([4, 6, 4, 4]))
  corpus = Positions()
  (row,) = PackedRows(corpus, spans, 32, "concat_then_split")
  assert corpus.reads == [(0, 11), (20, 29)]
  assert row["segment_ids"].max() == 4


def textbook(lengths, size):
  """The room left in each bin by best-fit-decreasing, item by item."""
  rooms = []
  for length in sorted(lengths, reverse=True):
    fitting = [i for i, room in enumerate(rooms) if room >= length]
    if fitting:
      best = min(fitting, key=lambda i: rooms[i])
    else:
      best = len(rooms)
      rooms.append(size)
    rooms[best] -= length
  return sorted(rooms)


def test_best_fit_is_the_textbooks():
  rng = np.random.default_rng(1)
  for _ in range(60):
    size = int(rng.integers(1, 50))
    shortest = rng.integers(1, size + 1)
    lengths = rng.integers(shortest, size + 1, rng.integers(0, 150))
    order, ends = packing.best_fit_decreasing(lengths, size)
    assert sorted(order) == list(range(len(lengths)))
    bins = np.split(order, ends[:-1]) if len(ends) else []
    rooms = sorted(size - lengths[items].sum() for items in bins)
    assert rooms == textbook(lengths.tolist(), size)


def test_best_fit_needs_the_textbooks_rows(case):
  spans, seq_len = case
  full, rest = np.divmod(spans.lengths, seq_len)
  rows = packing.plan(spans.lengths, seq_len, "best_fit")
  rest = rest[rest > 0].tolist()
  assert len(rows) == full.sum() + len(textbook(rest, seq_len))


def test_a_million_documents_are_packed():
  """What is quadratic in the documents would not end."""
  lengths = np.random.default_rng(2).integers(1, 3000, 10**6)
  rows = packing.plan(lengths, 2048, "best_fit")
  assert lengths.sum() / 2048 <= len(rows) < 1.001 * lengths.sum() / 2048


def test_rows_beyond_the_last_and_unknown_packings_are_refused():
  spans = Spans(np.array([0]), np.array([9]))
  rows = PackedRows(Positions(), spans, 4, "concat_then_split")
  assert len(rows) == 3
  for index in (-1, 3):
    with pytest.raises(IndexError, match=f"{index=}"):
      rows[index]
  with pytest.raises(ConfigError, match="packing='fit' must be one of concat"):
    packing.plan(spans.lengths, 4, "fit")
