# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Recall among noise: two small studies of what the second map is for.

Two layers with rotary positions read a context of (key, value) pairs hidden
among noise tokens, then keys whose values are to be named.

  b   8 pairs in 112 tokens, queries without replacement, 1,200 steps, 5 seeds.
      "A context value not yet used" is right H_8 / 8 = 34 % of the time, so
      this measures noise rejection, not binding.
  c   4 pairs in 48 tokens, queries with replacement, 2,000 steps, 10 seeds:
      above 25 % only by binding keys to values.

  diff-jax sweep configs/noisy_recall.py         both, with an A/A arm
  diff-jax sweep configs/noisy_recall.py:c       one of them

Cost: 3.6 TFLOP a run and seed of b, 2.7 of c; the sweep of 75 takes about 90 min
on 2 CPU cores and continues where it was interrupted. Plan, expectation and
verdict: experiments/noisy_recall/.
"""

from diff_jax.config import argument_words, default

TASKS = ("b", "c")


def get_config(arg: str = ""):
  task, smoke = argument_words(arg, TASKS, ("smoke",))
  config = default()
  config.log_every_steps = 5
  config.data.name = "noisy_recall"
  config.data.batch_size = 32
  config.data.noise_share = 1.0

  config.model.d_model = 64
  config.model.num_layers = 2
  config.model.num_heads = 2  # pairs of maps of width 16
  config.model.mlp_dim = 168
  config.optimizer.peak_learning_rate = 3e-3
  config.evaluators = {
      "loss": {"every_steps": 200, "num_batches": 16},
      "attention": {"every_steps": 200},
      "recall": {"multiples": (1, 2), "num_batches": 16},
  }
  if task == "c":
    _binding(config)
  else:
    _noise_rejection(config)
  if smoke:
    config.num_steps = 4
    config.seeds = (0, 1)
    config.log_every_steps = 1
    config.data.batch_size = 8
    config.optimizer.warmup_steps = 2
    config.evaluators = {"loss": {"num_batches": 1, "batch_size": 8}}
    config.report.first_step = config.report.last_step = 4
  return config


def _noise_rejection(config):
  """Task b."""
  config.experiment = "noisy_recall_b"
  config.seeds = (0, 1, 2, 3, 4)
  config.num_steps = 1200
  config.data.update(
      pairs=8, keys=64, values=64, noise_vocab=64, context=112, queries=8,
      replacement=False,
  )  # fmt: skip
  config.model.vocab_size = 193  # 64 keys, values and noise tokens; a filler
  config.model.output_size = 64
  config.report.metric = "loss/loss"
  config.report.first_step = 1200
  config.report.last_step = 1200
  config.report.note = (
      "Nobody has to bind: naming a value of the context that was not used yet"
      " reaches 34 % accuracy."
  )


def _binding(config):
  """Task c."""
  config.experiment = "noisy_recall_c"
  config.seeds = tuple(range(10))
  config.num_steps = 2000
  config.data.update(
      pairs=4, keys=32, values=32, noise_vocab=32, context=48, queries=8,
      replacement=True,
  )  # fmt: skip
  config.model.vocab_size = 97
  config.model.output_size = 32
  config.report.metric = "train/accuracy"
  config.report.first_step = 1901
  config.report.last_step = 2000
  config.report.threshold = 0.9
  config.report.higher_is_better = True
  config.report.note = (
      "Runs cross from 25 % to 100 % abruptly and at very different moments, so"
      " that the mean at the end counts the seeds that had crossed by then."
  )


def sweep(add, arg=""):
  task, smoke = argument_words(arg, TASKS, ("smoke",))
  softmax = {"model.attention": "softmax", "model.num_heads": 4}
  for name in (task,) if task else TASKS:
    words = ",".join(filter(None, (name, smoke)))
    add(f"{name}_transformer", softmax, arg=words)
    add(f"{name}_diff", {}, arg=words)
    add(f"{name}_transformer_norm", {**softmax, "model.head_norm": True}, words)
    add(f"{name}_diff_no_norm", {"model.head_norm": False}, words)
    again = {"arm": "Transformer, other initialisation", "init_key": 1}
    add(f"{name}_transformer_again", {**softmax, **again}, words)
