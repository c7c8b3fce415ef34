# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The Differential Transformer (arXiv 2410.05258) in JAX.

`diff_attention` is the op, `decode` the same over a cache, `DiffAttention` the
layer, `Attention` the base of new mechanisms; everything else is imported from its module.
"""

from diff_jax.attention import Attention as Attention
from diff_jax.attention import DiffAttention as DiffAttention
from diff_jax.attention import SoftmaxAttention as SoftmaxAttention
from diff_jax.kernels.attention.api import diff_attention as diff_attention
from diff_jax.kernels.attention.decode import decode as decode
