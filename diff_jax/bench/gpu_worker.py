# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A process that runs cases on the GPU, one after another.

A kernel that hangs or crashes costs its own case only: the process is killed
and the next case gets a fresh one. The protocol is one line of JSON each way;
what libraries print goes to a log, in which the assembler's messages of every
Mosaic GPU kernel are found (MOSAIC_GPU_DUMP_PTXAS).
"""

import contextlib
import ctypes
import importlib
import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import time
import traceback
from typing import Any

KILL_S = 30  # Until the driver has taken a killed process off the GPU.
SHARED = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
# A process that has the GPU for itself: memory in one piece.
ALONE = {"XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95"}
REHEARSAL = {
    "JAX_PLATFORMS": "cpu",
    # Interpreted kernels wait for each other's threads: enough of them, and
    # one computation at a time.
    "JAX_NUM_CPU_DEVICES": "8",
    "JAX_CPU_ENABLE_ASYNC_DISPATCH": "false",
}


class Worker:
  """The parent's side."""

  def __init__(self, log: pathlib.Path, *, alone: bool, rehearse: bool):
    """log: takes what the process writes; it is emptied first."""
    environment = {"MOSAIC_GPU_DUMP_PTXAS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    environment |= ALONE if alone else SHARED
    if rehearse:
      environment |= REHEARSAL
    self.alone = alone
    with log.open("w") as file:
      self.process = subprocess.Popen(
          [sys.executable, "-m", "diff_jax.bench.gpu_worker", str(log)],
          stdin=subprocess.PIPE,
          stdout=subprocess.PIPE,
          stderr=file,
          env=os.environ | environment,
          start_new_session=True,
      )

  def call(
      self, function: str, request: dict[str, Any], limit_s: float
  ) -> dict[str, Any]:
    """Calls `MODULE:FUNCTION` with `request`'s items as keywords.

    Returns:
      status `done` with `result` and `ptxas`, see `messages`; or `error`,
      `crash` or `timeout` with `error`, and the process is gone.
    """
    line = json.dumps({"function": function, "request": request}) + "\n"
    with contextlib.suppress(BrokenPipeError):
      self.process.stdin.write(line.encode())
      self.process.stdin.flush()
    answer = self._read_line(limit_s)
    if answer is None:
      self.close()
      return {"status": "timeout", "error": f"no result in {limit_s:.0f} s"}
    if not answer:
      self.close()
      error = f"the process ended with status {self.process.returncode}"
      return {"status": "crash", "error": error}
    answer = json.loads(answer)
    if answer["status"] != "done":
      self.close()  # An error may leave the device unusable.
    return answer

  def _read_line(self, limit_s: float) -> bytes | None:
    """A line; empty at the end of the stream; None when the time is over."""
    end_s = time.monotonic() + limit_s
    stream, line = self.process.stdout.fileno(), b""
    while not line.endswith(b"\n"):
      remaining_s = max(0.0, end_s - time.monotonic())
      if not select.select([stream], [], [], remaining_s)[0]:
        return None
      piece = os.read(stream, 1 << 16)
      if not piece:
        return b""
      line += piece
    return line

  @property
  def is_alive(self) -> bool:
    return self.process.poll() is None

  def close(self) -> None:
    """Kills the process and all that it started."""
    with contextlib.suppress(ProcessLookupError):
      os.killpg(self.process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
      self.process.wait(KILL_S)
    with contextlib.suppress(BrokenPipeError):
      self.process.stdin.close()
    self.process.stdout.close()


def messages(text: str) -> list[dict[str, Any]]:
  """What ptxas says of each kernel in a log.

  Returns:
    name, registers at launch, spill_stores_bytes, and messages, those with a
    number: "C7504: why".
  """
  found = []
  for block in re.split(r"\n\s*\n", text):
    name = re.search(r"Compiling entry function '(\w+)'", block)
    if not name:
      continue
    number = {
        key: int(value[1]) if value else None
        for key, value in {
            "registers": re.search(r"Used (\d+) registers", block),
            "spill_stores_bytes": re.search(r"(\d+) bytes spill sto", block),
        }.items()
    }
    codes = re.findall(r"\((C\d+)\) *([^\n]*)", block)
    found.append(
        {"name": name[1].removesuffix("_mosaic_gpu_kernel")}
        | number
        | {"messages": [f"{code}: {why}" for code, why in codes]}
    )
  return found


# The child's side.


def _answer(line: str) -> dict[str, Any]:
  request = json.loads(line)
  module, _, name = request["function"].partition(":")
  try:
    function = getattr(importlib.import_module(module), name)
    return {"status": "done", "result": function(**request["request"])}
  except Exception as error:
    traceback.print_exc()
    lines = str(error).strip().splitlines() or [""]
    return {"status": "error", "error": f"{type(error).__name__}: {lines[0]}"}


def main() -> None:
  log = pathlib.Path(sys.argv[1])
  answers = os.fdopen(os.dup(1), "w")
  os.dup2(2, 1)  # Kernels' dumps and prints of libraries go to the log.
  for line in sys.stdin:
    start = log.stat().st_size
    answer = _answer(line)
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)  # The dumps are C++'s.
    written = log.read_bytes()[start:].decode(errors="replace")
    answer["ptxas"] = messages(written)
    print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
  main()
