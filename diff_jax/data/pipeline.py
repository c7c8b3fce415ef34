# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Batches from any source, in order, for any number of processes."""

from collections.abc import Sequence

import grain
import numpy as np

from diff_jax.config import ConfigError
from diff_jax.data.source import Example, Source


def make_iterator(
    source: Source,
    split: str,
    seed: int,
    batch_size: int,
    *,
    process_index: int = 0,
    process_count: int = 1,
    read_threads: int = 1,
) -> grain.DatasetIterator:
  """Iterates forever over batches: dicts of numpy arrays [b, ...].

  A finite source is shuffled anew each epoch, an endless one is read in order.
  The parts of a mixture are shuffled and repeated apart, and take turns so that
  any stretch of the rows has their proportions, which are kept to half a
  percent of the smallest. Batch k of the processes together holds the examples
  of batch k of a single process. `get_state` (a dict that JSON can hold) and
  `set_state` resume exactly.

  A batch names its examples: `example_id`, int64 [b], is where each of them is
  in `source.examples(split, seed)`.

  Args:
    source: what to read.
    split: "train" or "eval".
    seed: of the examples and their order, from 0 to 2**32 - 1.
    batch_size: examples a step, over all processes.
    process_index: which of the processes this one is.
    process_count: how many processes share a batch.
    read_threads: threads that prepare batches ahead of the training step; with
      0 a batch is prepared when it is asked for.

  Raises:
    ConfigError: `batch_size` cannot be shared equally by the processes, or
      `seed` is out of its range.
  """
  if not 0 <= seed < 2**32:
    raise ConfigError(f"{seed=} must be at least 0 and below 2**32")
  if batch_size < 1 or batch_size % process_count:
    raise ConfigError(
        f"{batch_size=} must be a positive multiple of {process_count=}"
    )
  dataset = _in_order(source, split, seed)[process_index::process_count]
  # Without a remainder, since that of an endless dataset overflows in grain.
  dataset = dataset.batch(batch_size // process_count, drop_remainder=True)
  options = grain.ReadOptions(
      num_threads=read_threads, prefetch_buffer_size=4 * read_threads
  )
  return iter(dataset.to_iter_dataset(options))


def _in_order(source: Source, split: str, seed: int) -> grain.MapDataset:
  """The examples of a split in the order of training, without end."""
  examples = source.examples(split, seed)
  dataset = grain.MapDataset.source(_Named(examples))
  if source.endless:
    return dataset.repeat()
  parts = getattr(examples, "parts", ())
  if not parts:
    return dataset.seed(seed).shuffle().repeat()
  seeds = np.random.SeedSequence(seed).generate_state(len(parts)).tolist()
  # grain rounds weights down to hundredths of the smallest: these are whole.
  smallest = min(part.weight for part in parts)
  return grain.MapDataset.mix(
      [
          dataset[part.start : part.stop].shuffle(seed=part_seed).repeat()
          for part, part_seed in zip(parts, seeds, strict=True)
      ],
      [round(100 * part.weight / smallest) for part in parts],
  )


class _Named(Sequence):
  """Examples that say where they are."""

  def __init__(self, examples: Sequence[Example]):
    self._examples = examples

  def __len__(self) -> int:
    return len(self._examples)

  def __getitem__(self, index: int) -> Example:
    return {**self._examples[index], "example_id": np.int64(index)}
