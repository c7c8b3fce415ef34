# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of a comparison by arm and seed: the seed is the unit.

No interval is ever computed from the rows of one training run: they are not
independent. With one seed there is none.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

LEVEL = 0.95
THRESHOLD_WINDOW = 10  # logged steps
WINDOW_ROWS = 20  # of a headline whose config names no steps
END_ROWS = 10  # behind an "end" value


@dataclasses.dataclass(frozen=True)
class Interval:
  """A mean with the two ends of its 95 % interval."""

  mean: float
  low: float
  high: float

  @property
  def half_width(self) -> float:
    return (self.high - self.low) / 2

  @property
  def excludes_zero(self) -> bool:
    return self.low > 0 or self.high < 0


@dataclasses.dataclass(frozen=True)
class Difference:
  """`arm` minus `reference`, over the seeds that both of them have.

  Attributes:
    mean: of the paired differences; without a common seed, the difference of
      the two means.
    paired: paired t interval; None below two common seeds.
    welch: unpaired interval (unequal variances); None below two seeds an arm.
    correlation: Pearson's, of the pairs; None below three pairs or when an arm
      does not vary.
    p_value: two-sided, of the paired t test; None where `paired` is.
  """

  arm: str
  reference: str
  seeds: tuple[int, ...]
  mean: float
  paired: Interval | None
  welch: Interval | None
  correlation: float | None
  p_value: float | None


@dataclasses.dataclass(frozen=True)
class Window:
  """The mean of a metric over logged steps `first` to `last`.

  `complete` says that the window is the one that was asked for; otherwise the
  run has not got that far and these are its last logged steps.
  """

  value: float
  first: int
  last: int
  complete: bool


def mean_interval(values: Sequence[float]) -> Interval | None:
  """Returns the t interval of the mean; None for fewer than two values."""
  count = len(values)
  if count < 2:
    return None
  mean = float(np.mean(values))
  error = float(np.std(values, ddof=1)) / math.sqrt(count)
  half = float(stats.t.ppf(0.5 + LEVEL / 2, count - 1)) * error
  return Interval(mean, mean - half, mean + half)


def welch_interval(a: Sequence[float], b: Sequence[float]) -> Interval | None:
  """Returns Welch's interval of mean(a) - mean(b); None below two values each."""
  if min(len(a), len(b)) < 2:
    return None
  mean = float(np.mean(a) - np.mean(b))
  errors = [float(np.var(x, ddof=1)) / len(x) for x in (a, b)]
  variance = sum(errors)
  if variance == 0:
    return Interval(mean, mean, mean)
  freedom = variance**2 / sum(
      error**2 / (len(x) - 1) for error, x in zip(errors, (a, b), strict=True)
  )
  half = float(stats.t.ppf(0.5 + LEVEL / 2, freedom)) * math.sqrt(variance)
  return Interval(mean, mean - half, mean + half)


def difference(
    arm: str,
    values: Mapping[int, float],
    reference: str,
    reference_values: Mapping[int, float],
) -> Difference:
  """Compares two arms, {seed: value} each, paired by seed."""
  seeds = tuple(sorted(set(values) & set(reference_values)))
  pairs = np.asarray([[values[s], reference_values[s]] for s in seeds])
  unpaired = list(values.values()), list(reference_values.values())
  if not seeds:
    mean = float(np.mean(unpaired[0]) - np.mean(unpaired[1]))
    welch = welch_interval(*unpaired)
    return Difference(arm, reference, (), mean, None, welch, None, None)
  deltas = pairs[:, 0] - pairs[:, 1]
  return Difference(
      arm,
      reference,
      seeds,
      float(deltas.mean()),
      mean_interval(deltas.tolist()),
      welch_interval(*unpaired),
      _correlation(pairs),
      _p_value(deltas),
  )


def holm(p_values: Sequence[float]) -> list[float]:
  """Returns Holm's step-down adjustment of some p values, in their order."""
  adjusted, running = [0.0] * len(p_values), 0.0
  order = sorted(range(len(p_values)), key=lambda i: p_values[i])
  for rank, i in enumerate(order):
    running = max(running, min(1.0, (len(p_values) - rank) * p_values[i]))
    adjusted[i] = running
  return adjusted


def window_mean(
    steps: np.ndarray,
    values: np.ndarray,
    first: int | None,
    last: int | None,
) -> Window | None:
  """Averages a metric over the logged steps first..last, both included.

  Where the run has not reached `last` (or logged nothing between the two, or
  no window is given) its last logged steps are taken instead: see `tail`.
  """
  if not len(steps):
    return None
  if first is not None and last is not None and steps[-1] >= last:
    inside = (steps >= first) & (steps <= last)
    if inside.any():
      return Window(float(values[inside].mean()), first, last, True)
  rows = tail(steps, WINDOW_ROWS)
  value = float(values[rows].mean())
  asked = first is None and last is None
  return Window(value, int(steps[rows][0]), int(steps[-1]), asked)


def tail(steps: np.ndarray, rows: int) -> slice:
  """Returns the last `rows` logged steps, none before the last tenth of a run.

  The second half keeps a metric that is logged seldom (an evaluator's) from
  being averaged over the whole of training.
  """
  late = int((steps > 0.9 * steps[-1]).sum())
  return slice(-max(1, min(rows, late)), None)


def steps_to_threshold(
    steps: np.ndarray,
    values: np.ndarray,
    threshold: float,
    higher_is_better: bool,
) -> int | None:
  """Returns the first step at which the running mean reaches the threshold.

  The mean is over the last 10 logged steps, so that one lucky batch does not
  count. None: censored, not reached by the last logged step.
  """
  if len(values) < THRESHOLD_WINDOW:
    return None
  kernel = np.full(THRESHOLD_WINDOW, 1 / THRESHOLD_WINDOW)
  running = np.convolve(values, kernel, mode="valid")
  slack = 1e-9 * max(1.0, abs(threshold))  # Rounding of the mean.
  reached = (
      running >= threshold - slack
      if higher_is_better
      else running <= threshold + slack
  )
  if not reached.any():
    return None
  return int(steps[THRESHOLD_WINDOW - 1 + int(reached.argmax())])


def wilson_interval(share: float, count: int) -> Interval:
  """Returns Wilson's interval of a share of `count` independent answers."""
  z = float(stats.norm.ppf(0.5 + LEVEL / 2))
  centre = (share + z * z / (2 * count)) / (1 + z * z / count)
  spread = share * (1 - share) / count + z * z / (4 * count * count)
  half = z * math.sqrt(spread) / (1 + z * z / count)
  return Interval(share, max(0.0, centre - half), min(1.0, centre + half))


def _correlation(pairs):
  if len(pairs) < 3 or (np.ptp(pairs, axis=0) == 0).any():
    return None
  return float(np.corrcoef(pairs.T)[0, 1])


def _p_value(deltas):
  if len(deltas) < 2:
    return None
  error = float(np.std(deltas, ddof=1)) / math.sqrt(len(deltas))
  if error == 0:
    return 1.0 if deltas[0] == 0 else 0.0
  freedom = len(deltas) - 1
  return float(2 * stats.t.sf(abs(float(deltas.mean())) / error, freedom))
