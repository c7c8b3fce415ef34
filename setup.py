# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Everything is in pyproject.toml; this file lets old tools find it."""

import setuptools

setuptools.setup()
