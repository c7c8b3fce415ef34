# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""`diff-jax report`: one self-contained page from any run folders.

One run is a portrait; several of one experiment are a comparison by arm and
seed; runs of several experiments are the acts of one page.
"""

import argparse
import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from diff_jax import config as config_lib
from diff_jax.report import page
from diff_jax.report import result as result_lib
from diff_jax.report import runs as runs_lib


def write(
    run_dirs: Sequence[str | Path], out: str | Path | None = None
) -> Path:
  """Writes the page of some run folders and returns its path.

  Args:
    run_dirs: folders that `diff-jax train` has written, or is writing.
    out: the file to write; None: `report.html` in the first folder.

  Raises:
    ConfigError: a folder is no run folder, or `out` is a folder.
  """
  folders = _folders(run_dirs)
  return _write(_results(_read(folders)), folders, out)


def main(argv: Sequence[str] | None = None) -> None:
  """Writes a page, prints its headline tables and where it is."""
  parser = argparse.ArgumentParser(
      prog="diff-jax report", description=__doc__.partition("\n")[0]
  )
  parser.add_argument("run", nargs="+", help="a run folder")
  parser.add_argument(
      "--out", help="file to write; default: report.html in the first folder"
  )
  parser.add_argument(
      "--refresh",
      type=float,
      metavar="SECONDS",
      help="write the page anew, and have the browser read it, until every run"
      " has ended",
  )
  args = parser.parse_args(argv)
  if args.refresh is not None and args.refresh <= 0:
    raise config_lib.ConfigError(
        f"refresh={args.refresh:g} must be more than 0 seconds."
    )
  folders = _folders(args.run)
  runs = _read(folders)
  while args.refresh and not all(run.finished for run in runs):
    path = _write(_results(runs), folders, args.out, args.refresh)
    print(f"{path}: refreshed, until the runs end", file=sys.stderr)
    time.sleep(args.refresh)
    runs = _read(folders)
  results = _results(runs)
  print(page.terminal(results, _write(results, folders, args.out)))


def _folders(run_dirs):
  folders = dict.fromkeys(Path(folder) for folder in run_dirs)
  # DIR/* also matches the page that a sweep leaves beside its runs.
  folders = [path for path in folders if path.suffix != ".html"]
  if not folders:
    raise config_lib.ConfigError(
        f"run_dirs={list(map(str, run_dirs))} must name a run folder."
    )
  return folders


def _read(folders):
  return [runs_lib.read(folder) for folder in folders]


def _results(runs):
  return [result_lib.compute(act) for act in runs_lib.acts(runs)]


def _write(results, folders, out, refresh_s=None):
  path = folders[0] / "report.html" if out is None else Path(out)
  words = ["diff-jax", "report", *map(str, folders)]
  words += [] if out is None else [f"--out={out}"]
  if path.is_dir():
    raise config_lib.ConfigError(
        f"out={str(path)!r} must be a file, not a folder."
    )
  path.parent.mkdir(parents=True, exist_ok=True)
  text = page.compose(results, shlex.join(words), refresh_s)
  temporary = path.with_name(f".{path.name}.tmp")
  temporary.write_text(text, encoding="utf-8")
  temporary.replace(path)  # A browser never sees half a page.
  return path
