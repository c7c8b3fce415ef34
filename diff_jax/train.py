# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Training, from top to bottom: mesh, data, model, optimizer, step, loop.

One file for a laptop and a pod: only `config.mesh` differs. Seeds are trained
one after another; each has its own data order, initialisation and checkpoints,
the same ones for every arm of an experiment.
"""

import functools
import os
import pathlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from ml_collections import config_dict

from diff_jax import flops, transformer
from diff_jax.attention import arm_label
from diff_jax.checkpoint import Checkpoints, on_mesh
from diff_jax.config import Config, ConfigError, ModelConfig, parse
from diff_jax.data import make_source
from diff_jax.data.pipeline import make_iterator
from diff_jax.data.source import Source
from diff_jax.evaluators import Evaluation, make_evaluators
from diff_jax.losses import Totals, loss_totals
from diff_jax.optimizer import make_optimizer, make_schedule
from diff_jax.run import (
    Run,
    StepLog,
    check_same_run,
    provenance,
    read_description,
)
from diff_jax.sharding import ON_MESH, check_fits, make_mesh, put_batch


class State(NamedTuple):
  """Everything that a step changes."""

  model: transformer.Transformer
  opt_state: optax.OptState
  step: jax.Array


def train(
    config: config_dict.ConfigDict,
    workdir: str | os.PathLike,
    devices: Sequence[jax.Device] | None = None,
) -> None:
  """Trains every seed of a config, continuing what `workdir` already holds.

  Args:
    config: from a config file; see `diff_jax.config.default`.
    workdir: the run's folder; see `diff_jax.run`.
    devices: of the mesh; None: all.

  Raises:
    ConfigError: for a setting that cannot be right, before the first step.
  """
  settings = parse(config)
  check_same_run(config, workdir)
  if is_finished(settings, workdir):
    print(f"{workdir} is finished: nothing to do", file=sys.stderr)
    return
  mesh = make_mesh(settings.mesh, devices)
  microbatch = settings.batch_size // settings.train.accumulation_steps
  check_fits(settings.model, microbatch, mesh)
  source = make_source(settings.data)
  check_source(settings.model, source)
  with jax.set_mesh(mesh):
    optimizer = make_optimizer(settings.optimizer, settings.train.num_steps)
    init = jax.jit(functools.partial(init_state, settings, optimizer))
    evaluators = make_evaluators(settings.evaluators, source, mesh)
    description = describe(config.to_dict(), settings, source)
    if description["corpus"]:
      print_corpus(description["corpus"])
    run = Run(workdir, description)
    loop = Loop(settings, config.to_dict(), mesh, source, init, evaluators, run)
    loop.compile(make_step(settings, optimizer))
    for seed in settings.train.seeds:
      loop.train_seed(seed)
    run.close()


def is_finished(settings: Config, workdir: str | os.PathLike) -> bool:
  """Whether a folder holds this run with every seed at its last step."""
  if not (pathlib.Path(workdir) / "run.json").is_file():
    return False
  described = read_description(workdir)
  return (
      set(settings.train.seeds) <= set(described["finished_seeds"])
      and described["last_step"] == settings.train.last_step
  )


def check_source(model: ModelConfig, source: Source) -> None:
  """Refuses a model that cannot hold the source's tokens or targets.

  Raises:
    ConfigError: naming the setting.
  """
  for name, size, needed in (
      ("vocab_size", model.vocab_size, source.vocab_size),
      ("output_size", model.num_outputs, source.output_size),
  ):
    if size < needed:
      raise ConfigError(
          f"model.{name}={size} must be at least {needed}, which data"
          f" {source.name!r} needs."
      )


def describe(
    config: Mapping[str, Any], settings: Config, source: Source
) -> dict[str, Any]:
  """What run.json says before the first step."""
  cost = flops.train_flops_per_token(settings.model, source.seq_len)
  return provenance() | {
      "config": config,
      "last_step": settings.train.last_step,
      "arm": settings.train.arm or arm_label(settings.model),
      "parameters": transformer.num_parameters(settings.model),
      "flops_per_token": sum(cost.values()),
      "attention_flops_share": cost["maps"] / sum(cost.values()),
      "baselines": source.baselines(),
      "corpus": source.corpus() if hasattr(source, "corpus") else None,
  }


def print_corpus(corpus: Mapping[str, Any]) -> None:
  print(
      f"data: {corpus['name']}, {corpus['documents']:,} documents,"
      f" {corpus['bytes']:,} bytes, sha256 {corpus['sha256'][:16]}...",
      file=sys.stderr,
  )


def init_state(
    settings: Config, optimizer: optax.GradientTransformation, seed
) -> State:
  """A fresh state, born with its sharding."""
  key = jax.random.fold_in(jax.random.key(seed), settings.train.init_key)
  model = transformer.Transformer(
      settings.model, shardings=ON_MESH, rngs=nnx.Rngs(key)
  )
  return State(model, optimizer.init(model), jnp.zeros((), jnp.int32))


def make_step(settings: Config, optimizer: optax.GradientTransformation):
  """The update: (state, batch) -> (state, metrics)."""
  schedule = make_schedule(settings.optimizer, settings.train.num_steps)
  microbatches = settings.train.accumulation_steps

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

  def summed_gradients(model, batch):
    """Gradients of the sum, so that microbatches weigh by their targets."""
    gradients_of = jax.grad(summed_loss, has_aux=True)
    if microbatches == 1:
      return gradients_of(model, batch)

    def accumulate(sums, batch):
      return jax.tree.map(jnp.add, sums, gradients_of(model, batch)), None

    zeros = jax.tree.map(jnp.zeros_like, model), Totals(*[jnp.zeros(())] * 4)
    return jax.lax.scan(accumulate, zeros, batch)[0]

  def step(state: State, batch) -> tuple[State, dict[str, jax.Array]]:
    gradients, totals = summed_gradients(state.model, batch)
    targets = jnp.maximum(totals.targets, 1)
    gradients = jax.tree.map(lambda g: g / targets, gradients)
    updates, opt_state = optimizer.update(
        gradients, state.opt_state, state.model
    )
    metrics = {
        "train/loss": totals.nats / targets,
        "train/accuracy": totals.correct / targets,
        "train/grad_norm": optax.tree.norm(gradients),
        "train/learning_rate": schedule(state.step),
    }
    for name, value in state.model.mechanism_metrics().items():
      metrics[f"mechanism/{name}"] = value
    model = optax.apply_updates(state.model, updates)
    return State(model, opt_state, state.step + 1), metrics

  return jax.jit(step, donate_argnums=0)


def memory_bytes(compiled) -> int:
  """What a compiled function holds on one device at most, by XLA's account."""
  memory = compiled.memory_analysis()
  return (
      memory.argument_size_in_bytes
      + memory.output_size_in_bytes
      - memory.alias_size_in_bytes
      + memory.temp_size_in_bytes
  )


class Loop:
  """Trains one seed after another with one compiled step."""

  def __init__(self, settings, config, mesh, source, init, evaluators, run):
    self.settings, self.config, self.mesh = settings, config, mesh
    self.source, self.init, self.run = source, init, run
    self.evaluators = evaluators

  def batches(self, seed: int):
    return make_iterator(
        self.source,
        "train",
        seed,
        self.settings.batch_size,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )

  def put(self, batch) -> dict[str, jax.Array]:
    return put_batch(batch, self.mesh, self.settings.train.accumulation_steps)

  def compile(self, step) -> None:
    """Compiles the step ahead of time, which also tells its memory."""
    self.abstract_state = on_mesh(jax.eval_shape(self.init, 0), self.mesh)
    batch = self.put(next(self.batches(self.settings.train.seeds[0])))
    start_s = time.perf_counter()
    self.step = step.lower(self.abstract_state, batch).compile()
    self.run.describe(
        compile_time_s=time.perf_counter() - start_s,
        step_memory_bytes=memory_bytes(self.step),
        tokens_per_step=batch["targets"].size,
    )

  def train_seed(self, seed: int) -> None:
    """Restores, then steps, logs, evaluates and saves until the last step."""
    train, run = self.settings.train, self.run
    folder = run.workdir / "checkpoints" / f"seed_{seed}"
    iterator = self.batches(seed)
    with Checkpoints(folder, keep=train.keep_checkpoints) as checkpoints:
      first = checkpoints.latest_step() or 0
      run.rewind(seed, first)
      if first:
        state = checkpoints.restore(self.abstract_state, iterator)
        print(f"seed {seed} continues after step {first}", file=sys.stderr)
      else:
        state = self.init(seed)
        self.evaluate(seed, 0, state, self.due(0))
      last = train.last_step
      log = StepLog(run, seed, first, last, train.log_every_steps)
      for step in range(first + 1, last + 1):
        state, metrics = self.step(state, self.put(next(iterator)))
        log.next(step, metrics)
        save = step == last or step % train.checkpoint_every_steps == 0
        evaluators = self.due(step)
        if save or evaluators:
          with log.paused():
            self.evaluate(seed, step, state, evaluators)
            if save:
              checkpoints.save(step, state, iterator, self.config)
      log.close()
    run.finish_seed(seed)

  def due(self, step: int) -> list[Evaluation]:
    last = self.settings.train.last_step
    return [x for x in self.evaluators if x.due(step, last)]

  def evaluate(self, seed: int, step: int, state: State, evaluators) -> None:
    values = {}
    for evaluator in evaluators:
      values |= evaluator.run(state.model)
    self.run.write(seed, step, values)
