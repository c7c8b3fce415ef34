# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The commands of the console script, one module each."""
