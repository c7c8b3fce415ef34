# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The Differential Transformer's attention, V1 (arXiv 2410.05258, section 2)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from diff_jax.attention.base import Attention


class DiffAttention(Attention):
  """(1 - lambda_init) RMSNorm((softmax(q1 k1) - lambda softmax(q2 k2)) v).

  lambda = exp(lambda_q1 . lambda_k1) - exp(lambda_q2 . lambda_k2) +
  lambda_init (equation 2), one scalar a layer. The value is as wide as both
  maps together, so that with half as many heads every matrix keeps the
  Transformer's size. `num_heads` counts these heads: half the baseline's.
  """

  num_maps = 2
  num_key_maps = 2
  value_widths = 2
  default_head_norm = True
  label = "DIFF"

  def __init__(self, *args, rngs: nnx.Rngs, **kwargs):
    super().__init__(*args, rngs=rngs, **kwargs)
    # fp32, N(0, 0.1): microsoft/unilm, Diff-Transformer.
    self.lambda_q1, self.lambda_k1, self.lambda_q2, self.lambda_k2 = (
        nnx.Param(0.1 * jax.random.normal(rngs.params(), (self.head_dim,)))
        for _ in range(4)
    )

  def lam(self, depth=None) -> Float[Array, ""]:
    """The layer's lambda, in fp32."""
    first = jnp.exp(jnp.sum(self.lambda_q1[...] * self.lambda_k1[...]))
    second = jnp.exp(jnp.sum(self.lambda_q2[...] * self.lambda_k2[...]))
    return first - second + self.initial_lambda(depth)

  def weights(self, x: Float[Array, "b t d"], depth=None):
    del x
    return 1, -self.lam(depth)

  def metrics(self, depth=None) -> dict[str, Float[Array, ""]]:
    return {"lambda": self.lam(depth)}
