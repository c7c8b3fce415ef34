# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Batches: order, epochs, exact resume, and sharing among processes."""

import itertools
import json
import types
from collections.abc import Sequence

import grain
import numpy as np
import pytest

from diff_jax.config import ConfigError
from diff_jax.data import pipeline
from diff_jax.data.recall import Recall
from diff_jax.data.source import Concatenation
from diff_jax.data.text import Text

TASK = Recall(keys=64, values=8, context=16, queries=4)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
  """Paths of three corpora, of 16, 31 and 11 rows of 16 tokens to train on."""
  folder = tmp_path_factory.mktemp("texts")
  paths = []
  for name, sizes in {
      "a": (255, 255), "b": (99, 495), "c": (30, 80, 94),
  }.items():  # fmt: skip
    (folder / name).mkdir()
    for i, size in enumerate(sizes):
      text = "".join(chr(ord("a") + (i + j * j) % 26) for j in range(size))
      (folder / name / f"{i}.txt").write_text(text)
    paths.append(str(folder / name))
  return paths


@pytest.fixture
def finite(files):
  return Text(path=files[0], seq_len=16)


@pytest.fixture
def mixture(files):
  path = ",".join(map("{}@{}".format, files, (0.5, 0.3, 0.2)))
  return Text(path=path, seq_len=16)


@pytest.fixture(params=["endless", "finite", "mixture"])
def source(request):
  if request.param == "endless":
    return TASK
  return request.getfixturevalue(request.param)


def rows(batch):
  """The examples of a batch as comparable values, in their order."""
  names = sorted(batch)
  columns = [[x.tobytes() for x in batch[name]] for name in names]
  return list(zip(*columns, strict=True))


def take(iterator, steps):
  return [rows(batch) for batch in itertools.islice(iterator, steps)]


def equal(a, b):
  return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def ids(source, seed, batch_size, steps, **options):
  iterator = pipeline.make_iterator(
      source, "train", seed, batch_size, **options
  )
  batches = itertools.islice(iterator, steps)
  return np.stack([batch["example_id"] for batch in batches])


@pytest.mark.parametrize("split", ["train", "eval"])
def test_batches_name_their_examples(source, split):
  examples = source.examples(split, 5)
  iterator = pipeline.make_iterator(source, split, 5, 3)
  for batch in itertools.islice(iterator, 20):
    assert batch["example_id"].dtype == np.int64
    for row, example_id in enumerate(batch.pop("example_id")):
      found = {name: x[row] for name, x in batch.items()}
      assert equal(found, examples[int(example_id)])


def test_endless_sources_are_read_in_order():
  np.testing.assert_array_equal(ids(TASK, 5, 3, 4), np.arange(12).reshape(4, 3))


def test_finite_sources_are_shuffled_anew_each_epoch(finite):
  first, second = ids(finite, 0, 16, 2).tolist()
  (other_seed,) = ids(finite, 1, 16, 1).tolist()
  orders = [list(range(16)), first, second, other_seed]
  assert len({tuple(order) for order in orders}) == 4
  assert len({tuple(sorted(order)) for order in orders}) == 1


def test_a_mixture_keeps_its_proportions_everywhere(mixture):
  parts = mixture.examples("train", 0).parts
  assert [part.stop - part.start for part in parts] == [16, 31, 11]
  found = ids(mixture, 3, 1, 400, read_threads=0)[:, 0]
  for part, share in zip(parts, (0.5, 0.3, 0.2), strict=True):
    mine = (found >= part.start) & (found < part.stop)
    # Any stretch is off by less than one row, or two with the other borders.
    counts = np.cumsum(mine) - share * np.arange(1, 401)
    assert np.ptp(counts) < 2
    # And each part runs through its own epochs, in new orders.
    rows = found[mine] - part.start
    size = part.stop - part.start
    epochs = rows[: len(rows) // size * size].reshape(-1, size)
    np.testing.assert_array_equal(
        np.sort(epochs, axis=1), np.tile(np.arange(size), (len(epochs), 1))
    )
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == len(epochs)


class Numbers(Sequence):
  """Examples that cost nothing."""

  def __init__(self, size):
    self._size = size

  def __len__(self):
    return self._size

  def __getitem__(self, index):
    return {"tokens": np.zeros(1, np.int32)}


@pytest.mark.parametrize(
    "weights", [(0.6, 0.2), (0.7, 0.1111), (1.0, 2.0, 1e4)]
)
def test_weights_are_kept_to_half_a_percent_of_the_smallest(
    weights, no_shape_checks
):
  # Shuffling costs grain more, the fewer rows there are below 2**16.
  sizes = range(10**5, 10**5 + len(weights))
  examples = Concatenation([Numbers(size) for size in sizes], weights)
  source = types.SimpleNamespace(
      name="numbers", endless=False, vocab_size=1, output_size=1, seq_len=1,
      baselines=dict, examples=lambda split, seed: examples,
  )  # fmt: skip
  found = ids(source, 0, 10_000, 1, read_threads=0)
  for part, weight in zip(examples.parts, weights, strict=True):
    count = np.sum((found >= part.start) & (found < part.stop))
    wanted = 10_000 * weight / sum(weights)
    assert count == pytest.approx(wanted, rel=0.005, abs=1)


def test_corpora_without_weights_are_one(files):
  source = Text(path=",".join(files), seq_len=16)
  (order,) = ids(source, 0, 16 + 31 + 11, 1)
  assert sorted(order) == list(range(58))


def test_long_documents_are_drawn_as_often_as_asked(files):
  source = Text(path=files[2], seq_len=16, long_share=0.8, long_tokens=85)
  long, short = source.examples("train", 0).parts
  assert (long.stop, short.start) == (6, 6)
  found = ids(source, 0, 100, 1, read_threads=0)
  assert (found < long.stop).mean() == 0.8


def test_the_eval_split_is_not_mixed(mixture):
  iterator = pipeline.make_iterator(mixture, "eval", 0, 1)
  size = len(mixture.examples("eval", 0))
  found = [next(iterator)["example_id"].item() for _ in range(size)]
  assert sorted(found) == list(range(size))


def test_threads_do_not_change_the_order(source):
  alone = ids(source, 9, 4, 30, read_threads=0)
  for read_threads in (1, 3):
    found = ids(source, 9, 4, 30, read_threads=read_threads)
    np.testing.assert_array_equal(found, alone)


def test_grain_agrees_that_resuming_is_exact(source):
  rows = pipeline._in_order(source, "train", 2)[1:40:2].batch(4)
  grain.experimental.assert_equal_output_after_checkpoint(
      rows.to_iter_dataset()
  )


def test_any_batch_is_reached_at_once(source):
  """The state is one number: a batch far ahead costs no reading up to it."""
  iterator = pipeline.make_iterator(source, "train", 0, 2, read_threads=0)
  state = iterator.get_state()
  assert state == {"next_index": 0}
  iterator.set_state({"next_index": 10**9})
  far = next(iterator)
  examples = source.examples("train", 0)
  example = examples[int(far.pop("example_id")[0])]
  assert equal({name: x[0] for name, x in far.items()}, example)


@pytest.mark.parametrize("read_threads", [0, 2])
def test_resume_is_exact(source, read_threads):
  def make():
    return pipeline.make_iterator(
        source, "train", 7, 6, read_threads=read_threads
    )

  iterator = make()
  take(iterator, 4)
  state = json.dumps(iterator.get_state())
  want = take(iterator, 4)  # past the end of the finite source's epoch
  resumed = make()
  resumed.set_state(json.loads(state))
  assert take(resumed, 4) == want
  iterator.set_state(json.loads(state))
  assert take(iterator, 4) == want


@pytest.mark.parametrize("process_count", [2, 4])
def test_processes_share_the_batches_of_one(source, process_count):
  alone = take(pipeline.make_iterator(source, "train", 7, 8), 9)
  shared = [
      take(
          pipeline.make_iterator(
              source,
              "train",
              7,
              8,
              process_index=p,
              process_count=process_count,
          ),
          9,
      )
      for p in range(process_count)
  ]
  for step, batch in enumerate(alone):
    parts = [part[step] for part in shared]
    assert {len(part) for part in parts} == {8 // process_count}
    assert sorted(sum(parts, [])) == sorted(batch)


@pytest.mark.parametrize(
    "seed, batch_size, message",
    [
        (0, 0, "batch_size=0 must be a positive multiple of process_count=2"),
        (0, 5, "batch_size=5 must be a positive multiple of process_count=2"),
        (-1, 4, "seed=-1 must be at least 0"),
        (2**32, 4, "seed=4294967296 must be at least 0 and below"),
    ],
)
def test_impossible_arguments_are_named(seed, batch_size, message):
  with pytest.raises(ConfigError, match=message):
    pipeline.make_iterator(TASK, "train", seed, batch_size, process_count=2)
