# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The README's code runs as printed."""

import pathlib
import re

import numpy as np

from diff_jax import cli, run

ROOT = pathlib.Path(__file__).parents[1]


def code_blocks():
  text = (ROOT / "README.md").read_text()
  return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


def test_snippets_run():
  op, decode, layer, _ = code_blocks()
  names = {}
  exec(op, names)
  out = names["out"]
  assert out.shape == (2, 1024, 4, 128)
  exec(decode, names)
  # From an empty cache it is the op; fp32 sums over 1,024 keys, in any order.
  np.testing.assert_allclose(names["out"], out, atol=1e-5)
  exec(layer, names)
  assert names["y"].shape == (2, 128, 512)


def test_a_mechanism_in_one_file_appears_in_the_comparison(
    tmp_path, monkeypatch, capsys
):
  monkeypatch.chdir(tmp_path)
  pathlib.Path("my_attention.py").write_text(code_blocks()[3])
  train = ["train", f"--config={ROOT}/configs/recall.py:smoke"]
  mine = "--config.model.attention=my_attention.py:TokenLambda"
  assert cli.main([*train, "--workdir=runs/diff"]) == 0
  assert cli.main([*train, mine, "--workdir=runs/mine"]) == 0
  assert cli.main(["report", "runs/diff", "runs/mine", "--out=page.html"]) == 0
  assert "Token lambda" in pathlib.Path("page.html").read_text()
  assert "Token lambda" in capsys.readouterr().out
  rows = run.read_metrics("runs/mine/metrics.jsonl")
  assert any("mechanism/lambda_weight_norm" in row for row in rows)
