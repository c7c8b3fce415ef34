# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What tests of prepared corpora share."""

import pytest

from diff_jax.data import engines, shard


@pytest.fixture
def serial(monkeypatch):
  """Writes shards in this process: a pool of processes takes seconds."""
  monkeypatch.setattr(
      engines, "on_processes", lambda jobs, _: map(shard.write, jobs)
  )
