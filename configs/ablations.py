# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The paper's ablations at 1.4B, and two rows that it lacks.

arXiv 2410.05258, section 3.8 and table 6. These have not been run by us.

  diff-jax train --config=configs/ablations.py:diff_no_norm \\
      --config.data.path=PATH --workdir=DIR                        one row
  diff-jax sweep configs/ablations.py --config.data.path=PATH      all rows

Without a row, training takes transformer.

Cost: about 98 EFLOPs a row, 0.9 ZFLOPs together. Recipe: scaling.py:1.4b. The
paper's losses in nats a token, of one run each, on all tokens, on the last
token of an n-gram that the context already holds (AR-Hit), and on the others:

                           heads     norm    valid   AR-Hit   others
  transformer              16 x 128           3.087    .898    3.272
  transformer_8x256         8 x 256           3.088    .899    3.273
  transformer_8x256_norm    8 x 256   yes     3.086    .899    3.271
  diff                      8 x 128   yes     3.062    .880    3.247
  diff_no_norm              8 x 128           3.122    .911    3.309
  diff_lambda_0.8           8 x 128   yes     3.065    .883    3.250
  diff_lambda_0.5           8 x 128   yes     3.066    .882    3.251
  transformer_norm         16 x 128   yes        not in the paper
  transformer_norm_scaled  16 x 128   yes        not in the paper

The last two ask how much of DIFF is its norm of each head, alone and times the
constant 1 - lambda_init by depth; the paper norms heads twice as wide only. It
does not say whether its rows with a changed norm keep that constant. Here it
comes and goes with DIFF's norm, and only transformer_norm_scaled has it among
the Transformers. diff_lambda rows hold lambda_init constant over depth, in both
of its places. The AR-Hit split (7.8 % of the tokens, from the paper's three
columns) has no evaluator yet.
"""

import pathlib

from diff_jax.config import argument_words
from diff_jax.flags import load_config_file

scaling, _ = load_config_file(pathlib.Path(__file__).with_name("scaling.py"))

# By row: its name in reports, words for scaling.py, changes to the model.
# Without the word softmax, softmax attention has as many heads as DIFF has
# pairs of maps, each twice as wide.
ROWS = {
    "transformer": ("Transformer", "softmax", {}),
    "transformer_8x256": (
        "Transformer, 8 x 256", "", {"attention": "softmax"},
    ),
    "transformer_8x256_norm": (
        "Transformer, 8 x 256 + norm",
        "",
        {"attention": "softmax", "head_norm": True},
    ),
    "diff": ("DIFF", "", {}),
    "diff_no_norm": ("DIFF - norm", "", {"head_norm": False}),
    "diff_lambda_0.8": ("DIFF, lambda_init 0.8", "", {"lambda_init": 0.8}),
    "diff_lambda_0.5": ("DIFF, lambda_init 0.5", "", {"lambda_init": 0.5}),
    "transformer_norm": ("Transformer + norm", "softmax", {"head_norm": True}),
    "transformer_norm_scaled": (
        "Transformer + norm, scaled",
        "softmax",
        {"head_norm": True, "head_norm_scale": True},
    ),
}  # fmt: skip


def get_config(arg: str = ""):
  row, smoke = argument_words(arg, tuple(ROWS), ("smoke",))
  label, softmax, model = ROWS[row or "transformer"]
  config = scaling.get_config(f"1.4b,{softmax},{smoke or ''}")
  config.experiment = "ablations"
  config.arm = label
  config.model.update(model)
  return config


def sweep(add, arg=""):
  row, smoke = argument_words(arg, tuple(ROWS), ("smoke",))
  for name in (row,) if row else ROWS:
    add(name, {}, arg=f"{name},{smoke or ''}")
