# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""AdamW with warmup and decay, as in the paper's recipes."""

import jax
import optax

from diff_jax.config import OptimizerConfig


def make_schedule(config: OptimizerConfig, num_steps: int) -> optax.Schedule:
  """Learning rate by update: a linear warmup from 0, then the decay.

  The decay ends at update `num_steps`, at `end_learning_rate_ratio` * peak.
  """
  peak = config.peak_learning_rate
  end = config.end_learning_rate_ratio * peak
  decay_steps = max(num_steps - config.warmup_steps, 1)
  if config.schedule == "linear":
    decay = optax.linear_schedule(peak, end, decay_steps)
  elif config.schedule == "cosine":
    decay = optax.cosine_decay_schedule(
        peak, decay_steps, config.end_learning_rate_ratio
    )
  else:
    decay = optax.constant_schedule(peak)
  # Update 0 already learns: at rate 0 it would only spend a batch.
  warmup = optax.linear_schedule(
      peak / (config.warmup_steps + 1), peak, config.warmup_steps
  )
  return optax.join_schedules([warmup, decay], [config.warmup_steps])


def decays(params):
  """True for the parameters that weight decay applies to.

  Those are the matrices, whose names begin with `w_`, and the embedding table;
  norms, biases and the lambda vectors are not decayed. Names decide, because
  stacking the layers gives every vector a second axis.
  """

  def decay(path, _):
    names = [
        key.name for key in path if isinstance(key, jax.tree_util.GetAttrKey)
    ]
    name = [name for name in names if name != "value"][-1]
    return name.startswith("w_") or name == "embedding"

  return jax.tree_util.tree_map_with_path(decay, params)


def make_optimizer(
    config: OptimizerConfig, num_steps: int
) -> optax.GradientTransformation:
  """Clipping by global norm, then AdamW (arXiv 1711.05101)."""
  clip = (
      optax.identity()
      if config.clip_norm == 0
      else optax.clip_by_global_norm(config.clip_norm)
  )
  adamw = optax.adamw(
      make_schedule(config, num_steps),
      b1=config.beta1,
      b2=config.beta2,
      eps=config.eps,
      weight_decay=config.weight_decay,
      mask=decays,
  )
  return optax.chain(clip, adamw)
