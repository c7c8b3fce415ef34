# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The task as a reader with a dictionary sees it, and its ceilings."""

import collections
import math

import numpy as np
import pytest

from diff_jax.config import ConfigError
from diff_jax.data.noisy_recall import NoisyRecall

BINDING = NoisyRecall(
    pairs=4,
    keys=32,
    values=32,
    noise_vocab=32,
    context=48,
    queries=8,
    replacement=True,
)


def read(task, example):
  """Sorts the tokens of a row by kind, from the vocabulary's layout alone."""
  value_at, key_place, counts = {}, {}, collections.Counter()
  tokens = example["tokens"].tolist()
  place = 0
  while place < task.context:
    token = tokens[place]
    if token < task.keys:
      assert token not in value_at
      assert task.keys <= tokens[place + 1] < task.keys + task.values
      value_at[token] = tokens[place + 1] - task.keys
      key_place[token] = place
      place += 2
      continue
    assert token >= task.keys + task.values, "a value without its key"
    filler = token == task.keys + task.values + task.noise_vocab
    counts["filler" if filler else "noise"] += 1
    place += 1
  assert place == task.context
  return value_at, key_place, counts


@pytest.mark.parametrize(
    "task",
    [
        NoisyRecall(),
        NoisyRecall(noise_share=0.25).at_length(2),
        NoisyRecall(noise_share=0.0),
        NoisyRecall(pairs=8, context=16, queries=3),
        BINDING,
    ],
)
def test_a_dictionary_solves_every_row(task):
  for index in range(20):
    example = task.examples("train", 0)[index]
    value_at, key_place, counts = read(task, example)
    outside = task.context - 2 * task.pairs
    assert len(value_at) == len(set(value_at.values())) == task.pairs
    assert counts["noise"] == round(task.noise_share * outside)
    assert counts["noise"] + counts["filler"] == outside

    asked = []
    for place in range(task.seq_len):
      is_query = place >= task.context and (place - task.context) % 2 == 0
      assert example["loss_weights"][place] == is_query
      if is_query:
        key, value = example["tokens"][place : place + 2].tolist()
        assert example["targets"][place] == value_at[key]
        assert value == task.keys + value_at[key]
        assert example["answer_positions"][place] == key_place[key] + 1
        asked.append(key)
      else:
        assert example["targets"][place] == 0
        assert example["answer_positions"][place] == -1
    assert len(asked) == task.queries
    if not task.replacement:
      assert len(set(asked)) == task.queries


def test_replacement_asks_some_key_twice():
  rows = [BINDING.examples("train", 0)[i] for i in range(500)]
  answers = np.stack([row["answer_positions"] for row in rows])[:, 48::2]
  same = np.mean(answers[:, 0] == answers[:, 1])
  assert abs(same - 1 / 4) < 0.08


def test_all_places_of_the_pairs_are_equally_likely():
  task = NoisyRecall(pairs=2, keys=3, values=3, context=7, queries=1)
  places = collections.Counter(
      tuple(np.flatnonzero(example["tokens"][:7] < 3).tolist())
      for example in map(task.examples("train", 0).__getitem__, range(5000))
  )
  wanted = {(a, b) for a in range(6) for b in range(a + 2, 6)}
  assert set(places) == wanted
  expected = 5000 / len(wanted)
  chi_squared = sum((n - expected) ** 2 / expected for n in places.values())
  assert chi_squared < 27.9, "9 degrees of freedom, p = 0.001"


@pytest.mark.parametrize(
    "task", [NoisyRecall(), NoisyRecall(queries=3), BINDING]
)
def test_no_binding_is_what_naming_an_unused_value_reaches(task):
  rng = np.random.default_rng(0)
  hits, losses = [], []
  for index in range(1500):
    example = task.examples("eval", 1)[index]
    left = list(read(task, example)[0].values())
    for target in example["targets"][task.context :: 2].tolist():
      hits.append(rng.choice(left) == target)
      losses.append(math.log(len(left)))
      if not task.replacement:
        left.remove(target)
  baselines = task.baselines()
  error = np.std(hits) / np.sqrt(len(hits))
  assert abs(baselines["no_binding_accuracy"] - np.mean(hits)) < 4 * error
  assert baselines["no_binding_loss_nats"] == pytest.approx(np.mean(losses))


def test_the_ceilings_of_the_published_settings():
  """science.md quotes H_8 / 8 = .340 for task B and .25 for task C."""
  noise = NoisyRecall().baselines()
  assert noise["no_binding_accuracy"] == pytest.approx(
      sum(1 / m for m in range(1, 9)) / 8
  )
  assert noise["no_binding_loss_nats"] == pytest.approx(
      math.log(math.factorial(8)) / 8
  )
  assert noise["chance_accuracy"] == 1 / 64
  assert noise["chance_loss_nats"] == pytest.approx(math.log(64))
  assert BINDING.baselines()["no_binding_accuracy"] == 1 / 4


def test_longer_contexts_keep_vocabulary_pairs_and_queries():
  task, longer = NoisyRecall(), NoisyRecall().at_length(2)
  assert task.seq_len == 128
  assert longer.seq_len == 2 * 112 + 16
  assert longer.pairs == task.pairs
  assert longer.vocab_size == task.vocab_size
  assert longer.output_size == task.output_size == 64


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"noise_share": 1.5}, r"noise_share=1.5 must be in \[0, 1\]"),
        ({"keys": 7}, "pairs=8 must be at most keys=7"),
        ({"values": 7}, "pairs=8 must be at most values=7"),
        ({"context": 15}, "context=15 must be at least 16"),
        ({"queries": 9}, "queries=9 must be at most pairs=8"),
        ({"noise_vocab": 0}, "noise_vocab=0 must be at least 1"),
    ],
)
def test_impossible_settings_are_named(settings, message):
  with pytest.raises(ConfigError, match=message):
    NoisyRecall(**settings)
