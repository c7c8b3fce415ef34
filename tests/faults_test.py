# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What can go wrong around a run: stops, NaN, damaged or strange folders.

experiments/reliability does it to real processes, by the dozen.
"""

import ast
import json
import pathlib
import signal

import jax
import numpy as np
import pytest

import diff_jax
from diff_jax import config, metrics, run, train
from diff_jax.commands import evaluate
from diff_jax.data.source import EndlessExamples
from diff_jax.flags import load_config_file
from diff_jax.watch import Watch

PACKAGE = pathlib.Path(diff_jax.__file__).parent


def train_on_one(settings, workdir, **options):
  train.train(settings, workdir, jax.devices()[:1], **options)


def recall_config(**changes):
  module, _ = load_config_file(f"{PACKAGE.parent}/configs/recall.py")
  settings = module.get_config("smoke")
  settings.seeds = (0,)
  settings.evaluators = {}
  settings.num_steps = 8
  settings.update_from_flattened_dict(changes)
  return settings


def poison(monkeypatch, first, last):
  """Makes the loss weights of some training examples NaN."""
  get = EndlessExamples.__getitem__

  def poisoned(self, index):
    example = get(self, index)
    if first <= index <= last:
      example["loss_weights"] = example["loss_weights"] * np.nan
    return example

  monkeypatch.setattr(EndlessExamples, "__getitem__", poisoned)


def rows_of(workdir):
  return metrics.read_metrics(workdir / "metrics.jsonl")


def test_nan_updates_are_skipped_and_counted_until_too_many(
    tmp_path, monkeypatch, capfd
):
  """With 8 examples a step, 16 to 31 are those of steps 3 and 4."""
  settings = recall_config(max_skipped_steps=3)
  with monkeypatch.context() as patch:
    poison(patch, 16, 31)
    train_on_one(settings, tmp_path / "two")
  rows = rows_of(tmp_path / "two")
  skipped = [row["train/skipped"] for row in rows]
  assert skipped == [0, 0, 1, 2, 2, 2, 2, 2]
  assert [row["train/skipped_in_row"] for row in rows][2:5] == [1, 2, 0]
  finite = np.isfinite([row["train/loss"] for row in rows])
  assert finite.tolist() == [True] * 2 + [False] * 2 + [True] * 4
  # A skipped update does not advance the schedule.
  rates = [row["train/learning_rate"] for row in rows]
  assert rates[2] == rates[3] == rates[4] != rates[5]
  assert capfd.readouterr().err.count("update skipped: loss nan") == 2

  with monkeypatch.context() as patch:
    poison(patch, 16, 999)
    with pytest.raises(config.RunError) as error:
      train_on_one(settings, tmp_path / "many")
  for step in (3, 4, 5):
    ids = list(range(8 * step - 8, 8 * step))
    assert f"step {step}: {ids}" in str(error.value)
  assert "max_skipped_steps=3" in str(error.value)


def test_a_stop_during_the_last_evaluation_does_not_lose_it(
    tmp_path, monkeypatch
):
  settings = recall_config(num_steps=4)
  settings.evaluators = {"recall": {"num_batches": 1, "batch_size": 8}}
  watch, at_end = Watch(), train.Loop.evaluate

  def stopped(self, seed, step, *rest):
    watch.stop = signal.SIGTERM
    at_end(self, seed, step, *rest)

  with monkeypatch.context() as patch:
    patch.setattr(
        train.Loop,
        "evaluate",
        lambda self, seed, step, *rest: (at_end if step < 4 else stopped)(
            self, seed, step, *rest
        ),
    )
    train_on_one(settings, tmp_path, watch=watch)
  assert not any("recall/accuracy_1x" in row for row in rows_of(tmp_path))
  assert run.read_description(tmp_path)["finished_seeds"] == []
  train_on_one(settings, tmp_path)
  (found,) = [row for row in rows_of(tmp_path) if "recall/accuracy_1x" in row]
  assert found["step"] == 4
  assert run.read_description(tmp_path)["finished_seeds"] == [0]


def described(tmp_path, **changes):
  """A run's folder that says what it is told to say."""
  values = {
      "config": recall_config().to_dict(),
      "finished_seeds": [],
      "last_step": 8,
  }
  path = tmp_path / "run.json"
  path.write_text(json.dumps(values | changes))
  return path


def test_a_mechanism_that_only_a_run_folder_names_is_not_executed(tmp_path):
  marker = tmp_path / "executed"
  evil = tmp_path / "evil.py"
  evil.write_text(f"open({str(marker)!r}, 'w')")
  settings = recall_config(**{"model.attention": f"{evil}:Mechanism"})
  described(tmp_path, config=settings.to_dict())
  with pytest.raises(config.ConfigError, match="only if you say so"):
    evaluate.main([str(tmp_path)])
  with pytest.raises(config.ConfigError, match="other settings"):
    train_on_one(recall_config(), tmp_path)
  assert not marker.exists()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "5",
        "{}",
        '{"config": 5, "finished_seeds": [], "last_step": 8}',
        '{"config": {"model": 5}, "finished_seeds": [], "last_step": 8}',
        '{"config": {"seeds": "x"}, "finished_seeds": [], "last_step": 8}',
        '{"config": {}, "finished_seeds": 5, "last_step": 8}',
        '{"config": {}, "finished_seeds": [], "last_step": "8"}',
        "__import__('os')",
        "\udcff",
    ],
)
def test_a_strange_run_json_is_one_line(tmp_path, text):
  (tmp_path / "run.json").write_bytes(text.encode(errors="surrogateescape"))
  for go in (
      lambda: train_on_one(recall_config(), tmp_path),
      lambda: evaluate.main([str(tmp_path)]),
  ):
    with pytest.raises(config.ConfigError) as error:
      go()
    assert "run.json" in str(error.value) and "\n" not in str(error.value)


MODULES = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
CALLS = {
    "eval", "exec", "compile", "__import__", "yaml.load", "torch.load",
    "os.system", "os.popen",
}  # fmt: skip
# Its own jobs, to its own workers.
ALLOWED = {("data/engines.py", "pickle")}


def code_from_data(tree):
  """What of a syntax tree can execute the bytes that it reads."""
  for node in ast.walk(tree):
    if isinstance(node, ast.Import):
      yield from (x.name for x in node.names if x.name in MODULES)
    elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
      yield node.module
    elif isinstance(node, ast.Call):
      if ast.unparse(node.func) in CALLS:
        yield ast.unparse(node.func)
      yield from (x.arg for x in node.keywords if x.arg == "allow_pickle")


def test_the_package_never_executes_what_it_reads():
  found = {
      (str(path.relative_to(PACKAGE)), name)
      for path in PACKAGE.rglob("*.py")
      for name in code_from_data(ast.parse(path.read_text()))
  }
  assert found <= ALLOWED
  text = "import pickle\neval(x)\ntorch.load(y)\nnp.load(z, allow_pickle=True)"
  assert len(list(code_from_data(ast.parse(text)))) == 4
