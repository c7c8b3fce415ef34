# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""diff-jax train: train a config, or continue where its workdir stands."""

import argparse
from collections.abc import Sequence

from diff_jax import train
from diff_jax.compile_cache import use_compile_cache
from diff_jax.flags import load_config_file, override
from diff_jax.watch import watched


def main(argv: Sequence[str]) -> int:
  parser = argparse.ArgumentParser(
      prog="diff-jax train",
      description=__doc__,
      epilog="Any setting: --config.x.y=value, e.g. --config.num_steps=100."
      " SIGTERM or Ctrl-C saves and stops, a second one stops at once.",
      allow_abbrev=False,
  )
  parser.add_argument("--config", required=True, metavar="FILE.py[:ARG]")
  parser.add_argument("--workdir", required=True, metavar="DIR")
  parser.add_argument(
      "--profile",
      default="",
      metavar="FIRST-LAST",
      help="write a trace of these steps for xprof to DIR/profile",
  )
  add_accept_flags(parser)
  arguments, overrides = parser.parse_known_args(argv)
  module, argument = load_config_file(arguments.config)
  config = override(module.get_config(argument), overrides)
  use_compile_cache(arguments.workdir)
  return watched(
      lambda watch: train.train(
          config,
          arguments.workdir,
          watch=watch,
          profile_steps=arguments.profile,
          accept_config_change=arguments.accept_config_change,
          accept_data_change=arguments.accept_data_change,
      )
  )


def add_accept_flags(parser: argparse.ArgumentParser) -> None:
  """What lets a run continue although it is no longer the same."""
  for what in ("config", "data"):
    parser.add_argument(
        f"--accept-{what}-change",
        action="store_true",
        help=f"continue a run although its {what} differs now",
    )
