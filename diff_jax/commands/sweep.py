# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""diff-jax sweep: train every arm that a config file's sweep() adds.

A config file says `def sweep(add, arg)` and calls `add(name, {"x.y": value, ...})`
once an arm, with `arg=` if the arm needs another argument of get_config: a
folder of that name below the workdir. Finished arms are skipped, an interrupted
one continues; the report is renewed after each.
"""

import argparse
import functools
import pathlib
import sys
from collections.abc import Sequence

from diff_jax import report, train
from diff_jax.commands.train import add_accept_flags
from diff_jax.compile_cache import use_compile_cache
from diff_jax.config import ConfigError, parse
from diff_jax.flags import load_config_file, override
from diff_jax.resume import check_same_run
from diff_jax.watch import Watch, watched


def main(argv: Sequence[str]) -> int:
  parser = argparse.ArgumentParser(
      prog="diff-jax sweep",
      description=__doc__,
      epilog="Any setting, for all arms: --config.x.y=value",
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  parser.add_argument("config", metavar="FILE.py[:ARG]")
  parser.add_argument("--workdir", metavar="DIR", help="default: runs/FILE")
  parser.add_argument(
      "--report", metavar="FILE", help="default: in the workdir"
  )
  add_accept_flags(parser)
  arguments, overrides = parser.parse_known_args(argv)
  module, argument = load_config_file(arguments.config)
  workdir = pathlib.Path(
      arguments.workdir or pathlib.Path("runs") / module.__name__
  )
  page = arguments.report or workdir / "report.html"
  arms = arms_of(module, argument, overrides)
  # Beside the sweep, as for a single run: both find what the other compiled.
  use_compile_cache(workdir)
  return watched(
      functools.partial(sweep, arms, workdir, page, arguments),
  )


def sweep(arms, workdir: pathlib.Path, page, arguments, watch: Watch) -> None:
  """Trains the arms that are not finished, and renews the report."""
  finished = []
  for index, (name, config) in enumerate(arms.items()):
    folder = workdir / name
    label = f"[{index + 1}/{len(arms)}] {name}"
    # A finished arm of other settings is not this arm.
    check_same_run(config, folder, arguments.accept_config_change)
    if train.is_finished(parse(config), folder):
      print(f"{label}: finished before", file=sys.stderr)
    else:
      print(label, file=sys.stderr)
      train.train(
          config,
          folder,
          watch=watch,
          accept_config_change=arguments.accept_config_change,
          accept_data_change=arguments.accept_data_change,
      )
      if watch.stop:
        return
      report.write([*finished, folder], page)
    finished.append(folder)
  report.main([*map(str, finished), f"--out={page}"])


def arms_of(module, argument: str, overrides: Sequence[str]):
  """Config by arm: the file's config, the arm's values, then the user's.

  Raises:
    ConfigError: if the file has no sweep, or two arms one name.
  """
  if not hasattr(module, "sweep"):
    raise ConfigError(
        f"config={module.__file__!r} must define sweep(add, arg) to be swept; use"
        " diff-jax train."
    )
  arms = {}

  def add(name, values, arg=argument):
    if name in arms:
      raise ConfigError(f"sweep() of {module.__file__} adds {name!r} twice.")
    config = module.get_config(arg)
    config.update_from_flattened_dict(values)
    arms[name] = override(config, overrides)

  module.sweep(add, argument)
  return arms
