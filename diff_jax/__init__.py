# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The Differential Transformer (arXiv 2410.05258) in JAX."""

from diff_jax.kernels.attention.api import diff_attention as diff_attention
