# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The records of the `gpu` suite as Markdown tables, with the goals beside."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from diff_jax.bench import gpu_cases, gpu_models
from diff_jax.bench.gpu_cases import PIECES, Records
from diff_jax.bench.gpu_goals import attention_goals, decode_goals
from diff_jax.bench.gpu_peers import OURS
from diff_jax.bench.table import Row, Table
from diff_jax.bench.timing import number

REHEARSAL = "rehearsal"  # Stands where a number would mean nothing.
HOST_SHARE = 0.8  # From here on the host may be what was timed.
PASSES = ("forward", "train forward", "backward", "both")


def report(records: Records, rehearse: bool) -> str:
  """All that is known, in Markdown."""
  title = "# The Hopper kernels on a GPU"
  lines = [title, "", _where(records, rehearse)]
  tables = [summary(records, rehearse), *_correctness(records)]
  for name, record in records.items():
    if record["status"] != "done":
      continue
    piece, _, what = name.partition("/")
    if piece == "attention" and "missing" not in record["result"]:
      tables.append(_attention(what, record))
    elif piece == "decode":
      tables.append(_decode(what, record))
    elif piece == "train" and "context" not in what:
      tables.append(_train(what, record))
  tables += _contexts(records)
  notes = [
      f"- {name}: {wrong}"
      for name, record in records.items()
      if (wrong := gpu_cases.fails(record) or _missing(record))
  ]
  if notes:
    notes = ["## What failed, or is missing", "", *notes]
  return "\n".join([*lines, "", "\n\n".join(map(str, tables)), "", *notes, ""])


def _missing(record) -> str | None:
  return record.get("result", {}).get("missing")


def _where(records: Records, rehearse: bool) -> str:
  """Device, versions, commit and command, each that occurs."""
  lines = []
  if rehearse:
    lines.append(
        "**A rehearsal on a CPU: it shows that the suite runs, nothing was"
        " measured.**\n"
    )
  seen = {}
  for record in records.values():
    machine = record["machine"]
    versions = ", ".join(f"{k} {v}" for k, v in machine["versions"].items())
    seen[
        f"- {machine['device']}, {machine['memory_gib']:.0f} GiB for jax,"
        f" driver {machine['driver']}; {versions}; commit {machine['commit']},"
        f" sources {machine['sources_sha256']}; `{record['command']}`"
    ] = None
  return "\n".join([*lines, *(seen or ["Nothing has been run yet."])])


def summary(records: Records, rehearse: bool) -> Table:
  """How many cases there are of each piece, and what became of them."""
  del rehearse
  rows = []
  names = [case.name for case in gpu_cases.all_cases()]
  for piece in PIECES:
    here = {k: v for k, v in records.items() if k.startswith(f"{piece}/")}
    failed = sum(bool(gpu_cases.fails(x)) for x in here.values())
    rows.append(
        {
            "piece": piece,
            "cases": sum(x.startswith(f"{piece}/") for x in names),
            "done": len(here) - failed,
            "failed": failed,
        }
    )
  return Table("Cases", rows)


# Correctness.


def _correctness(records: Records) -> list[Table]:
  rows, assembler = [], {}
  for name, record in records.items():
    if not name.startswith("correctness/") or record["status"] != "done":
      continue
    result = record["result"]
    row = {
        "case": name.removeprefix("correctness/"),
        "passed": "yes" if result["passed"] else "NO",
    }
    for what in ("out", "lse", "dq", "dk", "dv", "dw"):
      row[what] = " / ".join(f"{x:.1e}" for x in result["errors"].get(what, ()))
    rows.append(row)
    for kernel in record["ptxas"]:
      says = "; ".join(x.split(":")[0] for x in kernel["messages"]) or "-"
      key = (
          kernel["name"],
          kernel["registers"],
          kernel["spill_stores_bytes"],
          says,
      )
      assembler.setdefault(key, row["case"])
  tables = []
  if rows:
    notes = [
        "relative errors of the kernel / of unfused attention with 16-bit"
        " operands, against fp32; of lse, nats"
    ]
    tables.append(Table("Correctness", rows, notes=notes))
  if assembler:
    columns = ("kernel", "registers", "spilled_bytes", "messages")
    rows = [
        dict(zip(columns, map(_cell, key), strict=True)) | {"first_seen": case}
        for key, case in assembler.items()
    ]
    tables.append(Table("What ptxas says", rows))
  return tables


def _cell(x):
  return "-" if x is None else x


# Times.


def _median_s(result, label: str) -> float | None:
  sample = result["samples"].get(label)
  return float(np.median(sample["times_s"])) if sample else None


def _shown(record, value: float | None) -> str | float:
  """A number that may be shown: none of a rehearsal."""
  if value is None:
    return "-"
  return REHEARSAL if record["rehearsal"] else value


def _tera(result, label: str) -> float | None:
  time_s = _median_s(result, label)
  return time_s and result["flops"][label] / time_s / 1e12


def library_transformer(result: Mapping[str, Any]) -> str | None:
  """The library whose whole Transformer is the fastest."""
  found = {
      label: _median_s(result, label)
      for label in result["samples"]
      if label.startswith("Transformer/")
      and label.endswith("/both")
      and f"/{OURS}/" not in label
  }
  return min(found, key=found.get, default=None)


def _attention(what: str, record) -> Table:
  result = record["result"]
  product = next(x for x in result["samples"] if x.startswith("matmul"))
  peak = _tera(result, product)
  best = library_transformer(result)
  rows: list[Row] = []
  labels = dict.fromkeys(x.rpartition("/")[0] for x in result["samples"])
  for label in filter(None, labels):
    group, _, name = label.partition("/")
    row: dict[str, str | float] = {"computes": group, "by": name}
    for x in PASSES:
      time_s = _median_s(result, f"{label}/{x}")
      row[f"{x} ms"] = _shown(record, time_s and time_s * 1e3)
    for x in PASSES[::2]:
      row[f"{x} TFLOP/s"] = _shown(record, _tera(result, f"{label}/{x}"))
    both = _tera(result, f"{label}/both")
    row["both, % of peak"] = _shown(record, both and 100 * both / peak)
    time_s = _median_s(result, f"{label}/both")
    row["both / Transformer"] = _shown(
        record, time_s and best and time_s / _median_s(result, best)
    )
    rows.append(row)
  notes = [
      f"{product}: {number(_shown(record, peak))} TFLOP/s, the peak here",
      "the Transformer is "
      + (f"that of {best.split('/')[1]}" if best else "-"),
      *(f"left out: {k}: {v}" for k, v in result["left_out"].items()),
      *_host_bound(record),
  ]
  targets = [] if "PyTorch" in what else attention_goals(what, result)
  return _with_goals(f"Attention {what}", rows, targets, notes, record)


def _host_bound(record) -> list[str]:
  if record["rehearsal"]:
    return []
  return [
      f"{label}: the host may be what was timed"
      f" ({sample['host_share']:.0%} of the time went by while queueing)"
      for label, sample in record["result"]["samples"].items()
      if sample["host_share"] > HOST_SHARE
  ]


def _with_goals(title, rows, targets, notes, record) -> Table:
  """Goals with their values; of a rehearsal, their names only."""
  if record["rehearsal"]:
    sign = {True: "<=", False: ">="}
    notes = [
        f"{x.name}, target {sign[x.at_most]} {number(x.bound)}: {REHEARSAL}"
        for x in targets
    ] + notes
    targets = []
  return Table(title, rows, targets, notes)


def _decode(what: str, record) -> Table:
  result = record["result"]
  rows = []
  for name, num_bytes in result["bytes"].items():
    time_s = _median_s(result, name)
    rows.append(
        {
            "candidate": name,
            "ms": _shown(record, time_s * 1e3),
            "TB/s": _shown(record, num_bytes / time_s / 1e12),
            "time / Transformer": _shown(
                record, time_s / _median_s(result, "Transformer")
            ),
        }
    )
  notes = [str(result["shape"]), *_host_bound(record)]
  goals = decode_goals(result)
  return _with_goals(f"Decoding, {what}", rows, goals, notes, record)


def _train(what: str, record) -> Table:
  result = record["result"]
  library = _median_s(result, "Transformer/two_call")
  rows = []
  for name in result["samples"]:
    time_s = _median_s(result, name)
    arm, _, implementation = name.partition("/")
    rows.append(
        {
            "arm": arm,
            "attention": implementation,
            "parameters": result["parameters"][name],
            "ms": _shown(record, time_s * 1e3),
            "tokens/s": _shown(record, result["tokens"] / time_s),
            "time / library's Transformer": _shown(record, time_s / library),
        }
    )
  notes = [
      f"{result['batch_size']} x {result['seq_len']} tokens a step",
      *(f"loss differs: {k}: {v}" for k, v in result["left_out"].items()),
  ]
  return Table(f"Train step of {what}", rows, notes=notes)


def _contexts(records: Records) -> list[Table]:
  rows = []
  for model in gpu_models.MODELS:
    for arm in gpu_models.ARMS:
      prefix = f"train/{model} {arm} context "
      tried = {
          int(name.removeprefix(prefix)): record
          for name, record in records.items()
          if name.startswith(prefix) and record["status"] == "done"
      }
      fit = [t for t, x in tried.items() if x["result"]["fits"]]
      no_fit = [t for t, x in tried.items() if not x["result"]["fits"]]
      if not tried:
        continue
      record = next(iter(tried.values()))
      rows.append(
          {
              "model": model,
              "arm": arm,
              "attention": record["result"]["implementation"],
              "trains at tokens": _shown(record, max(fit, default=0)),
              "not at": _shown(record, min(no_fit, default=None)),
          }
      )
  title = "Longest sequence that trains, batch 1, all layers recomputed"
  return [Table(title, rows)] if rows else []
