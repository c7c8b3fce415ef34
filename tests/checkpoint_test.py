# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints: damage, full disks, folders that cannot be written."""

import errno
import gc
import os
import pathlib
import resource
import shutil
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diff_jax import checkpoint, config, storage_errors
from diff_jax.data.pipeline import make_iterator
from diff_jax.data.recall import Recall

SOURCE = Recall(keys=8, values=4, context=4, queries=2)


def iterator(skip=0):
  batches = make_iterator(SOURCE, "train", 0, 2)
  for _ in range(skip):
    next(batches)
  return batches


def state(step):
  """A small state whose every value tells its step."""
  return {
      "x": step + jnp.arange(4000, dtype=jnp.float32),
      "y": jnp.full((3,), step, jnp.int32),
  }


ABSTRACT = jax.eval_shape(lambda: state(0))


@pytest.fixture
def abstract():
  """Shapes of `state`, on the first device."""
  sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
  return jax.tree.map(
      lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding),
      ABSTRACT,
  )


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
  """Checkpoints of steps 1, 2 and 3."""
  folder = tmp_path_factory.mktemp("saved") / "seed_0"
  save_steps(folder, 3)
  return folder


def save_steps(folder, last):
  with checkpoint.Checkpoints(folder, keep=3) as checkpoints:
    batches = iterator()
    for step in range(1, last + 1):
      next(batches)
      checkpoints.save(step, state(step), batches, {})


def files(step):
  """The files of a checkpoint that restoring needs, by what they hold."""
  arrays = max(
      (p for p in (step / "state").rglob("*") if p.is_file()),
      key=lambda p: p.stat().st_size,
  )
  (position,) = (step / "data").glob("*.json")
  return {
      "arrays": arrays,
      "manifest": step / "state" / "manifest.ocdbt",
      "structure": step / "state" / "_METADATA",
      "position": position,
      "meta": step / "meta" / "metadata",
  }


def truncate(path):
  os.truncate(path, path.stat().st_size // 2)


def flip_a_bit(path):
  data = bytearray(path.read_bytes())
  # In the position's JSON, the number.
  place = data.index(b"3") if path.suffix == ".json" else len(data) // 2
  data[place] ^= 1
  path.write_bytes(data)


DAMAGES = [
    (damage, name)
    for damage in (truncate, pathlib.Path.unlink, flip_a_bit)
    for name in ("arrays", "manifest", "structure", "position", "meta")
    # Orbax does without the structure; a bit of the config does not matter.
    if (damage, name) != (pathlib.Path.unlink, "structure")
    and (damage, name) != (flip_a_bit, "meta")
]


# TensorStore's reads that come back after the first has failed.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("damage, name", DAMAGES)
def test_a_damaged_checkpoint_is_set_aside(
    tmp_path, saved, abstract, capfd, damage, name
):
  folder = tmp_path / "seed_0"
  shutil.copytree(saved, folder)
  damage(files(folder / "3")[name])
  batches = iterator()
  with checkpoint.Checkpoints(folder, keep=3) as checkpoints:
    step, found = checkpoints.restore(abstract, batches)
    assert step == checkpoints.latest_step() == 2
  assert "seed_0: checkpoint 3 is damaged: " in capfd.readouterr().err
  jax.tree.map(np.testing.assert_array_equal, found, state(2))
  jax.tree.map(
      np.testing.assert_array_equal, next(batches), next(iterator(skip=2))
  )
  assert {p.name for p in folder.iterdir()} == {"1", "2", "damaged_3"}
  gc.collect()  # else a later test is told of those reads


def test_every_bit_of_the_data_position_counts(tmp_path, saved, abstract):
  """A position that is wrong but valid would repeat or skip batches."""
  folder = tmp_path / "seed_0"
  shutil.copytree(saved, folder)
  path = files(folder / "3")["position"]
  path.write_text(path.read_text().replace("3", "2"))
  with checkpoint.Checkpoints(folder, keep=3, read_only=True) as checkpoints:
    assert checkpoints.restore(abstract, iterator())[0] == 2
    # Who does not read data does not care.
    assert checkpoints.restore(abstract)[0] == 3
  assert (folder / "3").is_dir()


def test_empty_folders_and_what_a_kill_left_are_no_checkpoints(
    tmp_path, saved, abstract
):
  folder = tmp_path / "seed_0"
  shutil.copytree(saved, folder)
  (folder / "7.orbax-checkpoint-tmp" / "state").mkdir(parents=True)
  (folder / "notes.txt").write_text("mine")
  (folder / "9").mkdir()
  with checkpoint.Checkpoints(folder, keep=3) as checkpoints:
    assert checkpoints.restore(abstract, iterator())[0] == 3
    checkpoints.save(9, state(9), iterator(9), {})
  assert {p.name for p in folder.iterdir()} == {
      "2", "3", "9", "damaged_9", "notes.txt",
  }  # fmt: skip


def test_without_a_readable_checkpoint_nothing_is_overwritten(
    tmp_path, saved, abstract
):
  folder = tmp_path / "seed_0"
  shutil.copytree(saved, folder)
  for step in "123":
    shutil.rmtree(folder / step)
    (folder / step).mkdir()
  with checkpoint.Checkpoints(folder, keep=3) as checkpoints:
    with pytest.raises(config.RunError, match="no checkpoint can be read"):
      checkpoints.restore(abstract, iterator())
  assert {p.name for p in folder.iterdir()} == {"1", "2", "3"}


class Disk:
  """A disk that can be made full: what `statvfs` and Orbax's save say."""

  def __init__(self, checkpoints, monkeypatch):
    self.is_full = False
    save = checkpoints._manager.save

    def save_or_fail(step, args):
      if self.is_full:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
      return save(step, args=args)

    monkeypatch.setattr(checkpoints._manager, "save", save_or_fail)


def test_a_full_disk_is_told_survived_and_tried_again(
    tmp_path, monkeypatch, capfd
):
  """Saves every 4 steps; the disk is full at step 4, free from 6 on."""
  with checkpoint.Checkpoints(
      tmp_path / "seed_0", keep=9, every_steps=4
  ) as checkpoints:
    disk, tried = Disk(checkpoints, monkeypatch), []
    for step in range(1, 14):
      disk.is_full = 4 <= step < 6
      checkpoints.poll(step)
      if checkpoints.due(step):
        tried.append(step)
        checkpoints.save(step, state(step), iterator(), {})
  # Again after one step, then after two; then in turn again.
  assert tried == [4, 5, 7, 8, 12]
  assert sorted(p.name for p in (tmp_path / "seed_0").iterdir()) == sorted(
      ["7", "8", "12"]
  )
  told = capfd.readouterr().err
  assert told.count("training goes on: [Errno 28] No space left") == 2
  assert told.count("saved after 2 failures") == 1


def test_failures_in_the_background_leave_nothing_behind(tmp_path, capfd):
  """Also not the old checkpoints that the failed ones were to replace."""
  noise = np.random.default_rng(0).integers(0, 2**31, 50_000, np.int32)
  big = {"x": jnp.asarray(noise)}
  soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
  with checkpoint.Checkpoints(tmp_path / "seed_0", keep=2) as checkpoints:
    try:
      for step in range(1, 7):
        # No file may become larger than a tenth of the state.
        limit = 20_000 if step in (3, 4) else soft
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        checkpoints.save(step, big, iterator(), {})
        settle(checkpoints, step)
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
  assert {p.name for p in (tmp_path / "seed_0").iterdir()} == {"5", "6"}
  told = capfd.readouterr().err
  assert told.count("File too large") == 2 and "Traceback" not in told
  assert told.count("saved after 2 failures") == 1


def settle(checkpoints, step):
  """Waits until the save under way is committed, or told to have failed."""
  while checkpoints._retry_step is None and checkpoints._saving_step:
    time.sleep(0.01)
    checkpoints.poll(step)


def test_a_save_that_times_out_is_tried_again(tmp_path, monkeypatch, capfd):
  """Orbax measures its patience with time.time, which can jump."""
  with checkpoint.Checkpoints(tmp_path / "seed_0", keep=2) as checkpoints:
    with monkeypatch.context() as jump:

      def save(*_, **__):
        raise TimeoutError("completed 3/4 futures")

      jump.setattr(checkpoints._manager, "save", save)
      checkpoints.save(1, state(1), iterator(), {})
    assert checkpoints.due(2)
    checkpoints.save(2, state(2), iterator(), {})
  assert [p.name for p in (tmp_path / "seed_0").iterdir()] == ["2"]
  assert "training goes on: completed 3/4" in capfd.readouterr().err


def test_too_little_room_is_found_before_anything_is_written(
    tmp_path, monkeypatch, capfd
):
  free = types.SimpleNamespace(f_bavail=3, f_frsize=4096)
  with checkpoint.Checkpoints(tmp_path / "seed_0", keep=2) as checkpoints:
    with monkeypatch.context() as full:
      full.setattr(os, "statvfs", lambda _: free)
      checkpoints.save(1, state(1), iterator(), {})
    assert not list((tmp_path / "seed_0").iterdir())
    assert "0.0 MB are needed, 0.0 MB are free" in capfd.readouterr().err
    checkpoints.save(2, state(2), iterator(), {})
  assert [p.name for p in (tmp_path / "seed_0").iterdir()] == ["2"]


def test_the_last_save_waits_for_room_then_gives_up(
    tmp_path, monkeypatch, capfd
):
  waits_s = []
  with checkpoint.Checkpoints(tmp_path / "seed_0", keep=2) as checkpoints:
    disk = Disk(checkpoints, monkeypatch)
    disk.is_full = True

    def sleep(wait_s):
      waits_s.append(wait_s)
      disk.is_full = len(waits_s) < 3

    monkeypatch.setattr(checkpoint.time, "sleep", sleep)
    checkpoints.save_last(5, state(5), iterator(), {})
    assert waits_s == [1, 2, 4] and checkpoints.latest_step() == 5

    disk.is_full = True
    monkeypatch.setattr(checkpoint.time, "sleep", lambda _: None)
    with pytest.raises(config.RunError) as error:
      checkpoints.save_last(6, state(6), iterator(), {})
  assert "step 6 could not be saved: [Errno 28] No space" in str(error.value)
  assert "The last checkpoint is of step 5" in str(error.value)


@pytest.mark.parametrize(
    "code", sorted(storage_errors.FATAL_ERRNOS - {errno.ENOENT})
)
def test_a_folder_that_cannot_be_written_ends_the_run(
    tmp_path, monkeypatch, code
):
  with checkpoint.Checkpoints(tmp_path / "seed_0", keep=2) as checkpoints:

    def save(*_, **__):
      raise ValueError("of Orbax") from OSError(code, os.strerror(code))

    monkeypatch.setattr(checkpoints._manager, "save", save)
    with pytest.raises(config.RunError, match="can no longer be written"):
      checkpoints.save(1, state(1), iterator(), {})


def test_a_save_under_way_is_not_yet_a_checkpoint(tmp_path):
  with checkpoint.Checkpoints(tmp_path / "seed_0", keep=2) as checkpoints:
    checkpoints.save_last(1, state(1), iterator(), {})
    commit, block = checkpoints._manager._finalize, threading.Event()

    def commit_later(*args, **kwargs):
      block.wait()
      commit(*args, **kwargs)

    checkpoints._manager._finalize = commit_later
    checkpoints.save(2, state(2), iterator(), {})
    assert checkpoints._manager.latest_step() == 2
    assert checkpoints.latest_step() == 1
    block.set()
    settle(checkpoints, 2)
    assert checkpoints.latest_step() == 2


def test_checkpoints_that_are_no_folder_are_one_line(tmp_path):
  (tmp_path / "checkpoints").write_text("")
  with pytest.raises(config.RunError, match="cannot be used: .*Errno"):
    checkpoint.Checkpoints(tmp_path / "checkpoints" / "seed_0", keep=2)
