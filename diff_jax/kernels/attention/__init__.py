# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention as a weighted sum of softmax maps that share one value head."""
