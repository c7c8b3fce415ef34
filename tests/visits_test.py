# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""How much of a packed row the kernels visit, counted by hand."""

import pytest

from diff_jax.bench import visits


@pytest.mark.parametrize(
    ("lengths", "pairs"),
    [
        ([8, 8], 2 * 3 * 16),  # each document: 3 of the 4 tiles of 4 x 4
        ([16], 10 * 16),
        ([6, 10], 8 * 16),  # 3 tiles and 6, one of them the same
        ([1] * 16, 4 * 16),
    ],
)
def test_tiles_are_counted_once(lengths, pairs):
  visible = sum(n * (n + 1) // 2 for n in lengths)
  ratio = visits.visited_over_visible(visits.segments(lengths, 16), block=4)
  assert ratio == pytest.approx(pairs / visible)


def test_a_row_is_filled_and_the_last_document_cut():
  ids = visits.segments([3, 4, 5], 8)
  assert ids.tolist() == [[1, 1, 1, 2, 2, 2, 2, 3]]
