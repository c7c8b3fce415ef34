# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Derives from the runs what a reader may want to run next."""

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from diff_jax.report import result as result_lib
from diff_jax.report import runs as runs_lib

STUDY = "configs/noisy_recall.py"
_REPLACED = ("--config.model.attention=", "--config.seeds=")


def following(results: Sequence[result_lib.Result]) -> list[tuple[str, str]]:
  """Returns three (command, what it is for), about the first act."""
  act, primary = results[0].act, results[0].primary
  arm = (primary and act.arm(primary.arm)) or act.arms[-1]
  run = arm.runs[0]
  return [
      (
          shlex.join(["diff-jax", "evaluate", str(run.folder)]),
          f"Evaluate the last checkpoint of {arm.name} again:",
      ),
      _more_seeds(arm) if act.experiment == Path(STUDY).stem else _study(),
      _own_attention(run),
  ]


def _study():
  return (
      shlex.join(["diff-jax", "sweep", STUDY]),
      "Run the study that the demo is too small for, recall among noise:",
  )


def _more_seeds(arm):
  first = max(arm.traces, default=-1) + 1
  seeds = tuple(range(first, first + max(2, 2 * len(arm.traces))))
  setting = f"--config.seeds={seeds}".replace(" ", "")
  return (
      _again(arm.runs[0], "more_seeds", setting),
      "Train further seeds, of every arm: intervals narrow with their number:",
  )


def _own_attention(run):
  setting = "--config.model.attention=path/to/file.py:Class"
  return (
      _again(run, "own", setting, single=True),
      "Train an attention of your own on the same data and seeds, then add its"
      " folder to the report:",
  )


def _again(run: runs_lib.Run, folder: str, setting: str, single: bool = False):
  """Returns the command of a run with one other setting and folder.

  `single`: one run also where a sweep has trained many.
  """
  words = shlex.split(str(run.info.get("command") or ""))
  paths = (re.search(r"[^\s=]+\.py(:[^\s/]*)?$", word) for word in words[1:])
  config = next((found[0] for found in paths if found), "path/to/config.py")
  if "sweep" in words and not single:
    start = ["diff-jax", "sweep", config]
  else:
    start = ["diff-jax", "train", f"--config={config}"]
  kept = [
      word
      for word in words
      if word.startswith("--config.") and not word.startswith(_REPLACED)
  ]
  workdir = f"--workdir={run.folder.parent / folder}"
  return shlex.join([*start, *kept, setting, workdir])
