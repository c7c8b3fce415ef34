# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The tables of an act; each returns HTML, or "" without its data."""

import json

import numpy as np

from diff_jax.report import drawing, html, sentences, statistics, text
from diff_jax.report import result as result_lib
from diff_jax.report import runs as runs_lib

_MAX_SETTINGS = 15


def arms(result: result_lib.Result) -> str:
  """Returns the headline of every seed, the end and the steps to threshold."""
  found = [arm for arm in result.act.arms if result.windows[arm.name]]
  alone = sum(len(result.windows[arm.name]) for arm in found) == 1
  if not found or (alone and not result.thresholds):
    return ""
  digits, settings = result.places, result.act.settings
  several = len(result.seeds) > 1
  listed = len(result.seeds) <= sentences.MAX_SEEDS_LISTED
  seeds = result.seeds if listed else []
  header = ["arm", *(f"seed {seed}" for seed in seeds)]
  header += ["mean", "sd"] * several + ["at the end"]
  if result.thresholds:
    header.append(f"steps to {sentences.goal(settings)}")
  rows = []
  for arm in found:
    values = result.values(arm.name)
    row = [arm_cell(result.act, arm.name)]
    row += [text.number(values.get(seed), digits) for seed in seeds]
    if several:
      row.append(text.number(result.mean(arm.name), digits))
      row.append(text.number(spread(list(values.values())), digits))
    ends = list(result.ends[arm.name].values())
    row.append(text.number(float(np.mean(ends)), digits))
    if result.thresholds:
      row.append(sentences.steps_to_threshold(result, arm.name))
    rows.append(row)
  caption = (
      f"{text.label(settings.metric)}, {sentences.window(result)}; the end is"
      f" the mean of the last logged steps (at most {statistics.END_ROWS})."
  )
  if result.thresholds:
    caption += (
        " Steps to the threshold: the first step at which the mean of the last"
        f" {statistics.THRESHOLD_WINDOW} logged steps reaches it,"
        f" {'seed by seed' if listed else 'median and range over seeds'}; >N: not"
        " reached by step N."
    )
  return html.table(header, rows, caption)


def spread(values: list[float]) -> float | None:
  """Returns the standard deviation over seeds; None for one seed."""
  return float(np.std(values, ddof=1)) if len(values) > 1 else None


def differences(result: result_lib.Result) -> str:
  """Returns every difference with its two intervals."""
  if not any(delta.paired or delta.welch for delta in result.differences):
    return ""
  digits, rows = result.places, []
  p_values = [result.primary.p_value, *result_lib.adjusted_p_values(result)]
  for delta, p_value in zip(result.differences, p_values, strict=True):
    rows.append(
        [
            text.minus(delta.arm, delta.reference),
            text.signed(delta.mean, digits),
            text.interval(delta.paired, digits),
            text.interval(delta.welch, digits),
            text.number(delta.correlation, 2),
            len(delta.seeds),
            text.p_value(p_value),
        ]
    )
  header = [
      "difference", "mean", "95 % interval, paired t",
      "95 % interval, Welch", "correlation of the pairs", "pairs", "p (Holm)",
  ]  # fmt: skip
  caption = (
      "The unit is the seed. The first row is the primary comparison, its p"
      " value unadjusted; those of the other rows are adjusted by Holm's method,"
      " the intervals are not. Welch's interval does not use the pairing."
  )
  return html.table(header, rows, caption)


def lengths(act: runs_lib.Act) -> str:
  """Returns the mean accuracy at every length."""
  found = result_lib.length_accuracy(act)
  multiples = sorted({multiple for _, multiple in found})
  rows = []
  for arm in act.arms:
    cells = [found.get((arm.name, multiple)) for multiple in multiples]
    if any(cells):
      rows.append(
          [arm_cell(act, arm.name)] + [_accuracy(cell) for cell in cells]
      )
  header = ["arm", *(f"{multiple}x" for multiple in multiples)]
  return html.table(header, rows, "Accuracy: mean (95 % interval).")


def cost(result: result_lib.Result) -> str:
  """Returns time, memory and FLOPs by arm; columns without data are left out."""
  act = result.act
  times = {arm.name: _step_times_s(arm) for arm in act.arms}
  medians = {k: float(np.median(v)) if v else None for k, v in times.items()}
  columns = {
      "step time (ms)": {k: _milliseconds(v) for k, v in times.items()},
      f"ratio to {result.reference}": {
          k: _ratio(v, medians.get(result.reference))
          if len(times) > 1
          else None
          for k, v in medians.items()
      },
      "peak memory (MiB)": _column(act, _peak_memory_mib, "{:,.1f}".format),
      "parameters": _column(act, _info("parameters"), "{:,.0f}".format),
      "FLOPs per token": _column(act, _info("flops_per_token"), text.quantity),
      "attention share of FLOPs": _column(
          act, _info("attention_flops_share"), "{:.0%}".format
      ),
  }
  columns = {k: c for k, c in columns.items() if any(c.values())}
  if not columns:
    return ""
  rows = [
      [arm_cell(act, arm.name)] + [c[arm.name] or "–" for c in columns.values()]
      for arm in act.arms
  ]
  caption = "FLOPs: forward and backward of the model, counted, not measured."
  if any(times.values()):
    devices = dict.fromkeys(str(run.info.get("device")) for run in act.runs)
    order = (
        "; the arms ran one after another on this machine, beside whatever else"
        " ran there, so that a ratio is no benchmark"
        if len(act.arms) > 1
        else ""
    )
    caption = (
        "Step time: median over seeds of the median over logged steps (range of"
        f" the seeds), on {text.listed(list(devices))}{order}. {caption}"
    )
  return html.table(["arm", *columns], rows, caption)


def calibration(result: result_lib.Result) -> str:
  """Returns the baselines and, below them, what the arms reached."""
  act, known = result.act, result.act.baselines
  columns = {}
  for kind in ("accuracy", "loss", "bits_per_byte"):
    found = result_lib.levels(kind, known)
    if found:
      columns[kind] = found
  if not columns:
    return ""
  predictors = dict.fromkeys(name for c in columns.values() for name in c)
  rows = [
      [text.phrase(name), *(text.number(c.get(name)) for c in columns.values())]
      for name in predictors
  ]
  sources = {}
  for kind in columns:
    names = [f"loss/{kind}", f"train/{kind}"]
    sources[kind] = next((n for n in names if n in act.names()), None)
  for arm in act.arms:
    cells = [_reached(arm, sources[kind]) for kind in columns]
    rows.append(
        [arm_cell(act, arm.name), *(text.number(cell) for cell in cells)]
    )
  header = ["predictor", *(text.label(kind) for kind in columns)]
  words = [
      f"{text.phrase(kind)}: {text.phrase(source)}"
      for kind, source in sources.items()
      if source
  ]
  caption = (
      "What must be beaten to have learnt anything. Rows of the arms: mean over"
      f" seeds at the end ({'; '.join(words)})."
      if words
      else ""
  )
  return html.table(header, rows, caption)


def settings(act: runs_lib.Act) -> str:
  """Returns the settings in which the arms differ."""
  if len(act.arms) < 2:
    return ""
  table = runs_lib.differing([arm.runs[0] for arm in act.arms])
  rows = [
      [key, *(shown(value) for value in values)]
      for key, values in list(table.items())[:_MAX_SETTINGS]
  ]
  left = len(table) - len(rows)
  caption = f"{left:,} more are in the run.json files." if left > 0 else ""
  header = ["setting", *(arm_cell(act, arm.name) for arm in act.arms)]
  return html.table(header, rows, caption, "left") if rows else ""


def shown(value: object) -> str:
  """Returns a setting as it is written in run.json."""
  return "–" if value is None else json.dumps(value, default=str).strip('"')


def last_mean(arm: runs_lib.Arm, name: str) -> float | None:
  """Returns the mean over seeds of the last value of a scalar."""
  series = [trace.series(name)[1] for trace in arm.traces.values()]
  lasts = [
      float(values[-1]) for values in series if values.ndim == 1 and len(values)
  ]
  return float(np.mean(lasts)) if lasts else None


def arm_cell(act: runs_lib.Act, arm: str) -> html.Raw:
  """Returns an arm's name behind its colour."""
  return html.chip(arm, drawing.colours(a.name for a in act.arms)[arm])


def _accuracy(cell):
  if cell is None:
    return "–"
  values, span = cell
  mean = text.number(float(np.mean(values)))
  if span is None:
    return mean
  low, high = max(0.0, span.low), min(1.0, span.high)
  return f"{mean} ({text.number(low)} to {text.number(high)})"


def _step_times_s(arm):
  """The median over logged steps of every seed."""
  series = [t.series("perf/step_time_s")[1] for t in arm.traces.values()]
  return [float(np.median(values)) for values in series if len(values)]


def _milliseconds(times_s):
  if not times_s:
    return None
  middle, low, high = (
      f"{1e3 * f(times_s):,.1f}" for f in (np.median, min, max)
  )
  return middle if len(times_s) == 1 else f"{middle} ({low} to {high})"


def _ratio(value, reference):
  return f"{value / reference:.2f}" if value and reference else None


def _column(act, of_arm, shown):
  values = {arm.name: of_arm(arm) for arm in act.arms}
  return {k: None if v is None else shown(v) for k, v in values.items()}


def _info(key):
  return lambda arm: arm.info.get(key)


def _peak_memory_mib(arm):
  peaks = [run.info.get("step_memory_bytes") for run in arm.runs]
  known = [peak for peak in peaks if peak]
  return max(known) / 2**20 if known else None


def _reached(arm, source):
  if source is None:
    return None
  if source.startswith("loss/"):
    return last_mean(arm, source)
  series = [trace.series(source) for trace in arm.traces.values()]
  ends = [
      values[statistics.tail(steps, statistics.END_ROWS)].mean()
      for steps, values in series
      if len(steps)
  ]
  return float(np.mean(ends)) if ends else None
