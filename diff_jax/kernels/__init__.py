# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Operations with more than one implementation."""
