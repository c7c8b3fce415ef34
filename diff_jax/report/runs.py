# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Reads run folders and sorts them into acts (experiments) and arms."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from diff_jax import config as config_lib

# The 2x2 {one map, two maps} x {no per-head norm, norm}, in reading order.
SOFTMAX, SOFTMAX_NORM = "Transformer", "Transformer + norm"
DIFF_NO_NORM, DIFF = "DIFF - norm", "DIFF"
TWO_BY_TWO = (SOFTMAX, SOFTMAX_NORM, DIFF_NO_NORM, DIFF)

# Settings that may differ between two folders of one and the same arm; a
# whole section ends with a dot.
_NOT_A_CONDITION = (
    "arm", "checkpoint_every_steps", "data_timeout_s", "evaluators.",
    "experiment", "keep_checkpoints", "log_every_steps", "max_skipped_steps",
    "mesh.", "report.", "seeds", "stop_after_steps", "wandb_project",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Trace:
  """Everything one seed of one run has logged: name -> step -> value."""

  run: "Run"
  values: Mapping[str, Mapping[int, Any]]

  def series(self, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the steps and values [steps, ...] of a numeric metric.

    Rows whose shape differs from the last one's are left out.
    """
    rows = sorted(self.values.get(name, {}).items())
    arrays = [(s, np.asarray(v, np.float64)) for s, v in rows if _is_number(v)]
    arrays = [(s, a) for s, a in arrays if a.shape == arrays[-1][1].shape]
    if not arrays:
      return np.zeros(0, np.int64), np.zeros(0)
    steps, values = zip(*arrays, strict=True)
    return np.asarray(steps), np.stack(values)

  def last(self, name: str) -> tuple[int, Any] | None:
    """Returns the last (step, value) logged under `name`, if any."""
    by_step = self.values.get(name)
    return max(by_step.items(), key=lambda row: row[0]) if by_step else None


@dataclasses.dataclass(frozen=True)
class Run:
  """One run folder: `run.json` and the rows of `metrics.jsonl`."""

  folder: Path
  info: Mapping[str, Any]
  rows: Mapping[int, Mapping[str, Mapping[int, Any]]]  # seed, name, step
  unreadable_lines: int

  @property
  def config(self) -> Mapping[str, Any]:
    return self.info["config"]

  @property
  def arm(self) -> str:
    return str(self.info.get("arm") or self.folder.name)

  @property
  def experiment(self) -> str:
    return str(self.config.get("experiment") or self.folder.name)

  @property
  def corpus(self) -> str:
    """What text the run reads and as which tokens; empty: a task without."""
    corpus = self.info.get("corpus") or {}
    if "sha256" not in corpus:
      return ""
    tokenizer = str(corpus.get("tokenizer", "bytes"))
    words = f"{corpus.get('name')} as {Path(tokenizer).name}"
    return f"{words} ({corpus['sha256'][:8]})"

  @property
  def finished(self) -> bool:
    """Whether every seed has reached its last step."""
    seeds = self.config.get("seeds") or ()
    return set(seeds) <= set(self.info.get("finished_seeds") or ())

  @property
  def settings(self) -> config_lib.ReportConfig:
    """What the headline computes: `config.report`.

    Raises:
      ConfigError: run.json holds a setting that this version does not know.
    """
    try:
      return config_lib.ReportConfig(**(self.config.get("report") or {}))
    except TypeError as error:
      raise config_lib.ConfigError(
          f"run={str(self.folder)!r}: 'report' of its run.json must be the"
          f" fields of ReportConfig: {error}"
      ) from error


@dataclasses.dataclass(frozen=True)
class Arm:
  """One condition of a comparison: its runs and a trace for each seed."""

  name: str
  runs: tuple[Run, ...]
  traces: Mapping[int, Trace]  # seed

  @property
  def info(self) -> Mapping[str, Any]:
    return self.runs[0].info

  def names(self) -> set[str]:
    return {name for t in self.traces.values() for name in t.values}


@dataclasses.dataclass(frozen=True)
class Act:
  """The runs of one experiment: a portrait (one arm) or a comparison."""

  experiment: str
  arms: tuple[Arm, ...]
  settings: config_lib.ReportConfig

  @property
  def runs(self) -> list[Run]:
    return [run for arm in self.arms for run in arm.runs]

  @property
  def baselines(self) -> Mapping[str, float]:
    """Those of the first run that has any."""
    found = (run.info.get("baselines") for run in self.runs)
    return next((known for known in found if known), {})

  def names(self) -> set[str]:
    return set().union(*(arm.names() for arm in self.arms))

  def arm(self, name: str) -> Arm | None:
    return next((arm for arm in self.arms if arm.name == name), None)


def read(folder: str | Path) -> Run:
  """Reads a run folder, also one whose training is still on.

  The last line of `metrics.jsonl` may be cut in the middle; a step that was
  logged twice (a resumed run) keeps its last value.

  Raises:
    ConfigError: `folder` is no run folder.
  """
  folder = Path(folder)
  try:
    info = json.loads((folder / "run.json").read_text())
  except (FileNotFoundError, NotADirectoryError) as error:
    raise config_lib.ConfigError(_no_run_folder(folder)) from error
  except (OSError, ValueError) as error:
    raise config_lib.ConfigError(
        f"run={str(folder)!r} must be a readable run folder: {error}"
    ) from error
  if not isinstance(info, dict) or not isinstance(info.get("config"), dict):
    raise config_lib.ConfigError(
        f"run={str(folder)!r} must hold a run.json with a 'config', as"
        " written by `diff-jax train`."
    )
  metrics = folder / "metrics.jsonl"
  rows, unreadable = _read_rows(metrics) if metrics.exists() else ({}, 0)
  return Run(folder, info, rows, unreadable)


def acts(runs: Sequence[Run]) -> list[Act]:
  """Groups runs by experiment, then by arm, in order of appearance.

  Losses on other text, or in nats per other tokens, cannot be compared: such
  runs are acts of their own. The arms of the 2x2 come first and in their own
  order.
  """
  by_act = {}
  for run in runs:
    by_act.setdefault((run.experiment, run.corpus), []).append(run)
  experiments = [experiment for experiment, _ in by_act]
  result = []
  for (experiment, corpus), chosen in by_act.items():
    arms = [
        arm
        for name in dict.fromkeys(run.arm for run in chosen)
        for arm in _split([run for run in chosen if run.arm == name])
    ]
    arms.sort(key=_rank)
    name = experiment
    if experiments.count(experiment) > 1:
      name = f"{experiment}, {corpus}" if corpus else experiment
    result.append(Act(name, tuple(arms), chosen[0].settings))
  return result


def flat_settings(run: Run) -> dict[str, Any]:
  """Returns the nested config as {"model.width": value}."""
  flat = {}

  def visit(prefix, node):
    for key, value in node.items():
      if isinstance(value, Mapping) and value:
        visit(f"{prefix}{key}.", value)
      else:
        flat[f"{prefix}{key}"] = value

  visit("", run.config)
  return flat


def conditions(run: Run) -> dict[str, Any]:
  """Returns the settings that make a run the arm that it is."""
  return {
      key: value
      for key, value in flat_settings(run).items()
      if f"{key.partition('.')[0]}." not in _NOT_A_CONDITION
      and key not in _NOT_A_CONDITION
  }


def differing(runs: Sequence[Run]) -> dict[str, list[Any]]:
  """Returns the settings that are not the same in all of the runs."""
  settings = [conditions(run) for run in runs]
  keys = dict.fromkeys(key for setting in settings for key in setting)
  table = {key: [setting.get(key) for setting in settings] for key in keys}
  return {k: v for k, v in table.items() if any(x != v[0] for x in v)}


def _split(runs):
  """Splits the runs of one label into the conditions that they really are."""
  by_condition = {}
  for run in runs:
    key = json.dumps(conditions(run), sort_keys=True, default=str)
    by_condition.setdefault(key, []).append(run)
  arms = []
  for group in by_condition.values():
    seeds = [seed for run in group for seed in run.rows]
    if len(seeds) == len(set(seeds)):
      arms.append(group)
    else:  # A seed trained twice: each folder stands for itself.
      arms.extend([run] for run in group)
  if len(arms) == 1:
    return [_arm(runs[0].arm, arms[0])]
  keys = differing([group[0] for group in arms])
  names = [_suffixed(group[0], list(keys)) for group in arms]
  if len(set(names)) < len(names):
    names = [f"{group[0].arm} ({group[0].folder.name})" for group in arms]
  return [_arm(n, group) for n, group in zip(names, arms, strict=True)]


def _suffixed(run, keys):
  flat = flat_settings(run)
  words = [f"{key.rpartition('.')[2]} {flat.get(key)}" for key in keys[:2]]
  return f"{run.arm} ({', '.join(words)})" if words else run.arm


def _arm(name, runs):
  traces = {
      seed: Trace(run, names)
      for run in runs
      for seed, names in run.rows.items()
  }
  return Arm(name, tuple(runs), dict(sorted(traces.items())))


def _rank(arm):
  known = arm.runs[0].arm
  return TWO_BY_TWO.index(known) if known in TWO_BY_TWO else len(TWO_BY_TWO)


def _read_rows(path):
  lines = path.read_text(errors="replace").split("\n")
  rows, unreadable = {}, 0
  for number, line in enumerate(lines):
    if not line.strip():
      continue
    try:
      row = json.loads(line)
      seed, step = int(row.pop("seed")), int(row.pop("step"))
    except (ValueError, KeyError, TypeError, AttributeError):
      unreadable += number < len(lines) - 1  # The last one is being written.
      continue
    by_name = rows.setdefault(seed, {})
    for name, value in row.items():
      by_name.setdefault(name, {})[step] = value
  return rows, unreadable


def _is_number(value):
  if isinstance(value, list):
    return bool(value) and all(_is_number(v) for v in value)
  return isinstance(value, int | float)


def _no_run_folder(folder):
  inside = sorted(path.parent.name for path in folder.glob("*/run.json"))
  hint = f" Did you mean {folder}/{{{','.join(inside)}}}?" if inside else ""
  return (
      f"run={str(folder)!r} must be a run folder: it holds no run.json, which"
      f" `diff-jax train` writes.{hint}"
  )
