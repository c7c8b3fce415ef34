# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Where the numbers of a page come from, and where the time went."""

from diff_jax.metrics import Clock
from diff_jax.report import html
from diff_jax.report import runs as runs_lib


def provenance(acts: list[runs_lib.Act]) -> str:
  """Returns the table that says where every number comes from."""
  runs = [run for act_ in acts for run in act_.runs]
  rows, commands, versions = [], {}, {}
  for run in runs:
    finished = len(run.info.get("finished_seeds") or [])
    steps = [
        step
        for names in run.rows.values()
        for r in names.values()
        for step in r
    ]
    commit, plus, changes = str(run.info.get("commit") or "–").partition("+")
    rows.append([
        run.folder,
        run.arm,
        f"{finished} of {len(run.config.get('seeds') or run.rows)}",
        f"{max(steps, default=0):,}",
        run.info.get("device", "–"),
        f"{commit[:12]}{plus}{changes}",
    ])  # fmt: skip
    commands[run.info.get("command")] = None
    known = run.info.get("versions") or {}
    versions[", ".join(f"{k} {v}" for k, v in known.items())] = None
  header = ["folder", "arm", "finished seeds", "last step", "device", "commit"]
  return "\n".join(
      [
          html.table(header, rows, kind="left"),
          _time(runs),
          _listing("Trained by", commands),
          _listing("with", versions),
      ]
  )


def _listing(title, lines):
  shown = "\n".join(str(line) for line in lines if line)
  return f"<p>{title}</p><pre>{html.text(shown)}</pre>" if shown else ""


def _time(runs: list[runs_lib.Run]) -> str:
  """Returns the goodput of each run: what its wall time was spent on."""
  rows = []
  for run in runs:
    seconds = _seconds(run)
    total_s = sum(seconds.values())
    if total_s:
      shares = [f"{seconds[name] / total_s:.1%}" for name in Clock.NAMES]
      rows.append([run.folder, f"{total_s / 60:,.1f} min", *shares])
  if not rows:
    return ""
  words = {"step": "training", "data": "waiting for data", "eval": "evaluating"}
  words |= {"compile": "compiling", "save": "saving", "lost": "lost to crashes"}
  words |= {"restore": "restoring"}
  header = ["folder", "time", *(words.get(x, x) for x in Clock.NAMES)]
  return html.table(header, rows)


def _seconds(run: runs_lib.Run) -> dict[str, float]:
  """Returns the run's clock when it stood highest; it is never set back."""
  clocks = [
      {
          name: by_name.get(f"goodput/{name}_s", {}).get(step, 0.0)
          for name in Clock.NAMES
      }
      for by_name in run.rows.values()
      for step in by_name.get("goodput/share", {})
  ]
  return max(clocks, key=lambda x: sum(x.values()), default={})
