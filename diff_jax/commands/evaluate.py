# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""diff-jax evaluate: run the evaluators of a run on its newest checkpoints.

Prints a table and writes evaluate.json into the run's folder. The evaluators'
settings can be changed: --config.evaluators.recall.num_batches=64.
"""

import argparse
import functools
import json
import pathlib
from collections.abc import Sequence

import jax
from ml_collections import config_dict

from diff_jax.checkpoint import Checkpoints, on_mesh
from diff_jax.config import ConfigError, parse, restore
from diff_jax.data import make_source
from diff_jax.evaluators import all_settings, make_evaluators
from diff_jax.flags import override
from diff_jax.metrics import plain
from diff_jax.optimizer import make_optimizer
from diff_jax.run import read_description
from diff_jax.sharding import make_mesh
from diff_jax.step import init_state


def main(argv: Sequence[str]) -> None:
  parser = argparse.ArgumentParser(
      prog="diff-jax evaluate",
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  parser.add_argument("workdir", metavar="WORKDIR")
  arguments, overrides = parser.parse_known_args(argv)
  workdir = pathlib.Path(arguments.workdir)
  config = restore(read_description(workdir)["config"])
  check_code(config.model.attention, overrides)
  for name, settings in config.evaluators.items():
    config.evaluators[name] = all_settings(name) | settings.to_dict()
  results = evaluate(override(config, overrides), workdir)
  (workdir / "evaluate.json").write_text(json.dumps(results, indent=2))
  for result in results:
    print(f"seed {result['seed']}, step {result['step']}")
    for name, value in result["values"].items():
      if not isinstance(value, list):
        print(
            f"  {name:36} {value if isinstance(value, str) else f'{value:.4f}'}"
        )


def check_code(attention: str, overrides: Sequence[str]) -> None:
  """Refuses a mechanism from a file that only the run's folder names.

  A folder can come from anywhere: what it holds must never be executed.

  Raises:
    ConfigError: with the argument that says that the file is trusted.
  """
  argument = f"--config.model.attention={attention}"
  if ".py" in attention and argument not in overrides:
    raise ConfigError(
        f"the run's mechanism is the code in {attention!r}, which is executed"
        f" only if you say so: add {argument}"
    )


def evaluate(config: config_dict.ConfigDict, workdir) -> list[dict]:
  """Values of every evaluator for the newest checkpoint of each seed.

  Raises:
    ConfigError: if a seed has no checkpoint.
  """
  settings = parse(config)
  mesh = make_mesh(settings.mesh)
  source = make_source(settings.data)
  optimizer = make_optimizer(settings.optimizer, settings.train.num_steps)
  results = []
  with jax.set_mesh(mesh):
    evaluators = make_evaluators(settings.evaluators, source, mesh)
    init = functools.partial(init_state, settings, optimizer)
    abstract_state = on_mesh(jax.eval_shape(init, 0), mesh)
    for seed in settings.train.seeds:
      folder = pathlib.Path(workdir) / "checkpoints" / f"seed_{seed}"
      if not folder.is_dir():
        raise ConfigError(f"workdir={str(workdir)!r} has no {folder}.")
      keep = settings.train.keep_checkpoints
      with Checkpoints(folder, keep=keep, read_only=True) as checkpoints:
        step, state = checkpoints.restore(abstract_state)
      if step is None:
        raise ConfigError(f"{folder} holds no committed checkpoint.")
      values = {}
      for evaluator in evaluators:
        values |= evaluator.run(state.model)
      values = {name: plain(value) for name, value in values.items()}
      results.append({"seed": seed, "step": step, "values": values})
  return results
