# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The console script: `diff-jax COMMAND ...`; a command is a module's `main`."""

import importlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import NoReturn

from diff_jax.config import ConfigError, RunError

EXIT_TIMEOUT_S = 30
COMMANDS = {
    "train": ("diff_jax.commands.train", "train a config, or continue a run"),
    "evaluate": ("diff_jax.commands.evaluate", "run a run's evaluators"),
    "sweep": ("diff_jax.commands.sweep", "train every arm of a config"),
    "prepare": ("diff_jax.commands.prepare", "tokenise a corpus of any size"),
    "bench": (
        "diff_jax.commands.bench",
        "time the op, the step, the loss, the data",
    ),
    "report": ("diff_jax.report", "one page from any run folders"),
}


def usage() -> str:
  lines = [f"  {name:10} {text}" for name, (_, text) in COMMANDS.items()]
  return "\n".join(["usage: diff-jax COMMAND [--help] ...", "", *lines])


def main(argv: Sequence[str] | None = None) -> int:
  """Runs a command; a user's mistake is one line and status 2, a fault 1."""
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
  except RunError as error:
    print(f"\ndiff-jax {name}: {error}", file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print(f"\ndiff-jax {name}: interrupted", file=sys.stderr)
    return 130


def run() -> NoReturn:
  """The entry point of the process, which ends even if a thread hangs."""
  status = main()
  # Python waits at exit for threads that read data ahead, maybe for ever.
  timer = threading.Timer(EXIT_TIMEOUT_S, os._exit, [status])
  timer.daemon = True
  timer.start()
  sys.exit(status)


if __name__ == "__main__":
  run()
