# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The figures of an act; each returns inline SVG, or "" without its data."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib import ticker

from diff_jax.report import drawing, sentences, text
from diff_jax.report import result as result_lib
from diff_jax.report import runs as runs_lib

SHARES = ("answer", "first", "query", "rest")


def headline(result: result_lib.Result) -> str:
  """Draws every seed of every arm, and the differences with intervals."""
  deltas = [d for d in result.differences if d.paired or d.welch]
  arms = [arm for arm in result.windows if result.windows[arm]]
  if len(arms) < 2:
    return ""
  colours = drawing.colours(a.name for a in result.act.arms)
  rows = max(len(arms), len(deltas))
  with drawing.style():
    figure, axes = drawing.panels(2 if deltas else 1, 0.85 + 0.3 * rows)
    for y, arm in enumerate(arms):
      values = list(result.values(arm).values())
      axes[0].plot(
          values, [y] * len(values), "o", color=colours[arm], ms=6, alpha=0.75
      )
      axes[0].plot(np.mean(values), y, "|", color=drawing.INK, ms=15, mew=1.4)
    axes[0].set_yticks(range(len(arms)), arms)
    axes[0].set_ylim(len(arms) - 0.5, -0.5)
    axes[0].set_xlabel(
        f"{text.label(result.act.settings.metric)},\n{sentences.window(result)}"
    )
    drawing.grid(axes[0], "x")
    if deltas:
      _draw_differences(axes[1], deltas, colours)
    return drawing.svg(
        figure, "headline", "Headline value of every seed, and differences"
    )


def curves(
    act: runs_lib.Act,
    metrics: Sequence[str],
    baselines: Mapping[str, float],
    window: tuple[int, int] | None,
) -> str:
  """Draws learning curves: a panel a metric, one thin line a seed."""
  metrics = [metric for metric in metrics if metric in act.names()]
  if not metrics:
    return ""
  colours = drawing.colours(arm.name for arm in act.arms)
  with drawing.style():
    figure, axes = drawing.panels(len(metrics), 3.4)
    for panel, metric in zip(axes, metrics, strict=True):
      if window and metric == act.settings.metric:
        panel.axvspan(*window, color="#eceff2", lw=0)
      for arm in act.arms:
        for trace in arm.traces.values():
          steps, values = drawing.thinned(*trace.series(metric))
          sparse = "o-" if len(steps) < 30 else "-"
          panel.plot(
              steps, values, sparse, ms=3, color=colours[arm.name], alpha=0.9
          )
      if text.unit(metric).startswith("share"):
        panel.set_ylim(0, 1.03)
      named = result_lib.levels(metric, baselines)
      if metric == act.settings.metric and act.settings.threshold is not None:
        goal = sentences.goal(act.settings)
        named[f"threshold {goal}"] = act.settings.threshold
      _draw_levels(panel, named)
      _label(panel, "training step", text.label(metric))
    if len(act.arms) > 1:
      drawing.legend(figure, list(colours.items()))
    return drawing.svg(figure, f"curves {act.experiment}", "Learning curves")


def shares(act: runs_lib.Act) -> str:
  """Draws the share of attention on four kinds of position, by arm."""
  names = [f"attention/share_{kind}" for kind in SHARES]
  present = [name for name in names if name in act.names()]
  if not present:
    return ""
  titles = dict(
      answer="on the answer",
      first="on the first token",
      query="on the query itself",
      rest="on the rest",
  )
  colours = drawing.colours(arm.name for arm in act.arms)
  with drawing.style():
    figure, axes = drawing.panels(len(present), 2.9, sharey=True)
    for panel, name in zip(axes, present, strict=True):
      for arm in act.arms:
        for trace in arm.traces.values():
          steps, values = drawing.thinned(*trace.series(name))
          panel.plot(
              steps, values, "o-", ms=2.6, color=colours[arm.name], alpha=0.9
          )
      panel.set_title(titles[name.removeprefix("attention/share_")])
      _label(panel, "training step", "")
    axes[0].set_ylim(0, None)
    axes[0].set_ylabel("share of |A|")
    axes[0].yaxis.set_major_formatter(ticker.PercentFormatter(1, decimals=0))
    drawing.legend(figure, list(colours.items()))
    return drawing.svg(figure, f"shares {act.experiment}", "Attention shares")


def lengths(act: runs_lib.Act, baselines: Mapping[str, float]) -> str:
  """Draws the last accuracy at multiples of the training length."""
  table = result_lib.length_accuracy(act)
  if not table:
    return ""
  colours = drawing.colours(arm.name for arm in act.arms)
  multiples = sorted({m for _, m in table})
  with drawing.style():
    figure, (panel,) = drawing.panels(1, 2.7, width_in=6.6)
    for i, arm in enumerate(act.arms):
      shift = (i - (len(act.arms) - 1) / 2) * 0.13
      for x, multiple in enumerate(multiples):
        if (arm.name, multiple) not in table:
          continue
        values, span = table[arm.name, multiple]
        at, style = x + shift, {"color": colours[arm.name]}
        if span:
          ends = [max(0.0, span.low), min(1.0, span.high)]
          panel.plot([at, at], ends, lw=4, alpha=0.35, **style)
        panel.plot([at] * len(values), values, "o", ms=3, **style)
    panel.set_xticks(range(len(multiples)), [f"{m}x" for m in multiples])
    panel.set_xlim(-0.5, len(multiples) - 0.5)
    panel.set_ylim(0, 1.03)
    # Only chance is the same at every length.
    known = result_lib.levels("accuracy", baselines)
    _draw_levels(panel, {k: v for k, v in known.items() if k == "chance"})
    _label(panel, "context, in training lengths", "accuracy (share of answers)")
    if len(act.arms) > 1:
      drawing.legend(figure, list(colours.items()))
    return drawing.svg(figure, f"lengths {act.experiment}", "Longer contexts")


def lambdas(act: runs_lib.Act) -> str:
  """Draws lambda over steps, a thin line a seed.

  One layer: one panel, a colour an arm. Several: a panel an arm, a colour a
  layer.
  """
  arms = [arm for arm in act.arms if "mechanism/lambda" in arm.names()]
  arms = [arm for arm in arms if _lambda(arm)]
  if not arms:
    return ""
  layers = max(v.shape[1] for arm in arms for _, v in _lambda(arm))
  by_layer = layers > 1
  colours = drawing.colours(arm.name for arm in act.arms)
  ramp = drawing.layer_colours(layers)
  with drawing.style():
    figure, axes = drawing.panels(
        len(arms) if by_layer else 1,
        2.9,
        drawing.WIDTH_IN if by_layer and len(arms) > 1 else 6.6,
        sharey=True,
    )
    for i, arm in enumerate(arms):
      panel = axes[i if by_layer else 0]
      for steps, values in _lambda(arm):
        for layer in range(values.shape[1]):
          colour = ramp[layer] if by_layer else colours[arm.name]
          panel.plot(
              *drawing.thinned(steps, values[:, layer]), color=colour, alpha=0.9
          )
      if by_layer:
        panel.set_title(arm.name)
      _label(panel, "training step", "")
    if axes[0].get_ylim()[0] < 0:
      for panel in axes:
        panel.axhline(0, color=drawing.MUTED, lw=0.8)
    axes[0].set_ylabel("λ (weight of the second map)")
    shown = sorted(set(np.linspace(0, layers - 1, 8).round().astype(int)))
    entries = [(f"layer {i + 1}", ramp[i]) for i in shown]
    if not by_layer:
      entries = [(arm.name, colours[arm.name]) for arm in arms]
    drawing.legend(figure, entries)
    return drawing.svg(figure, f"lambda {act.experiment}", "Lambda by layer")


def _draw_differences(panel, deltas, colours):
  panel.axvline(0, color=drawing.MUTED, lw=0.8)
  for y, delta in enumerate(deltas):
    colour = colours[delta.arm]
    if delta.welch:
      panel.plot(
          [delta.welch.low, delta.welch.high], [y + 0.22] * 2, ":", lw=1.2,
          color=colour,
      )  # fmt: skip
    if delta.paired:
      panel.plot(
          [delta.paired.low, delta.paired.high], [y, y], lw=2.2, color=colour
      )
    panel.plot(delta.mean, y, "o", ms=6, color=colour, mec="white", mew=0.8)
  names = [text.minus(delta.arm, delta.reference) for delta in deltas]
  panel.set_yticks(range(len(deltas)), names)
  panel.set_ylim(len(deltas) - 0.5, -0.5)
  panel.set_xlabel("difference, 95 % intervals\n(solid: paired, dotted: Welch)")
  drawing.grid(panel, "x")


def _draw_levels(panel, named):
  """Draws named horizontal lines; close ones share a label, top one first."""
  height, groups = np.ptp(panel.get_ylim()), []
  for name, value in sorted(named.items(), key=lambda level: -level[1]):
    panel.axhline(value, color=drawing.MUTED, lw=0.9, ls=(0, (4, 3)), zorder=1)
    if groups and groups[-1][-1][1] - value < 0.07 * height:
      groups[-1].append((name, value))
    else:
      groups.append([(name, value)])
  for group in groups:
    panel.annotate(
        ", ".join(text.phrase(name) for name, _ in group),
        (1, group[0][1]),
        (-2, 2),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        fontsize=7.5,
        color=drawing.MUTED,
    )


def _label(panel, x_label, y_label):
  panel.set_xlabel(x_label)
  panel.set_ylabel(y_label)
  drawing.grid(panel)


def _lambda(arm):
  """Returns the (steps, lambda [steps, layers]) of every seed that has some.

  A value a head, or a token, is averaged to one a layer.
  """
  found = []
  for trace in arm.traces.values():
    steps, values = trace.series("mechanism/lambda")
    if len(steps):
      values = values.reshape(
          len(steps), values.shape[1] if values.ndim > 1 else 1, -1
      )
      found.append((steps, values.mean(-1)))
  return found
