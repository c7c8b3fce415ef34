# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The run that is broken: one-hop recall at its smallest, saved often."""

import pathlib

from diff_jax.flags import load_config_file

RECALL = pathlib.Path(__file__).parents[2] / "configs" / "recall.py"


def get_config(arg: str = ""):
  """Recall's smoke config, one seed; argument `evaluated`: with evaluators."""
  module, _ = load_config_file(RECALL)
  config = module.get_config("smoke")
  config.seeds = (0,)
  config.num_steps = 60
  config.checkpoint_every_steps = 10
  config.max_skipped_steps = 4
  if arg != "evaluated":
    config.evaluators = {}
  return config
