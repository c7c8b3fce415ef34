# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Continuing: the same settings, the same data, and only what was kept."""

import argparse
import errno
import fcntl
import json
import os
import pathlib

import pytest

from diff_jax import config, metrics, resume, run
from diff_jax.commands import sweep
from diff_jax.flags import load_config_file
from diff_jax.watch import Watch

ROOT = pathlib.Path(__file__).parents[1]


def recall_config(**changes):
  module, _ = load_config_file(f"{ROOT}/configs/recall.py")
  settings = module.get_config("smoke")
  settings.update_from_flattened_dict(changes)
  return settings


def describe(workdir, settings, **more):
  values = {"config": settings.to_dict(), "finished_seeds": [], "last_step": 6}
  workdir.mkdir(exist_ok=True)
  (workdir / "run.json").write_text(json.dumps(values | more))


def test_other_settings_are_refused_or_accepted_by_name(tmp_path, capfd):
  resume.check_same_run(recall_config(), tmp_path)  # nothing there yet
  describe(tmp_path, recall_config())
  resume.check_same_run(recall_config(), tmp_path)
  changed = recall_config(**{"model.norm_eps": 0.5, "init_key": 3})
  with pytest.raises(config.ConfigError) as error:
    resume.check_same_run(changed, tmp_path)
  assert "init_key=3 (was 0), model.norm_eps=0.5 (was 1e-05)" in str(
      error.value
  )
  assert "--accept-config-change" in str(error.value)
  assert "\n" not in str(error.value) and "d_model" not in str(error.value)
  capfd.readouterr()
  resume.check_same_run(changed, tmp_path, accept=True)
  assert "model.norm_eps=0.5 (was 1e-05). Accepted." in capfd.readouterr().err


@pytest.mark.parametrize(
    "change",
    [
        {"checkpoint_every_steps": 7}, {"seeds": (4, 5)},
        {"mesh.tensor": 2}, {"evaluators.recall.every_steps": 3},
        {"wandb_project": "x"}, {"stop_after_steps": 3},
    ],
)  # fmt: skip
def test_how_long_where_and_what_is_told_may_change(tmp_path, change):
  describe(tmp_path, recall_config(stop_after_steps=2))
  resume.check_same_run(recall_config(**change), tmp_path)


def test_a_setting_that_only_starts_like_one_that_may_change_may_not(tmp_path):
  """`data.path` may; `data.path_of_something` and `seeds_x` would not."""
  assert resume._may_change("data.path") and resume._may_change("mesh.fsdp")
  assert not resume._may_change("data.paths")
  assert not resume._may_change("model.window")


def corpus(**changes):
  values = {"name": "x", "documents": 3, "bytes": 9, "sha256": "aa"}
  return values | changes


def test_another_corpus_is_refused_or_accepted_by_name(tmp_path, capfd):
  resume.check_same_data(corpus(), tmp_path)  # nothing there yet
  describe(tmp_path, recall_config(), corpus=corpus())
  resume.check_same_data(corpus(), tmp_path)
  resume.check_same_data(None, tmp_path)  # a task without text
  # Where it lies does not matter, what it is does.
  resume.check_same_data(corpus(name="y"), tmp_path)
  changed = corpus(bytes=8, sha256="bb")
  with pytest.raises(config.ConfigError) as error:
    resume.check_same_data(changed, tmp_path)
  assert "bytes=8 (was 9), sha256='bb' (was 'aa')" in str(error.value)
  assert "--accept-data-change" in str(error.value)
  assert "documents" not in str(error.value)
  resume.check_same_data(changed, tmp_path, accept=True)
  assert "Accepted." in capfd.readouterr().err


@pytest.mark.parametrize("stored", [None, {}, {"sha256": 5}])
def test_a_corpus_that_was_not_described_is_another_one(tmp_path, stored):
  describe(tmp_path, recall_config(), corpus=stored)
  with pytest.raises(config.ConfigError, match="--accept-data-change"):
    resume.check_same_data(corpus(), tmp_path)


DESCRIPTION = {"config": {}, "last_step": 9}


def rows_of(workdir):
  return metrics.read_metrics(workdir / "metrics.jsonl")


def test_rewind_drops_what_a_crash_left_behind(tmp_path):
  (tmp_path / "metrics.jsonl").write_text(
      '{"seed": 0, "step": 1, "x": 1}\n{"seed": 1, "step": 9, "x": 2}\n'
      '{"seed": 0, "step": 7, "x": 3}\n{"seed": 0, "st'
  )
  kept = [{"seed": 0, "step": 1, "x": 1}, {"seed": 1, "step": 9, "x": 2}]
  with run.Lock(tmp_path) as lock:
    assert run.Run(lock, DESCRIPTION).rewind(0, 5) == kept
  assert rows_of(tmp_path) == kept


def test_rewind_on_a_full_disk_ends_the_run_and_keeps_the_file(
    tmp_path, monkeypatch
):
  (tmp_path / "metrics.jsonl").write_text('{"seed": 0, "step": 7, "x": 3}\n')
  with run.Lock(tmp_path) as lock:
    session = run.Run(lock, DESCRIPTION)

    def fsync(_):
      raise OSError(28, "No space left on device")

    monkeypatch.setattr(run.os, "fsync", fsync)
    with pytest.raises(
        config.RunError, match="metrics.jsonl cannot be written"
    ):
      session.rewind(0, 5)
  assert rows_of(tmp_path) == [{"seed": 0, "step": 7, "x": 3}]
  assert not list(tmp_path.glob("*.tmp"))


def test_seconds_are_carried_once_and_undone_ones_are_lost(
    tmp_path, monkeypatch
):
  """Over two sessions of two seeds; a process dies 3 seconds after a save."""
  now_s = [0.0]
  monkeypatch.setattr(metrics.time, "perf_counter", lambda: now_s[0])

  def work(session, seed, step, step_s):
    with session.clock.spend("step"):
      now_s[0] += step_s
    session.write(seed, step, session.clock.metrics())

  with run.Lock(tmp_path) as lock:
    session = run.Run(lock, DESCRIPTION)
    for seed in (0, 1):
      session.rewind(seed, 0)
      work(session, seed, 10, 4.0)
    work(session, 1, 13, 3.0)
  assert sum(session.clock.now().values()) == now_s[0] == 11
  with run.Lock(tmp_path) as lock:
    session = run.Run(lock, DESCRIPTION)
    session.rewind(0, 10)
    session.rewind(1, 10)
    work(session, 1, 13, 2.0)
  seconds = session.clock.now()
  assert seconds["step"] == 4 + 4 + 2 and seconds["lost"] == 3
  assert sum(seconds.values()) == now_s[0] == 13
  assert rows_of(tmp_path)[-1]["goodput/share"] == 10 / 13


def test_run_json_tells_of_every_session(tmp_path):
  for first_step in (0, 5):
    with run.Lock(tmp_path) as lock:
      session = run.Run(lock, DESCRIPTION)
      session.begin_session(0, first_step)
      session.finish_seed(0)
  described = run.read_description(tmp_path)
  assert [x["first_step"] for x in described["sessions"]] == [0, 5]
  assert described["finished_seeds"] == [0]
  for name in ("command", "commit", "versions", "device"):
    assert described["sessions"][0][name]
  assert described["sessions"][0]["versions"].keys() >= {"jax", "grain"}


def test_a_finished_arm_of_other_settings_does_not_count(tmp_path):
  """A sweep whose settings changed is refused, not reported as finished."""
  arguments = argparse.Namespace(accept_config_change=False)
  describe(tmp_path / "arm", recall_config(), finished_seeds=[0, 1, 2])
  arms = {"arm": recall_config(**{"model.norm_eps": 0.5})}
  with pytest.raises(config.ConfigError, match="model.norm_eps=0.5"):
    sweep.sweep(arms, tmp_path, tmp_path / "page.html", arguments, Watch())


def test_a_file_system_without_locks_is_told_of(tmp_path, monkeypatch, capfd):
  def flock(*_):
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

  monkeypatch.setattr(fcntl, "flock", flock)
  with run.Lock(tmp_path):
    pass
  assert "nothing keeps a second run out" in capfd.readouterr().err
