# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of a comparison, against scipy and against known answers."""

import numpy as np
import pytest
from scipy import stats

from diff_jax.report import statistics

# science.md's table of one-hop recall.
DIFF = {0: 0.92, 1: 0.99, 2: 0.97}
TRANSFORMER = {0: 0.42, 1: 0.31, 2: 0.26}


def test_paired_and_welch_intervals_agree_with_scipy():
  delta = statistics.difference("DIFF", DIFF, "Transformer", TRANSFORMER)
  a, b = list(DIFF.values()), list(TRANSFORMER.values())
  paired = stats.ttest_rel(a, b).confidence_interval()
  welch = stats.ttest_ind(a, b, equal_var=False).confidence_interval()
  np.testing.assert_allclose(
      [delta.paired.low, delta.paired.high], [paired.low, paired.high]
  )
  np.testing.assert_allclose(
      [delta.welch.low, delta.welch.high], [welch.low, welch.high]
  )
  assert delta.p_value == pytest.approx(stats.ttest_rel(a, b).pvalue)
  assert delta.correlation == pytest.approx(stats.pearsonr(a, b).statistic)


def test_the_known_answer_of_the_recall_table():
  delta = statistics.difference("DIFF", DIFF, "Transformer", TRANSFORMER)
  assert delta.mean == pytest.approx(0.63, abs=0.005)
  assert delta.paired.half_width == pytest.approx(0.28, abs=0.005)


def test_perfect_pairs_have_no_width_but_an_unpaired_interval():
  shifted = {seed: value + 0.5 for seed, value in TRANSFORMER.items()}
  delta = statistics.difference("x", shifted, "Transformer", TRANSFORMER)
  assert delta.paired.half_width == pytest.approx(0, abs=1e-12)
  assert delta.correlation == pytest.approx(1)
  assert delta.welch.half_width > 0.1


def test_only_common_seeds_are_paired():
  delta = statistics.difference("x", {0: 1.0, 1: 2.0}, "y", {1: 1.5, 2: 9.0})
  assert delta.seeds == (1,)
  assert delta.mean == 0.5
  assert delta.paired is None and delta.p_value is None


def test_one_seed_has_no_interval():
  delta = statistics.difference("x", {0: 1.0}, "y", {0: 0.5})
  assert delta.mean == 0.5
  assert (delta.paired, delta.welch, delta.correlation) == (None, None, None)


def test_constant_arms_give_a_point_and_no_correlation():
  ones, zeros = dict.fromkeys(range(3), 1.0), dict.fromkeys(range(3), 0.0)
  delta = statistics.difference("x", ones, "y", zeros)
  assert delta.welch == statistics.Interval(1.0, 1.0, 1.0)
  assert delta.correlation is None
  assert delta.p_value == 0
  same = statistics.difference("x", ones, "y", ones)
  assert same.p_value == 1 and not same.paired.excludes_zero


def test_holm_on_the_textbook_example():
  assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx(
      [0.03, 0.06, 0.06, 0.02]
  )


def test_steps_to_threshold_is_a_running_mean_of_ten():
  steps = np.arange(1, 41)
  values = np.where(steps > 20, 1.0, 0.0)
  # Nine ones among the last ten: steps 21 to 29.
  assert statistics.steps_to_threshold(steps, values, 0.9, True) == 29
  lucky = np.where(steps == 5, 1.0, 0.0)
  assert statistics.steps_to_threshold(steps, lucky, 0.9, True) is None
  assert statistics.steps_to_threshold(steps, 1 - values, 0.1, False) == 29
  assert (
      statistics.steps_to_threshold(steps[:9], values[-9:], 0.9, True) is None
  )


def test_window_is_what_was_asked_or_says_that_it_is_not():
  steps, values = np.arange(1, 301), np.arange(1.0, 301.0)
  asked = statistics.window_mean(steps, values, 101, 120)
  assert asked == statistics.Window(110.5, 101, 120, True)
  partial = statistics.window_mean(steps[:60], values[:60], 101, 120)
  assert (partial.first, partial.last, partial.complete) == (55, 60, False)
  tail = statistics.window_mean(steps, values, None, None)
  assert (tail.value, tail.first, tail.complete) == (290.5, 281, True)
  assert statistics.window_mean(steps[:0], values[:0], 1, 2) is None


def test_a_metric_logged_seldom_is_not_averaged_over_all_of_training():
  steps, values = np.asarray([50, 100, 150, 200]), np.asarray([4.0, 3, 2, 1])
  window = statistics.window_mean(steps, values, None, None)
  assert (window.value, window.first, window.last) == (1, 200, 200)


def test_wilson_agrees_with_scipy():
  span = statistics.wilson_interval(0.95, 200)
  known = stats.binomtest(190, 200).proportion_ci(method="wilson")
  assert (span.low, span.high) == pytest.approx((known.low, known.high))
  assert statistics.wilson_interval(1.0, 200).high == 1
