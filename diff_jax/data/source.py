# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What every data source shares: its interface, splits and random examples.

An example is a dict of numpy arrays over the t positions of one row:
`tokens` int32 [t], or [t,i] where i embeddings are summed; `targets` int32
[t]; `loss_weights` float32 [t], 0 where nothing is asked; and, where the
source has them, `segment_ids` (1-based, 0 is padding), `positions` and
`answer_positions` (the index in the row of the context token that holds the
answer of the query at t; -1 where there is none), all int32 [t].
"""

import bisect
import itertools
from collections.abc import Callable, Sequence
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from diff_jax.config import ConfigError

Example = dict[str, np.ndarray]

SPLITS = ("train", "eval")


@runtime_checkable
class Source(Protocol):
  """A frozen dataclass of the settings of one data set or task.

  `Text` has more, which a source may leave out: `corpus()`, `num_bytes(batch)`,
  `open_tokenizer()`, and `vocabulary`, what messages call it.
  """

  name: ClassVar[str]  # what `data.name` of a config calls it
  endless: ClassVar[bool]  # every example is fresh: no epochs, no shuffling

  @property
  def vocab_size(self) -> int:
    """Number of token ids."""

  @property
  def output_size(self) -> int:
    """Number of target ids, the size of the output head."""

  @property
  def seq_len(self) -> int:
    """Tokens in one example."""

  def examples(self, split: str, seed: int) -> Sequence[Example]:
    """Random access to a split, deterministic and thread safe."""

  def baselines(self) -> dict[str, float]:
    """What predictors that a model must beat reach; units in the names."""


def split_index(split: str) -> int:
  """The place of `split` in `SPLITS`.

  Raises:
    ValueError: there is no such split.
  """
  if split not in SPLITS:
    raise ValueError(f"{split=} must be one of {', '.join(SPLITS)}")
  return SPLITS.index(split)


class EndlessExamples(Sequence):
  """Examples of a task, each drawn by a random stream of its own.

  Philox is a counter-based generator: (seed, split) is its key and the index
  of the example the top word of its counter, so that any example costs the
  same few microseconds and no two of them share random bits.

  Args:
    draw: makes one example from a random generator.
    split: "train" or "eval".
    seed: from 0 to 2**63 - 1.
  """

  def __init__(
      self,
      draw: Callable[[np.random.Generator], Example],
      split: str,
      seed: int,
  ):
    self._draw = draw
    self._key = (seed, split_index(split))

  def __len__(self) -> int:
    return 2**48

  def __getitem__(self, index: int) -> Example:
    if not 0 <= index < len(self):
      raise IndexError(f"{index=} must be at least 0 and below {len(self)}")
    bits = np.random.Philox(key=self._key, counter=(0, 0, 0, index))
    return self._draw(np.random.Generator(bits))


class Part(NamedTuple):
  """Examples [start, stop) that a mixture draws in proportion to `weight`."""

  start: int
  stop: int
  weight: float


class Concatenation(Sequence):
  """The examples of several sequences, one sequence after the other.

  Args:
    sequences: each of at least one example.
    weights: in what proportion to draw from them (see pipeline.py); None: from
      all examples alike.

  Attributes:
    sequences: as given.
    parts: of a mixture, one a sequence; empty without weights.
  """

  def __init__(
      self,
      sequences: Sequence[Sequence[Example]],
      weights: Sequence[float] | None = None,
  ):
    self.sequences = sequences
    self._ends = list(itertools.accumulate(map(len, sequences)))
    self.parts = ()
    if weights is not None:
      starts = [0, *self._ends[:-1]]
      self.parts = tuple(map(Part, starts, self._ends, weights))

  def __len__(self) -> int:
    return self._ends[-1]

  def __getitem__(self, index: int) -> Example:
    if not 0 <= index < len(self):
      raise IndexError(f"{index=} must be at least 0 and below {len(self)}")
    which = bisect.bisect_right(self._ends, index)
    start = self._ends[which - 1] if which else 0
    return self.sequences[which][index - start]


def ask(
    tokens: np.ndarray, at: slice, targets: np.ndarray, answers: np.ndarray
) -> Example:
  """The example that asks for `targets` at the positions `at` of `tokens`.

  Args:
    tokens: int32 [t] or [t,i].
    at: the positions of the queries.
    targets: one target id a query.
    answers: one position a query, of the context token that holds its answer.
  """
  seq_len = len(tokens)
  example = {
      "tokens": tokens,
      "targets": np.zeros(seq_len, np.int32),
      "loss_weights": np.zeros(seq_len, np.float32),
      "answer_positions": np.full(seq_len, -1, np.int32),
  }
  example["targets"][at] = targets
  example["loss_weights"][at] = 1
  example["answer_positions"][at] = answers
  return example


def check_at_least_one(**sizes: int) -> None:
  """Raises a `ConfigError` that names the first size below 1."""
  for name, size in sizes.items():
    if size < 1:
      raise ConfigError(f"{name}={size} must be at least 1")
