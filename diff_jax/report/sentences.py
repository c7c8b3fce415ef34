# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Composes the sentence of an act, and its caveats, from computed numbers."""

from diff_jax.report import result as result_lib
from diff_jax.report import runs as runs_lib
from diff_jax.report import statistics, text

MAX_SEEDS_LISTED = 6


def lead(result: result_lib.Result) -> str:
  """Returns the one sentence of an act: gap, interval, seeds and limits."""
  settings = result.act.settings
  if not result.seeds:
    return f"No finite value of {settings.metric} has been logged yet."
  if result.primary is None:
    return _portrait(result)
  count = len(result.primary.seeds)
  if count == 0:
    return f"{_gap(result)}) without a common seed: nothing is paired."
  if count == 1:
    return f"{_gap(result)}) on one seed, and one seed proves nothing."
  sentence = f"{_verdict(result)}{_norm(result)}; {_limits(result)}."
  return sentence.replace(" %", "\u00a0%")  # Never broken between lines.


def speed(result: result_lib.Result) -> str:
  """Returns the mean steps to the threshold, and what the norm saves of them.

  A window of steps is a choice that can hide who learns when; this is not
  bound to one. "" for one arm or where a run is censored.
  """
  reached = {arm: list(by.values()) for arm, by in result.thresholds.items()}
  if len(reached) < 2 or any(None in x or not x for x in reached.values()):
    return ""
  means = {arm: sum(steps) / len(steps) for arm, steps in reached.items()}
  shown = [f"{arm} {mean:,.0f}" for arm, mean in means.items()]
  words = (
      f"Steps to {goal(result.act.settings)}, mean over seeds:"
      f" {text.listed(shown)}"
  )
  arms = (runs_lib.SOFTMAX, runs_lib.SOFTMAX_NORM, runs_lib.DIFF)
  if any(arm not in means for arm in arms):
    return f"{words}."
  softmax, norm, diff = (means[arm] for arm in arms)
  share = 100 * (softmax - norm) / (softmax - diff) if softmax > diff else 0
  if share <= 0:
    return f"{words}."
  return (
      f"{words}; of the steps that DIFF saves, the per-head norm alone saves"
      f" {share:.0f}\u00a0%."
  )


def window(result: result_lib.Result) -> str:
  """Returns in words which steps the headline averages."""
  spans = {
      (w.first, w.last)
      for by_seed in result.windows.values()
      for w in by_seed.values()
  }
  first = min(first for first, _ in spans)
  last = max(last for _, last in spans)
  if first == last:
    return f"at step {last:,}"
  if result.complete and result.act.settings.last_step is not None:
    return f"mean over steps {first:,}–{last:,}"
  return f"mean of the last logged steps, {first:,}–{last:,}"


def goal(settings) -> str:
  """Returns a threshold as words: 90 % of a share, else the number."""
  if text.unit(settings.metric).startswith("share"):
    return f"{100 * settings.threshold:g}\u00a0%"
  return f"{settings.threshold:g}"


def steps_to_threshold(result: result_lib.Result, arm: str) -> str:
  """Returns the steps of every seed of an arm, censored ones as ">N".

  Many seeds: the (upper) median and the range.
  """
  last = result.last_steps[arm]
  words = [
      text.steps(reached, last[seed])
      for seed, reached in sorted(
          result.thresholds[arm].items(),
          key=lambda row: (row[1] is None, row[1] or last[row[0]]),
      )
  ]
  if len(words) > MAX_SEEDS_LISTED:
    return f"{words[len(words) // 2]} ({words[0]} to {words[-1]})"
  return ", ".join(
      text.steps(reached, last[seed])
      for seed, reached in result.thresholds[arm].items()
  )


def caveats(result: result_lib.Result) -> list[str]:
  """Returns what a reader has to know before believing the sentence."""
  act, found = result.act, []
  settings = act.settings
  if not result.complete:
    asked = (
        f" over steps {settings.first_step:,}–{settings.last_step:,}"
        if settings.first_step is not None and settings.last_step is not None
        else ""
    )
    found.append(
        f"Not every run has rows for the headline{asked}; the last logged steps"
        f" of those runs (at most {statistics.WINDOW_ROWS}) stand in."
    )
  if result.diverged:
    names = [f"{arm}, seed {seed}" for arm, seed in result.diverged]
    found.append(f"Diverged and left out of every mean: {text.listed(names)}.")
  if len(act.arms) > 1 and result.reference != settings.reference:
    found.append(
        f"The config compares with {settings.reference!r}, which is not among"
        f" the runs: {result.reference!r} takes its place."
    )
  found += _unequal(result)
  for run in act.runs:
    if run.unreadable_lines:
      found.append(
          f"{text.counted(run.unreadable_lines, 'line')} of"
          f" {run.folder}/metrics.jsonl could not be read and are left out."
      )
  return found


def _unequal(result):
  """What differs between runs that should differ in nothing but the arm."""
  act, found = result.act, []
  seeds = [set(by_seed) for by_seed in result.windows.values()]
  if any(s != seeds[0] for s in seeds):
    found.append(
        "The arms do not have the same seeds; a difference is over the seeds"
        " that both arms have."
    )
  if any(run.settings != act.settings for run in act.runs):
    found.append(
        "The runs ask for different headlines; that of the first is computed."
    )
  stops = {s for e in result.last_steps.values() for s in e.values()}
  if len(stops) > 1:
    found.append(
        f"The runs stop at different steps, from {min(stops):,} to"
        f" {max(stops):,}: end values are not comparable."
    )
  for key, words in (
      ("commit", "commits"),
      ("device", "devices"),
      ("versions", "library versions"),
  ):
    if len({str(run.info.get(key)) for run in act.runs}) > 1:
      found.append(f"The runs come from different {words} (see the foot).")
  return found


def _portrait(result):
  settings = result.act.settings
  arm = next(name for name, by_seed in result.windows.items() if by_seed)
  values = list(result.values(arm).values())
  span = statistics.mean_interval(values)
  places = text.decimals(span)
  value = text.number(span.mean if span else values[0], places)
  what = (
      f"{arm} reaches {value}{_amount_unit(settings.metric)} in"
      f" {text.phrase(settings.metric)} ({window(result)}"
  )
  known = result_lib.levels(settings.metric, result.act.baselines)
  against = [
      f"{text.phrase(name)} {text.number(v, places)}"
      for name, v in known.items()
  ]
  beside = f", beside {text.listed(against)}" if against else ""
  if span is None:
    return (
        f"{what}){beside}: one run of one seed proves nothing and compares"
        " nothing."
    )
  return (
      f"{what}; 95 % interval {text.number(span.low, places)} to"
      f" {text.number(span.high, places)}, {text.counted(len(values), 'seed')})"
      f"{beside}: one arm alone compares nothing."
  )


def _amount_unit(metric):
  """The unit of a gap, where the metric's name does not say it already."""
  return " nats" if text.unit(metric).startswith("nats") else ""


def _gap(result):
  """The gap in words, without a verdict on it; a parenthesis stays open."""
  delta, settings = result.primary, result.act.settings
  ahead = (delta.mean > 0) == settings.higher_is_better
  amount = text.number(abs(delta.mean), result.places)
  return (
      f"{delta.arm} is {'ahead of' if ahead else 'behind'} {delta.reference} by"
      f" {amount}{_amount_unit(settings.metric)} in"
      f" {text.phrase(settings.metric)} ({window(result)}"
  )


def _verdict(result):
  """The gap with its interval, or that the seeds cannot tell."""
  delta, places = result.primary, result.places
  seeds = text.counted(len(delta.seeds), "seed")
  if not delta.paired.excludes_zero:
    return (
        f"{seeds} cannot tell {delta.arm} from {delta.reference} in"
        f" {text.phrase(result.act.settings.metric)} ({window(result)}):"
        f" {text.signed(delta.mean, places)}, 95 % interval"
        f" {text.interval(delta.paired, places)}"
    )
  ends = sorted((abs(delta.paired.low), abs(delta.paired.high)))
  span = " to ".join(text.number(end, places) for end in ends)
  return f"{_gap(result)}; 95 % interval {span}, {seeds})"


def _norm(result):
  """How much of DIFF's gain the per-head norm gives without a second map."""
  norm = result.between(runs_lib.SOFTMAX_NORM, runs_lib.SOFTMAX)
  rest = result.between(runs_lib.DIFF, runs_lib.SOFTMAX_NORM)
  total = result.between(runs_lib.DIFF, runs_lib.SOFTMAX)
  if norm is None or rest is None or total is None or rest.paired is None:
    return ""
  places = result.places
  left = (
      f"{text.signed(rest.mean, places)} ({text.interval(rest.paired, places)})"
  )
  if rest.paired.excludes_zero:
    verdict = f"{text.minus(rest.arm, rest.reference)} is {left}"
  else:
    verdict = f"what DIFF adds to Transformer + norm, {left}, is undecided"
  better = (total.mean > 0) == result.act.settings.higher_is_better
  if not (better and total.paired.excludes_zero):
    return f"; {verdict}"
  share, gain = norm.mean / total.mean, ""
  if total is not result.primary:
    gain = f"; DIFF − Transformer is {text.signed(total.mean, places)}"
  if share > 1:
    gives = ", but the per-head norm alone gives all of that and more"
  elif share > 0.5:
    gives = f", but the per-head norm alone gives {100 * share:.0f} % of that"
  elif share > 0:
    gives = f", of which the per-head norm alone gives {100 * share:.0f} %"
  else:
    gives = ", of which the per-head norm alone gives nothing"
  return f"{gain}{gives}, and {verdict}"


def _limits(result):
  """What the comparison does not prove."""
  limits = "proves nothing about another task, size or learning rate"
  common = result.common_end()
  if common is None:
    return f"one setting an arm on one task {limits}"
  shown = " to ".join(sorted({text.number(value, 2) for value in common}))
  if not result.primary.paired.excludes_zero:
    return f"every arm ends at {shown}, and one setting an arm {limits}"
  return (
      f"every arm ends at {shown}, so this is a difference in learning speed"
      f" only, and it {limits}"
  )
