# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Accuracy of the answers of a task, at its length and beyond."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from diff_jax.evaluators.loss import batch_totals, held_out_batches
from diff_jax.losses import Totals


class RecallAccuracy:
  """Share of right answers at 1x, 2x, ... the length of the training context."""

  def __init__(
      self,
      source,
      mesh,
      *,
      multiples: tuple[int, ...] = (1, 2, 4),
      batch_size: int = 32,
      num_batches: int = 4,
  ):
    self.sources = {m: source.at_length(m) for m in multiples}
    self.mesh, self.batch_size = mesh, batch_size
    self.num_batches = num_batches

  def __call__(self, model) -> Iterator[tuple[str, float]]:
    for multiple, source in self.sources.items():
      sums = Totals(*(jnp.zeros(()) for _ in Totals._fields))
      for batch in held_out_batches(
          source, self.mesh, self.batch_size, self.num_batches
      ):
        sums = jax.tree.map(jnp.add, sums, batch_totals(model, batch))
      yield f"accuracy_{multiple}x", sums.correct / sums.targets
    yield "num_answers", sums.targets
