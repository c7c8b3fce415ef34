# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The benchmarks' arithmetic, order and checks; no test asserts a time."""

import functools
import json
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diff_jax import bench, cli, flops, transformer
from diff_jax.bench import data, loss, op, peers, table, timing, train
from diff_jax.config import ConfigError

SMOKE = bench.Options(rounds=2, smoke=True)


@pytest.fixture
def clock(monkeypatch):
  """A clock that only candidates move."""
  now = types.SimpleNamespace(s=0.0)
  fake = types.SimpleNamespace(perf_counter=lambda: now.s, sleep=lambda _: None)
  monkeypatch.setattr(timing, "time", fake)
  return now


def test_candidates_take_turns_in_both_orders(clock):
  called = []

  def candidate(name, seconds):
    def call():
      called.append(name)
      clock.s += seconds

    return call

  calls = {name: candidate(name, s) for name, s in dict(a=1, b=2, c=4).items()}
  times_s = timing.interleave(calls, rounds=3)
  assert "".join(called) == "abc" + "abc" + "cba" + "abc"
  assert {name: x.tolist() for name, x in times_s.items()} == {
      "a": [1, 1, 1],
      "b": [2, 2, 2],
      "c": [4, 4, 4],
  }
  assert timing.fastest(calls) == ("a", {"a": 1, "b": 2, "c": 4})


def test_a_ratio_is_of_rounds_not_of_medians():
  # Every round is a machine of another speed: the ratio is 2 in each.
  baseline = np.array([1.0, 10.0, 3.0])
  assert timing.ratio(2 * baseline, baseline) == (2, 2, 2)


def test_targets_and_the_printed_table():
  value = timing.Quartiles(1.0, 1.2, 1.3)
  slower = table.Target("a / b", value, 1.15)
  faster = table.Target("b / a", value, 1.15, at_most=False)
  assert not slower.is_met and faster.is_met
  rows = [{"name": "a", "bytes": 12345.6}, {"name": "long name", "bytes": 0.5}]
  result = table.Table("Title", rows, [slower], ["a note"])
  assert str(result).splitlines() == [
      "## Title",
      "",
      "| name      | bytes  |",
      "| --------- | ------ |",
      "| a         | 12,346 |",
      "| long name | 0.5    |",
      "",
      "- a / b: 1.2 (quartiles 1 to 1.3), target <= 1.15: missed",
      "- a note",
  ]
  plain = json.loads(json.dumps(result.to_json()))
  assert plain["rows"] == rows
  assert plain["targets"][0]["met"] is False
  assert plain["targets"][0]["value"]["median"] == 1.2


@pytest.mark.parametrize("wrong", [1.01, np.nan, np.inf])
def test_numbers_that_disagree_are_refused(wrong):
  theirs = {"x": np.ones(3), "y": np.ones(())}
  assert table.check_agreement("it", theirs, theirs, 1e-6) == 0
  ours = theirs | {"y": np.array(wrong)}
  with pytest.raises(table.Disagreement, match="it: relative error"):
    table.check_agreement("it", ours, theirs, 1e-3)


class FakeStep(train.Step):
  """A step that costs nothing; its loss says its dtype."""

  def __init__(self, settings, seq_len):
    self.settings = settings

  def __call__(self):
    return None

  def loss_and_norm(self):
    return (
        1.0,
        {"float32": 2.0, "bfloat16": 2.02}[self.settings.model.compute_dtype],
    )


def test_both_dtypes_of_an_arm_are_checked(monkeypatch):
  monkeypatch.setattr(train, "Step", FakeStep)
  settings, seq_len = train.sizes(smoke=True)
  step, notes = train.faster_dtype("DIFF", settings, seq_len, (1.0, 2.0))
  assert step.settings.model.compute_dtype in train.TOLERANCES
  assert "agree to 1e-02" in notes[1]
  with pytest.raises(table.Disagreement, match="DIFF in float32"):
    train.faster_dtype("DIFF", settings, seq_len, (1.0, 2.02))


def test_a_step_is_the_trainers_and_its_work_is_counted():
  settings, seq_len = train.sizes(smoke=True)
  step = train.Step(settings, seq_len)
  step()
  # Before anything is learned, every word is about as likely.
  guess = np.log(settings.model.vocab_size)
  assert step.loss_and_norm()[0] == pytest.approx(guess, rel=0.2)
  step()
  assert int(step.state.step) == 2
  columns = train.columns(settings, seq_len, np.array([1.0, 2.0, 3.0]))
  tokens = settings.batch_size * seq_len
  assert columns["tokens_per_s"] == tokens / 2
  per_token = sum(flops.train_flops_per_token(settings.model, seq_len).values())
  assert columns["gflop_per_s"] == pytest.approx(tokens * per_token / 2e9)


def test_the_real_size_is_that_of_the_issue():
  settings, seq_len = train.sizes()
  for arm in train.arms(settings).values():
    step = train.columns(arm, seq_len, np.ones(3))
    assert 4.9e6 < step["parameters"] < 5.1e6
    assert step["tokens_per_s"] == 8 * 512


def test_op_and_loss_suites_agree_and_say_so():
  result = op.run(SMOKE)
  assert len(result.rows) == 2 * len(op.CANDIDATES)
  assert [target.bound for target in result.targets] == [1.5]
  result = loss.run(SMOKE)
  assert {row["loss"] for row in result.rows} == set(loss.CANDIDATES)
  assert all(row["temporaries_mib"] > 0 for row in result.rows)


def test_one_map_has_the_work_of_the_transformer_that_is_replaced():
  (q, k, v, lam), _ = op.inputs(1, 8, 3, 4)
  for function, heads in ((op.one_map, (6, 4)), (op.two_maps, (3, 8))):
    call = functools.partial(function, implementation="reference")
    assert jax.eval_shape(call, q, k, v, lam).shape == (1, 8, *heads)


def test_the_data_suite_reads_what_prepare_wrote(tmp_path, monkeypatch):
  monkeypatch.setattr(train, "Step", FakeStep)
  settings, _ = data.tiny_lm(smoke=True)
  assert settings.data["name"] == "text"
  (tmp_path / "a.txt").write_text("some words of a file\n" * 400)
  (tmp_path / "b.txt").write_text("and of another one\n" * 400)
  options = bench.Options(rounds=1, smoke=True, source=str(tmp_path))
  result = data.run(options)
  assert "2 documents" in result.notes[0]
  assert len(result.targets) == len(result.rows) - 2


def test_batches_that_differ_are_refused(tmp_path):
  for name, word in (("a", "word"), ("b", "ward")):
    (tmp_path / name).mkdir()
    for index in range(2):
      text = f"{word} {index} " * 200
      (tmp_path / name / f"{index}.txt").write_text(text)
  first, second = (
      data.Text(path=str(tmp_path / name), tokenizer="bytes", seq_len=32)
      for name in "ab"
  )
  data.check_same_batches(first, first, batch_size=2)
  with pytest.raises(table.Disagreement, match="tokens"):
    data.check_same_batches(first, second, batch_size=2)


def test_heads_are_paired_as_hugging_face_pairs_them():
  settings, _ = train.sizes(smoke=True)
  settings, generator = peers.our_settings(settings), np.random.default_rng(0)
  for arm in train.arms(settings).values():
    shapes = transformer.abstract(arm.model)
    model = jax.tree.map(lambda x: generator.normal(size=x.shape), shapes)
    weights = peers.hugging_face_weights(model)
    sizes = sum(x.size for x in jax.tree.leaves(model))
    assert sum(x.size for x in weights.values()) == sizes
    attention = model.blocks.attention
    n, c, h = attention.num_heads, attention.num_maps, attention.head_dim
    heads = {
        name: weights[f"model.layers.1.self_attn.{name}_proj.weight"].reshape(
            n * c, h, -1
        )
        for name in "qv"
    }
    w_q, w_v = (np.asarray(x[...][1]) for x in (attention.w_q, attention.w_v))
    for head in range(n):
      for part in range(c):  # a map of the queries, a half of the value
        query = w_q[:, head, part]
        value = w_v[:, head, part * h : (part + 1) * h]
        np.testing.assert_array_equal(heads["q"][part * n + head], query.T)
        np.testing.assert_array_equal(heads["v"][part * n + head], value.T)


def test_peers_without_pytorch_say_what_to_do(tmp_path):
  with pytest.raises(ConfigError, match="make bench-peers"):
    peers.run(bench.Options(peers_python=str(tmp_path / "python")))
  broken = tmp_path / "python"
  broken.write_text("#!/bin/sh\nexit 3\n")
  broken.chmod(0o755)
  with pytest.raises(ConfigError, match="exit status 3"):
    peers.run(bench.Options(smoke=True, peers_python=str(broken)))


@pytest.fixture
def suite(monkeypatch):
  """A suite of one's own, as issue 4 adds one: a module and a line."""
  module = types.ModuleType("diff_jax.bench.own")
  module.run = lambda options: table.Table("Own", [{"rounds": options.rounds}])
  monkeypatch.setitem(sys.modules, "diff_jax.bench.own", module)
  monkeypatch.setitem(bench.SUITES, "own", "a suite")
  return module


def test_the_command_prints_and_writes_its_tables(suite, tmp_path, capsys):
  file = tmp_path / "out.json"
  words = ["bench", "--suite=own", "--rounds=5", f"--json={file}"]
  assert cli.main(words) == 0
  printed = capsys.readouterr().out
  assert "- cpu: " in printed and "- commit: " in printed
  assert "## Own" in printed
  written = json.loads(file.read_text())
  assert written["suites"]["own"]["rows"] == [{"rounds": 5}]
  assert written["machine"]["cores"] >= 1


def test_the_command_fails_if_numbers_disagree(suite, capsys):
  def disagree(options):
    table.check_agreement("this", jnp.ones(2), jnp.zeros(2) + 2, 1e-3)

  suite.run = disagree
  assert cli.main(["bench", "--suite=own"]) == 1
  assert "own: this: relative error" in capsys.readouterr().err


@pytest.mark.parametrize("word", ["--suite=fly", "--rounds=0", "--json=/no/x"])
def test_a_wrong_argument_is_one_line(word, capsys):
  assert cli.main(["bench", word]) == 2
  assert word.split("=")[1] in capsys.readouterr().err
