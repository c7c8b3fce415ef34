# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The paper's extension of the 3B model to 65,536 tokens of context.

arXiv 2410.05258, section 3.3. This has not been run by us, and cannot be yet:
it starts from the weights of the 3B run (tokens_3b.py), and training from the
weights of another run is not built. As it stands, this config trains the same
model at the same length from scratch.

  diff-jax train --config=configs/long_context_64k.py --config.data.path=PATH \\
      --workdir=DIR                                 DIFF; :softmax: Transformer
  diff-jax sweep configs/long_context_64k.py --config.data.path=PATH both arms

Cost: 104 EFLOPs for DIFF and 95 for the Transformer (1e18, matrix products, no
recomputation), two thirds of it in the attention maps. 64 x 65,536 tokens and
375 steps are 1.57 B tokens; the paper writes 1.5 B. Expect the paper's mean
negative log-likelihood of book text up to a position, in nats a token, read
from its vector figure 4 (whose axis has no numbers: they are inferred):

  position       100    1K    4K    8K   16K   32K   64K
  Transformer  2.707 2.450 2.323 2.266 2.212 2.193 2.143
  DIFF         2.635 2.409 2.286 2.232 2.177 2.156 2.116

DIFF is better at every length, and its advantage does not grow with length. No
evaluator measures this curve yet.

Published: learning rate 8e-5, rotary base 640,000, 1.5 B tokens, a corpus
up-sampled by length within each source after Fu et al. 2024 (arXiv 2402.10171),
the rest as the 3B run. The share of long texts is not published: here 70 % of
the rows are of documents longer than 4,096 tokens, which are about 30 % of Fu
et al.'s corpus by nature. The 3B run's warmup of 1,000 steps is longer than
this one: 20 steps here, the memory of Adam's second moment. The last learning
rate is that run's, 1.28e-5. PATH is what scaling.py says.
"""

import pathlib

from diff_jax.config import argument_words
from diff_jax.flags import load_config_file

tokens_3b, _ = load_config_file(
    pathlib.Path(__file__).with_name("tokens_3b.py")
)
sweep = tokens_3b.sweep


def get_config(arg: str = ""):
  softmax, smoke = argument_words(arg, ("softmax",), ("smoke",))
  config = tokens_3b.recipe()
  config.experiment = "long_context_64k"
  config.num_steps = 375
  config.checkpoint_every_steps = 75
  config.data.batch_size = 64
  config.data.seq_len = 65_536
  config.data.long_share = 0.7
  config.data.long_tokens = 4096
  config.model.rope_theta = 640_000.0
  config.optimizer.peak_learning_rate = 8e-5
  config.optimizer.end_learning_rate_ratio = 0.16  # 1.28e-5
  config.optimizer.warmup_steps = 20
  config.evaluators.loss.every_steps = 75
  config.evaluators.loss.batch_size = 64
  config.evaluators.loss.num_batches = 1
  return tokens_3b.scaling.with_words(config, softmax, smoke)
