# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""One-hop recall: name the values that belong to the keys that are asked.

The smallest task on which two maps and a per-head norm learn much faster than
one softmax map; it needs one layer and no positions.
"""

import dataclasses
from typing import ClassVar

import numpy as np

from diff_jax.config import ConfigError
from diff_jax.data import source


@dataclasses.dataclass(frozen=True)
class Recall:
  """Context tokens (key, value), then query tokens (key, query mark).

  A token is a pair of ids whose embeddings are summed. The keys of a row are
  distinct; its values are drawn independently. The queries are keys of the
  context, drawn without replacement; the target, an index into the values, is
  asked at the query and nowhere else.
  """

  name: ClassVar[str] = "recall"
  endless: ClassVar[bool] = True

  keys: int = 512  # size of the key vocabulary
  values: int = 32  # size of the value vocabulary
  context: int = 128  # (key, value) tokens
  queries: int = 32  # query tokens

  def __post_init__(self):
    source.check_at_least_one(**dataclasses.asdict(self))
    if self.context > self.keys:
      raise ConfigError(
          f"context={self.context} must be at most keys={self.keys}: the keys"
          " of a row are distinct"
      )
    if self.queries > self.context:
      raise ConfigError(
          f"queries={self.queries} must be at most context={self.context}:"
          " queries are drawn without replacement"
      )

  @property
  def vocab_size(self) -> int:
    return self.keys + self.values + 1

  @property
  def output_size(self) -> int:
    return self.values

  @property
  def seq_len(self) -> int:
    return self.context + self.queries

  def at_length(self, multiple: int) -> "Recall":
    """The same task with `multiple` times the context."""
    return dataclasses.replace(self, context=self.context * multiple)

  def examples(self, split: str, seed: int) -> source.EndlessExamples:
    return source.EndlessExamples(self.draw, split, seed)

  def draw(self, rng: np.random.Generator) -> source.Example:
    """One example from the random bits of `rng`."""
    keys = rng.permutation(self.keys)[: self.context]
    values = rng.integers(self.values, size=self.context)
    asked = rng.permutation(self.context)[: self.queries]
    query_mark = self.keys + self.values
    tokens = np.empty((self.seq_len, 2), np.int32)
    tokens[: self.context, 0] = keys
    tokens[: self.context, 1] = self.keys + values
    tokens[self.context :, 0] = keys[asked]
    tokens[self.context :, 1] = query_mark
    return source.ask(tokens, slice(self.context, None), values[asked], asked)

  def baselines(self) -> dict[str, float]:
    """Chance, and the best answers of a reader that cannot bind.

    That reader knows how often each value occurs in the context, but not with
    which key: it names the most frequent one. Its numbers are means over
    10,000 random contexts.
    """
    rng = np.random.default_rng(0)
    counts = rng.multinomial(
        self.context, np.full(self.values, 1 / self.values), size=10_000
    )
    shares = counts / self.context
    log_shares = np.log(np.where(shares > 0, shares, 1))
    return {
        "chance_accuracy": 1 / self.values,
        "chance_loss_nats": float(np.log(self.values)),
        "no_binding_accuracy": float(shares.max(axis=1).mean()),
        "no_binding_loss_nats": float(-(shares * log_shares).sum(1).mean()),
    }
