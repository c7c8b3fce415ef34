# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Signals and stalls: what can happen to a run from outside.

`watched` runs the training in a thread of its own, so that the main thread can
always answer a signal, even while the other one compiles for minutes, and can
end the process when data does not come. A notebook calls `train` without it.
"""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator

STOPPING = (signal.SIGTERM, signal.SIGINT)
POLL_S = 0.2


class Watch:
  """What the training thread and the thread that watches it tell each other.

  Attributes:
    stop: the signal that asks to save and stop; None: go on.
    place: tells where the run stands, for the last words.
  """

  def __init__(self):
    self.stop: signal.Signals | None = None
    self.place: Callable[[], str] = lambda: "before the first step"
    self._deadline_s, self._waits_for = None, ""

  @contextlib.contextmanager
  def waiting(self, what: str, timeout_s: float) -> Iterator[None]:
    """Inside, the process ends once `timeout_s` seconds have passed."""
    self._waits_for = what
    self._deadline_s = time.monotonic() + timeout_s
    try:
      yield
    finally:
      self._deadline_s = None

  def overdue(self) -> str | None:
    """What has been waited for too long, if anything."""
    deadline_s = self._deadline_s
    if deadline_s is None or time.monotonic() < deadline_s:
      return None
    return self._waits_for


def watched(function: Callable[[Watch], None]) -> int:
  """Runs `function(watch)` in a thread and watches over it.

  The first SIGTERM or Ctrl-C sets `watch.stop`; the second ends the process at
  once, and so does a wait that is overdue.

  Returns:
    the exit status: 0 also after SIGTERM, 130 after Ctrl-C.

  Raises:
    whatever `function` raises.
  """
  watch, raised, finished = Watch(), [], threading.Event()

  def run():
    try:
      function(watch)
    except BaseException as error:  # noqa: BLE001, raised again below
      raised.append(error)
    finally:
      finished.set()

  def handle(number, _):
    if watch.stop is not None:
      _exit(128 + number, f"ended at once, {watch.place()}")
    watch.stop = signal.Signals(number)
    _say(
        f"{watch.stop.name}: saving after this step, then stopping; again to"
        " end at once"
    )

  previous = {number: signal.signal(number, handle) for number in STOPPING}
  try:
    threading.Thread(target=run, name="train", daemon=True).start()
    while not finished.wait(POLL_S):
      overdue = watch.overdue()
      if overdue:
        _exit(1, f"{overdue}; {watch.place()}")
  finally:
    for number, handler in previous.items():
      signal.signal(number, handler)
  if raised:
    raise raised[0]
  return 130 if watch.stop == signal.SIGINT else 0


def _say(message: str) -> None:
  print(f"\ndiff-jax: {message}", file=sys.stderr, flush=True)


def _exit(status: int, message: str) -> None:
  """Ends the process without waiting for any thread."""
  _say(message)
  os._exit(status)
