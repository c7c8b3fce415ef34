# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Run folders as they are found: partial, repeated, or not run folders."""

import json

import pytest

from diff_jax import config as config_lib
from diff_jax.report import runs as runs_lib
from tests.report import fixture


def _rows(seed=0, steps=3):
  return [
      {"seed": seed, "step": step, "train/accuracy": step / 10}
      for step in range(1, steps + 1)
  ]


def test_a_last_line_cut_in_the_middle_is_ignored(tmp_path):
  folder = fixture.write_run(tmp_path / "a", fixture.run_json("DIFF"), _rows())
  with (folder / "metrics.jsonl").open("a") as file:
    file.write('{"seed": 0, "step": 4, "train/acc')
  run = runs_lib.read(folder)
  assert list(run.rows[0]["train/accuracy"]) == [1, 2, 3]
  assert run.unreadable_lines == 0


def test_a_broken_line_in_the_middle_is_counted(tmp_path):
  folder = fixture.write_run(tmp_path / "a", fixture.run_json("DIFF"), _rows())
  lines = (folder / "metrics.jsonl").read_text()
  (folder / "metrics.jsonl").write_text('{"seed": 0, "st\n' + lines)
  assert runs_lib.read(folder).unreadable_lines == 1


def test_a_step_logged_twice_keeps_its_last_value(tmp_path):
  rows = [*_rows(), {"seed": 0, "step": 2, "train/accuracy": 0.9}]
  folder = fixture.write_run(tmp_path / "a", fixture.run_json("DIFF"), rows)
  (act,) = runs_lib.acts([runs_lib.read(folder)])
  steps, values = act.arms[0].traces[0].series("train/accuracy")
  assert steps.tolist() == [1, 2, 3]
  assert values.tolist() == [0.1, 0.9, 0.3]


def test_a_run_without_rows_is_a_run(tmp_path):
  folder = fixture.write_run(tmp_path / "a", fixture.run_json("DIFF"), [])
  (folder / "metrics.jsonl").unlink()
  assert runs_lib.read(folder).rows == {}


def test_folders_of_one_arm_are_one_arm(tmp_path):
  runs = []
  for seed in (1, 0):
    info = fixture.run_json("DIFF", (seed,))
    folder = tmp_path / f"diff_{seed}"
    runs.append(runs_lib.read(fixture.write_run(folder, info, _rows(seed))))
  (act,) = runs_lib.acts(runs)
  (arm,) = act.arms
  assert (arm.name, list(arm.traces)) == ("DIFF", [0, 1])


def test_one_label_with_two_settings_is_two_arms(tmp_path):
  runs = []
  for rate in (0.004, 0.008):
    info = fixture.run_json("DIFF", (0,))
    info["config"]["optimizer"]["peak_learning_rate"] = rate
    folder = fixture.write_run(tmp_path / str(rate), info, _rows())
    runs.append(runs_lib.read(folder))
  (act,) = runs_lib.acts(runs)
  assert [arm.name for arm in act.arms] == [
      "DIFF (peak_learning_rate 0.004)",
      "DIFF (peak_learning_rate 0.008)",
  ]


def test_a_seed_trained_twice_is_told_apart_by_its_folder(tmp_path):
  runs = [
      runs_lib.read(
          fixture.write_run(tmp_path / name, fixture.run_json("DIFF"), _rows())
      )
      for name in ("first", "again")
  ]
  (act,) = runs_lib.acts(runs)
  assert [arm.name for arm in act.arms] == ["DIFF (first)", "DIFF (again)"]


def test_acts_and_arms_have_their_order(tmp_path):
  runs = [
      runs_lib.read(
          fixture.write_run(tmp_path / arm, fixture.run_json(arm), _rows())
      )
      for arm in ("Mine", "DIFF", "Transformer")
  ]
  runs.insert(1, runs_lib.read(
      fixture.write_run(tmp_path / "text", fixture.text_json(), [])
  ))  # fmt: skip
  acts = runs_lib.acts(runs)
  assert [act.experiment for act in acts] == ["recall", "tiny_lm"]
  assert [arm.name for arm in acts[0].arms] == ["Transformer", "DIFF", "Mine"]


def test_a_folder_that_is_no_run_folder(tmp_path):
  fixture.write_run(tmp_path / "DIFF", fixture.run_json("DIFF"), [])
  with pytest.raises(config_lib.ConfigError, match=r"no run\.json.*\{DIFF\}"):
    runs_lib.read(tmp_path)
  with pytest.raises(config_lib.ConfigError, match="run folder"):
    runs_lib.read(tmp_path / "absent")


def test_a_broken_run_json(tmp_path):
  (tmp_path / "run.json").write_text('{"config": ')
  with pytest.raises(config_lib.ConfigError, match="readable"):
    runs_lib.read(tmp_path)
  (tmp_path / "run.json").write_text("[]")
  with pytest.raises(config_lib.ConfigError, match="'config'"):
    runs_lib.read(tmp_path)
  info = {"config": {"report": {"metrik": "train/loss"}}}
  (tmp_path / "run.json").write_text(json.dumps(info))
  with pytest.raises(config_lib.ConfigError, match="metrik"):
    _ = runs_lib.read(tmp_path).settings
