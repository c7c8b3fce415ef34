# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Composes the page of any run folders, and the same result for a terminal."""

import datetime
import importlib.metadata
import textwrap
from collections.abc import Sequence
from pathlib import Path

from diff_jax.report import (
    commands,
    html,
    origin,
    sections,
    sentences,
    tables,
    text,
)
from diff_jax.report import result as result_lib


def compose(
    results: Sequence[result_lib.Result],
    command: str,
    refresh_s: float | None = None,
) -> str:
  """Returns the self-contained HTML of one or more acts.

  Args:
    results: of the acts.
    command: that writes the page.
    refresh_s: seconds after which a browser reads it again; None: never.
  """
  runs = [run for result in results for run in result.act.runs]
  seeds = sum(len(run.rows) for run in runs)
  names = [text.title(result.act.experiment) for result in results]
  today = datetime.datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
  header = (
      f"<header><h1>diff_jax report</h1>"
      f"<p>{html.text(text.listed(names))}: {text.counted(seeds, 'training run')}"
      f" in {text.counted(len(runs), 'folder')}, written {today}.</p></header>"
  )
  links = "".join(
      f'<a href="#{sections.anchor(result.act)}">{html.text(name)}</a>'
      for name, result in zip(names, results, strict=True)
  )
  if len(results) > 1:
    header += f"<nav>{links}</nav>"
  body = [header, *(sections.act(result) for result in results)]
  body.append("<h2>Three commands to go on with</h2>")
  body += [
      html.command(words, why) for words, why in commands.following(results)
  ]
  versions = ", ".join(
      f"{name} {importlib.metadata.version(name)}"
      for name in ("numpy", "scipy", "matplotlib")
  )
  body.append(
      "<footer><h2>Where the numbers come from</h2>"
      f"{origin.provenance([result.act for result in results])}"
      f"<p>This page was computed from run.json and metrics.jsonl of those"
      f" folders by</p><pre>{html.text(command)}</pre>"
      f'<p class="muted">{html.text(versions)}</p></footer>'
  )
  return html.page(
      f"{text.listed(names)}: diff_jax report", "\n".join(body), refresh_s
  )


def terminal(results: Sequence[result_lib.Result], path: Path) -> str:
  """Returns the headline tables as plain text, and where the page is."""
  blocks = []
  for result in results:
    lines = [text.title(result.act.experiment)]
    for words in (
        sentences.lead(result),
        sentences.speed(result),
        result.act.settings.note,
        *sentences.caveats(result),
    ):
      lines += textwrap.wrap(words, 80)
    lines += ["", *_aligned(_arm_rows(result))]
    if any(delta.paired for delta in result.differences):
      lines += ["", *_aligned(_difference_rows(result))]
    blocks.append("\n".join(lines))
  return "\n\n".join([*blocks, str(path)])


def _arm_rows(result):
  settings, digits = result.act.settings, result.places
  header = ["arm", "seeds", text.phrase(settings.metric), "sd", "at the end"]
  if result.thresholds:
    header.append(f"steps to {sentences.goal(settings)}")
  rows = [header]
  for arm in result.act.arms:
    values = list(result.values(arm.name).values())
    if not values:
      continue
    ends = list(result.ends[arm.name].values())
    row = [
        arm.name,
        str(len(values)),
        text.number(result.mean(arm.name), digits),
        text.number(tables.spread(values), digits),
        text.number(sum(ends) / len(ends), digits),
    ]
    if result.thresholds:
      row.append(sentences.steps_to_threshold(result, arm.name))
    rows.append(row)
  return rows


def _difference_rows(result):
  digits = result.places
  rows = [["difference", "mean", "95 % paired t", "95 % Welch", "pairs"]]
  for delta in result.differences:
    rows.append(
        [
            text.minus(delta.arm, delta.reference),
            text.signed(delta.mean, digits),
            text.interval(delta.paired, digits),
            text.interval(delta.welch, digits),
            str(len(delta.seeds)),
        ]
    )
  return rows


def _aligned(rows):
  widths = [
      max(len(cell) for cell in column) for column in zip(*rows, strict=True)
  ]
  return [
      "  ".join(
          cell.ljust(width) if i == 0 else cell.rjust(width)
          for i, (cell, width) in enumerate(zip(row, widths, strict=True))
      ).rstrip()
      for row in rows
  ]
