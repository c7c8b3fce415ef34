# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Batches: order, epochs, exact resume, and sharing among processes."""

import itertools
import json

import numpy as np
import pytest

from diff_jax.config import ConfigError
from diff_jax.data import pipeline
from diff_jax.data.recall import Recall
from diff_jax.data.text import Text

TASK = Recall(keys=64, values=8, context=16, queries=4)


@pytest.fixture
def finite(tmp_path):
  (tmp_path / "a").write_bytes(bytes(range(255)))
  (tmp_path / "b").write_bytes(bytes(range(255)))
  return Text(path=str(tmp_path), seq_len=16)  # 16 rows a split


@pytest.fixture(params=["endless", "finite"])
def source(request, finite):
  return {"endless": TASK, "finite": finite}[request.param]


def rows(batch):
  """The examples of a batch as comparable values, in their order."""
  names = sorted(batch)
  columns = [[x.tobytes() for x in batch[name]] for name in names]
  return list(zip(*columns, strict=True))


def take(iterator, steps):
  return [rows(batch) for batch in itertools.islice(iterator, steps)]


def equal(a, b):
  return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_endless_sources_are_read_in_order():
  examples = TASK.examples("eval", 5)
  iterator = pipeline.make_iterator(TASK, "eval", 5, 3)
  for step, batch in enumerate(itertools.islice(iterator, 4)):
    for row in range(3):
      want = examples[3 * step + row]
      assert equal({name: x[row] for name, x in batch.items()}, want)


def test_finite_sources_are_shuffled_anew_each_epoch(finite):
  examples = list(finite.examples("train", 0))
  in_order = rows({n: np.stack([e[n] for e in examples]) for n in examples[0]})
  first, second = take(pipeline.make_iterator(finite, "train", 0, 16), 2)
  other_seed = take(pipeline.make_iterator(finite, "train", 1, 16), 1)[0]
  orders = [in_order, first, second, other_seed]
  assert len({tuple(order) for order in orders}) == 4
  assert len({tuple(sorted(order)) for order in orders}) == 1


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


def test_processes_share_the_batches_of_one(source):
  alone = take(pipeline.make_iterator(source, "train", 7, 6), 7)
  shared = [
      take(
          pipeline.make_iterator(
              source, "train", 7, 6, process_index=p, process_count=3
          ),
          7,
      )
      for p in range(3)
  ]
  for step, batch in enumerate(alone):
    parts = [shared[p][step] for p in range(3)]
    assert [len(part) for part in parts] == [2, 2, 2]
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
