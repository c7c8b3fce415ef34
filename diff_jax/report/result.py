# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Computes every number of an act's headline from its traces."""

import dataclasses
import math
import re
from collections.abc import Mapping

import numpy as np

from diff_jax.report import runs as runs_lib
from diff_jax.report import statistics, text

_LENGTH = re.compile(r"(?P<task>.+)/accuracy_(?P<multiple>\d+)x")


@dataclasses.dataclass(frozen=True)
class Result:
  """The headline of an act; every mapping is arm name -> seed -> value.

  Attributes:
    windows: the metric's mean over the window that the config asks for.
    ends: the metric's mean over the last (at most 10) logged steps.
    thresholds: first step at the threshold, None where censored; empty if the
      config has no threshold.
    last_steps: last logged step.
    diverged: (arm, seed) pairs whose window is not finite; they are left out
      of `windows` and of every difference.
    primary: the difference that the sentence is about: the last arm that is
      not of the 2x2 (a user's own), else DIFF, against the reference.
    others: every other arm against the reference, and DIFF against
      Transformer + norm.
  """

  act: runs_lib.Act
  reference: str
  windows: Mapping[str, Mapping[int, statistics.Window]]
  ends: Mapping[str, Mapping[int, float]]
  thresholds: Mapping[str, Mapping[int, int | None]]
  last_steps: Mapping[str, Mapping[int, int]]
  diverged: tuple[tuple[str, int], ...]
  primary: statistics.Difference | None
  others: tuple[statistics.Difference, ...]

  @property
  def differences(self) -> list[statistics.Difference]:
    return [*([self.primary] if self.primary else []), *self.others]

  @property
  def seeds(self) -> list[int]:
    return sorted({s for by_seed in self.windows.values() for s in by_seed})

  @property
  def complete(self) -> bool:
    return all(
        window.complete
        for by_seed in self.windows.values()
        for window in by_seed.values()
    )

  @property
  def places(self) -> int:
    """Decimals of the headline's numbers."""
    return text.decimals(self.primary.paired if self.primary else None)

  def values(self, arm: str) -> dict[int, float]:
    return {s: w.value for s, w in self.windows.get(arm, {}).items()}

  def mean(self, arm: str) -> float:
    return float(np.mean(list(self.values(arm).values())))

  def between(self, arm: str, reference: str) -> statistics.Difference | None:
    """Returns the computed difference of two arms, if there is one."""
    for delta in self.differences:
      if (delta.arm, delta.reference) == (arm, reference):
        return delta
    return None

  def common_end(self) -> tuple[float, float] | None:
    """Returns the lowest and highest end of an arm, if they say the same.

    That is: every run has stopped at the same step, after the window, and the
    ends are closer to each other than a twentieth of the primary difference.
    """
    if not self.primary or not self.complete:
      return None
    stops = {
        s for by_seed in self.last_steps.values() for s in by_seed.values()
    }
    last = self.act.settings.last_step
    if len(stops) != 1 or last is None or stops.pop() <= last:
      return None
    means = [float(np.mean(list(e.values()))) for e in self.ends.values() if e]
    close = max(means) - min(means) <= abs(self.primary.mean) / 20
    return (min(means), max(means)) if close else None


def compute(act: runs_lib.Act) -> Result:
  """Computes the headline of an act, paired by seed."""
  settings = act.settings
  windows, ends, thresholds, last_steps, diverged = {}, {}, {}, {}, []
  for arm in act.arms:
    for table in (windows, ends, thresholds, last_steps):
      table[arm.name] = {}
    for seed, trace in arm.traces.items():
      steps, values = trace.series(settings.metric)
      window = statistics.window_mean(
          steps, values, settings.first_step, settings.last_step
      )
      if window is None:
        continue
      if not math.isfinite(window.value):
        diverged.append((arm.name, seed))
        continue
      windows[arm.name][seed] = window
      ends[arm.name][seed] = float(
          values[statistics.tail(steps, statistics.END_ROWS)].mean()
      )
      last_steps[arm.name][seed] = int(steps[-1])
      if settings.threshold is not None:
        thresholds[arm.name][seed] = statistics.steps_to_threshold(
            steps, values, settings.threshold, settings.higher_is_better
        )
  reference = _reference(act)
  values = {
      arm: {s: w.value for s, w in by_seed.items()}
      for arm, by_seed in windows.items()
      if by_seed
  }
  primary, others = _differences(values, reference)
  return Result(
      act,
      reference,
      windows,
      ends,
      thresholds if settings.threshold is not None else {},
      last_steps,
      tuple(diverged),
      primary,
      others,
  )


def adjusted_p_values(result: Result) -> list[float | None]:
  """Returns Holm's p values of `result.others`; the primary needs none."""
  known = [d.p_value for d in result.others if d.p_value is not None]
  adjusted = iter(statistics.holm(known))
  return [None if d.p_value is None else next(adjusted) for d in result.others]


def length_accuracy(
    act: runs_lib.Act,
) -> dict[tuple[str, int], tuple[list[float], statistics.Interval | None]]:
  """Returns (arm, multiple) -> (last accuracy of each seed, interval).

  Several seeds: t interval over seeds. One seed: Wilson's interval over the
  answers, if their number was logged.
  """
  found = {}
  for name in sorted(act.names()):
    match = _LENGTH.fullmatch(name)
    if not match:
      continue
    for arm in act.arms:
      lasts = [trace.last(name) for trace in arm.traces.values()]
      values = [float(last[1]) for last in lasts if last]
      if not values:
        continue
      span = statistics.mean_interval(values)
      if span is None:
        span = _wilson(arm, f"{match['task']}/num_answers", values[0])
      found[arm.name, int(match["multiple"])] = (values, span)
  return found


def levels(metric: str, baselines: Mapping[str, float]) -> dict[str, float]:
  """Returns the baselines in the unit of a metric, by predictor.

  "bigram_loss_nats" is a level {"bigram": value} of every ".../loss".
  """
  kind = metric.rpartition("/")[2]
  ending = "_" + {"loss": "loss_nats"}.get(kind, kind)
  return {
      name.removesuffix(ending): value
      for name, value in baselines.items()
      if name.endswith(ending)
  }


def _reference(act):
  names = [arm.name for arm in act.arms]
  wanted = act.settings.reference
  return wanted if wanted in names or not names else names[0]


def _differences(values, reference):
  arms = [arm for arm in values if arm != reference]
  if reference not in values or not arms:
    return None, ()

  def against(arm, other):
    return statistics.difference(arm, values[arm], other, values[other])

  own = [arm for arm in arms if arm not in runs_lib.TWO_BY_TWO]
  diff = runs_lib.DIFF if runs_lib.DIFF in arms else arms[-1]
  subject = own[-1] if own else diff
  others = [against(arm, reference) for arm in arms if arm != subject]
  norm = runs_lib.SOFTMAX_NORM
  if runs_lib.DIFF in arms and norm in arms:
    others.append(against(runs_lib.DIFF, norm))
  return against(subject, reference), tuple(others)


def _wilson(arm, name, share):
  counts = [trace.last(name) for trace in arm.traces.values()]
  known = [int(last[1]) for last in counts if last]
  return statistics.wilson_interval(share, known[0]) if known else None
