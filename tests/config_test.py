# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Settings: their way from a file and the command line, and what is refused."""

import json
import pathlib

import pytest
from ml_collections import config_dict

from diff_jax import config as config_lib
from diff_jax import flags
from diff_jax.config import ConfigError, MeshConfig, ModelConfig, TrainConfig

ROOT = pathlib.Path(__file__).parents[1]

pytestmark = pytest.mark.usefixtures("no_shape_checks")


def parsed(*arguments):
  """The settings after `--config.<argument>` of each argument."""
  words = [f"--config.{argument}" for argument in arguments]
  return config_lib.parse(flags.override(config_lib.default(), words))


def refusal(function, *arguments, **keywords):
  """The message of the ConfigError that a call raises."""
  with pytest.raises(ConfigError) as error:
    function(*arguments, **keywords)
  return str(error.value)


# From ConfigDict to dataclasses.


def test_parse_of_default_gives_the_defaults():
  settings = config_lib.parse(config_lib.default())
  assert settings.train == TrainConfig()
  assert settings.model == ModelConfig()
  assert settings.optimizer == config_lib.OptimizerConfig()
  assert settings.mesh == MeshConfig()
  assert settings.report == config_lib.ReportConfig()
  assert settings.batch_size == 32 and settings.data == {"name": ""}
  assert settings.evaluators == {}


def test_a_json_round_trip_changes_nothing():
  """run.json holds the config; its lists are tuples again."""
  config = config_lib.default()
  config.seeds = (3, 1)
  config.model.num_kv_heads = 2
  config.data.name = "recall"
  config.evaluators = {"recall": {"multiples": (1, 2), "num_batches": 4}}
  again = json.loads(json.dumps(config.to_dict()))
  settings = config_lib.parse(config_dict.ConfigDict(again))
  assert settings == config_lib.parse(config)
  assert settings.train.seeds == (3, 1)
  assert settings.evaluators["recall"]["multiples"] == (1, 2)


def test_parse_leaves_its_argument_alone():
  config = config_lib.default()
  assert config_lib.parse(config) == config_lib.parse(config)


# The command line.


def test_values_from_the_command_line():
  settings = parsed(
      "model.num_kv_heads=2",
      "model.lambda_init=1",
      "model.head_norm=false",
      "model.attention=my/file.py:Mine",
      "model.window=64",
      "optimizer.peak_learning_rate=1e-3",
      "seeds=(0,1)",
      "report.threshold=0.9",
      "stop_after_steps=7",
  )
  assert settings.model == ModelConfig(
      num_kv_heads=2, lambda_init=1.0, head_norm=False, window=64,
      attention="my/file.py:Mine",
  )  # fmt: skip
  assert settings.optimizer.peak_learning_rate == 1e-3
  assert settings.train == TrainConfig(seeds=(0, 1), stop_after_steps=7)
  assert settings.report.threshold == 0.9


@pytest.mark.parametrize("word", ["4", "4,", "(4,)"])
def test_one_seed_from_the_command_line(word):
  assert parsed(f"seeds={word}").train.seeds == (4,)


@pytest.mark.parametrize(
    "argument,words",
    [
        ("model.num_layer=3", ["num_layer", "num_layers"]),
        ("modle.num_layers=3", ["modle"]),
        ("num_layers=3", ["num_layers"]),
        ("model.num_layers=two", ["model.num_layers", "two"]),
        ("model.num_layers=2.5", ["model.num_layers", "2.5"]),
        ("model.num_kv_heads=few", ["model.num_kv_heads", "few"]),
        ("model.causal=maybe", ["model.causal", "maybe"]),
        ("model=3", ["config.model", "3"]),
        ("evaluators.loss.num_batches=3", ["loss"]),
    ],
    ids=str,
)
def test_typos_and_wrong_types_are_refused_by_name(argument, words, capsys):
  message = refusal(parsed, argument)
  for word in words:
    assert word in message
  assert capsys.readouterr().out == ""


@pytest.mark.parametrize("argument", ["seeds=(0,x)", "seeds=(0.5,)"])
def test_seeds_that_are_no_integers_are_refused(argument):
  assert "seeds" in refusal(parsed, argument)


@pytest.mark.parametrize("word", ["stray", "--model.num_layers=3", "-x"])
def test_other_arguments_are_refused(word):
  message = refusal(flags.override, config_lib.default(), [word])
  assert word.strip("-").split("=")[0] in message


def test_an_optional_setting_can_be_switched_off():
  assert parsed("optimizer.clip_norm=0").optimizer.clip_norm == 0


def test_settings_of_a_finished_run_can_be_overridden():
  """`diff-jax evaluate` reads run.json and then the command line."""
  stored = json.loads(json.dumps(config_lib.default().to_dict()))
  config = flags.override(
      config_lib.restore(stored),
      [
          "--config.mesh.tensor=2",
          "--config.seeds=(1,)",
          "--config.model.num_kv_heads=2",
      ],
  )
  settings = config_lib.parse(config)
  assert settings.mesh.tensor == 2 and settings.train.seeds == (1,)
  assert settings.model.num_kv_heads == 2


# Values that cannot be right.


@pytest.mark.parametrize(
    "changes,words",
    [
        (dict(d_model=30), ["d_model=30", "multiple of", "num_heads=4"]),
        (dict(num_kv_heads=3), ["num_kv_heads=3", "divide", "num_heads=4"]),
        (
            dict(tie_embeddings=True, output_size=9),
            ["model.output_size=9", "None", "model.tie_embeddings"],
        ),
        (dict(num_layers=0), ["model.num_layers=0", "at least 1"]),
        (dict(num_kv_heads=-1), ["model.num_kv_heads=-1", "at least 1"]),
        (dict(window=0), ["model.window=0", "at least 1"]),
        (dict(num_layers=2.0), ["model.num_layers=2.0", "int"]),
        (dict(num_layers=True), ["model.num_layers=True", "int"]),
        (dict(causal=1), ["model.causal=1", "bool"]),
        (dict(lambda_init="big"), ["model.lambda_init='big'", "float"]),
        (dict(rope="neox"), ["model.rope='neox'", "'interleaved', 'half'"]),
        (dict(init="xavier"), ["model.init='xavier'", "kaiming_uniform"]),
        (dict(compute_dtype="float16"), ["float16", "bfloat16"]),
        (dict(remat="some"), ["model.remat='some'", "dots", "full"]),
    ],
    ids=str,
)
def test_impossible_models_are_refused_by_name(changes, words):
  message = refusal(ModelConfig, **changes)
  for word in words:
    assert word in message


def test_head_dim_frees_the_width():
  assert ModelConfig(d_model=30, head_dim=8).d_model == 30


def test_sizes_that_follow_from_others():
  model = ModelConfig(d_model=256, num_heads=4, vocab_size=99)
  assert (model.kv_heads, model.num_outputs, model.mlp_width) == (4, 99, 768)
  model = ModelConfig(num_kv_heads=2, output_size=5, mlp_dim=100)
  assert (model.kv_heads, model.num_outputs, model.mlp_width) == (2, 5, 100)
  assert ModelConfig(d_model=3072).mlp_width == 8192


def test_impossible_runs_are_refused_by_name():
  assert "seeds=()" in refusal(TrainConfig, seeds=())
  assert "num_steps=0" in refusal(TrainConfig, num_steps=0)
  message = refusal(parsed, "data.batch_size=6", "accumulation_steps=4")
  assert "batch_size=6" in message and "accumulation_steps=4" in message


@pytest.mark.parametrize("batch_size", [0, -4])
def test_an_impossible_batch_size_is_refused(batch_size):
  assert "batch_size" in refusal(parsed, f"data.batch_size={batch_size}")


@pytest.mark.parametrize("section", ["", "model"])
def test_a_typo_in_a_config_file_is_refused_by_name(section):
  """`config.model.num_layer = 3`, or a dictionary of sweep()."""
  config = config_lib.default()
  name = f"{section}.num_layer".strip(".")

  def run():
    config.update_from_flattened_dict({name: 3})
    config_lib.parse(config)

  assert "num_layer" in refusal(run)


def test_last_step_is_the_earlier_of_two():
  assert TrainConfig(num_steps=9).last_step == 9
  assert TrainConfig(num_steps=9, stop_after_steps=4).last_step == 4
  assert TrainConfig(num_steps=9, stop_after_steps=40).last_step == 9


# Config files and their arguments.


def test_argument_words():
  def words(argument):
    return config_lib.argument_words(argument, ("s", "m"), ("smoke",))

  assert words("") == (None, None)
  assert words("m") == ("m", None)
  assert words("smoke,s") == ("s", "smoke")
  message = refusal(words, "m,large")
  assert "'large'" in message and "s, m | smoke" in message
  message = refusal(words, "m,s")
  assert "'m'" in message and "'s'" in message


def test_load_config_file(tmp_path):
  path = tmp_path / "mine.py"
  path.write_text("def get_config(arg=''):\n  return arg\n")
  for ending, argument in ("", ""), (":a,b", "a,b"), (":", ""):
    module, found = flags.load_config_file(f"{path}{ending}")
    assert module.get_config(found) == argument and module.__name__ == "mine"


def test_wrong_config_files_are_refused_by_name(tmp_path):
  missing = f"{tmp_path}/no.py:arg"
  message = refusal(flags.load_config_file, missing)
  assert f"config={missing!r}" in message and "no such" in message
  (tmp_path / "empty.py").write_text("")
  message = refusal(flags.load_config_file, f"{tmp_path}/empty.py")
  assert "must define get_config(arg)" in message


def test_a_config_file_that_is_no_python_is_refused_by_name(tmp_path):
  (tmp_path / "mine.yaml").write_text("a: 1")
  message = refusal(flags.load_config_file, f"{tmp_path}/mine.yaml")
  assert "mine.yaml" in message
