# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The config files: their words, their sizes, and what a model costs."""

import math
import pathlib

import jax
import jax.numpy as jnp
import pytest

from diff_jax import cli, flops, run, train, transformer
from diff_jax.commands.sweep import arms_of
from diff_jax.config import ConfigError, ModelConfig, parse
from diff_jax.data import make_source
from diff_jax.flags import load_config_file
from diff_jax.optimizer import make_schedule

CONFIGS = pathlib.Path(__file__).parents[1] / "configs"
MODULES = {
    file.stem: load_config_file(file)[0]
    for file in sorted(CONFIGS.glob("*.py"))
}
SIZES = ("830m", "1.4b", "2.8b", "6.8b", "13.1b")
ROWS = tuple(MODULES["ablations"].ROWS)
ARGUMENTS = {
    "ablations": ("", *ROWS),
    "long_context_64k": ("", "softmax"),
    "noisy_recall": ("", "b", "c"),
    "recall": ("",),
    "scaling": ("", "softmax", *SIZES, *(f"softmax,{s}" for s in SIZES)),
    "tiny_lm": ("",),
    "tokens_3b": ("", "softmax"),
}
# Billions of parameters that the paper's figure 3a plots.
PLOTTED = {
    "830m": 0.834, "1.4b": 1.413, "2.8b": 2.795, "6.8b": 6.837, "13.1b": 13.123,
}  # fmt: skip


def model_config(name, argument="", **changes) -> ModelConfig:
  config = MODULES[name].get_config(argument)
  config.model.update(changes)
  return parse(config).model


def test_every_config_file_is_tested():
  assert sorted(ARGUMENTS) == sorted(MODULES)


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_every_word_parses_at_both_sizes(name):
  for argument in ARGUMENTS[name]:
    real = parse(MODULES[name].get_config(argument))
    for words in (f"{argument},smoke", f"smoke,{argument}"):
      smoke = parse(MODULES[name].get_config(words))
      train.check_source(smoke.model, make_source(smoke.data))
      assert smoke.train.num_steps <= 10
      assert smoke.model.d_model <= real.model.d_model
      # The same code path at another size.
      for field in (
          "attention", "head_norm", "head_norm_scale", "lambda_init", "rope",
          "tie_embeddings", "compute_dtype", "remat",
      ):  # fmt: skip
        assert getattr(smoke.model, field) == getattr(real.model, field)
    assert (real.report.last_step or 0) <= real.train.num_steps
    for settings in (real, smoke):
      assert settings.optimizer.warmup_steps < settings.train.num_steps


@pytest.mark.parametrize("smoke", ["", "smoke"])
def test_sweeps_have_every_arm(smoke):
  def arms(name, argument=""):
    argument = f"{argument},{smoke}"
    return {
        arm: parse(config)
        for arm, config in arms_of(MODULES[name], argument, []).items()
    }

  assert sorted(arms("ablations")) == sorted(ROWS)
  assert len({arm.train.arm for arm in arms("ablations").values()}) == 9
  assert list(arms("ablations", "diff_no_norm")) == ["diff_no_norm"]
  assert len(arms("scaling")) == 10
  assert list(arms("scaling", "6.8b")) == ["6.8b_transformer", "6.8b_diff"]
  for name, prefix in (
      ("scaling", "830m_"),
      ("tokens_3b", ""),
      ("long_context_64k", ""),
  ):
    pair = arms(name, prefix.rstrip("_"))
    softmax, diff = pair[f"{prefix}transformer"], pair[f"{prefix}diff"]
    assert (softmax.model.attention, diff.model.attention) == (
        "softmax", "diff",
    )  # fmt: skip
    assert softmax.model.num_heads == 2 * diff.model.num_heads
    assert softmax.train.experiment == diff.train.experiment
    assert (softmax.data, softmax.optimizer) == (diff.data, diff.optimizer)


@pytest.mark.parametrize(
    ("name", "argument", "message"),
    [
        ("scaling", "1.5b", "'1.5b' must be one of 830m, 1.4b, 2.8b, 6.8b"),
        ("scaling", "1.4b,6.8b", "both '1.4b' and '6.8b'"),
        ("scaling", "smoke,smoke", "both 'smoke' and 'smoke'"),
        ("tokens_3b", "transformer", "'transformer' must be one of softmax"),
        ("long_context_64k", "64k", "'64k' must be one of softmax"),
        (
            "ablations",
            "diff_lambda",
            "'diff_lambda' must be one of transformer",
        ),
        ("ablations", "diff,transformer", "both 'diff' and 'transformer'"),
        ("noisy_recall", "d", "'d' must be one of b, c"),
        ("recall", "softmax", "'softmax' must be one of smoke"),
        ("tiny_lm", "softmax", "'softmax' must be one of smoke"),
    ],
)
def test_other_words_are_refused(name, argument, message):
  with pytest.raises(ConfigError, match=message):
    MODULES[name].get_config(argument)


@pytest.mark.parametrize(
    "name", ["ablations", "long_context_64k", "scaling", "tokens_3b"]
)
def test_text_must_be_named(name, tmp_path, capsys, no_shape_checks):
  config = f"--config={CONFIGS}/{name}.py"
  assert cli.main(["train", config, f"--workdir={tmp_path / 'run'}"]) == 2
  printed = capsys.readouterr().err
  assert "data.path" in printed and len(printed.splitlines()) == 1
  assert not (tmp_path / "run").exists()


def test_a_named_text_trains(tmp_path):
  text = tmp_path / "text.txt"
  text.write_text("To be, or not to be, that is the question. " * 40)
  words = [
      "train",
      f"--config={CONFIGS}/scaling.py:smoke",
      f"--config.data.path={text}",
      "--config.num_steps=2",
      f"--workdir={tmp_path / 'run'}",
  ]
  assert cli.main(words) == 0
  rows = run.read_metrics(tmp_path / "run" / "metrics.jsonl")
  losses = [row["train/loss"] for row in rows if "train/loss" in row]
  assert len(losses) == 2
  for loss in losses:  # near log 264 before anything is learned
    assert loss == pytest.approx(math.log(264), abs=0.5)
  assert run.read_description(tmp_path / "run")["arm"] == "DIFF"


@pytest.mark.parametrize("size", SIZES)
def test_sizes_are_those_of_the_paper(size):
  diff, softmax = (
      model_config("scaling", f"{size}{words}") for words in ("", ",softmax")
  )
  parameters = transformer.num_parameters(diff)
  assert parameters / 1e9 == pytest.approx(PLOTTED[size], rel=0.005)
  h = diff.d_model // (2 * diff.num_heads)
  assert h == (96 if size == "830m" else 128)
  extra = parameters - transformer.num_parameters(softmax)
  assert extra == 6 * h * diff.num_layers  # four lambda vectors and a norm

  matched = flops.baseline(diff, match="params")
  assert shapes(matched) == shapes(softmax)


def shapes(config: ModelConfig):
  leaves = jax.tree_util.tree_leaves_with_path(transformer.abstract(config))
  return {jax.tree_util.keystr(path): leaf.shape for path, leaf in leaves}


def test_3b_is_not_2_8_b():
  for tied, billions in ((True, 3.48), (False, 3.79)):
    config = model_config("tokens_3b", tie_embeddings=tied)
    parameters = transformer.num_parameters(config)
    assert parameters / 1e9 == pytest.approx(billions, abs=0.005)
  long = model_config("long_context_64k")
  assert shapes(long) == shapes(model_config("tokens_3b"))


@pytest.mark.parametrize(
    ("name", "tokens", "peak", "last"),
    [
        ("scaling", 10.5e9, 1.5e-4, 6e-6),
        ("tokens_3b", 377e9, 3.2e-4, 1.28e-5),
        ("long_context_64k", 1.57e9, 8e-5, 1.28e-5),
    ],
)
def test_recipes_add_up(name, tokens, peak, last):
  settings = parse(MODULES[name].get_config())
  steps = settings.train.num_steps
  seen = steps * settings.batch_size * settings.data["seq_len"]
  assert seen == pytest.approx(tokens, rel=0.005)
  rate = make_schedule(settings.optimizer, steps)
  warmup = settings.optimizer.warmup_steps
  assert float(rate(warmup)) == pytest.approx(peak, rel=1e-5)
  assert float(rate(steps)) == pytest.approx(last, rel=1e-5)


def test_ablation_rows_are_those_of_table_6():
  built = {
      row: transformer.abstract(model_config("ablations", row)) for row in ROWS
  }
  found = {
      row: (model.blocks.attention, model.config.lambda_init)
      for row, model in built.items()
  }
  found = {
      row: (a.num_heads, a.head_dim, a.head_norm, a.head_norm_scale, constant)
      for row, (a, constant) in found.items()
  }
  assert found == {
      "transformer": (16, 128, False, False, None),
      "transformer_8x256": (8, 256, False, False, None),
      "transformer_8x256_norm": (8, 256, True, False, None),
      "diff": (8, 128, True, True, None),
      "diff_no_norm": (8, 128, False, False, None),
      "diff_lambda_0.8": (8, 128, True, True, 0.8),
      "diff_lambda_0.5": (8, 128, True, True, 0.5),
      "transformer_norm": (16, 128, True, False, None),
      "transformer_norm_scaled": (16, 128, True, True, None),
  }
  assert shapes(model_config("ablations", "diff")) == shapes(
      model_config("scaling", "1.4b")
  )


@pytest.mark.parametrize("size", SIZES)
def test_flops_match_agrees_with_the_formula(size):
  """Forward and backward: 12h + 20h a pair of maps, 8h + 20h two heads."""
  seq_len = 2048
  diff = model_config("scaling", size)
  d, layers, pairs = diff.d_model, diff.num_layers, diff.num_heads
  h, visible = d // (2 * pairs), (seq_len + 1) / 2

  def cost(maps, mlp_width):
    matrices = layers * (4 * d**2 + 3 * d * mlp_width) + 100_288 * d
    return layers * pairs * maps * visible + 6 * matrices

  def counted(config):
    return sum(flops.train_flops_per_token(config, seq_len).values())

  exact = {"rel": 1e-9}
  diff_cost = cost(12 * h + 20 * h, diff.mlp_dim)
  assert counted(diff) == pytest.approx(diff_cost, **exact)
  narrow = model_config("scaling", f"{size},softmax")
  narrow_cost = cost(8 * h + 20 * h, diff.mlp_dim)
  assert counted(narrow) == pytest.approx(narrow_cost, **exact)
  matched = flops.baseline(diff, match="flops", seq_len=seq_len)
  assert matched.mlp_dim > diff.mlp_dim
  wide_cost = cost(8 * h + 20 * h, matched.mlp_dim)
  assert wide_cost == pytest.approx(diff_cost, rel=0.005)


@pytest.mark.parametrize(("attention", "heads"), [("diff", 2), ("softmax", 4)])
def test_flops_agree_with_xla(attention, heads):
  """XLA counts a loop's body once: one layer, and one tile of attention.

  A tile computes every pair, hence no causal mask. XLA adds the element-wise
  operations, which are below 2 % here, and RoPE's product, which is switched off.
  """
  seq_len = 512
  config = ModelConfig(
      vocab_size=256, d_model=128, num_layers=1, num_heads=heads, mlp_dim=256,
      attention=attention, causal=False, rope="none", implementation="xla",
  )  # fmt: skip

  def loss(model, tokens):
    return jnp.square(model.logits(model(tokens))).sum()

  model = transformer.abstract(config)
  tokens = jax.ShapeDtypeStruct((1, seq_len), jnp.int32)
  lowered = jax.jit(jax.value_and_grad(loss)).lower(model, tokens)
  counted = lowered.cost_analysis()["flops"] / seq_len
  analytic = flops.train_flops_per_token(config, seq_len)
  assert 0.4 < analytic["maps"] / sum(analytic.values()) < 0.6
  assert 1 < counted / sum(analytic.values()) < 1.02
