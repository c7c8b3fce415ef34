# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""make gpu: the Hopper kernels on a GPU; correct first, then how fast.

Stops after some minutes: run it again and it goes on with what is left. Each
result is written the moment it is there. A case that crashes or hangs costs
itself only. --rehearse runs all of it at tiny sizes on a CPU, where our kernels
are interpreted and XLA stands for libraries: times of a rehearsal mean nothing.
"""

import argparse
import collections
import concurrent.futures
import os
import pathlib
import shlex
import sys
import time
from collections.abc import Sequence
from typing import Any

import jax
from jax.extend import backend

from diff_jax.bench import Options, gpu_cases, gpu_report
from diff_jax.bench.gpu_cases import PIECES, Case
from diff_jax.bench.gpu_worker import Worker
from diff_jax.bench.table import Disagreement, Table
from diff_jax.config import ConfigError, RunError

MINUTES = 9.0
# Processes that share the GPU where nothing is timed.
WORKERS = {"correctness": 4}
START_LIMIT_S = 120.0
LEAST_S = 20.0  # With less time left no case is begun.


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
      prog="gpu", description=__doc__, allow_abbrev=False
  )
  parser.add_argument(
      "--piece", default=",".join(PIECES), help="default: %(default)s"
  )
  parser.add_argument(
      "--only", default="", metavar="TEXT", help="cases with it in their name"
  )
  parser.add_argument(
      "--out", metavar="DIR", help="default: $OUT, or runs/gpu[-rehearsal]"
  )
  parser.add_argument(
      "--again", action="store_true", help="cases that have a result, too"
  )
  parser.add_argument(
      "--minutes", type=float, default=MINUTES, help="default: %(default)s"
  )
  parser.add_argument(
      "--torch-python", default="", metavar="FILE",
      help="a Python with PyTorch; default: this one",
  )  # fmt: skip
  parser.add_argument("--rehearse", action="store_true", help="on a CPU")
  parser.add_argument(
      "--report", action="store_true", help="only show what there is"
  )
  return parser


class Runner:
  """Runs cases until the time is over."""

  def __init__(self, out: pathlib.Path, arguments: argparse.Namespace):
    self.out, self.rehearse = out, arguments.rehearse
    self.end_s = time.monotonic() + 60 * arguments.minutes
    name, *flags = sys.argv
    self.command = shlex.join([pathlib.Path(name).name, *flags])
    self.records = gpu_cases.load(out, arguments.rehearse)
    self.machine = self._describe()

  def _describe(self) -> dict[str, Any]:
    """The machine.

    Raises:
      RunError: if it is none for the kernels.
    """
    worker = self._start(0, alone=False)
    answer = worker.call(
        "diff_jax.bench.gpu_device:describe", {}, START_LIMIT_S
    )
    worker.close()
    if answer["status"] != "done":
      raise RunError(f"suite=gpu: {answer['error']}; see {self.out}.")
    machine = answer["result"]
    if not self.rehearse and not machine["capability"].startswith("9."):
      raise RunError(
          f"suite=gpu needs an NVIDIA Hopper GPU; jax sees {machine['device']}"
          f" ({machine['platform']}). It wants `pip install 'diff_jax[cuda]'`;"
          " --rehearse runs it on a CPU."
      )
    return machine

  def _start(self, index: int, alone: bool) -> Worker:
    log = self.out / f"worker{index}.log"
    return Worker(log, alone=alone, rehearse=self.rehearse)

  def run(self, cases: Sequence[Case]) -> list[Case]:
    """Runs cases of one piece; returns those that are left."""
    if not cases:
      return []
    queue, left = collections.deque(cases), []
    count = 1 if self.rehearse else WORKERS.get(cases[0].piece, 1)
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
      done = [pool.submit(self._work, i, queue, left) for i in range(count)]
    for future in done:
      future.result()
    return left

  def _work(self, index: int, queue, left: list[Case]) -> None:
    worker = None
    try:
      while queue:
        try:
          case = queue.popleft()
        except IndexError:
          break
        remaining_s = self.end_s - time.monotonic()
        if any(x not in self.records for x in case.needs):
          left.append(case)
        elif remaining_s < LEAST_S:
          left.append(case)
        elif self._is_pointless(case):
          continue
        else:
          if worker and (case.alone or worker.alone or not worker.is_alive):
            worker.close()
            worker = None
          worker = worker or self._start(index, case.alone)
          if not self._run_case(worker, case, remaining_s):
            left.append(case)
    finally:
      if worker:
        worker.close()

  def _is_pointless(self, case: Case) -> bool:
    """Whether a smaller one did not fit, or was not found to."""
    if not case.only_if:
      return False
    before = self.records.get(case.only_if, {"status": "left"})
    return before["status"] != "done" or not before["result"]["fits"]

  def _run_case(self, worker: Worker, case: Case, remaining_s: float) -> bool:
    """Runs a case and writes its record; False if the time was not enough."""
    request = dict(case.request) | {"rehearse": self.rehearse}
    if case.piece != "correctness" and case.needs:
      request["proven"] = gpu_cases.proven(self.records)
    start_s = time.monotonic()
    limit_s = min(case.limit_s, remaining_s)
    answer = worker.call(case.function, request, limit_s)
    if answer["status"] == "timeout" and limit_s < case.limit_s:
      return False
    record = {
        "case": case.name,
        "rehearsal": self.rehearse,
        "wall_s": time.monotonic() - start_s,
        **answer,
        "command": self.command,
        "machine": self.machine,
    }
    gpu_cases.save(self.out, record)
    self.records[case.name] = record
    wrong = gpu_cases.fails(record)
    print(
        f"{case.name}: {wrong or 'done'} ({record['wall_s']:.0f} s)",
        flush=True,
    )
    return True


def _run(arguments: argparse.Namespace) -> tuple[Runner, list[Case]]:
  pieces = arguments.piece.split(",")
  for piece in pieces:
    if piece not in PIECES:
      raise ConfigError(f"{piece=} must be one of {', '.join(PIECES)}.")
  if not arguments.minutes > 0:
    raise ConfigError(f"minutes={arguments.minutes} must be more than 0.")
  out = _folder(arguments)
  out.mkdir(parents=True, exist_ok=True)
  runner = Runner(out, arguments)
  machine = runner.machine
  print(f"{machine['device']}, commit {machine['commit']}, to {out}")
  left = []
  for piece in pieces:
    left += runner.run(
        [
            case
            for case in gpu_cases.all_cases(arguments.torch_python)
            if case.piece == piece
            and arguments.only in case.name
            and (arguments.again or case.name not in runner.records)
        ]
    )
  (out / "report.md").write_text(
      gpu_report.report(runner.records, arguments.rehearse)
  )
  return runner, left


def _folder(arguments) -> pathlib.Path:
  default = "runs/gpu-rehearsal" if arguments.rehearse else "runs/gpu"
  return pathlib.Path(arguments.out or os.environ.get("OUT") or default)


def main(argv: Sequence[str] | None = None) -> int:
  """Exit status 1 if a case failed, or there is no GPU."""
  arguments = _parser().parse_args(argv)
  try:
    if arguments.report:
      records = gpu_cases.load(_folder(arguments), arguments.rehearse)
      print(gpu_report.report(records, arguments.rehearse))
      return 0
    runner, left = _run(arguments)
  except (ConfigError, RunError) as error:
    print(f"gpu: {error}", file=sys.stderr)
    return 2 if isinstance(error, ConfigError) else 1
  print((runner.out / "report.md").read_text())
  if left:
    print(f"{len(left)} cases are left: run the command again.")
  return int(any(map(gpu_cases.fails, runner.records.values())))


def run(options: Options) -> Table:
  """The suite of `diff-jax bench`: all pieces, for as long as they may take.

  Raises:
    RunError: without a GPU.
    Disagreement: if a case failed.
  """
  if jax.default_backend() == "gpu":
    backend.clear_backends()  # Its memory is for the processes.
  flags = ["--rehearse", f"--only={SMOKE}"] if options.smoke else []
  runner, left = _run(_parser().parse_args(flags))
  failed = {x: gpu_cases.fails(y) for x, y in runner.records.items()}
  if failed := {x: y for x, y in failed.items() if y}:
    name, why = next(iter(failed.items()))
    raise Disagreement(f"{len(failed)} cases failed; {name}: {why}")
  summary = gpu_report.summary(runner.records, options.smoke)
  notes = [f"the whole report: {runner.out / 'report.md'}"]
  if left:
    notes.append(f"{len(left)} cases are left: run the suite again")
  return Table(summary.title, summary.rows, notes=notes)


SMOKE = "(64,64) one map forward"  # The cases of a smoke test.


if __name__ == "__main__":
  sys.exit(main())
