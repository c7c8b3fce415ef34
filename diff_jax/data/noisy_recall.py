# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Recall among noise: a few (key, value) pairs hidden in a noisy context.

Without replacement a model that never binds a key to its value still scores
far above chance, by naming a value of the context that was not used yet; with
replacement it does not. `baselines` has both ceilings.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from diff_jax.config import ConfigError
from diff_jax.data import source


@dataclasses.dataclass(frozen=True)
class NoisyRecall:
  """A context of pairs and noise, then (key, value) queries, teacher forced.

  Keys and values of a row are distinct. A pair is two adjacent tokens; all
  places of the pairs in the context are equally likely. The target, an index
  into the values, is asked at the key of a query and nowhere else.
  """

  name: ClassVar[str] = "noisy_recall"
  endless: ClassVar[bool] = True

  pairs: int = 8  # (key, value) pairs in the context
  keys: int = 64  # size of the key vocabulary
  values: int = 64  # size of the value vocabulary
  noise_vocab: int = 64  # size of the noise vocabulary
  noise_share: float = 1.0  # of the non-pair tokens; the rest is one filler
  context: int = 112  # tokens before the queries
  queries: int = 8  # (key, value) queries, two tokens each
  replacement: bool = False  # whether a key can be asked more than once

  def __post_init__(self):
    source.check_at_least_one(
        pairs=self.pairs, noise_vocab=self.noise_vocab, queries=self.queries
    )
    if not 0 <= self.noise_share <= 1:
      raise ConfigError(f"noise_share={self.noise_share} must be in [0, 1]")
    for name, size in {"keys": self.keys, "values": self.values}.items():
      if self.pairs > size:
        raise ConfigError(
            f"pairs={self.pairs} must be at most {name}={size}: the {name} of"
            " a row are distinct"
        )
    if 2 * self.pairs > self.context:
      raise ConfigError(
          f"context={self.context} must be at least {2 * self.pairs}: it holds"
          f" pairs={self.pairs} of two tokens"
      )
    if self.queries > self.pairs and not self.replacement:
      raise ConfigError(
          f"queries={self.queries} must be at most pairs={self.pairs} unless"
          " replacement=True"
      )

  @property
  def vocab_size(self) -> int:
    return self.keys + self.values + self.noise_vocab + 1

  @property
  def output_size(self) -> int:
    return self.values

  @property
  def seq_len(self) -> int:
    return self.context + 2 * self.queries

  def at_length(self, multiple: int) -> "NoisyRecall":
    """The same pairs and queries with `multiple` times the context."""
    return dataclasses.replace(self, context=self.context * multiple)

  def examples(self, split: str, seed: int) -> source.EndlessExamples:
    return source.EndlessExamples(self.draw, split, seed)

  def draw(self, rng: np.random.Generator) -> source.Example:
    """One example from the random bits of `rng`."""
    first_noise = self.keys + self.values
    filler = first_noise + self.noise_vocab
    keys = rng.permutation(self.keys)[: self.pairs]
    values = rng.permutation(self.values)[: self.pairs]
    tokens = np.full(self.seq_len, filler, np.int32)

    # With every pair shrunk to one place, distinct places are all that is
    # asked for; growing the pairs back moves pair j by j.
    places = rng.permutation(self.context - self.pairs)[: self.pairs]
    key_at = np.sort(places) + np.arange(self.pairs)
    tokens[key_at] = keys
    tokens[key_at + 1] = self.keys + values

    outside = np.flatnonzero(tokens[: self.context] == filler)
    num_noise = round(self.noise_share * len(outside))
    noise = first_noise + rng.integers(self.noise_vocab, size=num_noise)
    tokens[rng.permutation(outside)[:num_noise]] = noise

    if self.replacement:
      asked = rng.integers(self.pairs, size=self.queries)
    else:
      asked = rng.permutation(self.pairs)[: self.queries]
    query_at = slice(self.context, None, 2)
    tokens[query_at] = keys[asked]
    tokens[self.context + 1 :: 2] = self.keys + values[asked]
    return source.ask(tokens, query_at, values[asked], key_at[asked] + 1)

  def baselines(self) -> dict[str, float]:
    """Chance, and the best answers of a reader that cannot bind.

    That reader names any value of the context that is not used up: of m pairs
    every one is left with replacement, and m - j at query j without, so that
    asking for all of them gives accuracy H_m / m.
    """
    used = 0 if self.replacement else np.arange(self.queries)
    left = np.full(self.queries, self.pairs) - used
    return {
        "chance_accuracy": 1 / self.values,
        "chance_loss_nats": float(np.log(self.values)),
        "no_binding_accuracy": float((1 / left).mean()),
        "no_binding_loss_nats": float(np.log(left).mean()),
    }
