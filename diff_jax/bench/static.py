# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The static schedule of the attention kernels by the TPU compiler, no TPU.

Cost of an interior tile, one that no mask touches, by `bundles.py`, for one
pair of maps and 512 x 512 pairs of tokens: the Transformer has two heads (h, h)
where DIFF has one head of two maps (h, e = 2h). Each row at its own best tile,
forward and backward apart. This is never a measurement.
"""

import operator
import pathlib
import sys
import tempfile
from typing import Any

from diff_jax.bench import aot, static_child
from diff_jax.bench.table import Table
from diff_jax.bench.timing import number
from diff_jax.config import ConfigError, RunError

PASSES = ("forward", "backward")
SIZES = {"(64,128)": 64, "(96,192)": 96, "(128,256)": 128}  # h
# (row, baseline, passes, {size: {chip: at most}})
BOTH = {"v5p": 0.9, "v6e": 0.9}
TARGETS = (
    ("fused diff", "splash softmax", PASSES,
     {"(64,128)": BOTH, "(128,256)": {"v5p": 1.15, "v6e": 0.9}}),
    ("fused diff", "fused softmax", ("forward",),
     {"(128,256)": {"v5p": 1.5, "v6e": 1.05}}),
    ("fused diff", "fused softmax", ("backward",),
     {"(64,128)": {"v5p": 0.85, "v6e": 0.85},
      "(128,256)": {"v5p": 1.03, "v6e": 0.87}}),
    ("splash two calls", "splash softmax", PASSES, {}),
)  # fmt: skip


def run(topology: str, size: str) -> Table:
  """One table a topology, e.g. `v5p:2x2x1`, and size, one of `SIZES`.

  Raises:
    ConfigError: for an unknown chip or size.
    RunError: where libtpu is missing.
  """
  chip = check_topology(topology, name="static")
  if size not in SIZES:
    raise ConfigError(f"{size=} must be one of {', '.join(SIZES)}.")
  rows, notes, results = [], [], {}
  for name in static_child.rows():
    print(f"{topology} {size} {name} ...", file=sys.stderr, flush=True)
    try:
      results[name] = _measure(topology, name, SIZES[size])
    except aot.ChildError as error:
      notes.append(f"{name}: {error}")
      continue
    notes += [f"{name}: {x}" for x in results[name]["failed"]]
    rows.append({"row": name} | _columns(results[name]))
  if not rows:
    raise RunError("; ".join(notes))
  notes += _ratios(chip, size, results)
  versions = ", ".join(f"{name} {x}" for name, x in aot.versions().items())
  title = (
      f"{size}: static schedule by the TPU compiler for {topology} ({versions}),"
      " cycles an interior tile, per 512 x 512 token pairs and pair of maps"
  )
  return Table(title, rows, notes=notes)


def check_topology(topology: str, *, name: str = "topology") -> str:
  """The chip of a topology for which kernels can be compiled here.

  Raises:
    ConfigError: for an unknown chip; it names the argument `name`.
    RunError: where libtpu is missing.
  """
  chip = topology.partition(":")[0]
  if chip not in static_child.CHIPS:
    raise ConfigError(
        f"{name}={topology!r} must be a topology of {[*static_child.CHIPS]},"
        f" such as {', '.join(aot.TOPOLOGIES.values())}."
    )
  if reason := aot.why_not():
    raise RunError(f"{reason}.")
  return chip


def tile_name(tile) -> str:
  """Of queries, keys, and keys in one product."""
  return "{}x{},{}".format(*tile)


def _measure(topology: str, name: str, h: int) -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as folder:
    return aot.call(
        "diff_jax.bench.static_child:measure",
        dict(topology=topology, name=name, h=h, folder=folder),
        dump=pathlib.Path(folder),
    )


def _columns(result: dict[str, Any]) -> dict[str, str | float]:
  """The cells of a row; a tile is queries x keys, keys in one product."""
  cells = {}
  for name in PASSES:
    x = result[name]
    cells |= {
        f"{name}_tile": tile_name(x["tile"]),
        name: x["cycles"],
        f"{name}_masked": x["masked"],
        f"{name}_floor": x["floor"],
    }
  return cells | {
      "layer_forward_mb": result["forward_mb"],
      "layer_both_mb": result["both_mb"],
      "layer_temp_mb": result["temp_mb"],
  }


def _ratios(chip: str, size: str, results: dict[str, Any]) -> list[str]:
  """Sentences of what `TARGETS` compares, where both rows exist."""
  found = []
  for row, baseline, passes, bounds in TARGETS:
    if not {row, baseline} <= results.keys():
      continue
    cycles = (
        sum(results[name][x]["cycles"] for x in passes)
        for name in (row, baseline)
    )
    value = operator.truediv(*cycles)
    text = f"{row} / {baseline}, {'+'.join(passes)}: {number(value)}"
    bound = bounds.get(size, {}).get(chip)
    if bound is not None:
      met = "met" if value <= bound else "missed"
      text += f", target <= {number(bound)}: {met}"
    found.append(text)
  return found
