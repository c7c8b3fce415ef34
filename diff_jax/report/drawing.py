# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Colours, axes and inline SVG: what every figure of the report shares."""

import html
import io
import re
from collections.abc import Iterable, Sequence

import matplotlib
import numpy as np
from matplotlib import axes as axes_lib
from matplotlib import colors, lines
from matplotlib import figure as figure_lib

from diff_jax.report import runs as runs_lib

INK, MUTED, FAINT = "#1f2328", "#6a737d", "#d9dde1"
WIDTH_IN = 10.0  # 72 points an inch: 960 CSS pixels
MAX_POINTS = 400

# Okabe and Ito's colour-blind safe palette: cold hues for one map, warm hues
# for two maps; the stronger of each pair has the per-head norm.
_ARM_COLOURS = {
    runs_lib.SOFTMAX: "#56B4E9",
    runs_lib.SOFTMAX_NORM: "#0061A8",
    runs_lib.DIFF_NO_NORM: "#E6A100",
    runs_lib.DIFF: "#C8420A",
}
_OTHER_COLOURS = ("#00876C", "#B0539A", "#4A4A4A", "#7A6A00", "#6A51A3")

_STYLE = {
    "svg.fonttype": "none",  # Real text: small, crisp, searchable.
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "axes.labelsize": 8.5,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.7,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "text.color": INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "lines.linewidth": 1.0,
    "lines.solid_joinstyle": "round",
    "path.simplify_threshold": 0.2,
    "axes.unicode_minus": True,
}


def colours(arms: Iterable[str]) -> dict[str, str]:
  """Returns one fixed colour an arm; unknown arms in order of appearance."""
  arms = list(arms)
  others = [arm for arm in arms if arm not in _ARM_COLOURS]
  chosen = {
      arm: _OTHER_COLOURS[i % len(_OTHER_COLOURS)]
      for i, arm in enumerate(others)
  }
  return {arm: _ARM_COLOURS.get(arm) or chosen[arm] for arm in arms}


def layer_colours(count: int) -> list[str]:
  """Returns one colour a layer, from light (first) to dark (last)."""
  if count == 1:
    return [INK]
  ramp = matplotlib.colormaps["viridis_r"](np.linspace(0.12, 0.95, count))
  return [colors.to_hex(colour) for colour in ramp]


def style():
  """Returns the context in which a figure has to be made and saved."""
  return matplotlib.rc_context(_STYLE)


def panels(
    count: int,
    height_in: float,
    width_in: float = WIDTH_IN,
    **keywords,
) -> tuple[figure_lib.Figure, list[axes_lib.Axes]]:
  """Returns a figure and its row of panels (keywords: those of subplots)."""
  figure = figure_lib.Figure((width_in, height_in), layout="constrained")
  row = figure.subplots(1, count, squeeze=False, **keywords)
  return figure, list(row.flat)


def column(
    count: int, height_in: float, width_in: float
) -> tuple[figure_lib.Figure, list[axes_lib.Axes]]:
  """Returns a figure and its column of panels on one horizontal axis."""
  figure = figure_lib.Figure((width_in, height_in), layout="constrained")
  rows = figure.subplots(count, 1, squeeze=False, sharex=True)
  return figure, list(rows.flat)


def grid(axes: axes_lib.Axes, axis: str = "y") -> None:
  axes.grid(axis=axis, color=FAINT, linewidth=0.6)


def legend(
    figure: figure_lib.Figure, entries: Sequence[tuple[str, str]]
) -> None:
  """Draws one row of (name, colour) above the panels."""
  characters = sum(len(name) + 5 for name, _ in entries)
  handles = [
      lines.Line2D([], [], color=colour, linewidth=2.5, label=name)
      for name, colour in entries
  ]
  figure.legend(
      handles=handles,
      loc="outside upper left",
      ncols=len(entries) if characters < 130 else 5,
      handlelength=1.2,
      columnspacing=1.6,
      borderaxespad=0.1,
  )


def thinned(
    steps: np.ndarray, values: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Averages a long curve in equal blocks, down to at most 400 points."""
  block = -(-len(steps) // MAX_POINTS)
  if block <= 1:
    return steps, values
  kept = len(steps) // block * block
  return (
      steps[:kept].reshape(-1, block).mean(1),
      values[:kept].reshape(-1, block).mean(1),
  )


def svg(figure: figure_lib.Figure, salt: str, description: str) -> str:
  """Returns a figure as an inline SVG element; `salt` keeps ids apart."""
  buffer = io.StringIO()
  no_metadata = dict.fromkeys(("Creator", "Date", "Format", "Type"))
  with matplotlib.rc_context({"svg.hashsalt": salt}):
    figure.savefig(buffer, format="svg", metadata=no_metadata)
  text = buffer.getvalue()
  text = text[text.index("<svg") :]
  text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
  text = re.sub(r'<g id="[^"]*"', "<g", text)  # "axes_1" in every figure.
  text = re.sub(r' (?:width|height)="[^"]*pt"', "", text, count=2)
  text = re.sub(r"\n\s*", "\n", text)
  attributes = (
      f'role="img" aria-label="{html.escape(description)}"'
      f' style="max-width: {96 * figure.get_figwidth():.0f}px"'
  )
  return text.replace("<svg", f"<svg {attributes}", 1)
