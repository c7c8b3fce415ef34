# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""One-hop recall: how fast one layer learns to look one thing up.

128 context tokens, each the sum of a key and a value embedding, then 32 queries
(key + a mark) whose values are to be named. The smallest task on which
differential attention and the Transformer differ visibly, and the demo's.

  diff-jax sweep configs/recall.py          the 2x2 {one map, two} x {norm, no}
  diff-jax train --config=configs/recall.py --workdir=DIR       DIFF, all seeds

Cost: 0.6 TFLOP a run and seed; the sweep is about 2 minutes on 2 CPU cores.
Expect: DIFF about 0.15 above the Transformer in accuracy over steps 101-120,
which it passes 90 % some 40 steps before; every arm at 1.00 in the end: a
difference in learning speed. The initialisation is that of the official code's
sibling trainer, uniform +-fan_in ** -0.5, embeddings N(0, 1 / d); under another
one all arms learn sooner and three seeds do not tell them apart
(experiments/LOG.md).
"""

from diff_jax.config import argument_words, default


def get_config(arg: str = ""):
  (smoke,) = argument_words(arg, ("smoke",))
  config = default()
  config.experiment = "recall"
  config.seeds = (0, 1, 2)
  config.num_steps = 300
  config.log_every_steps = 1
  config.checkpoint_every_steps = 100

  config.data.name = "recall"
  config.data.batch_size = 32
  config.data.keys = 512
  config.data.values = 32
  config.data.context = 128
  config.data.queries = 32

  config.model.vocab_size = 545  # 512 keys, 32 values, the query mark
  config.model.output_size = 32  # values only
  config.model.d_model = 64
  config.model.num_layers = 1
  config.model.num_heads = 2  # pairs of maps of width 16
  config.model.mlp_dim = 168
  config.model.rope = "none"
  config.model.init = "kaiming_uniform"
  config.model.embedding_std = 0.125

  config.optimizer.peak_learning_rate = 4e-3
  config.evaluators = {
      "attention": {"every_steps": 20},
      "recall": {"multiples": (1, 2, 4), "num_batches": 4},
  }
  config.report.metric = "train/accuracy"
  config.report.first_step = 101
  config.report.last_step = 120
  config.report.threshold = 0.9
  config.report.higher_is_better = True
  config.report.note = (
      "Every batch is fresh, so accuracy in training is accuracy on unseen"
      " examples. The difference is one of learning speed, at one learning"
      " rate and one initialisation."
  )
  if smoke:
    config.num_steps = 6
    config.report.first_step, config.report.last_step = 5, 6
    config.seeds = (0, 1)
    config.data.batch_size = 8
    config.data.keys = 64
    config.data.context = 16
    config.data.queries = 4
    config.optimizer.warmup_steps = 2
    config.evaluators.attention.every_steps = 2
    config.evaluators.attention.num_rows = 2
    config.evaluators.attention.batch_size = 8
    config.evaluators.recall.num_batches = 1
    config.evaluators.recall.batch_size = 8
  return config


def sweep(add, arg=""):
  del arg  # the same arms at every size
  softmax = {"model.attention": "softmax", "model.num_heads": 4}
  add("transformer", softmax)
  add("transformer_norm", {**softmax, "model.head_norm": True})
  add("diff_no_norm", {"model.head_norm": False})
  add("diff", {})
