# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The console script: the demo at smoke size, and what a mistake prints."""

import json
import os
import pathlib
import subprocess
import sys

import pytest

from diff_jax import cli, run

ROOT = pathlib.Path(__file__).parents[1]
RECALL = f"--config={ROOT}/configs/recall.py:smoke"


def test_the_demo_at_smoke_size_as_real_commands(tmp_path):
  environment = os.environ | {"JAX_PLATFORMS": "cpu"}

  def diff_jax(*words):
    return subprocess.run(
        [sys.executable, "-m", "diff_jax.cli", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
        check=True,
    )

  recall, lm, page = (tmp_path / name for name in ("recall", "lm", "all.html"))
  sweep = ("sweep", "configs/recall.py:smoke", f"--workdir={recall}")
  first = diff_jax(*sweep)
  assert "Transformer + norm" in first.stdout and "DIFF" in first.stdout
  arms = sorted(path.name for path in recall.iterdir() if path.is_dir())
  assert arms == ["diff", "diff_no_norm", "transformer", "transformer_norm"]
  again = diff_jax(*sweep)
  assert again.stderr.count("finished before") == 4

  diff_jax("train", "--config=configs/tiny_lm.py:smoke", f"--workdir={lm}")
  runs = [str(recall / arm) for arm in arms]
  diff_jax("report", *runs, str(lm), f"--out={page}")
  html = page.read_text()
  assert "Transformer + norm" in html and "xz" in html

  rows = run.read_metrics(lm / "metrics.jsonl")
  assert "sample/text" in rows[-1] and "loss/bits_per_byte" in rows[-1]
  diff_jax("evaluate", str(lm), "--config.evaluators.sample.num_tokens=4")
  (result,) = json.loads((lm / "evaluate.json").read_text())
  assert result["step"] == 4
  assert result["values"]["loss/loss"] == pytest.approx(
      rows[-1]["loss/loss"], rel=1e-6
  )


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", RECALL, "--config.model.num_head=3"], "num_head"),
        (["train", RECALL, "--config.model.num_heads=three"], "three"),
        (["train", RECALL, "--config.model.num_heads=3"], "model.d_model=64"),
        (["train", RECALL, "--config.model.vocab_size=9"], "vocab_size=9"),
        (["train", RECALL, "--config.data.name=nothing"], "nothing"),
        (["train", RECALL, "--config.model.attention=a.py:B"], "no file a.py"),
        (["train", RECALL, "--config.mesh.fsdp=3"], "'fsdp': 3"),
        (["train", RECALL, "surplus"], "surplus"),
        (["train", "--config=nowhere.py"], "nowhere.py"),
        (["train", RECALL + ",huge"], "'huge'"),
        (
            [
                "train",
                f"--config={ROOT}/configs/tiny_lm.py:smoke",
                "--config.data.path=/nowhere/at/all",
            ],
            "/nowhere/at/all",
        ),
        (["evaluate", "/nowhere"], "/nowhere"),
        (["report", "/nowhere"], "/nowhere"),
        (["sweep", f"{ROOT}/configs/nowhere.py"], "nowhere.py"),
    ],
)
def test_a_mistake_is_one_clear_line(tmp_path, capsys, words, message):
  if words[0] == "train":
    words = [*words, f"--workdir={tmp_path / 'run'}"]
  assert cli.main(words) == 2
  printed = capsys.readouterr().err
  assert printed.startswith(f"diff-jax {words[0]}: ")
  assert message in printed
  assert "Traceback" not in printed
  assert not (tmp_path / "run").exists()


def test_a_workdir_that_cannot_be_written_is_refused(tmp_path, capsys):
  (tmp_path / "file").write_text("")
  assert (
      cli.main(["train", RECALL, f"--workdir={tmp_path / 'file' / 'x'}"]) == 2
  )
  assert "workdir=" in capsys.readouterr().err


def test_usage(capsys):
  assert cli.main(["--help"]) == 0
  assert "train" in capsys.readouterr().out
  assert cli.main([]) == 2
  assert cli.main(["fly"]) == 2
  assert "'fly'" in capsys.readouterr().err
