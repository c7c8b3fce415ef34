# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Loss and accuracy on held-out examples."""

import math
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from diff_jax.data.pipeline import make_iterator
from diff_jax.losses import Totals, loss_totals
from diff_jax.sharding import ON_MESH, put_batch


def held_out_batches(source, mesh, batch_size: int, num_batches: int):
  """The first batches of the eval split on the mesh, the same at every call."""
  for batch in _local_batches(source, batch_size, num_batches):
    yield put_batch(batch, mesh)


def _local_batches(source, batch_size: int, num_batches: int):
  """This process's part of them, as numpy arrays."""
  iterator = make_iterator(
      source,
      "eval",
      0,
      batch_size,
      process_index=jax.process_index(),
      process_count=jax.process_count(),
      read_threads=0,
  )
  for _ in range(num_batches):
    batch = next(iterator)
    del batch["example_id"]
    yield batch


@jax.jit
def batch_totals(model, batch) -> Totals:
  """Sums of one batch."""
  hidden = model(
      batch["tokens"],
      positions=batch.get("positions"),
      segment_ids=batch.get("segment_ids"),
  )
  return loss_totals(
      hidden,
      model.head(),
      batch["targets"],
      batch["loss_weights"],
      chunk=256,
      shardings=ON_MESH,
  )


class Loss:
  """Mean cross-entropy in nats per target, and accuracy.

  Text also gives bits per byte, the same unit for every tokenizer.
  """

  def __init__(
      self, source, mesh, *, batch_size: int = 32, num_batches: int = 8
  ):
    self.source, self.mesh = source, mesh
    self.batch_size, self.num_batches = batch_size, num_batches

  def __call__(self, model) -> Iterator[tuple[str, float]]:
    sums = Totals(*(jnp.zeros(()) for _ in Totals._fields))
    num_bytes = 0
    for batch in _local_batches(self.source, self.batch_size, self.num_batches):
      if hasattr(self.source, "num_bytes"):
        num_bytes += self.source.num_bytes(batch)
      batch = put_batch(batch, self.mesh)
      sums = jax.tree.map(jnp.add, sums, batch_totals(model, batch))
    num_bytes = multihost_utils.process_allgather(np.float32(num_bytes)).sum()
    yield "loss", sums.nats / sums.targets
    yield "accuracy", sums.correct / sums.targets
    yield "num_targets", sums.targets
    if num_bytes:
      yield "bits_per_byte", sums.nats / math.log(2) / num_bytes
