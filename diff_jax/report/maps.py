# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention maps: one query's row, map by map, and the maps' statistics."""

import dataclasses
from collections.abc import Mapping

import numpy as np
from matplotlib import ticker

from diff_jax.report import drawing, figures, html, tables, text
from diff_jax.report import runs as runs_lib

# Statistics that stand beside the shares; the rest is folded away.
_FIRST = (
    "share_negative", "entropy_absolute", "gini_absolute",
    "correlation_of_maps",
)  # fmt: skip
_TICKS = (-1, -0.25, 0, 0.25, 1)  # Evenly spaced on a square-root axis.
_BLOCK_WIDTH_IN = drawing.WIDTH_IN / 2 - 0.1


@dataclasses.dataclass(frozen=True)
class Row:
  """One query's row in one head: `maps` [c, s] and their `weights` [c]."""

  seed: int
  step: int
  maps: np.ndarray
  weights: np.ndarray
  answer: int | None
  query: int | None

  @property
  def lambda_(self) -> float | None:
    """lambda where the row is A1 - lambda A2, of either sign; else None."""
    weights = self.weights.tolist()
    return -weights[1] if len(weights) == 2 and weights[0] == 1 else None

  def bars(self) -> list[tuple[str, np.ndarray]]:
    """Returns (name, row [s]) in the order of the equation."""
    if len(self.maps) == 1:
      return [("A", self.maps[0])]
    named = [(f"A{_index(i)}", m) for i, m in enumerate(self.maps)]
    total = (self.weights[:, None] * self.maps).sum(0)
    if self.lambda_ is not None:
      shown = text.number(self.lambda_, 2)
      named.append((f"λA₂  (λ = {shown})", self.lambda_ * self.maps[1]))
      return [*named, ("A₁ − λA₂", total)]
    weights = ", ".join(text.number(float(w), 2) for w in self.weights)
    return [*named, (f"Σ wA  (w = {weights})", total)]


def rows(act: runs_lib.Act) -> dict[str, Row]:
  """Returns the last logged row of the first seed of every arm that has one."""
  found = {}
  for arm in act.arms:
    for seed, trace in arm.traces.items():
      row = _row(seed, trace)
      if row is not None:
        found[arm.name] = row
        break
  return found


def blocks(act: runs_lib.Act, found: Mapping[str, Row]) -> list[str]:
  """Draws one SVG an arm, all on the same vertical (square-root) scale."""
  values = [bar for row in found.values() for _, bar in row.bars()]
  if not values:
    return []
  low = min(0.0, min(float(bar.min()) for bar in values))
  high = max(float(bar.max()) for bar in values)
  colours = drawing.colours(arm.name for arm in act.arms)
  return [
      _block(act, arm, row, colours[arm], (1.1 * low, 1.4 * high))
      for arm, row in found.items()
  ]


def statistics(act: runs_lib.Act) -> str:
  """Returns tables of the last value of every statistic of the maps, by arm."""
  main, more = [], []
  shares = [f"share_{kind}" for kind in figures.SHARES]
  found = {
      n.removeprefix("attention/") for n in act.names() if "attention/" in n
  }
  for name in [*shares, *sorted(found - set(shares))]:
    cells = [tables.last_mean(arm, f"attention/{name}") for arm in act.arms]
    if name.startswith("row_") or all(cell is None for cell in cells):
      continue
    first = name in shares or name in _FIRST
    rows = main if first else more
    rows.append([_statistic(name), *(text.number(cell) for cell in cells)])
  header = [
      "last evaluation",
      *(tables.arm_cell(act, arm.name) for arm in act.arms),
  ]
  shown = html.table(header, main, "Means over seeds.") if main else ""
  if more:
    shown += html.details(
        "The same of A₁, of A₂ and of signed A", html.table(header, more)
    )
  return shown


def _statistic(name):
  """Returns "entropy_map_0" as "entropy of A₁ (nats)"."""
  words = f"{text.label(name)} "
  for ending, view in (
      ("absolute", "|A| / Σ|A|"), ("signed", "A / ΣA"), ("map 0", "A₁"),
      ("map 1", "A₂"),
  ):  # fmt: skip
    words = words.replace(f" {ending} ", f" of {view} ")
  return words.strip()


def _block(act, arm, row, colour, limits):
  bars = row.bars()
  end = len(row.maps[0]) if row.query is None else row.query + 1
  # A long context has small weights only: its largest one, rounded.
  ticks = _TICKS if limits[1] > 0.25 else (0, float(f"{limits[1] / 1.4:.1g}"))
  with drawing.style():
    figure, panels = drawing.column(
        len(bars), 0.7 + 0.95 * len(bars), _BLOCK_WIDTH_IN
    )
    figure.suptitle(arm, x=0, ha="left", fontsize=9.5, fontweight="bold")
    for panel, (name, bar) in zip(panels, bars, strict=True):
      edges = np.arange(end + 1) - 0.5
      shown = bar[:end]
      panel.stairs(np.maximum(shown, 0), edges, fill=True, color=colour, lw=0)
      panel.stairs(
          np.minimum(shown, 0), edges, fill=True, color=drawing.MUTED, lw=0
      )
      panel.axhline(0, color=drawing.MUTED, lw=0.7)
      panel.spines.bottom.set_visible(False)
      panel.set_yscale("function", functions=(_signed_root, _signed_square))
      panel.set_ylim(limits)
      panel.set_yticks([y for y in ticks if limits[0] <= y <= limits[1]])
      panel.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
      panel.set_xlim(-1, end + 0.5)
      panel.set_title(name, pad=3)
      if row.answer is not None:
        panel.plot(
            row.answer, 0.95, "v", ms=5, color=drawing.INK,
            transform=panel.get_xaxis_transform(),
        )  # fmt: skip
        weight = text.number(float(bar[row.answer]), 2)
        panel.set_title(f"answer {weight}", loc="right", pad=3)
    panels[-1].set_xlabel("position in the context (tokens)")
    figure.supylabel("attention weight", fontsize=8.5)
    return drawing.svg(
        figure, f"row {act.experiment} {arm}", f"One row of attention, {arm}"
    )


def _signed_root(x):
  return np.sign(x) * np.sqrt(np.abs(x))


def _signed_square(x):
  return np.sign(x) * np.square(x)


def _row(seed, trace):
  def last(name):
    found = trace.last(f"attention/row_{name}")
    return None if found is None else found[1]

  maps = []
  while (values := last(f"map_{len(maps)}")) is not None:
    maps.append(np.asarray(values, np.float64))
  if not maps or len({m.shape for m in maps}) > 1:
    return None
  if not np.isfinite(maps).all():  # A run that diverged.
    return None
  weights = last("weights")
  weights = np.ones(len(maps)) if weights is None else np.asarray(weights)
  if weights.shape != (len(maps),):
    return None
  answer, query = last("answer"), last("query")
  return Row(
      seed,
      trace.last("attention/row_map_0")[0],
      np.stack(maps),
      weights,
      None if answer is None or answer < 0 else int(answer),
      None if query is None else int(query),
  )


def _index(i):
  return "".join(chr(ord("₀") + int(digit)) for digit in str(i + 1))
