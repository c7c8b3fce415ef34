# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""diff-jax train: train a config, or continue where its workdir stands."""

import argparse
from collections.abc import Sequence

from diff_jax import train
from diff_jax.flags import load_config_file, override


def main(argv: Sequence[str]) -> None:
  parser = argparse.ArgumentParser(
      prog="diff-jax train",
      description=__doc__,
      epilog="Any setting: --config.x.y=value, e.g. --config.num_steps=100",
      allow_abbrev=False,
  )
  parser.add_argument("--config", required=True, metavar="FILE.py[:ARG]")
  parser.add_argument("--workdir", required=True, metavar="DIR")
  arguments, overrides = parser.parse_known_args(argv)
  module, argument = load_config_file(arguments.config)
  config = override(module.get_config(argument), overrides)
  train.train(config, arguments.workdir)
