# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Batches from any source, in order, for any number of processes."""

import grain

from diff_jax.config import ConfigError
from diff_jax.data.source import Source


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
  Batch k of the processes together holds the examples of batch k of a single
  process. `get_state` (a dict that JSON can hold) and `set_state` resume
  exactly.

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
  dataset = grain.MapDataset.source(source.examples(split, seed))
  if not source.endless:
    dataset = dataset.seed(seed).shuffle()
  dataset = dataset.repeat()[process_index::process_count]
  dataset = dataset.batch(batch_size // process_count)
  options = grain.ReadOptions(
      num_threads=read_threads, prefetch_buffer_size=4 * read_threads
  )
  return iter(dataset.to_iter_dataset(options))
