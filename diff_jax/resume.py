# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Whether a folder holds the run that is asked for, or another one."""

import json
import os
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

from ml_collections import config_dict

from diff_jax.config import ConfigError, TrainConfig, restore
from diff_jax.run import read_description

# What may change when a run continues: how long, how often, where, what is told.
# Not num_steps: the learning rate's schedule depends on it. Where the text lies
# may, as `check_same_data` compares what it is.
MAY_CHANGE = (
    "stop_after_steps", "seeds", "loss_chunk", "log_every_steps",
    "checkpoint_every_steps", "keep_checkpoints", "mesh", "evaluators",
    "report", "max_skipped_steps", "data_timeout_s", "wandb_project",
    "data.path", "data.eval_path",
)  # fmt: skip


def check_same_run(
    config: config_dict.ConfigDict,
    workdir: str | os.PathLike,
    accept: bool = False,
) -> None:
  """Refuses to continue a run with settings that are not its own.

  Args:
    config: of the run to be.
    workdir: its folder, which may be empty.
    accept: tell the differences and go on.

  Raises:
    ConfigError: naming the settings that differ.
  """
  if not (pathlib.Path(workdir) / "run.json").is_file():
    return
  stored = restore(read_description(workdir)["config"])
  ours, theirs = _leaves("", config), _leaves("", stored)
  changed = [
      f"{key}={ours.get(key)!r} (was {theirs.get(key)!r})"
      for key in sorted(ours.keys() | theirs.keys())
      if ours.get(key) != theirs.get(key) and not _may_change(key)
  ]
  _refuse(workdir, "settings", changed, accept, "--accept-config-change")


def check_not_past(settings: TrainConfig, workdir: str | os.PathLike) -> None:
  """Refuses a last step that a run's checkpoints have passed.

  Raises:
    ConfigError: naming the seed and its step.
  """
  for seed in settings.seeds:
    folder = pathlib.Path(workdir) / "checkpoints" / f"seed_{seed}"
    names = [path.name for path in folder.glob("*")]
    newest = max((int(x) for x in names if x.isdecimal()), default=0)
    if newest > settings.last_step:
      raise ConfigError(
          f"workdir={str(workdir)!r} holds seed {seed} at step {newest}: the"
          f" last step, {settings.last_step}, must be at least that. Choose"
          " another workdir to train for fewer steps."
      )


def check_same_data(
    corpus: Mapping[str, Any] | None,
    workdir: str | os.PathLike,
    accept: bool = False,
) -> None:
  """Refuses to continue a run on another text.

  Args:
    corpus: `Source.corpus()`, which has a sha256; None: a task without text.
    workdir: the run's folder, which may be empty.
    accept: tell the differences and go on.

  Raises:
    ConfigError: naming what differs.
  """
  if corpus is None or not (pathlib.Path(workdir) / "run.json").is_file():
    return
  stored = read_description(workdir).get("corpus") or {}
  if stored.get("sha256") == corpus["sha256"]:
    return
  # As it will be read from run.json.
  corpus = json.loads(json.dumps(corpus))
  changed = [
      f"{key}={corpus.get(key)!r} (was {stored.get(key)!r})"
      for key in corpus
      if corpus.get(key) != stored.get(key)
  ]
  _refuse(workdir, "data", changed, accept, "--accept-data-change")


def _refuse(workdir, what: str, changed, accept: bool, flag: str) -> None:
  if not changed:
    return
  message = (
      f"workdir={str(workdir)!r} holds a run with other {what}:"
      f" {', '.join(changed)}."
  )
  if not accept:
    raise ConfigError(f"{message} Choose another workdir, or give {flag}.")
  print(f"{message} Accepted.", file=sys.stderr)


def _may_change(key: str) -> bool:
  return any(key == name or key.startswith(f"{name}.") for name in MAY_CHANGE)


def _leaves(name: str, value) -> dict[str, Any]:
  """Values by dotted name."""
  if not isinstance(value, config_dict.ConfigDict):
    return {name: value}
  return {
      leaf: x
      for key in value
      for leaf, x in _leaves(
          f"{name}.{key}" if name else key, value[key]
      ).items()
  }
