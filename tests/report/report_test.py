# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Whole pages from synthetic run folders: what they say and leave out."""

import contextlib
import dataclasses
import io
import re

import pytest

from diff_jax import config as config_lib
from diff_jax import report
from diff_jax.report import drawing, sentences
from diff_jax.report import result as result_lib
from diff_jax.report import runs as runs_lib
from tests.report import fixture

OPTIONAL = (
    "Where attention goes",
    "One query, map by map",
    "Longer contexts",
    "<h3>λ</h3>",
    "Cost",
    "Baselines",
    "A sample of its text",
)


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
  """The demo's shape: four arms, three seeds each, and a language model."""
  root = tmp_path_factory.mktemp("demo")
  folders = [
      fixture.write_recall(root / arm.replace(" ", ""), arm, steps=200)
      for arm in fixture.HALF_WAY
  ]
  rows = fixture.text_rows(steps=100)
  return [*folders, fixture.write_run(root / "lm", fixture.text_json(), rows)]


@pytest.fixture(scope="module")
def demo_report(demo):
  """What the command prints for the demo, and the page that it writes."""
  out = demo[0].parent / "new" / "page.html"
  with contextlib.redirect_stdout(io.StringIO()) as printed:
    report.main([*map(str, demo), f"--out={out}"])
  return printed.getvalue(), out


@pytest.fixture(scope="module")
def page(demo_report):
  return demo_report[1].read_text()


def _lead(folders):
  (act,) = runs_lib.acts([runs_lib.read(folder) for folder in folders])
  return sentences.lead(result_lib.compute(act))


def test_the_demo_is_one_page_in_two_acts(page):
  assert page.index(">Recall</h2>") < page.index(">Tiny LM</h2>")
  for title in OPTIONAL:
    assert title in page
  assert page.count("data-copy type") == 3
  assert len(page) < 2_000_000


def test_the_page_loads_nothing(page):
  loaded = re.findall(r"(?:src|href)=[\"']?([^\"'\s>]+)", page)
  assert all(link.startswith("#") for link in loaded)
  assert "@import" not in page and "url(http" not in page


def test_ids_are_unique(page):
  ids = re.findall(r'\bid="([^"]+)"', page)
  assert len(ids) == len(set(ids))


def test_the_sentence_of_the_2x2_credits_the_norm(demo):
  lead = _lead(demo[:4])
  assert re.match(
      r"DIFF is ahead of Transformer by 0\.\d+ in train accuracy \(mean over"
      r" steps 101–120; 95\s% interval [\d.]+ to [\d.]+, 3 seeds\), but the"
      r" per-head norm alone gives 9\d\s% of that, and what DIFF adds to"
      r" Transformer \+ norm, .* is undecided;",
      lead,
  )
  assert "every arm ends at 1.00" in lead
  assert "learning speed only" in lead


def test_the_norm_is_credited_with_the_steps_it_saves(demo):
  (act,) = runs_lib.acts([runs_lib.read(folder) for folder in demo[:4]])
  result = result_lib.compute(act)
  words = sentences.speed(result)
  means = {
      arm: sum(by_seed.values()) / 3
      for arm, by_seed in result.thresholds.items()
  }
  saved = means["Transformer"] - means["DIFF"]
  share = (means["Transformer"] - means["Transformer + norm"]) / saved
  assert f"the per-head norm alone saves {100 * share:.0f}\u00a0%." in words
  censored = dict(result.thresholds) | {"DIFF": {0: None, 1: 80, 2: 90}}
  assert not sentences.speed(dataclasses.replace(result, thresholds=censored))


def test_the_norm_is_not_credited_when_it_gives_little(tmp_path):
  half_way = {
      "Transformer": (150, 151, 149),
      "Transformer + norm": (146, 148, 145),
      "DIFF": (70, 75, 72),
  }
  folders = []
  for arm, steps in half_way.items():
    rows = [
        row
        for seed in range(3)
        for row in fixture.recall_rows(arm, seed, 200, steps[seed])
    ]
    info = fixture.run_json(arm)
    folders.append(fixture.write_run(tmp_path / arm, info, rows))
  lead = _lead(folders)
  assert "of which the per-head norm alone gives" in lead
  assert "DIFF − (Transformer + norm) is +0.9" in lead


def test_one_seed_proves_nothing(tmp_path):
  folders = [
      fixture.write_recall(tmp_path / arm, arm, (0,), steps=130)
      for arm in ("Transformer", "DIFF")
  ]
  lead = _lead(folders)
  assert "one seed proves nothing" in lead
  assert "interval" not in lead
  assert "p (Holm)" not in report.write(folders).read_text()


def test_a_portrait_of_one_run(tmp_path):
  folder = fixture.write_recall(tmp_path / "x", "DIFF", (0,), steps=130)
  path = report.write([folder])
  assert path == folder / "report.html"
  page = path.read_text()
  assert "proves nothing and compares nothing" in page
  assert "differences" not in page and "What differs" not in page
  assert "Wilson" in page


def test_a_lower_metric_is_better(tmp_path):
  folders = []
  for arm in ("Transformer", "DIFF"):
    info = fixture.run_json(arm)
    info["config"]["report"] = {
        "metric": "train/loss", "first_step": 101, "last_step": 120,
    }  # fmt: skip
    rows = [r for s in range(3) for r in fixture.recall_rows(arm, s, 130)]
    folders.append(fixture.write_run(tmp_path / arm, info, rows))
  assert re.match(
      r"DIFF is ahead of Transformer by [\d.]+ nats .* interval \d",
      _lead(folders),
  )


def test_a_run_that_is_still_training(tmp_path):
  folders = [
      fixture.write_recall(tmp_path / arm, arm, steps=steps)
      for arm, steps in (("Transformer", 130), ("DIFF", 60))
  ]
  folders.append(
      fixture.write_run(tmp_path / "new", fixture.run_json("DIFF - norm"), [])
  )
  (act,) = runs_lib.acts([runs_lib.read(folder) for folder in folders])
  words = " ".join(sentences.caveats(result_lib.compute(act)))
  assert "Not every run has rows for the headline over steps 101–120" in words
  assert "stop at different steps, from 60 to 130" in words
  assert report.write(folders).exists()


def test_a_diverged_seed_is_named_and_left_out(tmp_path):
  folders = [
      fixture.write_recall(tmp_path / arm, arm, steps=130)
      for arm in ("Transformer", "DIFF")
  ]
  row = '{"seed": 1, "step": 110, "train/accuracy": NaN}\n'
  with (folders[1] / "metrics.jsonl").open("a") as file:
    file.write(row)
  (act,) = runs_lib.acts([runs_lib.read(folder) for folder in folders])
  result = result_lib.compute(act)
  assert result.diverged == (("DIFF", 1),)
  assert result.primary.seeds == (0, 2)
  assert "DIFF, seed 1" in " ".join(sentences.caveats(result))


def test_an_arm_of_ones_own(tmp_path):
  folders = [
      fixture.write_recall(tmp_path / "t", "Transformer", steps=130),
      fixture.write_recall(tmp_path / "d", "DIFF", steps=130),
  ]
  rows = [
      row
      for seed in range(3)
      for row in fixture.recall_rows("DIFF", seed, 130, half_way=60 + seed)
  ]
  info = fixture.run_json("MyAttention <b>")
  folders.append(fixture.write_run(tmp_path / "m", info, rows))
  assert _lead(folders).startswith("MyAttention <b> is ahead of Transformer")
  page = report.write(folders).read_text()
  assert "MyAttention <b>" not in page  # Escaped.
  assert "MyAttention &lt;b&gt;" in page


def test_colours_are_fixed_by_arm():
  two = drawing.colours(["DIFF", "Mine"])
  more = drawing.colours(["Transformer", "DIFF", "Mine", "Other"])
  assert two["DIFF"] == more["DIFF"] and two["Mine"] == more["Mine"]
  assert len(set(more.values())) == 4


def test_sections_without_data_are_left_out(tmp_path):
  info = {"config": {"experiment": "bare"}, "arm": "DIFF"}
  rows = [{"seed": 0, "step": s, "train/loss": 3.0 / s} for s in range(1, 40)]
  folder = fixture.write_run(tmp_path / "bare", info, rows)
  page = report.write([folder]).read_text()
  assert "Learning curves" in page
  for title in OPTIONAL:
    assert title not in page


def test_nothing_logged_yet(tmp_path):
  folder = fixture.write_run(tmp_path / "x", fixture.run_json("DIFF"), [])
  assert "has been logged yet" in report.write([folder]).read_text()


def test_the_command_prints_the_tables_and_the_path(demo_report):
  printed, out = demo_report
  assert printed.splitlines()[-1] == str(out)
  assert re.search(r"Transformer \+ norm +3 +0\.9\d", printed)
  assert ">200" not in printed


def test_censored_runs_are_shown(tmp_path, capsys):
  folder = fixture.write_recall(tmp_path / "x", "Transformer", (0,), steps=125)
  report.main([str(folder)])
  assert ">125" in capsys.readouterr().out


def test_a_bad_folder(tmp_path):
  with pytest.raises(config_lib.ConfigError, match="must be a run folder"):
    report.main([str(tmp_path)])


def test_out_is_a_file(tmp_path):
  folder = fixture.write_run(tmp_path / "x", fixture.run_json("DIFF"), [])
  with pytest.raises(config_lib.ConfigError, match="must be a file"):
    report.write([folder], tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "diff-jax train --config=configs/recall.py:smoke --config.seeds=(0,1)"
        " --config.data.context=64 --workdir=runs/x",
        "diff-jax sweep configs/recall.py:smoke --workdir runs"
        " --config.data.context=64",
    ],
)
def test_next_commands_come_from_the_runs(tmp_path, command):
  info = fixture.run_json("DIFF") | {"command": command}
  (tmp_path / "report.html").touch()  # Matched by tmp_path/*, and not a run.
  fixture.write_run(tmp_path / "x", info, fixture.recall_rows("DIFF", 0, 9))
  page = report.write(
      sorted(tmp_path.iterdir()), tmp_path / "p.html"
  ).read_text()
  assert (
      "diff-jax train --config=configs/recall.py:smoke"
      " --config.data.context=64"
      " --config.model.attention=path/to/file.py:Class"
      f" --workdir={tmp_path}/own<"
  ) in page
  assert "diff-jax sweep configs/noisy_recall.py<" in page


def test_text_has_no_answers(tmp_path):
  rows = fixture.text_rows(steps=100)
  folder = fixture.write_run(tmp_path / "lm", fixture.text_json(), rows)
  page = report.write([folder]).read_text()
  assert "One query, map by map" in page and "on the first token" in page
  assert "holds the answer" not in page
