# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The Transformer's attention: one softmax map for each value head."""

from diff_jax.attention.base import Attention


class SoftmaxAttention(Attention):
  """softmax(q k / sqrt(h)) v (arXiv 1706.03762, equation 1)."""

  label = "Transformer"
