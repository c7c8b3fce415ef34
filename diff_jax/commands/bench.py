# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""diff-jax bench: how fast this machine trains, and how much memory it takes.

Prints a table a suite: medians of interleaved runs, after a check that what is
compared computes the same (exit status 1 if not). Close everything else first:
the load average is printed with the numbers.
"""

import argparse
import importlib
import json
import pathlib
import sys
from collections.abc import Sequence

from diff_jax.bench import DEFAULT_SUITES, SUITES, Options, static
from diff_jax.bench.table import Disagreement
from diff_jax.bench.timing import machine
from diff_jax.config import ConfigError


def _parser() -> argparse.ArgumentParser:
  suites = "\n".join(f"  {name:8} {text}" for name, text in SUITES.items())
  parser = argparse.ArgumentParser(
      prog="diff-jax bench",
      description=f"{__doc__}\nsuites:\n{suites}",
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  parser.add_argument(
      "--suite",
      metavar="A,B",
      default=",".join(DEFAULT_SUITES),
      help="default: %(default)s",
  )
  parser.add_argument(
      "--rounds", type=int, default=Options.rounds, help="default: %(default)s"
  )
  parser.add_argument("--json", metavar="FILE", help="the numbers, in full")
  parser.add_argument(
      "--smoke", action="store_true", help="tiny sizes, that prove nothing"
  )
  parser.add_argument(
      "--source",
      metavar="PATH",
      help="corpus of the data suite; default: a generated one",
  )
  parser.add_argument(
      "--peers-python",
      metavar="FILE",
      default=Options.peers_python,
      help="a Python with torch and transformers; default: %(default)s",
  )
  parser.add_argument(
      "--static",
      metavar="TOPOLOGY",
      help="instead: the TPU compiler's schedule of the kernels, e.g."
      " v5p:2x2x1, without a TPU (pip install 'diff_jax[aot]'); takes minutes",
  )
  parser.add_argument(
      "--sizes",
      nargs="+",
      metavar="(h,e)",
      default=[*static.SIZES],
      help="of --static; default: %(default)s",
  )
  return parser


def main(argv: Sequence[str]) -> int:
  """Exit status 1 if the numbers of a suite disagree."""
  arguments = _parser().parse_args(argv)
  if arguments.static:
    for size in arguments.sizes:
      print(f"{static.run(arguments.static, size)}\n", flush=True)
    return 0
  names = arguments.suite.split(",")
  unknown = [name for name in names if name not in SUITES]
  if unknown:
    raise ConfigError(
        f"suite={unknown[0]!r} must be one of {', '.join(SUITES)}."
    )
  if arguments.rounds < 1:
    raise ConfigError(f"rounds={arguments.rounds} must be at least 1.")
  file = pathlib.Path(arguments.json) if arguments.json else None
  if file and not file.parent.is_dir():
    raise ConfigError(
        f"json={arguments.json!r} must be in a folder that exists."
    )
  options = Options(
      rounds=arguments.rounds,
      smoke=arguments.smoke,
      source=arguments.source,
      peers_python=arguments.peers_python,
  )
  where = machine()
  print("\n".join(f"- {name}: {_line(x)}" for name, x in where.items()))
  tables = {}
  for name in names:
    suite = importlib.import_module(f"diff_jax.bench.{name}")
    try:
      tables[name] = suite.run(options)
    except Disagreement as error:
      print(f"diff-jax bench: {name}: {error}", file=sys.stderr)
      return 1
    print(f"\n{tables[name]}", flush=True)
  if file:
    results = {name: table.to_json() for name, table in tables.items()}
    file.write_text(json.dumps({"machine": where, "suites": results}, indent=2))
  return 0


def _line(value) -> str:
  """A value of `machine()` in one line."""
  if isinstance(value, dict):
    return ", ".join(f"{name} {x}" for name, x in value.items())
  return f"{value:.2f}" if isinstance(value, float) else str(value)
