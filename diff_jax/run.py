# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A run's folder: what was run (run.json) and what it measured.

  run.json        config, arm, command, commit, versions, device, sizes
  metrics.jsonl   a line a step or evaluation: seed, step, names and values
  tensorboard/    the scalars again, by seed
  checkpoints/    by seed

A value is a number, a list of numbers (one a layer or position) or a string.
"""

import contextlib
import functools
import importlib.metadata
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import tensorboardX
import tqdm
from ml_collections import config_dict

from diff_jax.config import ConfigError, restore

METRICS = "metrics.jsonl"
PACKAGES = ("diff_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint")


class Run:
  """The writer of one run's folder. Only process 0 writes."""

  def __init__(self, workdir: str | os.PathLike, description: Mapping):
    self.workdir = pathlib.Path(workdir)
    self.is_writer = jax.process_index() == 0
    self._description = dict(description)
    self._tensorboard = {}
    if self.is_writer:
      try:
        self.workdir.mkdir(parents=True, exist_ok=True)
      except OSError as error:
        raise ConfigError(
            f"workdir={str(workdir)!r} must be a folder that can be written:"
            f" {error}."
        ) from error
    self.describe(finished_seeds=[])

  @property
  def arm(self) -> str:
    return self._description["arm"]

  @property
  def tokens_per_step(self) -> int:
    return self._description["tokens_per_step"]

  def finish_seed(self, seed: int) -> None:
    """Records that a seed reached its last step."""
    finished = self._description["finished_seeds"]
    self.describe(finished_seeds=[*finished, seed])

  def describe(self, **more) -> None:
    """Adds to run.json, which is replaced as a whole."""
    self._description |= more
    if self.is_writer:
      temporary = self.workdir / "run.json.tmp"
      temporary.write_text(json.dumps(self._description, indent=2))
      temporary.replace(self.workdir / "run.json")

  def rewind(self, seed: int, step: int) -> None:
    """Forgets the lines of a seed after a step, before it is resumed there."""
    path = self.workdir / METRICS
    if not self.is_writer or not path.exists():
      return
    kept = [
        json.dumps(row)
        for row in read_metrics(path)
        if row["seed"] != seed or row["step"] <= step
    ]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(line + "\n" for line in kept))
    temporary.replace(path)

  def write(self, seed: int, step: int, values: Mapping[str, Any]) -> None:
    """Appends one line of metrics."""
    if not self.is_writer or not values:
      return
    values = {name: plain(value) for name, value in values.items()}
    line = json.dumps({"seed": seed, "step": step, **values})
    with open(self.workdir / METRICS, "a") as file:
      file.write(line + "\n")
    if seed not in self._tensorboard:
      folder = self.workdir / "tensorboard" / f"seed_{seed}"
      self._tensorboard[seed] = tensorboardX.SummaryWriter(str(folder))
    writer = self._tensorboard[seed]
    for name, value in values.items():
      if isinstance(value, str):
        writer.add_text(name, value, step)
      elif isinstance(value, list):
        if name.startswith("mechanism/"):
          for layer, x in enumerate(value):
            writer.add_scalar(f"{name}/layer_{layer}", x, step)
      else:
        writer.add_scalar(name, value, step)

  def close(self) -> None:
    for writer in self._tensorboard.values():
      writer.close()


class StepLog:
  """Writes each step's metrics after the next step was dispatched.

  Reading a metric waits for its step; reading it late keeps the device busy.
  """

  def __init__(self, run: Run, seed: int, first: int, last: int, every: int):
    self.run, self.seed, self.last, self.every = run, seed, last, every
    self.pending = None
    self.bar = tqdm.tqdm(
        desc=f"{run.arm}, seed {seed}",
        initial=first,
        total=last,
        unit="step",
        disable=not run.is_writer,
        mininterval=1.0,
    )
    self.mark_s, self.marked_step = time.perf_counter(), first

  def next(self, step: int, metrics) -> None:
    """Takes a step that was just dispatched; logs the one before."""
    self.flush()
    self.pending = step, metrics

  @contextlib.contextmanager
  def paused(self):
    """Logs the pending step; what happens inside is no part of a step."""
    self.flush()
    start_s = time.perf_counter()
    yield
    self.mark_s += time.perf_counter() - start_s

  def close(self) -> None:
    self.flush()
    self.bar.close()

  def flush(self) -> None:
    """Waits for the pending step and logs it, if it is one to log."""
    if self.pending is None:
      return
    (step, metrics), self.pending = self.pending, None
    self.bar.update()
    if step % self.every and step != self.last:
      return
    values = jax.device_get(metrics)
    now_s = time.perf_counter()
    step_time_s = (now_s - self.mark_s) / (step - self.marked_step)
    self.mark_s, self.marked_step = now_s, step
    values["perf/step_time_s"] = step_time_s
    values["perf/tokens_per_s"] = self.run.tokens_per_step / step_time_s
    self.run.write(self.seed, step, values)
    self.bar.set_postfix_str(
        f"loss {values['train/loss']:.3f}"
        f" accuracy {values['train/accuracy']:.2f}",
        refresh=False,
    )


def plain(value) -> Any:
  """What JSON can hold of a metric."""
  if isinstance(value, str):
    return value
  return np.asarray(value).tolist()


def read_description(workdir) -> dict[str, Any]:
  """run.json of a run.

  Raises:
    ConfigError: if the folder is not that of a run.
  """
  path = pathlib.Path(workdir) / "run.json"
  if not path.is_file():
    raise ConfigError(
        f"workdir={str(workdir)!r} must be the folder of a run: it has no"
        " run.json."
    )
  return json.loads(path.read_text())


# What may change when a run continues: how long, how often, where, what is told.
MAY_CHANGE = (
    "num_steps", "stop_after_steps", "seeds", "loss_chunk", "log_every_steps",
    "checkpoint_every_steps", "keep_checkpoints", "mesh", "evaluators",
    "report",
)  # fmt: skip


def check_same_run(
    config: config_dict.ConfigDict, workdir: str | os.PathLike
) -> None:
  """Refuses to continue a run with settings that are not its own.

  Raises:
    ConfigError: naming the settings that differ.
  """
  if not (pathlib.Path(workdir) / "run.json").is_file():
    return
  stored = restore(read_description(workdir)["config"])
  differ = []
  for name in config:
    if name in MAY_CHANGE:
      continue
    ours, theirs = _leaves(name, config[name]), _leaves(name, stored[name])
    differ += [
        f"{key}={ours.get(key)!r} (was {theirs.get(key)!r})"
        for key in sorted(ours.keys() | theirs.keys())
        if ours.get(key) != theirs.get(key)
    ]
  if differ:
    raise ConfigError(
        f"workdir={str(workdir)!r} holds a run with other settings:"
        f" {', '.join(differ)}. Choose another workdir."
    )


def _leaves(name: str, value) -> dict[str, Any]:
  """Values by dotted name."""
  if not isinstance(value, config_dict.ConfigDict):
    return {name: value}
  return {
      leaf: x
      for key in value
      for leaf, x in _leaves(f"{name}.{key}", value[key]).items()
  }


def read_metrics(path) -> list[dict[str, Any]]:
  """Rows of metrics.jsonl; a line cut short by a crash is left out."""
  rows = []
  for line in pathlib.Path(path).read_text().splitlines():
    try:
      rows.append(json.loads(line))
    except json.JSONDecodeError:
      continue
  return rows


@functools.cache
def provenance() -> dict[str, Any]:
  """What a number needs beside it: command, commit, versions, device.

  Looked up once: a process goes on with the code that it started with.
  """
  root = pathlib.Path(__file__).parent
  git = ["git", "-C", str(root)]

  def ask(*words):
    try:
      return subprocess.run(
          [*git, *words], capture_output=True, text=True, timeout=10, check=True
      ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
      return ""

  commit = ask("rev-parse", "HEAD") or "unknown"
  if commit != "unknown" and ask("status", "--porcelain", "--", str(root)):
    commit += "+changes"
  device = jax.devices()[0]
  command = [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]
  return {
      "command": shlex.join(command),
      "commit": commit,
      "versions": {
          name: importlib.metadata.version(name) for name in PACKAGES
      } | {"python": sys.version.split()[0]},
      "device": f"{device.device_kind} x{jax.device_count()}",
      "cpu_count": os.cpu_count(),
  }  # fmt: skip
