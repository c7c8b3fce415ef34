# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Which documents are trained on, and which are held out."""

import math
from typing import NamedTuple

import numpy as np

from diff_jax.config import ConfigError
from diff_jax.data.corpus import Corpus
from diff_jax.data.packing import Spans

# More are not needed to evaluate, however large the corpus is.
MAX_EVAL_TOKENS = 2**24


class Portion(NamedTuple):
  """What a split takes of one corpus."""

  corpus: Corpus
  spans: Spans
  weight: float | None = None  # in a mixture; None: the number of tokens


def parse_mixture(path: str) -> list[tuple[str, float | None]]:
  """Paths and weights of "PATH", "PATH,PATH" or "PATH@WEIGHT,PATH@WEIGHT".

  What follows the last @ of a path is its weight if it is a number. A path
  with a comma in its name cannot be given.

  Raises:
    ConfigError: a path is empty or given twice, a weight is not positive, or
      some paths have a weight and some have none.
  """
  parts = []
  for part in path.split(","):
    name, at, number = part.strip().rpartition("@")
    try:
      weight = float(number) if at else None
    except ValueError:
      weight = None
    parts.append((part.strip(), None) if weight is None else (name, weight))
  names = [name for name, _ in parts]
  weights = [weight for _, weight in parts if weight is not None]
  if not all(names) or len(set(names)) < len(names):
    problem = "name every path once"
  elif not all(0 < weight < math.inf for weight in weights):
    problem = "have weights above 0"
  elif weights and len(weights) < len(parts):
    problem = "give a weight to every path or to none"
  else:
    return parts
  raise ConfigError(
      f"data.{path=} must {problem}: PATH, PATH,PATH or PATH@WEIGHT,PATH@WEIGHT"
  )


def all_documents(corpus: Corpus) -> Spans:
  """Every document with the separator before it."""
  starts = np.asarray(corpus.starts, np.int64)
  return Spans(starts[:-1], np.diff(starts))


def hold_out(spans: Spans, share: float, name: str) -> tuple[Spans, Spans]:
  """The documents to train on, and those that the eval split gets.

  Documents join the eval split in the order of a hash of their index, until it
  has about `share` of the tokens, and no more than about `MAX_EVAL_TOKENS`. One
  that is longer than that never joins, unless all are: then the shortest does.
  A corpus of one document is cut in two instead.

  Args:
    spans: all documents of a corpus.
    share: of the tokens, above 0 and below 1.
    name: of the corpus, for the message.

  Raises:
    ConfigError: the corpus is too small for two splits.
  """
  num_tokens = int(spans.lengths.sum())
  target = min(share * num_tokens, MAX_EVAL_TOKENS)
  if len(spans.starts) == 1:
    # Not behind the last token: the only target would be the separator.
    cut = min(max(num_tokens - round(target), 1), num_tokens - 2)
    if cut < 1:
      raise ConfigError(
          f"data.path={name} must hold text for two splits: it is one document"
          f" of {num_tokens} tokens"
      )
    start = int(spans.starts[0])
    return _span(start, cut), _span(start + cut, num_tokens - cut)
  eligible = np.flatnonzero(spans.lengths <= target)
  if len(eligible):
    order = eligible[np.argsort(_hash(eligible), kind="stable")]
    sums = np.cumsum(spans.lengths[order])
    count = int(np.argmin(np.abs(sums - target))) + 1
    chosen = order[: min(count, len(spans.starts) - 1)]
  else:
    chosen = np.argmin(spans.lengths)
  held_out = np.zeros(len(spans.starts), bool)
  held_out[chosen] = True
  return _chosen(spans, ~held_out), _chosen(spans, held_out)


def by_length(spans: Spans, long_tokens: int) -> tuple[Spans, Spans]:
  """The documents of more than `long_tokens` tokens, and the others."""
  is_long = spans.lengths - 1 > long_tokens  # without the separator
  return _chosen(spans, is_long), _chosen(spans, ~is_long)


def _span(start: int, length: int) -> Spans:
  return Spans(np.array([start], np.int64), np.array([length], np.int64))


def _chosen(spans: Spans, where: np.ndarray) -> Spans:
  return Spans(spans.starts[where], spans.lengths[where])


def _hash(indices: np.ndarray) -> np.ndarray:
  """SplitMix64 of each index, uint64: the same with every numpy."""
  x = (indices.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
  x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
  x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
  return x ^ (x >> np.uint64(31))
