# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The record of a run: read back, timed, copied, and never in the way."""

import errno
import json
import math
import os
import sys
import types

import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from diff_jax import config, metrics, run
from diff_jax.config import TrainConfig


@pytest.fixture
def clock_s(monkeypatch):
  """Seconds that pass only when a test says so."""
  now_s = types.SimpleNamespace(value=100.0)
  monkeypatch.setattr(metrics.time, "perf_counter", lambda: now_s.value)
  return now_s


@pytest.fixture
def session(tmp_path):
  with run.Lock(tmp_path) as lock:
    yield run.Run(
        lock,
        {"arm": "DIFF", "config": {}, "last_step": 9, "tokens_per_step": 32}
        | {"flops_per_token": 10.0},
    )


def test_what_is_written_is_read_bit_by_bit(tmp_path, session):
  loss = np.float32(0.1)
  session.write(0, 1, {"train/loss": loss, "mechanism/lambda": np.ones(2) / 3})
  session.write(1, 2, {"train/loss": float("nan"), "sample/text": "a\u2028b\n"})
  first, second = metrics.read_metrics(tmp_path / "metrics.jsonl")
  assert np.float32(first["train/loss"]) == loss
  assert first["mechanism/lambda"] == [1 / 3, 1 / 3]
  assert math.isnan(second["train/loss"])
  assert second["sample/text"] == "a\u2028b\n"


@pytest.mark.parametrize(
    "damage",
    [
        b'{"seed": 0, "st', b"\xff\xfe\n", b"\0\0\0\n", b"5\n", b"[]\n", b"\n",
        b'{"a": 1}\n', b'{"seed": 0, "step": "x"}\n', b"__import__('os')\n",
    ],
)  # fmt: skip
def test_a_damaged_line_is_left_out(tmp_path, damage):
  path = tmp_path / "metrics.jsonl"
  good = [{"seed": 0, "step": 1, "x": 1.0}, {"seed": 1, "step": 9, "x": 2.0}]
  lines = [json.dumps(row).encode() + b"\n" for row in good]
  path.write_bytes(lines[0] + damage.rstrip(b"\n") + b"\n" + lines[1])
  assert metrics.read_metrics(path) == good


def test_seconds_belong_to_one_name(clock_s):
  clock = metrics.Clock()
  clock_s.value += 1
  with clock.spend("step"):
    clock_s.value += 8
    with clock.spend("data"):
      clock_s.value += 4
    with pytest.raises(KeyError), clock.spend("save"):
      clock_s.value += 2
      raise KeyError
    clock_s.value += 1
  found = clock.metrics()
  seconds = {"setup": 1, "step": 9, "data": 4, "save": 2}
  for name in metrics.Clock.NAMES:
    assert found[f"goodput/{name}_s"] == seconds.get(name, 0)
  assert found["goodput/share"] == 9 / 16


def test_scalars_take_lists_of_mechanisms_only():
  values = {"a": 1.0, "mechanism/x": [1.0, 2.0], "row": [3.0], "text": "y"}
  assert metrics.scalars(values) == {
      "a": 1.0, "mechanism/x/layer_0": 1.0, "mechanism/x/layer_1": 2.0,
  }  # fmt: skip


def events(folder):
  """(step, tag, value) of the event files, by their own record format."""
  found = []
  for path in sorted(folder.iterdir()):
    data = path.read_bytes()
    while data:
      length = int.from_bytes(data[:8], "little")
      event = event_pb2.Event.FromString(data[12 : 12 + length])
      found += [
          (event.step, x.tag, x.simple_value) for x in event.summary.value
      ]
      data = data[16 + length :]
  return found


def test_tensorboard_has_the_scalars_at_once(tmp_path):
  writer = metrics.TensorBoard(tmp_path)
  writer.write(0, 3, {"a": 0.5, "mechanism/x": [1.0, 2.0]})
  writer.write(1, 4, {"a": 0.25})
  assert events(tmp_path / "seed_0") == [
      (3, "a", 0.5), (3, "mechanism/x/layer_0", 1.0),
      (3, "mechanism/x/layer_1", 2.0),
  ]  # fmt: skip
  assert events(tmp_path / "seed_1") == [(4, "a", 0.25)]
  writer.close()


class Failing:
  """A copy that cannot be written."""

  def __init__(self):
    self.written, self.works = [], True

  def write(self, seed, step, values):
    if not self.works:
      raise ConnectionError("no network")
    self.written.append(step)

  def close(self):
    raise ConnectionError("no network")


def test_a_copy_that_fails_is_told_once_and_forgiven(tmp_path, capfd):
  copy = Failing()
  with run.Lock(tmp_path) as lock:
    session = run.Run(lock, {"config": {}, "last_step": 9}, [copy])
    for step in range(1, 7):
      copy.works = step in (1, 4)
      session.write(0, step, {"x": 1.0})
    session.close()
  assert copy.written == [1, 4]
  assert len(metrics.read_metrics(tmp_path / "metrics.jsonl")) == 6
  told = capfd.readouterr().err
  assert told.count("Failing misses metrics: no network") == 2


def test_wandb_without_its_package_says_what_to_install(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "wandb", None)
  with pytest.raises(config.ConfigError, match=r"diff_jax\[wandb\]"):
    metrics.WeightsAndBiases("project", tmp_path, {"config": {"seeds": [0]}})


def test_wandb_gets_the_scalars_of_each_seed(tmp_path, monkeypatch):
  logged = []
  wandb_run = types.SimpleNamespace(log=logged.append, finish=lambda: None)
  module = types.SimpleNamespace(init=lambda **_: wandb_run)
  monkeypatch.setitem(sys.modules, "wandb", module)
  for seeds, prefix in (([0], ""), ([0, 1], "seed_1/")):
    described = {"config": {"seeds": seeds}}
    writer = metrics.WeightsAndBiases("project", tmp_path, described)
    writer.write(1, 7, {"a": 0.5, "text": "y"})
    writer.close()
    assert logged.pop() == {f"{prefix}a": 0.5, f"{prefix}step": 7}


def step_metrics(in_row=0.0):
  return {
      "train/loss": np.float32(2.0),
      "train/grad_norm": np.float32(1.0),
      "train/skipped_in_row": np.int32(in_row),
  }


def test_a_step_is_logged_after_the_next_and_its_speed_told(
    tmp_path, session, clock_s
):
  settings = TrainConfig(num_steps=5, log_every_steps=2)
  session.clock = metrics.Clock()
  log = metrics.StepLog(session, 0, 0, settings, peak_flops_per_s=640.0)
  logged = []
  with session.clock.spend("step"):
    for step in range(1, 6):
      clock_s.value += 2.0
      log.next(step, step_metrics(), None)
      rows = tmp_path / "metrics.jsonl"
      logged.append(len(metrics.read_metrics(rows)) if rows.exists() else 0)
    clock_s.value += 2.0
    log.close()
  assert logged == [0, 0, 1, 1, 2]
  rows = metrics.read_metrics(tmp_path / "metrics.jsonl")
  assert [row["step"] for row in rows] == [2, 4, 5]
  # Steps 1 and 2 are told when step 3 was dispatched: 6 seconds for 2 steps.
  assert [row["perf/step_time_s"] for row in rows] == [3.0, 2.0, 2.0]
  assert rows[1]["perf/tokens_per_s"] == 16.0
  assert rows[1]["perf/model_flops_per_s"] == 160.0
  assert rows[1]["perf/mfu"] == 0.25


def test_skipped_updates_in_a_row_end_the_run(session, capfd):
  settings = TrainConfig(num_steps=9, max_skipped_steps=2)
  log = metrics.StepLog(session, 3, 0, settings, None)
  for step, in_row in enumerate((1, 0, 1), start=1):
    log.next(step, step_metrics(in_row), np.array([step, 10 + step]))
  log.next(4, step_metrics(2), np.array([4, 14]))
  with pytest.raises(config.RunError) as error:
    log.flush()
  assert "seed 3 stops after step 4" in str(error.value)
  assert "step 3: [3, 13]; step 4: [4, 14]." in str(error.value)
  assert "step 1" not in str(error.value)
  assert "seed 3, step 1: update skipped: loss 2" in capfd.readouterr().err


def full(*_):
  raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_metrics_of_a_full_disk_are_written_later(
    tmp_path, session, monkeypatch, capfd
):
  session.write(0, 1, {"x": 1.0})
  with monkeypatch.context() as disk:
    disk.setattr(run.Run, "_append", full)
    for step in (2, 3):
      session.write(0, step, {"x": 1.0})
  session.write(0, 4, {"x": 1.0})
  rows = metrics.read_metrics(tmp_path / "metrics.jsonl")
  assert [row["step"] for row in rows] == [1, 2, 3, 4]
  told = capfd.readouterr().err
  assert told.count("kept in memory until they can be written: [Errno 28]") == 1
  assert told.count("metrics can be written again") == 1


def test_a_folder_that_vanishes_or_is_another_one_ends_the_run(tmp_path):
  workdir = tmp_path / "run"
  with pytest.raises(config.RunError, match="has vanished"):
    with run.Lock(workdir) as lock:
      session = run.Run(lock, {"config": {}, "last_step": 9})
      session.write(0, 1, {"x": 1.0})
      workdir.rename(tmp_path / "elsewhere")
      workdir.mkdir()
      session.write(0, 2, {"x": 1.0})
  assert not list(workdir.iterdir())
  # Any other error is told as what it comes from.
  with pytest.raises(config.RunError, match="has vanished"):
    with run.Lock(tmp_path / "b"):
      (tmp_path / "b").rename(tmp_path / "c")
      raise KeyError("of Orbax")


def test_one_folder_has_one_run(tmp_path):
  with run.Lock(tmp_path):
    with pytest.raises(config.ConfigError) as error:
      run.Lock(tmp_path)
    assert f"is being trained by process {os.getpid()} on" in str(error.value)
  with run.Lock(tmp_path):
    pass


def test_a_workdir_that_cannot_be_made_is_one_line(tmp_path):
  (tmp_path / "file").write_text("")
  with pytest.raises(config.ConfigError, match="must be a folder that can be"):
    run.Lock(tmp_path / "file" / "run")
