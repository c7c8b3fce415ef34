# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A page that follows runs which are still being trained."""

import json
import time

import pytest

from diff_jax import report
from diff_jax.config import ConfigError
from diff_jax.metrics import Clock
from tests.report import fixture


def write_run(folder, finished_seeds):
  rows = [
      {
          **row,
          **Clock().metrics(),
          "goodput/step_s": 45.0,
          "goodput/eval_s": 15.0,
      }
      for row in fixture.recall_rows("DIFF", 0, steps=5)
  ]
  info = fixture.run_json("DIFF", seeds=(0,), finished_seeds=finished_seeds)
  return fixture.write_run(folder, info, rows)


def test_refresh_ends_with_the_run(tmp_path, monkeypatch, capsys):
  folder = write_run(tmp_path / "run", [])
  out = tmp_path / "page.html"
  seen = []

  def sleep(seconds):
    seen.append(
        (seconds, 'http-equiv="refresh" content="7"' in out.read_text())
    )
    if len(seen) == 2:
      info = json.loads((folder / "run.json").read_text())
      info["finished_seeds"] = [0]
      (folder / "run.json").write_text(json.dumps(info))

  monkeypatch.setattr(time, "sleep", sleep)
  report.main([str(folder), f"--out={out}", "--refresh=7"])
  assert seen == [(7.0, True)] * 2
  assert "http-equiv" not in out.read_text()  # The last one stays as it is.
  assert str(out) in capsys.readouterr().out


def test_the_page_tells_where_the_time_went(tmp_path):
  folder = write_run(tmp_path / "run", [0])
  page = report.write([folder], tmp_path / "page.html").read_text()
  assert "<th>waiting for data</th>" in page
  assert "<td>1.0 min</td>" in page
  assert "<td>75.0%</td>" in page and "<td>25.0%</td>" in page


def test_refresh_must_be_positive(tmp_path):
  with pytest.raises(ConfigError, match="refresh=0 must be more than 0"):
    report.main([str(tmp_path), "--refresh=0"])
