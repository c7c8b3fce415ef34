# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Breaks the trainer in every way we know, and prints what happened.

  python experiments/reliability/run.py [--kills=50] [--out=DIR] [--only=NAME]

Each fault happens to child processes of `diff-jax train`; the exit status is 1
if one of them ends otherwise than it should. About 20 minutes on 2 CPU cores.
"""

import argparse
import functools
import os
import pathlib
import sys
import tempfile
import traceback

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

import kills
import refusals
import stops
import storage
import strangers
from child import Row

FAULTS = (
    stops.sigterm, stops.second_sigterm, stops.stop_in_last_evaluation,
    stops.ctrl_c, storage.damaged_checkpoints, storage.full_disk,
    storage.read_only, storage.vanished, storage.damaged_cache,
    refusals.changed_config, refusals.changed_corpus, refusals.two_runs,
    refusals.non_finite, refusals.spikes, stops.hung_data,
    stops.jumping_clock, strangers.stranger,
)  # fmt: skip


def main() -> int:
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--kills", type=int, default=50)
  parser.add_argument("--out", type=pathlib.Path, help="default: temporary")
  parser.add_argument("--only", help="the faults whose name holds this")
  arguments = parser.parse_args()
  with tempfile.TemporaryDirectory() as temporary:
    out = (arguments.out or pathlib.Path(temporary)).absolute()
    # One cache for all children, so that they start soon.
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(out / ".jax_cache"))
    sigkills = functools.partial(kills.sigkills, kills=arguments.kills)
    faults = {"sigkills": sigkills} | {f.__name__: f for f in FAULTS}
    print("| fault | what was done | what happened | pass |")
    print("|---|---|---|---|")
    passed = True
    for name, fault in faults.items():
      if arguments.only and arguments.only not in name:
        continue
      try:
        rows = fault(out / name)
      except Exception as error:
        traceback.print_exc()
        rows = [Row(name, "", f"{type(error).__name__}: {error}", False)]
      for row in rows:
        passed &= row.passed
        print(_line(row).replace(str(out), "OUT"), flush=True)
  return 0 if passed else 1


def _line(row: Row) -> str:
  cells = row.fault, row.done, row.happened, "yes" if row.passed else "NO"
  return "| " + " | ".join(x.replace("|", "/") for x in cells) + " |"


if __name__ == "__main__":
  sys.exit(main())
