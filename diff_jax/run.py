# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A run's folder: what was run (run.json) and what it measured.

run.json        config, arm, command, commit, versions, device, sizes, corpus
metrics.jsonl   a line a step or evaluation: seed, step, names and values
tensorboard/    the scalars again, by seed
checkpoints/    by seed
lock            held by the process that trains
"""

import contextlib
import errno
import fcntl
import json
import os
import pathlib
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from diff_jax.config import ConfigError, RunError
from diff_jax.metrics import Clock, Writer, plain, read_metrics
from diff_jax.provenance import provenance
from diff_jax.storage_errors import FATAL_ERRNOS

METRICS = "metrics.jsonl"


class Lock:
  """A run's folder, held by one process; the system lets go when it dies.

  Only process 0 of a run locks.

  Raises:
    ConfigError: if another process holds it, or it cannot be written.
  """

  def __init__(self, workdir: str | os.PathLike):
    self.path = pathlib.Path(workdir) / "lock"
    self._file = None
    if jax.process_index():
      return
    try:
      self.path.parent.mkdir(parents=True, exist_ok=True)
      self._file = open(self.path, "a+")
    except OSError as error:
      raise ConfigError(
          f"workdir={str(workdir)!r} must be a folder that can be written:"
          f" {error}."
      ) from error
    try:
      fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
      self._file.seek(0)
      holder = self._file.read().strip() or "another process"
      self._file.close()
      raise ConfigError(
          f"workdir={str(workdir)!r} is being trained by {holder}: choose"
          " another workdir."
      ) from error
    except OSError as error:  # Some network file systems have no locks.
      _warn(f"{self.path}: nothing keeps a second run out: {error}")
    try:
      self._file.truncate(0)
      self._file.write(f"process {os.getpid()} on {socket.gethostname()}")
      self._file.flush()
    except OSError:
      pass  # A full disk: the lock holds all the same.

  def __enter__(self):
    return self

  def __exit__(self, _, error, traceback):
    try:
      if isinstance(error, Exception):
        self.check()  # It may have gone wrong for want of the folder.
    finally:
      if self._file is not None:
        with contextlib.suppress(OSError):
          self._file.close()

  def check(self) -> None:
    """Raises RunError if the folder is no longer where it was."""
    if self._file is None:
      return
    try:
      same = os.path.samestat(os.stat(self.path), os.fstat(self._file.fileno()))
    except OSError:
      same = False
    if not same:
      raise RunError(
          f"workdir={str(self.path.parent)!r} has vanished since the run"
          " began: nothing more can be saved there."
      )


class Run:
  """The writer of one run's folder. Only process 0 writes.

  A full disk does not end a run: what could not be written is kept, and
  written with what follows.

  Args:
    lock: on the folder.
    description: what run.json says, beside the sessions.
    writers: copies of the metrics.
  """

  def __init__(
      self, lock: Lock, description: Mapping, writers: Sequence[Writer] = ()
  ):
    self.lock, self.workdir = lock, lock.path.parent
    self.is_writer = jax.process_index() == 0
    self.clock = Clock()
    if self.is_writer and (self.workdir / METRICS).exists():
      # Carries on what earlier processes spent.
      self.clock.seconds |= _seconds(read_metrics(self.workdir / METRICS))
    self.writers = list(writers)
    self._unwritten, self._disk_full = [], False
    self._failing = set()
    sessions = []
    if (self.workdir / "run.json").is_file():
      sessions = read_description(self.workdir).get("sessions", [])
    self._description = dict(description) | {"sessions": sessions}
    self.describe(finished_seeds=[])

  @property
  def arm(self) -> str:
    return self._description["arm"]

  @property
  def tokens_per_step(self) -> int:
    return self._description["tokens_per_step"]

  @property
  def flops_per_token(self) -> float:
    return self._description["flops_per_token"]

  def finish_seed(self, seed: int) -> None:
    """Records that a seed reached its last step."""
    finished = self._description["finished_seeds"]
    self.describe(finished_seeds=[*finished, seed])

  def begin_session(self, seed: int, first_step: int) -> None:
    """Records who continues where."""
    session = provenance() | {"seed": seed, "first_step": first_step}
    self.describe(sessions=[*self._description["sessions"], session])

  def describe(self, **more) -> None:
    """Adds to run.json, which is replaced as a whole."""
    self._description |= more
    if self.is_writer:
      self._survive(
          lambda: _replace(
              self.workdir / "run.json",
              json.dumps(self._description, indent=2),
          )
      )

  def rewind(self, seed: int, step: int) -> list[dict[str, Any]]:
    """Forgets the lines of a seed after a step, before it is resumed there.

    The seconds that went into them are lost.

    Returns:
      the lines that are kept.

    Raises:
      RunError: if the file cannot be written, as on a full disk.
    """
    path = self.workdir / METRICS
    if not self.is_writer or not path.exists():
      return []
    rows = read_metrics(path)
    kept = [row for row in rows if row["seed"] != seed or row["step"] <= step]
    try:
      _replace(path, "".join(json.dumps(row) + "\n" for row in kept))
    except OSError as error:
      raise RunError(f"{path} cannot be written: {error}.") from error
    before, after = _seconds(kept), _seconds(rows)
    for name in Clock.NAMES:
      undone_s = after[name] - before[name]
      self.clock.seconds[name] -= undone_s
      self.clock.seconds["lost"] += undone_s
    return kept

  def write(self, seed: int, step: int, values: Mapping[str, Any]) -> None:
    """Appends one line of metrics.

    Raises:
      RunError: if the folder has vanished or can no longer be written.
    """
    if not self.is_writer or not values:
      return
    self.lock.check()
    values = {name: plain(value) for name, value in values.items()}
    row = {"seed": seed, "step": step, **values}
    self._unwritten.append(json.dumps(row) + "\n")
    if self._survive(self._append):
      self._unwritten.clear()
    for writer in self.writers:
      try:
        writer.write(seed, step, values)
        self._failing.discard(writer)
      except Exception as error:  # A copy is not worth a run.
        if writer not in self._failing:
          _warn(f"{type(writer).__name__} misses metrics: {error}")
        self._failing.add(writer)

  def _append(self) -> None:
    """Adds the lines in one piece, or leaves the file as it was."""
    data = "".join(self._unwritten).encode()
    with open(self.workdir / METRICS, "ab", buffering=0) as file:
      end = file.seek(0, os.SEEK_END)
      try:
        if file.write(data) < len(data):
          raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
      except OSError:
        file.truncate(end)
        raise

  def _survive(self, action) -> bool:
    """Runs a write; a full disk is told and survived."""
    try:
      action()
    except OSError as error:
      if error.errno in FATAL_ERRNOS:
        raise RunError(
            f"workdir={str(self.workdir)!r} can no longer be written: {error}."
        ) from error
      if not self._disk_full:
        _warn(f"metrics are kept in memory until they can be written: {error}")
      self._disk_full = True
      return False
    if self._disk_full:
      _warn("metrics can be written again")
    self._disk_full = False
    return True

  def close(self) -> None:
    if self._unwritten:
      self._survive(self._append)
    for writer in self.writers:
      try:
        writer.close()
      except Exception as error:
        _warn(f"{type(writer).__name__}: {error}")


def _replace(path: pathlib.Path, text: str) -> None:
  """Replaces a file as a whole."""
  temporary = path.with_suffix(".tmp")
  try:
    with open(temporary, "w") as file:
      file.write(text)
      file.flush()
      os.fsync(file.fileno())
    temporary.replace(path)
  except OSError:
    temporary.unlink(missing_ok=True)
    raise


def _seconds(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:
  """The clock of the last of these rows that tells it."""
  for row in reversed(rows):
    if "goodput/share" in row:
      return {x: row.get(f"goodput/{x}_s", 0.0) for x in Clock.NAMES}
  return dict.fromkeys(Clock.NAMES, 0.0)


def _warn(message: str) -> None:
  print(f"\n{message}", file=sys.stderr, flush=True)


def read_description(workdir) -> dict[str, Any]:
  """run.json of a run.

  Raises:
    ConfigError: if the folder is not that of a run, or run.json is damaged.
  """
  path = pathlib.Path(workdir) / "run.json"
  if not path.is_file():
    raise ConfigError(
        f"workdir={str(workdir)!r} must be the folder of a run: it has no"
        " run.json."
    )
  try:
    found = json.loads(path.read_text())
  except ValueError as error:
    raise ConfigError(f"{path} must be JSON: {error}.") from error
  kinds = {"config": dict, "finished_seeds": list, "last_step": int}
  for name, kind in kinds.items():
    if not isinstance(found, dict) or not isinstance(found.get(name), kind):
      raise ConfigError(f"{path} is damaged: it has no {name}.")
  return found
