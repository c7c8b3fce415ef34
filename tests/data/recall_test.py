# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The task as a reader with a dictionary sees it."""

import numpy as np
import pytest

from diff_jax.config import ConfigError
from diff_jax.data.recall import Recall

SMALL = Recall(keys=12, values=3, context=8, queries=5)


@pytest.mark.parametrize("task", [Recall(), Recall().at_length(4), SMALL])
def test_a_dictionary_solves_every_row(task):
  query_mark = task.keys + task.values
  for index in range(20):
    example = task.examples("train", 0)[index]
    value_of, place_of, queries = {}, {}, []
    for place, (key, second) in enumerate(example["tokens"].tolist()):
      assert 0 <= key < task.keys
      if second == query_mark:
        assert place >= task.context
        assert example["targets"][place] == value_of[key]
        assert example["answer_positions"][place] == place_of[key]
        assert example["loss_weights"][place] == 1
        queries.append(key)
      else:
        assert key not in value_of
        assert task.keys <= second < query_mark
        value_of[key], place_of[key] = second - task.keys, place
        assert example["loss_weights"][place] == 0
        assert example["targets"][place] == 0
        assert example["answer_positions"][place] == -1
    assert len(value_of) == task.context
    assert len(set(queries)) == len(queries) == task.queries


def test_keys_values_and_queries_are_uniform():
  rows = [SMALL.examples("train", 0)[i] for i in range(6000)]
  tokens = np.stack([row["tokens"] for row in rows])
  answers = np.stack([row["answer_positions"] for row in rows])
  draws = {
      "keys": (tokens[:, : SMALL.context, 0], SMALL.keys),
      "values": (tokens[:, : SMALL.context, 1] - SMALL.keys, SMALL.values),
      "queries": (answers[:, SMALL.context :], SMALL.context),
  }
  for name, (drawn, size) in draws.items():
    for place in range(drawn.shape[1]):
      share = np.bincount(drawn[:, place], minlength=size) / len(rows)
      # Five standard errors, for 144 + 24 + 40 shares.
      assert (
          np.abs(share - 1 / size).max() < 5 * (size * len(rows)) ** -0.5
      ), name


def test_longer_contexts_keep_vocabulary_and_queries():
  task, longer = Recall(), Recall().at_length(4)
  assert longer.context == 512
  assert longer.queries == task.queries == 32
  assert longer.seq_len == 544
  assert longer.vocab_size == task.vocab_size == 545
  assert longer.output_size == task.output_size == 32


def test_no_binding_is_what_naming_the_most_frequent_value_reaches():
  task = Recall()
  accuracies, losses = [], []
  for index in range(1500):
    example = task.examples("eval", 1)[index]
    values = example["tokens"][: task.context, 1] - task.keys
    share = np.bincount(values, minlength=task.values) / task.context
    targets = example["targets"][task.context :]
    accuracies.append(np.mean(targets == share.argmax()))
    losses.append(-np.log(share[targets]).mean())
  baselines = task.baselines()
  assert baselines["chance_accuracy"] == 1 / 32
  assert baselines["chance_loss_nats"] == pytest.approx(np.log(32))
  for name, simulated in (("accuracy", accuracies), ("loss_nats", losses)):
    error = np.std(simulated) / np.sqrt(len(simulated))
    assert abs(baselines[f"no_binding_{name}"] - np.mean(simulated)) < 4 * error


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"keys": 100}, "context=128 must be at most keys=100"),
        ({"queries": 129}, "queries=129 must be at most context=128"),
        ({"values": 0}, "values=0 must be at least 1"),
    ],
)
def test_impossible_settings_are_named(settings, message):
  with pytest.raises(ConfigError, match=message):
    Recall(**settings)


def test_a_length_beyond_the_keys_is_named():
  with pytest.raises(ConfigError, match="context=1024 must be at most keys"):
    Recall().at_length(8)
