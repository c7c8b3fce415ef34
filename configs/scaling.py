# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The paper's scaling study: five sizes of DIFF and its Transformer.

arXiv 2410.05258, section 3.2 and appendix E. These have not been run by us.

  diff-jax train --config=configs/scaling.py:1.4b --config.data.path=PATH \\
      --workdir=DIR                              DIFF; 1.4b,softmax: Transformer
  diff-jax sweep configs/scaling.py:1.4b --config.data.path=PATH    both arms
  diff-jax sweep configs/scaling.py --config.data.path=PATH         all sizes

Without a size, training takes 830m.

Cost (EFLOPs = 1e18 of matrix products, no recomputation) and the paper's
validation loss in nats a token, read from its vector figure 3a:

          parameters   DIFF   Transformer   loss DIFF   loss Transformer
  830m       0.834 B     59       58          3.138         3.170
  1.4b       1.420 B     98       97          3.062         3.087
  2.8b       2.794 B    190      188          2.977         3.003
  6.8b       6.837 B    453      450          2.934         2.961
  13.1b     13.123 B    861      856          2.872         2.899

Recomputing each layer in the backward pass (remat) adds up to a third.
128 x 2,048 tokens and 40,000 steps are 10.5 B tokens; the paper writes 0.25 M
and 10 B. MLP widths are 8/3 of the model's, rounded so that the parameters
agree to 0.5 % with those that figure 3a plots; these fit tied embeddings only.

Not published: initialisation, embedding scale, Adam's epsilon, clipping, the
last learning rate, the base of the rotary positions, seeds, the corpus. Here:
normal with std fan_in^-1/2, embeddings 0.02, 1e-8, norm 1, 4 % of the peak (as
in the 3B run), 10,000, one seed, and yours. The vocabulary of 100,288 is that
of the tokenizer, cl100k_base, rounded up. PATH is a folder that `diff-jax
prepare --tokenizer=cl100k_base` wrote, or a mixture of them, A@0.7,B@0.3.
"""

from ml_collections import config_dict

from diff_jax.config import argument_words, default
from diff_jax.data import default_settings

# Width, layers, pairs of maps, MLP width, learning rate.
SIZES = {
    "830m": (1536, 24, 8, 4096, 1.5e-4),
    "1.4b": (2048, 24, 8, 5504, 1.5e-4),
    "2.8b": (2560, 32, 10, 6912, 1.5e-4),
    "6.8b": (4096, 32, 16, 10880, 7.5e-5),
    "13.1b": (5120, 40, 20, 13696, 7.5e-5),
}


def get_config(arg: str = ""):
  size, softmax, smoke = argument_words(
      arg, tuple(SIZES), ("softmax",), ("smoke",)
  )
  size = size or "830m"
  config = language_model()
  config.experiment = f"scaling_{size}"
  config.num_steps = 40_000
  config.data.batch_size = 128
  config.data.seq_len = 2048
  (
      config.model.d_model,
      config.model.num_layers,
      config.model.num_heads,
      config.model.mlp_dim,
      config.optimizer.peak_learning_rate,
  ) = SIZES[size]
  config.optimizer.warmup_steps = 375
  config.optimizer.end_learning_rate_ratio = 0.04
  config.optimizer.beta2 = 0.98
  config.optimizer.weight_decay = 0.05
  return with_words(config, softmax, smoke)


def sweep(add, arg=""):
  size, smoke = argument_words(arg, tuple(SIZES), ("smoke",))
  for name in (size,) if size else SIZES:
    words = f"{name},{smoke or ''}"
    add(f"{name}_transformer", {}, arg=f"{words},softmax")
    add(f"{name}_diff", {}, arg=words)


def language_model():
  """What all of the paper's language models share."""
  config = default()
  config.data.update(default_settings("text"))
  config.data.path = config_dict.placeholder(str)
  config.data.tokenizer = "cl100k_base"
  config.model.vocab_size = 100_288
  config.model.tie_embeddings = True
  config.model.compute_dtype = "bfloat16"
  config.model.remat = "full"
  config.optimizer.schedule = "linear"
  config.optimizer.eps = 1e-8
  config.optimizer.clip_norm = 1.0
  config.evaluators = {
      "loss": {"every_steps": 1000, "batch_size": 128, "num_batches": 16}
  }
  config.report.metric = "loss/loss"
  return config


def with_words(config, softmax: str | None, smoke: str | None):
  """The Transformer in DIFF's place, or a toy in place of the real sizes."""
  if smoke:
    config.num_steps = 4
    config.log_every_steps = 1
    config.data.path = "stdlib"
    config.data.tokenizer = "bytes"
    config.data.long_tokens = 40_000  # of bytes: both kinds exist
    config.data.batch_size = 8
    config.data.seq_len = 32
    config.model.vocab_size = 264  # 257 bytes, rounded up
    config.model.d_model = 16 * config.model.num_heads
    config.model.num_layers = 2
    config.model.mlp_dim = 64
    config.optimizer.warmup_steps = 2
    config.evaluators.loss.batch_size = 8
    config.evaluators.loss.num_batches = 1
  if softmax:
    config.model.attention = "softmax"
    config.model.num_heads *= 2  # two heads for each pair of maps
  config.report.first_step = config.report.last_step = config.num_steps
  return config
