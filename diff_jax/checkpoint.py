# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of one seed: state, data position and config, by Orbax.

A checkpoint counts once Orbax has renamed its folder, so that a process can be
killed at any moment. What can still go wrong is dealt with here: a save that
fails (a full disk) is tried again while training goes on; a checkpoint that
cannot be read, or whose bits are not those that were saved, is set aside and
the one before it used.
"""

import contextlib
import errno
import logging
import os
import shutil
import sys
import time
from collections.abc import Iterator
from typing import Any

import grain
import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from diff_jax.config import RunError
from diff_jax.storage_errors import FATAL_ERRNOS, error_number, one_line

# Between attempts to save when there is no more step to try again after.
LAST_WAITS_S = (1, 2, 4, 8, 15)
# Orbax logs tracebacks of what it also raises, and we tell in a line.
logging.getLogger("absl").addFilter(
    lambda record: not (record.exc_info and "orbax" in record.pathname)
)


class Checkpoints:
  """The checkpoints in one folder, saved in the background.

  A context manager: leaving it waits for a save that is under way.

  Args:
    folder: of one seed.
    keep: how many checkpoints to keep.
    every_steps: steps between two saves.
    read_only: leave the folder as it is.
  """

  def __init__(
      self,
      folder,
      *,
      keep: int,
      every_steps: int = 1,
      read_only: bool = False,
  ):
    self.folder, self.every_steps = epath.Path(folder).absolute(), every_steps
    self.read_only = read_only
    self._saving_step = self._retry_step = None
    self._failures = 0
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep,
        enable_async_checkpointing=True,
        # What a killed process left half written.
        cleanup_tmp_directories=not read_only,
    )
    try:
      self._manager = ocp.CheckpointManager(self.folder, options=options)
    except OSError as error:
      raise RunError(f"{self.folder} cannot be used: {error}.") from error

  def __enter__(self):
    return self

  def __exit__(self, *_):
    try:
      self._manager.close()
    except Exception as error:
      self._failed(None, error)

  def latest_step(self) -> int | None:
    """The newest committed step, or None."""
    steps = set(self._manager.all_steps())
    if self._manager.is_saving_in_progress():
      steps.discard(self._saving_step)  # Orbax counts it from the start.
    return max(steps, default=None)

  def due(self, step: int) -> bool:
    """Whether to save after `step`: in turn, or because a save failed."""
    retry = self._retry_step is not None and step >= self._retry_step
    return retry or step % self.every_steps == 0

  def save(self, step: int, state, iterator, config: dict[str, Any]) -> None:
    """Starts saving; the arrays may be donated as soon as this returns.

    A failure is told and followed by another attempt, first after the next
    step, then after twice as many.

    Raises:
      RunError: if the folder is gone or cannot be written.
    """
    try:
      self._manager.wait_until_finished()
      self._tell_success()
      self._start(step, state, iterator, config)
    except Exception as error:
      self._failed(step, error)

  def poll(self, step: int) -> None:
    """Notices a save that failed in the background; call it after each step."""
    try:
      if self._manager.is_saving_in_progress():
        self._manager.check_for_errors()
      elif self._saving_step is not None:
        self._manager.wait_until_finished()  # for its last word
        self._saving_step = None
        self._tell_success()
    except Exception as error:
      self._failed(step, error)

  def _tell_success(self) -> None:
    """Tells that what was tried after a failure has been committed."""
    if self._failures and self._retry_step is None:
      _say(f"{self.folder.name}: saved after {self._failures} failures")
      self._failures = 0

  def save_last(
      self, step: int, state, iterator, config: dict[str, Any]
  ) -> None:
    """Saves, and waits until it is committed.

    Raises:
      RunError: if it could not be saved in half a minute of attempts.
    """
    for wait_s in (*LAST_WAITS_S, None):
      try:
        self._manager.wait_until_finished()
        if self._manager.latest_step() != step:
          self._start(step, state, iterator, config)
          self._manager.wait_until_finished()
        self._tell_success()
        return
      except Exception as error:
        self._failed(step, error)
        if wait_s is None:
          raise RunError(
              f"{self.folder}: step {step} could not be saved:"
              f" {one_line(error)}. The last checkpoint is of step"
              f" {self._manager.latest_step()}; mend the cause and give the"
              " same command again."
          ) from error
        time.sleep(wait_s)

  def _start(self, step, state, iterator, config) -> None:
    self._check_room(state)
    meta = {
        "config": config,
        "bit_sums": bit_sums(state),
        "data": iterator.get_state(),
    }
    self._saving_step = step
    self._manager.save(
        step,
        args=ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            data=grain.checkpoint.CheckpointSave(iterator),
            meta=ocp.args.JsonSave(meta),
        ),
    )
    self._retry_step = None

  def _check_room(self, state) -> None:
    """Finds a full disk before Orbax does, which would tell it at length."""
    needed_bytes = sum(x.nbytes for x in jax.tree.leaves(state))
    try:
      disk = os.statvfs(self.folder)
    except OSError:
      return  # no such thing as a disk there, or Orbax will make the folder
    free_bytes = disk.f_bavail * disk.f_frsize
    if free_bytes < needed_bytes:
      raise OSError(
          errno.ENOSPC,
          f"{needed_bytes / 1e6:,.1f} MB are needed, {free_bytes / 1e6:,.1f} MB"
          " are free",
          str(self.folder),
      )

  def _failed(self, step: int | None, error: Exception) -> None:
    """Frees what a failed save wrote, and plans the next attempt."""
    code = error_number(error)
    if code is None:
      raise error
    with contextlib.suppress(Exception):
      self._manager.wait_until_finished()  # threads that have not failed yet
    # A path that is missing inside the folder is one that a failure removed.
    fatal = FATAL_ERRNOS - {errno.ENOENT}
    if code in fatal or not self.folder.exists():
      raise RunError(
          f"{self.folder} can no longer be written: {one_line(error)}."
      ) from error
    for path in self.folder.glob("*.orbax-checkpoint-tmp"):
      shutil.rmtree(path, ignore_errors=True)
    # Orbax has forgotten those that the failed save was to replace.
    self._manager.reload()
    if step is not None:
      self._failures += 1
      self._retry_step = step + min(2 ** (self._failures - 1), self.every_steps)
    _say(
        f"{self.folder.name}: a checkpoint could not be saved, training goes"
        f" on: {one_line(error)}"
    )

  def restore(
      self, abstract_state, iterator=None
  ) -> tuple[int, Any] | tuple[None, None]:
    """The newest state that can be read; moves `iterator` to where it stood.

    Args:
      abstract_state: shapes, dtypes and shardings, of `on_mesh`; the mesh may
        differ from the one that the state was saved on.
      iterator: the data iterator to move; None: leave the data alone.

    Returns:
      the step and the state, or None twice if there is no checkpoint.

    Raises:
      RunError: if there are checkpoints but none can be read.
    """
    damaged = {}
    for step in sorted(self._manager.all_steps(), reverse=True):
      try:
        state = self._read(step, abstract_state, iterator)
      except Exception as error:
        damaged[step] = one_line(error)
        continue
      for bad_step, reason in damaged.items():
        self._set_aside(bad_step, reason)
      return step, state
    if damaged:
      reasons = "; ".join(f"{step}: {why}" for step, why in damaged.items())
      raise RunError(
          f"{self.folder}: no checkpoint can be read ({reasons}). Move the"
          " folder away to start this seed anew."
      )
    return None, None

  def _read(self, step: int, abstract_state, iterator):
    args = {
        "state": ocp.args.StandardRestore(abstract_state),
        "meta": ocp.args.JsonRestore(),
    }
    if iterator is not None:
      args["data"] = grain.checkpoint.CheckpointRestore(iterator)
    found = self._manager.restore(step, args=ocp.args.Composite(**args))
    if found.meta["bit_sums"] != bit_sums(found.state):
      raise ValueError("its bits are not those that were saved")
    if iterator is not None and found.meta["data"] != iterator.get_state():
      raise ValueError("its data position is not the one that was saved")
    return found.state

  def _set_aside(self, step: int, reason: str) -> None:
    """Tells of a damaged checkpoint and renames it, so that it is not lost."""
    _say(f"{self.folder.name}: checkpoint {step} is damaged: {reason}")
    if not self.read_only:
      target = next(
          path
          for path in _numbered(self.folder / f"damaged_{step}")
          if not path.exists()
      )
      (self.folder / str(step)).rename(target)
      self._manager.reload()


def _numbered(path: epath.Path) -> Iterator[epath.Path]:
  yield path
  for number in range(2, 2**31):
    yield path.with_name(f"{path.name}_{number}")


def _say(message: str) -> None:
  print(f"\n{message}", file=sys.stderr, flush=True)


def bit_sums(state) -> list[int]:
  """The sum of each array's bits, as unsigned integers modulo 2 ** 32.

  It depends neither on the sharding nor on the order of summation, and a
  flipped bit changes it.
  """
  return np.asarray(jax.device_get(_bit_sums(state))).tolist()


@jax.jit
def _bit_sums(state):
  def bits(x):
    unsigned = jnp.dtype(f"uint{8 * x.dtype.itemsize}")
    x = jax.lax.bitcast_convert_type(x, unsigned).astype(jnp.uint32)
    return jnp.sum(x, dtype=jnp.uint32)

  return jnp.stack([bits(x) for x in jax.tree.leaves(state)])


def on_mesh(abstract_state, mesh):
  """What `jax.eval_shape` returned, with shardings on the devices of `mesh`."""

  def place(x):
    spec = x.sharding.spec if x.sharding is not None else P()
    return jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=NamedSharding(mesh, spec)
    )

  return jax.tree.map(place, abstract_state)
