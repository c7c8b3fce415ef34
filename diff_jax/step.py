# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""One update: gradients, optimizer, and the guard that may skip it."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from diff_jax import transformer
from diff_jax.config import Config
from diff_jax.losses import Totals, loss_totals
from diff_jax.optimizer import make_schedule
from diff_jax.sharding import ON_MESH

# A spike is more than 6 standard deviations above the mean of 128 steps.
SPIKE_STEPS, SPIKE_SDS = 128, 6.0


class Guard(NamedTuple):
  """What decides whether an update is applied."""

  history: Float[Array, "2 w"]  # loss and gradient norm of the last w steps
  skipped: Int[Array, ""]  # updates so far
  skipped_in_row: Int[Array, ""]  # up to now


class State(NamedTuple):
  """Everything that a step changes."""

  model: transformer.Transformer
  opt_state: optax.OptState
  guard: Guard
  step: jax.Array


def init_state(
    settings: Config, optimizer: optax.GradientTransformation, seed
) -> State:
  """A fresh state, born with its sharding."""
  key = jax.random.fold_in(jax.random.key(seed), settings.train.init_key)
  model = transformer.Transformer(
      settings.model, shardings=ON_MESH, rngs=nnx.Rngs(key)
  )
  zero = jnp.zeros((), jnp.int32)
  guard = Guard(jnp.zeros((2, SPIKE_STEPS)), zero, zero)
  return State(model, optimizer.init(model), guard, zero)


def judge(
    guard: Guard, step: Int[Array, ""], values: Float[Array, "2"], spikes: bool
) -> tuple[Guard, Bool[Array, ""]]:
  """Judges a step by its loss and gradient norm.

  Non-finite values are never accepted. A spike in either is not, if `spikes`,
  once the history is full; it joins the history all the same, so that a lasting
  change is soon no spike any more.

  Args:
    guard: before the step.
    step: steps before this one.
    values: loss and gradient norm.
    spikes: whether to refuse spikes.

  Returns:
    the guard after the step, and whether to apply the update.
  """
  finite = jnp.isfinite(values).all()
  accept = finite
  if spikes:
    mean, sd = guard.history.mean(axis=1), guard.history.std(axis=1)
    spike = (values > mean + SPIKE_SDS * sd).any()
    accept &= ~(spike & (step >= SPIKE_STEPS))
  slot = step % SPIKE_STEPS
  kept = jnp.where(finite, values, guard.history[:, slot])
  skip = 1 - accept.astype(jnp.int32)
  after = Guard(
      guard.history.at[:, slot].set(kept),
      guard.skipped + skip,
      skip * (guard.skipped_in_row + 1),
  )
  return after, accept


def make_step(settings: Config, optimizer: optax.GradientTransformation):
  """The update: (state, batch) -> (state, metrics)."""
  schedule = make_schedule(settings.optimizer, settings.train.num_steps)
  gradients_of = functools.partial(summed_gradients, settings)

  def step(state: State, batch) -> tuple[State, dict[str, jax.Array]]:
    gradients, totals = gradients_of(state.model, batch)
    targets = jnp.maximum(totals.targets, 1)
    gradients = jax.tree.map(lambda g: g / targets, gradients)
    updates, opt_state = optimizer.update(
        gradients, state.opt_state, state.model
    )
    loss, norm = totals.nats / targets, optax.tree.norm(gradients)
    guard, accept = judge(
        state.guard,
        state.step,
        jnp.stack([loss, norm]),
        settings.train.skip_spikes,
    )
    metrics = {
        "train/loss": loss,
        "train/accuracy": totals.correct / targets,
        "train/grad_norm": norm,
        # A skipped update does not advance the schedule.
        "train/learning_rate": schedule(state.step - state.guard.skipped),
        "train/skipped": guard.skipped,
        "train/skipped_in_row": guard.skipped_in_row,
    }
    for name, value in state.model.mechanism_metrics().items():
      metrics[f"mechanism/{name}"] = value
    model, opt_state = jax.tree.map(
        functools.partial(jnp.where, accept),
        (optax.apply_updates(state.model, updates), opt_state),
        (state.model, state.opt_state),
    )
    return State(model, opt_state, guard, state.step + 1), metrics

  return jax.jit(step, donate_argnums=0)


def summed_gradients(settings: Config, model, batch):
  """Gradients of the summed loss, so that microbatches weigh by their targets.

  Args:
    settings: accumulation, chunking and z-loss.
    model: the parameters.
    batch: arrays [b,...], or [microbatches,b,...] with accumulation.

  Returns:
    gradients like `model`, and `Totals`.
  """

  def summed_loss(model, batch) -> tuple[jax.Array, Totals]:
    hidden = model(
        batch["tokens"],
        positions=batch.get("positions"),
        segment_ids=batch.get("segment_ids"),
    )
    totals = loss_totals(
        hidden,
        model.head(),
        batch["targets"],
        batch["loss_weights"],
        chunk=settings.train.loss_chunk,
        shardings=ON_MESH,
    )
    return totals.nats + settings.train.z_loss * totals.z, totals

  gradients_of = jax.grad(summed_loss, has_aux=True)
  if settings.train.accumulation_steps == 1:
    return gradients_of(model, batch)

  def accumulate(sums, batch):
    return jax.tree.map(jnp.add, sums, gradients_of(model, batch)), None

  zeros = jax.tree.map(jnp.zeros_like, model), Totals(*[jnp.zeros(())] * 4)
  return jax.lax.scan(accumulate, zeros, batch)[0]
