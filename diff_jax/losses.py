# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Cross-entropy that never holds all logits of a batch at once."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from diff_jax.sharding import Shardings
from diff_jax.transformer import output_logits


class Totals(NamedTuple):
  """Sums over target tokens; sums of microbatches and evaluations add up."""

  nats: Float[Array, ""]  # cross-entropy
  correct: Float[Array, ""]  # targets that are the largest logit
  z: Float[Array, ""]  # logsumexp(logits) ** 2
  targets: Float[Array, ""]  # sum of the loss weights


def loss_totals(
    hidden: Float[Array, "b t d"],
    head: Float[Array, "v d"],
    targets: Int[Array, "b t"],
    loss_weights: Float[Array, "b t"],
    *,
    chunk: int,
    shardings: Shardings = Shardings(),  # noqa: B008, it is frozen
) -> Totals:
  """Weighted sums of the loss over a batch.

  Logits exist for at most `chunk` positions of each sequence at a time, in the
  forward and in the backward pass, so that a vocabulary of 100,000 fits.

  Args:
    hidden: normed hidden states.
    head: the output matrix.
    targets: the tokens to predict.
    loss_weights: 0 where nothing is asked.
    chunk: positions at a time; rounded down to a divisor of t.
    shardings: of the logits.
  """
  t = hidden.shape[1]
  chunk = next(size for size in range(min(chunk, t), 0, -1) if t % size == 0)

  @jax.checkpoint
  def totals(hidden, targets, weights):
    logits = output_logits(hidden, head, shardings)
    lse = jax.nn.logsumexp(logits, axis=-1)
    # A comparison rather than a gather: it partitions over the vocabulary.
    ids = jax.lax.broadcasted_iota(jnp.int32, (1, 1, logits.shape[-1]), 2)
    hit = ids == targets[..., None]
    nats = lse - jnp.sum(jnp.where(hit, logits, 0), axis=-1)
    correct = (jnp.argmax(logits, axis=-1) == targets).astype(jnp.float32)
    sums = ((x * weights).sum() for x in (nats, correct, lse**2))
    return Totals(*sums, weights.sum())

  if chunk == t:
    return totals(hidden, targets, loss_weights)

  def body(sums, index):
    piece = (
        jax.lax.dynamic_slice_in_dim(x, index * chunk, chunk, axis=1)
        for x in (hidden, targets, loss_weights)
    )
    return jax.tree.map(jnp.add, sums, totals(*piece)), None

  zeros = Totals(*(jnp.zeros(()) for _ in Totals._fields))
  return jax.lax.scan(body, zeros, jnp.arange(t // chunk))[0]
