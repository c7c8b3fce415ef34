# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A byte-level DIFF language model on real text, small enough for a laptop.

  diff-jax train --config=configs/tiny_lm.py --workdir=DIR
  diff-jax train --config=configs/tiny_lm.py --workdir=DIR \\
      --config.data.path=PATH                                your own text
  diff-jax sweep configs/tiny_lm.py                          and the Transformer

The text is about 60 modules of the running Python's own standard library, so
that nothing is downloaded; PATH is a file or folder of text, jsonl or parquet.
0.38 M parameters, 1.6 M tokens, half an epoch.

Cost: 4.5 TFLOP, about 45 seconds on 2 CPU cores. Expect about 1.6 nats per byte
on unseen packages: below a bigram model (2.41), above xz (1.26). One seed of a
model this small says nothing about DIFF against the Transformer.
"""

from diff_jax.config import argument_words, default
from diff_jax.data import default_settings


def get_config(arg: str = ""):
  (smoke,) = argument_words(arg, ("smoke",))
  config = default()
  config.experiment = "tiny_lm"
  config.num_steps = 400
  config.log_every_steps = 5
  config.checkpoint_every_steps = 100

  config.data.update(default_settings("text"))
  config.data.path = "stdlib"
  config.data.batch_size = 16
  config.data.seq_len = 256

  config.model.vocab_size = 257  # 256 bytes, the document separator
  config.model.d_model = 96
  config.model.num_layers = 3
  config.model.num_heads = 3  # pairs of maps of width 16
  config.model.mlp_dim = 256
  config.optimizer.peak_learning_rate = 4e-3
  config.optimizer.warmup_steps = 40

  config.evaluators = {
      "loss": {"every_steps": 100, "batch_size": 16, "num_batches": 16},
      "attention": {"every_steps": 100, "batch_size": 8},
      "sample": {"prompt": "\ndef ", "num_tokens": 250},
  }
  config.report.metric = "loss/loss"
  config.report.note = (
      "One seed of a model this small is too little to compare with anything:"
      " it shows that the trainer learns real text, and what lambda does."
  )
  if smoke:
    config.num_steps = 4
    config.data.batch_size = 8
    config.data.seq_len = 32
    config.model.num_layers = 2
    config.optimizer.warmup_steps = 2
    config.evaluators.loss.num_batches = 1
    config.evaluators.loss.batch_size = 8
    config.evaluators.attention.num_rows = 2
    config.evaluators.sample.num_tokens = 8
  return config


def sweep(add, arg=""):
  del arg
  add("transformer", {"model.attention": "softmax", "model.num_heads": 6})
  add("diff", {})
