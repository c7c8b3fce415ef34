# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The console script: `diff-jax COMMAND ...`; a command is a module's `main`."""

import importlib
import sys
from collections.abc import Sequence

from diff_jax.config import ConfigError

COMMANDS = {
    "train": ("diff_jax.commands.train", "train a config, or continue a run"),
    "evaluate": ("diff_jax.commands.evaluate", "run a run's evaluators"),
    "sweep": ("diff_jax.commands.sweep", "train every arm of a config"),
    "report": ("diff_jax.report", "one page from any run folders"),
}


def usage() -> str:
  lines = [f"  {name:10} {text}" for name, (_, text) in COMMANDS.items()]
  return "\n".join(["usage: diff-jax COMMAND [--help] ...", "", *lines])


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command; a user's mistake is one line and exit status 2."""
  argv = list(sys.argv[1:] if argv is None else argv)
  if not argv or argv[0] in ("-h", "--help", "help"):
    print(usage())
    return 0 if argv else 2
  name, *rest = argv
  if name not in COMMANDS:
    print(
        f"diff-jax: there is no command {name!r}\n\n{usage()}", file=sys.stderr
    )
    return 2
  try:
    return importlib.import_module(COMMANDS[name][0]).main(rest) or 0
  except ConfigError as error:
    print(f"diff-jax {name}: {error}", file=sys.stderr)
    return 2
  except KeyboardInterrupt:
    print(f"\ndiff-jax {name}: interrupted", file=sys.stderr)
    return 130


if __name__ == "__main__":
  sys.exit(main())
