# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a suite found: rows, the targets they meet or miss, and agreement."""

import dataclasses
import operator
from collections.abc import Mapping, Sequence

import jax
import numpy as np

from diff_jax.bench.timing import Quartiles, number

type Row = Mapping[str, str | float | int]


class Disagreement(Exception):
  """Two candidates do not compute the same: their times mean nothing."""


@dataclasses.dataclass(frozen=True)
class Target:
  """A number that the project wants to reach."""

  name: str
  value: Quartiles
  bound: float
  at_most: bool = True  # else: at least

  @property
  def is_met(self) -> bool:
    return (operator.le if self.at_most else operator.ge)(
        self.value.median, self.bound
    )

  def __str__(self):
    sign = "<=" if self.at_most else ">="
    return (
        f"{self.name}: {self.value}, target {sign} {number(self.bound)}:"
        f" {'met' if self.is_met else 'missed'}"
    )


@dataclasses.dataclass(frozen=True)
class Table:
  """One suite's result; the names of columns carry their units."""

  title: str
  rows: Sequence[Row]
  targets: Sequence[Target] = ()
  notes: Sequence[str] = ()

  def __str__(self):
    """A Markdown table, then targets and notes."""
    columns = list(self.rows[0])
    cells = [columns, *([number(r[c]) for c in columns] for r in self.rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    cells.insert(1, ["-" * width for width in widths])
    lines = [
        f"| {' | '.join(map(str.ljust, line, widths))} |" for line in cells
    ]
    rest = [f"- {line}" for line in (*self.targets, *self.notes)]
    return "\n".join([f"## {self.title}", "", *lines, "", *rest])

  def to_json(self) -> dict:
    targets = [
        dataclasses.asdict(x) | {"value": x.value._asdict(), "met": x.is_met}
        for x in self.targets
    ]
    return dataclasses.asdict(self) | {"targets": targets}


def milliseconds(times_s: np.ndarray) -> Row:
  """The columns of a time: median and quartiles."""
  low, median, high = np.quantile(times_s * 1000, (0.25, 0.5, 0.75)).tolist()
  return {"median_ms": median, "quartile_1_ms": low, "quartile_3_ms": high}


def check_agreement(name: str, ours, theirs, tolerance: float) -> float:
  """The largest relative Frobenius error of two trees' arrays.

  Raises:
    Disagreement: naming the comparison, if an error is above `tolerance`.
  """

  def error(x, y):
    x, y = (np.asarray(z, np.float64) for z in (x, y))
    return float(np.linalg.norm(x - y) / np.linalg.norm(y))

  # Of numpy, since Python's max loses a NaN.
  worst = np.max(jax.tree.leaves(jax.tree.map(error, ours, theirs)))
  if not worst <= tolerance:
    raise Disagreement(
        f"{name}: relative error {worst:.1e} must be at most {tolerance:.0e}."
    )
  return worst
