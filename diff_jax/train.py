# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Training, from top to bottom: mesh, data, model, optimizer, step, loop.

One file for a laptop and a pod: only `config.mesh` differs. Seeds are trained
one after another; each has its own data order, initialisation and checkpoints,
the same ones for every arm of an experiment.
"""

import contextlib
import functools
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import Any

import jax
from ml_collections import config_dict

from diff_jax import flops
from diff_jax.checkpoint import Checkpoints, on_mesh
from diff_jax.config import Config, ConfigError, ModelConfig, parse
from diff_jax.data import make_source
from diff_jax.data.pipeline import make_iterator
from diff_jax.data.source import Source
from diff_jax.evaluators import Evaluation, make_evaluators
from diff_jax.metrics import StepLog, TensorBoard, WeightsAndBiases
from diff_jax.optimizer import make_optimizer
from diff_jax.profile import Profile
from diff_jax.provenance import describe, print_corpus
from diff_jax.resume import check_not_past, check_same_data, check_same_run
from diff_jax.run import Lock, Run, read_description
from diff_jax.sharding import check_fits, make_mesh, put_batch
from diff_jax.step import State, init_state, make_step
from diff_jax.watch import Watch


def train(
    config: config_dict.ConfigDict,
    workdir: str | os.PathLike,
    devices: Sequence[jax.Device] | None = None,
    *,
    watch: Watch | None = None,
    profile_steps: str = "",
    accept_config_change: bool = False,
    accept_data_change: bool = False,
) -> None:
  """Trains every seed of a config, continuing what `workdir` already holds.

  Args:
    config: from a config file; see `diff_jax.config.default`.
    workdir: the run's folder; see `diff_jax.run`.
    devices: of the mesh; None: all.
    watch: of the thread that answers signals; see `diff_jax.watch`.
    profile_steps: `FIRST-LAST` steps to trace for xprof; empty: none.
    accept_config_change: continue a run with other settings.
    accept_data_change: continue a run on other data.

  Raises:
    ConfigError: for a setting that cannot be right, before the first step.
    RunError: if the run cannot go on.
  """
  settings = parse(config)
  profile = Profile(workdir, profile_steps, settings.train.last_step)
  check_not_past(settings.train, workdir)
  check_same_run(config, workdir, accept_config_change)
  if is_finished(settings, workdir):
    print(f"{workdir} is finished: nothing to do", file=sys.stderr)
    return
  mesh = make_mesh(settings.mesh, devices)
  microbatch = settings.batch_size // settings.train.accumulation_steps
  check_fits(settings.model, microbatch, mesh)
  source = make_source(settings.data)
  check_source(settings.model, source)
  description = describe(config.to_dict(), settings, source)
  corpus = description["corpus"]
  check_same_data(corpus, workdir, accept_data_change)
  if corpus:
    print_corpus(corpus)
  with jax.set_mesh(mesh):
    evaluators = make_evaluators(settings.evaluators, source, mesh)
    with Lock(workdir) as lock:  # a mistake found above leaves no folder
      run = Run(lock, description, make_writers(settings, lock, description))
      loop = Loop(
          settings, config.to_dict(), mesh, source, evaluators, run,
          watch or Watch(), profile,
      )  # fmt: skip
      with contextlib.closing(run):
        loop.compile()
        for seed in settings.train.seeds:
          loop.train_seed(seed)
          if loop.watch.stop:
            return
  print(
      f"{workdir} is finished: diff-jax report {workdir} shows it",
      file=sys.stderr,
  )


def is_finished(settings: Config, workdir: str | os.PathLike) -> bool:
  """Whether a folder holds this run with every seed at its last step."""
  if not (pathlib.Path(workdir) / "run.json").is_file():
    return False
  described = read_description(workdir)
  return (
      set(settings.train.seeds) <= set(described.get("finished_seeds", ()))
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
          f"model.{name}={size} must be at least {needed}, which"
          f" {getattr(source, 'vocabulary', f'data {source.name!r}')} needs."
      )


def make_writers(settings: Config, lock: Lock, description):
  """Copies of the metrics, on the process that writes."""
  if jax.process_index():
    return []
  workdir = lock.path.parent
  writers = [TensorBoard(workdir / "tensorboard")]
  project = settings.train.wandb_project
  if project:
    writers.append(WeightsAndBiases(project, workdir, description))
  return writers


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

  def __init__(
      self, settings, config, mesh, source, evaluators, run, watch, profile
  ):
    self.settings, self.config, self.mesh = settings, config, mesh
    self.source, self.evaluators = source, evaluators
    self.run, self.watch, self.profile = run, watch, profile
    self.optimizer = make_optimizer(
        settings.optimizer, settings.train.num_steps
    )
    self.init = jax.jit(functools.partial(init_state, settings, self.optimizer))
    self.peak_flops_per_s = flops.peak_flops_per_s(mesh)

  def batches(self, seed: int):
    return make_iterator(
        self.source,
        "train",
        seed,
        self.settings.batch_size,
        process_index=jax.process_index(),
        process_count=jax.process_count(),
    )

  def next_batch(self, iterator) -> tuple[dict[str, jax.Array], Any]:
    """A batch on the devices, and the ids of its examples."""
    timeout_s = self.settings.train.data_timeout_s
    with (
        self.run.clock.spend("data"),
        self.watch.waiting(
            f"no batch from data {self.source.name!r} in"
            f" data_timeout_s={timeout_s:g} seconds",
            timeout_s,
        ),
    ):
      batch = dict(next(iterator))
    example_ids = batch.pop("example_id")
    microbatches = self.settings.train.accumulation_steps
    return put_batch(batch, self.mesh, microbatches), example_ids

  def compile(self) -> None:
    """Compiles the step ahead of time, which also tells its memory."""
    step = make_step(self.settings, self.optimizer)
    self.abstract_state = on_mesh(jax.eval_shape(self.init, 0), self.mesh)
    iterator = self.batches(self.settings.train.seeds[0])
    batch, _ = self.next_batch(iterator)
    before_s = self.run.clock.now()["compile"]
    with self.run.clock.spend("compile"):
      self.step = step.lower(self.abstract_state, batch).compile()
    self.run.describe(
        compile_time_s=self.run.clock.now()["compile"] - before_s,
        step_memory_bytes=memory_bytes(self.step),
        tokens_per_step=batch["targets"].size,
    )

  def train_seed(self, seed: int) -> None:
    """Restores, then steps, logs, evaluates and saves until the last step."""
    train, run, clock = self.settings.train, self.run, self.run.clock
    iterator = self.batches(seed)
    folder = run.workdir / "checkpoints" / f"seed_{seed}"
    with Checkpoints(
        folder,
        keep=train.keep_checkpoints,
        every_steps=train.checkpoint_every_steps,
    ) as checkpoints:
      first, state = self.start(seed, checkpoints, iterator)
      log = StepLog(run, seed, first, train, self.peak_flops_per_s)
      step = first
      with clock.spend("step"):
        while step < train.last_step and not self.watch.stop:
          step += 1
          self.profile.before(step)
          batch, example_ids = self.next_batch(iterator)
          state, metrics = self.step(state, batch)
          log.next(step, metrics, example_ids)
          self.profile.after(step, metrics)
          self.after_step(seed, step, state, iterator, checkpoints, log)
        log.close()
      if step > first:
        run.lock.check()
        with clock.spend("save"):
          checkpoints.save_last(step, state, iterator, self.config)
    # A stop may have left out an evaluation: it is then made up for.
    if step == train.last_step and not self.watch.stop:
      run.finish_seed(seed)
    else:
      print(f"stopped: {self.watch.place()}", file=sys.stderr)

  def start(self, seed: int, checkpoints: Checkpoints, iterator):
    """The step that is done and its state: restored, or fresh."""
    run = self.run
    with run.clock.spend("restore"):
      first, state = checkpoints.restore(self.abstract_state, iterator)
    kept = run.rewind(seed, first or 0)
    run.begin_session(seed, first or 0)
    if state is None:
      first, state = 0, self.init(seed)
    elif first < self.settings.train.last_step:
      print(f"seed {seed} continues after step {first}", file=sys.stderr)
      self.profile.check_ahead(first)
    done = {
        name.split("/")[0]
        for row in kept
        if (row["seed"], row["step"]) == (seed, first)
        for name in row
    }
    missing = [x for x in self.due(first) if x.name not in done]
    self.evaluate(seed, first, state, missing)
    self.tell_place(seed, first, checkpoints)
    return first, state

  def after_step(self, seed, step, state, iterator, checkpoints, log) -> None:
    """Evaluates and saves, if it is time for it."""
    checkpoints.poll(step)
    save = checkpoints.due(step)
    evaluators = self.due(step)
    if evaluators:
      log.flush()
      self.evaluate(seed, step, state, evaluators)
    if save and not self.watch.stop:  # else the last save is about to come
      log.flush()
      self.run.lock.check()
      with self.run.clock.spend("save"):
        checkpoints.save(step, state, iterator, self.config)
    self.tell_place(seed, step, checkpoints)

  def tell_place(self, seed: int, step: int, checkpoints: Checkpoints) -> None:
    """Prepares the last words: where the run stands when they are said."""
    last_step = self.settings.train.last_step
    self.watch.place = lambda: (
        f"seed {seed} at step {step} of {last_step}, saved at step"
        f" {checkpoints.latest_step() or 0}: the same command continues there"
    )

  def due(self, step: int) -> list[Evaluation]:
    last = self.settings.train.last_step
    return [x for x in self.evaluators if x.due(step, last)]

  def evaluate(self, seed: int, step: int, state: State, evaluators) -> None:
    """Runs evaluators; those that a stop leaves out run when it continues."""
    values = {}
    with self.run.clock.spend("eval"):
      for evaluator in evaluators:
        if self.watch.stop:
          break
        values |= evaluator.run(state.model)
    self.run.write(seed, step, values)
