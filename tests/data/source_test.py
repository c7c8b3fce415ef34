# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What holds for every source: determinism, independence, settings."""

import dataclasses
import itertools

import numpy as np
import pytest
from ml_collections import config_dict

from diff_jax import data
from diff_jax.config import ConfigError
from diff_jax.data import source as source_lib

TASKS = [data.Recall(), data.NoisyRecall()]
FIRST = [0, 1, 2, 1000, 2**32, 2**48 - 1]


def content(example):
  return b"".join(example[name].tobytes() for name in sorted(example))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_an_example_depends_on_nothing_but_its_index(task):
  forward = task.examples("train", 3)
  backward = task.examples("train", 3)
  want = [content(forward[i]) for i in FIRST]
  got = [content(backward[i]) for i in reversed(FIRST)]
  assert got == want[::-1]


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_indices_splits_and_seeds_share_no_example(task):
  seen = {
      content(task.examples(split, seed)[i])
      for split, seed, i in itertools.product(
          ["train", "eval"], range(5), range(200)
      )
  }
  assert len(seen) == 2 * 5 * 200


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_neighbours_are_uncorrelated(task):
  """Targets of example i say nothing on those of i + 1 or of another seed."""
  asked = task.examples("train", 0)[0]["loss_weights"] > 0

  def targets(seed, start):
    examples = task.examples("train", seed)
    rows = [examples[i]["targets"][asked] for i in range(start, start + 2000)]
    return np.concatenate(rows)

  base = targets(0, 0)
  for other in (targets(0, 1), targets(1, 0)):
    agreement = np.mean(base == other)
    chance = 1 / task.output_size
    # Four standard errors of independent targets.
    assert abs(agreement - chance) < 4 * np.sqrt(chance / len(base))


@pytest.mark.parametrize(
    "source", [*TASKS, data.Text()], ids=lambda source: source.name
)
def test_examples_have_the_agreed_form(source):
  examples = source.examples("eval", 0)
  example = examples[len(examples) - 1]
  for name, array in example.items():
    assert len(array) == source.seq_len
    assert array.dtype == (
        np.float32 if name == "loss_weights" else np.int32
    ), name
  assert 0 <= example["tokens"].min()
  assert example["tokens"].max() < source.vocab_size
  assert 0 <= example["targets"].min()
  assert example["targets"].max() < source.output_size
  for index in (-1, len(examples)):
    with pytest.raises(IndexError, match=f"index={index}"):
      examples[index]
  with pytest.raises(ValueError, match="split='test' must be one of train"):
    source.examples("test", 0)


def test_make_source_builds_what_the_settings_say():
  settings = {"name": "recall", "context": 64}
  assert data.make_source(settings) == data.Recall(context=64)
  assert settings == {"name": "recall", "context": 64}
  for name, cls in data.SOURCES.items():
    defaults = dataclasses.asdict(cls())
    assert data.make_source({"name": name, **defaults}) == cls()


@pytest.mark.parametrize("name", list(data.SOURCES))
def test_flags_reach_every_setting(name):
  config = config_dict.ConfigDict(data.default_settings(name))
  assert data.make_source(config.to_dict()) == data.SOURCES[name]()
  if name == "text":
    with pytest.raises(TypeError):
      config.long_share = "half"
    config.long_share = 0.5
    assert data.make_source(config.to_dict()) == data.Text(long_share=0.5)


def test_a_concatenation_is_its_sequences():
  rng = np.random.default_rng(0)
  for _ in range(20):
    sequences = [
        [{"tokens": rng.integers(9, size=1)} for _ in range(size)]
        for size in rng.integers(1, 5, rng.integers(1, 6))
    ]
    joined = source_lib.Concatenation(sequences)
    wanted = sum(sequences, [])
    assert len(joined) == len(wanted) and joined.parts == ()
    assert all(joined[i] is wanted[i] for i in range(len(wanted)))
    for index in (-1, len(wanted)):
      with pytest.raises(IndexError, match=f"{index=}"):
        joined[index]
    weights = rng.random(len(sequences)).tolist()
    parts = source_lib.Concatenation(sequences, weights).parts
    for part, sequence, weight in zip(parts, sequences, weights, strict=True):
      assert wanted[part.start : part.stop] == sequence
      assert part.weight == weight


def test_make_source_lists_what_is_valid():
  with pytest.raises(ConfigError, match="'nope'.*recall, noisy_recall, text"):
    data.make_source({"name": "nope"})
  with pytest.raises(ConfigError, match="name=None"):
    data.make_source({})
  with pytest.raises(ConfigError, match="contxt=4 .* keys, values, context"):
    data.make_source({"name": "recall", "contxt": 4})
