# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the attention tests."""

import pytest

from diff_jax.kernels.attention import blocks


@pytest.fixture
def small_blocks(monkeypatch):
  """Blocks of at most 64 rows, so that short sequences span several."""
  monkeypatch.setattr(blocks, "MAX_BLOCK", 64)
