# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""One query's row: the order and the sum of its maps."""

import numpy as np

from diff_jax.report import maps

A1, A2 = np.asarray([0.7, 0.3, 0.0]), np.asarray([0.2, 0.3, 0.5])


def _row(row_maps, weights):
  return maps.Row(0, 10, np.stack(row_maps), np.asarray(weights), 0, 2)


def test_a_differential_row_reads_as_the_equation():
  names, rows = zip(*_row([A1, A2], [1, -0.5]).bars(), strict=True)
  assert names == ("A₁", "A₂", "λA₂  (λ = 0.50)", "A₁ − λA₂")
  np.testing.assert_allclose(rows[2], [0.1, 0.15, 0.25])
  np.testing.assert_allclose(rows[3], [0.6, 0.15, -0.25])
  np.testing.assert_allclose(rows[3].sum(), 1 - 0.5)


def test_a_negative_lambda_adds():
  name, total = _row([A1, A2], [1, 0.5]).bars()[-1]
  assert name == "A₁ − λA₂"
  assert _row([A1, A2], [1, 0.5]).lambda_ == -0.5
  np.testing.assert_allclose(total, [0.8, 0.45, 0.25])


def test_other_numbers_of_maps():
  assert [name for name, _ in _row([A1], [1]).bars()] == ["A"]
  bars = _row([A1, A2, A1], [0.5, 0.25, 0.25]).bars()
  assert [name for name, _ in bars][:3] == ["A₁", "A₂", "A₃"]
  np.testing.assert_allclose(bars[-1][1].sum(), 1)
