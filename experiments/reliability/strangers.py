# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A run folder or a checkpoint from someone else: nothing in it is executed."""

import json
import pathlib
import shutil

from child import Row, finish, last_line


def stranger(out: pathlib.Path) -> list[Row]:
  marker, evil = out / "executed", out / "evil.py"
  finish(out / "stranger", "--config.stop_after_steps=20")
  evil.write_text(f"open({str(marker)!r}, 'w')\n")
  rows = []
  for name, change in _changes(evil, marker).items():
    workdir = out / f"stranger_{len(rows)}"
    shutil.copytree(out / "stranger", workdir)
    change(workdir)
    found = []
    for command in ("evaluate", "train"):
      status, words = finish(workdir, command=command)
      found.append((status, words, command))
    clean = all("Traceback" not in words for _, words, _ in found)
    happened = "; ".join(
        f"{command}: exit {status}"
        + (f", {_shorter(last_line(words))}" if status else "")
        for status, words, command in found
    )
    if marker.exists():
      happened = f"CODE WAS EXECUTED; {happened}"
      marker.unlink()
      clean = False
    rows.append(Row("a stranger's run folder", name, happened, clean))
  return rows


def _changes(evil: pathlib.Path, marker: pathlib.Path):
  code = f"__import__('pathlib').Path({str(marker)!r}).touch()"
  payload = f"!!python/object/apply:eval [{code!r}]"

  def describe(**values):
    def change(workdir):
      path = workdir / "run.json"
      found = json.loads(path.read_text())
      for name, value in values.items():
        *parents, last = name.split("__")
        place = found
        for parent in parents:
          place = place[parent]
        place[last] = value
      path.write_text(json.dumps(found))

    return change

  def checkpoint(workdir):
    for path in (workdir / "checkpoints").rglob("metadata"):
      path.write_text(json.dumps({"py/reduce": [code], "config": payload}))
    for path in (workdir / "checkpoints").rglob("_CHECKPOINT_METADATA"):
      path.write_text(
          json.dumps({"item_handlers": {"state": f"{evil.stem}.Handler"}})
      )

  def metrics(workdir):
    path = workdir / "metrics.jsonl"
    path.write_text(f"{code}\n{payload}\n[]\n5\n" + path.read_text())

  return {
      "mechanism in a .py file": describe(
          config__model__attention=f"{evil}:Mechanism"
      ),
      "mechanism that is a list": describe(config__model__attention=[code]),
      "config that is code": describe(config=code),
      "settings of other types": describe(config__model=5, sessions=payload),
      "checkpoints with code in their JSON": checkpoint,
      "metrics.jsonl that is code": metrics,
  }


def _shorter(text: str) -> str:
  return text if len(text) < 300 else text[:150] + " ... " + text[-140:]
