# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Memory and time of the cross-entropy over a vocabulary of 100,352 words.

`diff_jax.losses` in chunks against optax on all logits at once: loss and both
gradients, fp32. Memory is XLA's account of the temporaries.
"""

import functools

import jax
import jax.numpy as jnp
import optax

from diff_jax.bench import Options
from diff_jax.bench.table import (
    Table,
    check_agreement,
    milliseconds,
)
from diff_jax.bench.timing import interleave, number, ratio
from diff_jax.config import TrainConfig
from diff_jax.losses import loss_totals

VOCAB_SIZE, D_MODEL, LENGTHS = 100_352, 256, (1024, 2048)
TOLERANCE = 1e-4  # relative Frobenius error of the loss and the gradients


def chunked(arrays, targets):
  hidden, head = arrays
  weights = jnp.ones(targets.shape)
  totals = loss_totals(
      hidden, head, targets, weights, chunk=TrainConfig.loss_chunk
  )
  return totals.nats / totals.targets


def plain(arrays, targets):
  hidden, head = arrays
  logits = jnp.einsum("btd,vd->btv", hidden, head)
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
  return losses.mean()


CANDIDATES = {"loss_totals": chunked, "plain optax": plain}


def run(options: Options) -> Table:
  vocab_size = 512 if options.smoke else VOCAB_SIZE
  lengths = (64,) if options.smoke else LENGTHS
  rows, notes = [], []
  for t in lengths:
    keys = jax.random.split(jax.random.key(0), 3)
    hidden = jax.random.normal(keys[0], (1, t, D_MODEL))
    head = jax.random.normal(keys[1], (vocab_size, D_MODEL)) / D_MODEL**0.5
    targets = jax.random.randint(keys[2], (1, t), 0, vocab_size)
    arguments = (hidden, head), targets
    compiled = {
        name: jax.jit(jax.value_and_grad(loss)).lower(*arguments).compile()
        for name, loss in CANDIDATES.items()
    }
    calls = {
        name: functools.partial(call, *arguments)
        for name, call in compiled.items()
    }
    ours, theirs = (call() for call in calls.values())
    error = check_agreement(f"{t} tokens", ours, theirs, TOLERANCE)
    notes.append(f"{t:,} tokens: loss and gradients agree to {error:.0e}")
    del ours, theirs
    memory_mib = {
        name: call.memory_analysis().temp_size_in_bytes / 2**20
        for name, call in compiled.items()
    }
    notes.append(
        f"{t:,} tokens: loss_totals needs 1 /"
        f" {number(memory_mib['plain optax'] / memory_mib['loss_totals'])} of"
        " plain optax's temporaries"
    )
    times_s = interleave(calls, options.rounds)
    for name, x in times_s.items():
      row = {"tokens": t, "loss": name, "temporaries_mib": memory_mib[name]}
      row |= milliseconds(x)
      row["times_plain"] = ratio(x, times_s["plain optax"]).median
      rows.append(row)
  title = f"Cross-entropy over {vocab_size:,} words, width {D_MODEL}"
  return Table(title, rows, notes=notes)
