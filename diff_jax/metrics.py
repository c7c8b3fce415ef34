# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Where the numbers and the seconds of a run go.

A value is a number, a list of numbers (one a layer or position) or a string.
metrics.jsonl is the record; TensorBoard and Weights & Biases get copies.
"""

import collections
import contextlib
import json
import pathlib
import secrets
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import jax
import numpy as np
import tensorboardX.event_file_writer
import tensorboardX.summary
import tqdm
from tensorboardX.proto import event_pb2

from diff_jax.config import ConfigError, RunError


def plain(value) -> Any:
  """What JSON can hold of a metric."""
  if isinstance(value, str):
    return value
  return np.asarray(value).tolist()


def read_metrics(path) -> list[dict[str, Any]]:
  """Rows of metrics.jsonl; a line cut short or damaged is left out."""
  rows = []
  for line in pathlib.Path(path).read_text(errors="replace").splitlines():
    try:
      row = json.loads(line)
      if type(row["seed"]) is type(row["step"]) is int:
        rows.append(row)
    except (ValueError, TypeError, KeyError):
      continue
  return rows


def scalars(values: Mapping[str, Any]) -> dict[str, float]:
  """The numbers among plain values; a mechanism's lists by layer."""
  found = {}
  for name, value in values.items():
    if isinstance(value, list) and name.startswith("mechanism/"):
      found |= {f"{name}/layer_{layer}": x for layer, x in enumerate(value)}
    elif not isinstance(value, (str, list)):
      found[name] = value
  return found


@runtime_checkable
class Writer(Protocol):
  """A copy of the metrics; what it fails to write is lost to it."""

  def write(self, seed: int, step: int, values: Mapping[str, Any]) -> None:
    """Takes plain values."""

  def close(self) -> None:
    """Finishes what is open."""


class TensorBoard:
  """Event files by seed, written at once: no thread that could block."""

  def __init__(self, folder: pathlib.Path):
    self.folder, self.files = folder, {}

  def write(self, seed: int, step: int, values: Mapping[str, Any]) -> None:
    summaries = [
        tensorboardX.summary.scalar(name, value)
        for name, value in scalars(values).items()
    ] + [
        tensorboardX.summary.text(name, value)
        for name, value in values.items()
        if isinstance(value, str)
    ]
    try:
      file = self._file(seed)
      for summary in summaries:
        file.write_event(
            event_pb2.Event(wall_time=time.time(), step=step, summary=summary)
        )
      file.flush()
    except OSError:
      self.files.pop(seed, None)  # its last record may be cut: begin another
      raise

  def _file(self, seed: int) -> tensorboardX.event_file_writer.EventsWriter:
    if seed not in self.files:
      folder = self.folder / f"seed_{seed}"
      folder.mkdir(parents=True, exist_ok=True)
      self.files[seed] = tensorboardX.event_file_writer.EventsWriter(
          str(folder / "events")
      )
    return self.files[seed]

  def close(self) -> None:
    for file in self.files.values():
      file.close()


class WeightsAndBiases:
  """One W&B run for a run folder, also when it continues; values by seed."""

  def __init__(self, project: str, folder: pathlib.Path, description: Mapping):
    try:
      import wandb  # noqa: PLC0415, an extra
    except ImportError as error:
      raise ConfigError(
          f"wandb_project={project!r} needs the extra: pip install"
          " 'diff_jax[wandb]'."
      ) from error
    self.many_seeds = len(description["config"]["seeds"]) > 1
    id_file = folder / "wandb_id.txt"
    if not id_file.exists():
      id_file.write_text(secrets.token_hex(4))
    self.run = wandb.init(
        project=project,
        id=id_file.read_text(),
        resume="allow",
        dir=str(folder),
        name=folder.name,
        config=dict(description["config"]),
    )

  def write(self, seed: int, step: int, values: Mapping[str, Any]) -> None:
    prefix = f"seed_{seed}/" if self.many_seeds else ""
    logged = {f"{prefix}{k}": x for k, x in scalars(values).items()}
    self.run.log(logged | {f"{prefix}step": step})

  def close(self) -> None:
    self.run.finish()


class Clock:
  """Where the seconds of a run go; each belongs to exactly one name.

  `lost` are those of steps that a crash undid.
  """

  NAMES = (
      "setup",
      "compile",
      "restore",
      "data",
      "step",
      "eval",
      "save",
      "lost",
  )

  def __init__(self):
    self.seconds = dict.fromkeys(self.NAMES, 0.0)
    self._names, self._mark_s = ["setup"], time.perf_counter()

  def now(self) -> dict[str, float]:
    """Seconds by name, up to this moment."""
    self._accrue()
    return dict(self.seconds)

  @contextlib.contextmanager
  def spend(self, name: str) -> Iterator[None]:
    self._accrue()
    self._names.append(name)
    try:
      yield
    finally:
      self._accrue()
      self._names.pop()

  def _accrue(self) -> None:
    now_s = time.perf_counter()
    self.seconds[self._names[-1]] += now_s - self._mark_s
    self._mark_s = now_s

  def metrics(self) -> dict[str, float]:
    """Seconds so far, and the share of them that trained: the goodput."""
    seconds = self.now()
    named = {f"goodput/{name}_s": x for name, x in seconds.items()}
    return {"goodput/share": seconds["step"] / sum(seconds.values())} | named


class StepLog:
  """Writes each step's metrics after the next step was dispatched.

  Reading a metric waits for its step; reading it late keeps the device busy.

  Args:
    run: the `Run`.
    seed: of the steps.
    first: step that is done.
    settings: `TrainConfig`.
    peak_flops_per_s: of all devices; None: unknown.
  """

  def __init__(self, run, seed: int, first: int, settings, peak_flops_per_s):
    self.run, self.seed, self.settings = run, seed, settings
    self.peak_flops_per_s = peak_flops_per_s
    self.pending = None
    self.examples = collections.deque(maxlen=settings.max_skipped_steps)
    self.bar = tqdm.tqdm(
        desc=f"{run.arm}, seed {seed}",
        initial=first,
        total=settings.last_step,
        unit="step",
        disable=not run.is_writer,
        mininterval=1.0,
    )
    self.marked_step, self.marked_s = first, self._spent_s()

  def next(self, step: int, metrics, example_ids) -> None:
    """Takes a step that was just dispatched; logs the one before."""
    self.flush()
    self.pending = step, metrics, example_ids

  def close(self) -> None:
    self.flush()
    self.bar.close()

  def flush(self) -> None:
    """Waits for the pending step and logs it, if it is one to log.

    Raises:
      RunError: after `max_skipped_steps` skipped updates in a row.
    """
    if self.pending is None:
      return
    (step, metrics, example_ids), self.pending = self.pending, None
    self.bar.update()
    self._check_skipped(step, metrics, example_ids)
    last_step = self.settings.last_step
    if step % self.settings.log_every_steps and step != last_step:
      return
    values = jax.device_get(metrics)
    spent_s = self._spent_s()
    step_time_s = (spent_s - self.marked_s) / (step - self.marked_step)
    self.marked_step, self.marked_s = step, spent_s
    values |= self._performance(step_time_s) | self.run.clock.metrics()
    self.run.write(self.seed, step, values)
    speed = f"{values['perf/model_flops_per_s'] / 1e9:,.0f} GFLOP/s"
    if "perf/mfu" in values:
      speed = f"MFU {values['perf/mfu']:.1%}"
    self.bar.set_postfix_str(
        f"loss {values['train/loss']:.3f},"
        f" {values['perf/tokens_per_s']:,.0f} tokens/s, {speed}",
        refresh=False,
    )

  def _spent_s(self) -> float:
    seconds = self.run.clock.now()
    return seconds["step"] + seconds["data"]

  def _performance(self, step_time_s: float) -> dict[str, float]:
    tokens_per_s = self.run.tokens_per_step / step_time_s
    flops_per_s = tokens_per_s * self.run.flops_per_token
    values = {
        "perf/step_time_s": step_time_s,
        "perf/tokens_per_s": tokens_per_s,
        "perf/model_flops_per_s": flops_per_s,
    }
    if self.peak_flops_per_s is not None:
      values["perf/mfu"] = flops_per_s / self.peak_flops_per_s
    return values

  def _check_skipped(self, step: int, metrics, example_ids) -> None:
    in_row = int(metrics["train/skipped_in_row"])
    if not in_row:
      self.examples.clear()
      return
    self.examples.append((step, example_ids))
    loss, norm = metrics["train/loss"], metrics["train/grad_norm"]
    print(
        f"\nseed {self.seed}, step {step}: update skipped: loss {loss:.4g},"
        f" gradient norm {norm:.4g}",
        file=sys.stderr,
    )
    if in_row >= self.settings.max_skipped_steps:
      rows = "; ".join(
          f"step {step}: {np.ravel(ids).tolist()}"
          for step, ids in self.examples
      )
      raise RunError(
          f"seed {self.seed} stops after step {step}:"
          f" max_skipped_steps={self.settings.max_skipped_steps} updates in a"
          f" row were skipped, the last with loss {loss:.4g} and gradient norm"
          f" {norm:.4g}. example_id of their batches: {rows}."
      )
