# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Child processes of `diff-jax train`, and what their folders say."""

import dataclasses
import os
import pathlib
import re
import subprocess
import sys
import time
from collections.abc import Callable

from diff_jax.metrics import read_metrics
from diff_jax.run import read_description

HERE = pathlib.Path(__file__).parent
ROOT = HERE.parents[1]
LATE = re.compile(
    r"Traceback \(most recent call last\):\n(?:  .*\n)+"
    r"RuntimeError: Event loop is closed\n"
)
TIMEOUT_S = 300  # for whatever should have happened long before


@dataclasses.dataclass(frozen=True)
class Row:
  """A line of the table."""

  fault: str
  done: str
  happened: str
  passed: bool


class Child:
  """`diff-jax COMMAND` in a process of its own.

  Args:
    workdir: of the run; its log lies beside it.
    arguments: more of the command line.
    config: the config file.
    inject: a fault of inject.py, such as `hang=100`.
    command: another than train, which then gets the workdir alone.
    may_override: whether root may write what the modes of files forbid.
    log: of its words; None: beside the workdir.
    cache: of compiled programs; None: that of all children.
  """

  def __init__(
      self, workdir, *arguments, config=HERE / "config.py", inject="",
      command="train", may_override=True, log=None,
      cache=None,
  ):  # fmt: skip
    self.workdir = pathlib.Path(workdir)
    self.log = log or self.workdir.with_name(self.workdir.name + ".log")
    self.log.parent.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-m", "diff_jax.cli"]
    if inject:
      program = [sys.executable, str(HERE / "inject.py"), inject]
    if not may_override and os.geteuid() == 0:
      caps = "--bounding-set=-dac_override,-dac_read_search"
      program = ["setpriv", caps, *program]
    where = [str(workdir)]
    if command == "train":
      where = [f"--config={config}", f"--workdir={workdir}"]
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "1",
        "PYTHONPATH": str(ROOT),
    }
    if cache:
      environment["JAX_COMPILATION_CACHE_DIR"] = str(cache)
    with open(self.log, "ab") as log:
      self._logged_bytes = log.tell()
      self.process = subprocess.Popen(
          [*program, command, *where, *arguments],
          env=environment,
          cwd=ROOT,
          stdout=log,
          stderr=log,
      )

  def finish(self) -> tuple[int, str]:
    """The exit status (-9 also if it never ends) and the words, by line."""
    try:
      status = self.process.wait(TIMEOUT_S)
    except subprocess.TimeoutExpired:
      self.process.kill()
      status = self.process.wait()
    return status, self.words()

  def words(self) -> str:
    """What this child has said, without its progress bar.

    And without what TensorStore prints of reads and writes that end after the
    first of them failed, which no Python code can catch.
    """
    text = self.log.read_bytes()[self._logged_bytes :].decode(errors="replace")
    lines = text.replace("\r", "\n").splitlines()
    told = [x for x in lines if x.strip() and "step/s" not in x]
    return LATE.sub("", "\n".join(told) + "\n").strip()

  def wait_until(self, happened: Callable[[], bool]) -> bool:
    """Whether it happened before the child ended or the time was over."""
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
      if happened():
        return True
      if self.process.poll() is not None:
        return False
      time.sleep(0.005)
    return False

  def wait_for_step(self, step: int) -> bool:
    return self.wait_until(lambda: last_step(self.workdir) >= step)


def finish(workdir, *arguments, **options) -> tuple[int, str]:
  return Child(workdir, *arguments, **options).finish()


def losses(workdir) -> dict[int, float]:
  """Loss by step; as Python floats, which JSON keeps bit by bit."""
  path = pathlib.Path(workdir) / "metrics.jsonl"
  if not path.exists():
    return {}
  return {
      row["step"]: row["train/loss"]
      for row in read_metrics(path)
      if "train/loss" in row
  }


def last_step(workdir) -> int:
  """The newest step in metrics.jsonl, read from its end."""
  path = pathlib.Path(workdir) / "metrics.jsonl"
  if not path.exists():
    return 0
  with open(path, "rb") as file:
    file.seek(max(0, path.stat().st_size - 8192))
    text = file.read().decode(errors="replace")
  found = re.findall(r'"step": (\d+), .*"train/loss".*\n', text)
  return int(found[-1]) if found else 0


def saved_steps(workdir) -> list[int]:
  """Steps of the committed checkpoints."""
  folder = pathlib.Path(workdir) / "checkpoints" / "seed_0"
  if not folder.is_dir():
    return []
  return sorted(int(p.name) for p in folder.iterdir() if p.name.isdigit())


def is_saving(workdir) -> bool:
  folder = pathlib.Path(workdir) / "checkpoints" / "seed_0"
  return any(folder.glob("*.orbax-checkpoint-tmp"))


def sessions(workdir) -> list[dict]:
  """Who trained, and the step after which each began, in order."""
  if not (pathlib.Path(workdir) / "run.json").exists():
    return []
  return read_description(workdir)["sessions"]


def said(words: str, *phrases: str) -> bool:
  """Whether all phrases were said, and no traceback."""
  return "Traceback" not in words and all(x in words for x in phrases)


def last_line(words: str) -> str:
  return words.splitlines()[-1] if words else ""
