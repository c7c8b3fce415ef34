# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Packing: which slices of a corpus's stream make each row.

A plan is known before training and gives row r by itself, so that shuffling,
mixing, sharing among processes and resuming need nothing but row numbers.

  concat_then_split  the spans make one stream, cut every seq_len tokens: every
                     token is a target once an epoch, only the last row is
                     padded; a document may begin in one row and end in another
  best_fit           Ding et al. 2024 (arXiv 2404.10830): a span longer than a
                     row is cut into whole rows, what remains of the spans is
                     packed best-fit-decreasing: every token is a target once an
                     epoch, no span is cut that need not be, rows may be padded
  whole_documents    best_fit, where what exceeds a row is left out instead of
                     being continued in another row
"""

import bisect
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from diff_jax.config import ConfigError
from diff_jax.data import source


class Spans(NamedTuple):
  """Slices of a corpus's stream, e.g. the documents of a split."""

  starts: np.ndarray  # int64 [n]
  lengths: np.ndarray  # int64 [n], tokens, at least 1


class Slices(NamedTuple):
  """What one row holds, in its order: parts of spans."""

  span: np.ndarray  # int64 [i], the number of the span
  offset: np.ndarray  # int64 [i], tokens into it
  length: np.ndarray  # int64 [i], tokens


@runtime_checkable
class Plan(Protocol):
  """The rows of an epoch."""

  left_out_tokens: int  # tokens that no row holds

  def __len__(self) -> int:
    """How many rows there are."""

  def __getitem__(self, row: int) -> Slices:
    """The slices of a row, at most seq_len tokens together."""


class ConcatThenSplit:
  """Row r is tokens [r * seq_len, (r + 1) * seq_len) of all spans in order."""

  left_out_tokens = 0

  def __init__(self, lengths: np.ndarray, seq_len: int):
    self._ends = np.cumsum(lengths)
    self._lengths, self._seq_len = lengths, seq_len

  def __len__(self) -> int:
    return -(-int(self._ends[-1]) // self._seq_len)

  def __getitem__(self, row: int) -> Slices:
    first = row * self._seq_len
    stop = min(first + self._seq_len, int(self._ends[-1]))
    span = np.arange(
        np.searchsorted(self._ends, first, "right"),
        np.searchsorted(self._ends, stop, "left") + 1,
    )
    begins = self._ends[span] - self._lengths[span]
    offset = np.maximum(first - begins, 0)
    stops = np.minimum(stop - begins, self._lengths[span])
    return Slices(span, offset, stops - offset)


class BestFit:
  """First the rows that one span fills, then the packed ones.

  Args:
    lengths: int64 [n], of the spans.
    seq_len: tokens in a row.
    whole: whether the first `seq_len` tokens of a span are all that is used.
  """

  def __init__(self, lengths: np.ndarray, seq_len: int, *, whole: bool):
    self._lengths, self._seq_len = lengths, seq_len
    pieces, rest = np.divmod(lengths, seq_len)
    self.left_out_tokens = 0
    if whole:
      self.left_out_tokens = int(np.maximum(lengths - seq_len, 0).sum())
      pieces, rest = np.minimum(pieces, 1), np.where(pieces > 0, 0, rest)
    self._piece_ends = np.cumsum(pieces)
    self._num_full = int(self._piece_ends[-1])
    short = np.flatnonzero(rest)
    order, self._packed_ends = best_fit_decreasing(rest[short], seq_len)
    self._packed = short[order]

  def __len__(self) -> int:
    return self._num_full + len(self._packed_ends)

  def __getitem__(self, row: int) -> Slices:
    if row < self._num_full:
      span = np.searchsorted(self._piece_ends, [row], "right")
      before = np.where(span > 0, self._piece_ends[span - 1], 0)
      offset = (row - before) * self._seq_len
      return Slices(span, offset, np.full(1, self._seq_len))
    row -= self._num_full
    first = self._packed_ends[row - 1] if row else 0
    # In the order of the corpus: that of packing has the longest first.
    span = np.sort(self._packed[first : self._packed_ends[row]])
    offset = self._lengths[span] // self._seq_len * self._seq_len
    return Slices(span, offset, self._lengths[span] - offset)


PLANS = {
    "concat_then_split": ConcatThenSplit,
    "best_fit": lambda *args: BestFit(*args, whole=False),
    "whole_documents": lambda *args: BestFit(*args, whole=True),
}


def plan(lengths: np.ndarray, seq_len: int, packing: str) -> Plan:
  """The rows of spans of these lengths.

  Args:
    lengths: int64 [n], tokens, each and n at least 1.
    seq_len: tokens in a row.
    packing: a name of `PLANS`.

  Raises:
    ConfigError: there is no such packing.
  """
  if packing not in PLANS:
    raise ConfigError(f"data.{packing=} must be one of {', '.join(PLANS)}")
  return PLANS[packing](lengths, seq_len)


def best_fit_decreasing(
    lengths: np.ndarray, size: int
) -> tuple[np.ndarray, np.ndarray]:
  """Packs items into bins: longest first, each where the least room remains.

  Items of one length are placed together, as many into a bin as it takes, which
  is what one after another does; the cost is that of sorting the items.

  Args:
    lengths: int64 [n], from 1 to `size`.
    size: of a bin.

  Returns:
    order: int64 [n], the items, bin after bin.
    ends: int64 [bins], the place in `order` after the last item of each bin.
  """
  by_length = np.argsort(-lengths, kind="stable")
  bins = _Bins(size)
  bin_of = np.empty(len(lengths), np.int64)
  place = 0
  values, counts = np.unique(lengths, return_counts=True)
  for length, count in zip(
      values[::-1].tolist(), counts[::-1].tolist(), strict=True
  ):
    while count:
      chosen, fit = bins.take(length, count)
      placed = len(chosen) * fit
      bin_of[place : place + placed] = np.repeat(chosen, fit)
      place, count = place + placed, count - placed
  order = by_length[np.argsort(bin_of, kind="stable")]
  return order, np.cumsum(np.bincount(bin_of, minlength=bins.count))


class _Bins:
  """Bins by the room that remains in them."""

  def __init__(self, size: int):
    self._size, self.count = size, 0
    self._rooms = []  # sorted, those of `_by_room`
    self._by_room = {}  # room -> stack of arrays of bins

  def take(self, length: int, count: int) -> tuple[np.ndarray, int]:
    """Chooses bins for at most `count` items of one length, and fills them.

    Returns:
      bins, int64 [i], and how many items each of them gets.
    """
    at = bisect.bisect_left(self._rooms, length)
    known = at < len(self._rooms)
    room = self._rooms[at] if known else self._size
    fit = min(room // length, count)
    wanted = count // fit
    if known:
      stack = self._by_room[room]
      chosen = stack.pop()
      if len(chosen) > wanted:
        stack.append(chosen[wanted:])
        chosen = chosen[:wanted]
      if not stack:
        del self._by_room[room], self._rooms[at]
    else:
      chosen = np.arange(self.count, self.count + wanted)
      self.count += wanted
    room -= fit * length
    if room:
      if room not in self._by_room:
        bisect.insort(self._rooms, room)
      self._by_room.setdefault(room, []).append(chosen)
    return chosen, fit


class PackedRows(Sequence):
  """Examples of one corpus, by row; see `source.py` for what an example is.

  Tokens and targets are the stream's, a target one further than its token. The
  last target of a document is the separator before the next one. What a row
  does not use is padded with the separator.

  Args:
    corpus: of `corpus.py`.
    spans: what to read of its stream.
    seq_len: tokens in a row.
    packing: a name of `PLANS`.
    cross_documents: whether the tokens of a row are one segment, whose
      positions run on; else every slice of a document is its own.
  """

  def __init__(
      self,
      corpus,
      spans: Spans,
      seq_len: int,
      packing: str,
      cross_documents: bool = False,
  ):
    self._corpus, self._spans, self._seq_len = corpus, spans, seq_len
    self._cross_documents = cross_documents
    self._plan = plan(spans.lengths, seq_len, packing)
    self.left_out_tokens = self._plan.left_out_tokens

  def __len__(self) -> int:
    return len(self._plan)

  def __getitem__(self, index: int) -> source.Example:
    if not 0 <= index < len(self):
      raise IndexError(f"{index=} must be at least 0 and below {len(self)}")
    span, offset, length = self._plan[index]
    begin = self._spans.starts[span] + offset
    separator = self._corpus.tokenizer.separator
    example = {
        "tokens": np.full(self._seq_len, separator, np.int32),
        "targets": np.full(self._seq_len, separator, np.int32),
        "loss_weights": np.zeros(self._seq_len, np.float32),
        "segment_ids": np.zeros(self._seq_len, np.int32),
        "positions": np.zeros(self._seq_len, np.int32),
    }
    used = 0
    for start, stop in _merged(begin, begin + length):
      stream = self._corpus.read(start, stop + 1)
      place = slice(used, used + stop - start)
      example["tokens"][place] = stream[:-1]
      example["targets"][place] = stream[1:]
      used += stop - start
    if self._cross_documents:
      length = np.array([used])
    segment = np.arange(1, len(length) + 1)
    first = np.cumsum(length) - length
    example["loss_weights"][:used] = 1
    example["segment_ids"][:used] = np.repeat(segment, length)
    example["positions"][:used] = np.arange(used) - np.repeat(first, length)
    return example


def _merged(begin: np.ndarray, end: np.ndarray) -> list[tuple[int, int]]:
  """Slices [begin, end) of a stream; those that follow each other are one."""
  apart = begin[1:] != end[:-1]
  begin = begin[np.concatenate([[True], apart])]
  end = end[np.concatenate([apart, [True]])]
  return list(zip(begin.tolist(), end.tolist(), strict=True))
