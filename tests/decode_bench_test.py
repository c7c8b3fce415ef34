# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The decode suite compares what is equal and counts its bytes."""

import pytest

from diff_jax import bench
from diff_jax.bench import decode, table


def test_the_suite_agrees_and_counts_the_bytes():
  result = decode.run(bench.Options(rounds=1, smoke=True))
  mib = {row["candidate"]: row["mib_a_sequence"] for row in result.rows}
  # A row of a pair is K1|K2|V: 4 h numbers, as two heads of the Transformer.
  assert mib["DIFF"] == mib["Transformer"] == 64 * 2 * 4 * 8 * 2 / 2**20
  assert mib["DIFF, a call for each map"] == 1.5 * mib["DIFF"]
  assert mib["copy"] == 2 * mib["DIFF"]
  assert [target.bound for target in result.targets] == [1.08, 0.75]


def test_steps_that_disagree_are_refused(monkeypatch):
  monkeypatch.setattr(decode.Step, "reference", lambda self: 2 * self()[:1])
  with pytest.raises(table.Disagreement, match="Transformer"):
    decode.run(bench.Options(rounds=1, smoke=True))
