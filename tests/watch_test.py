# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Signals and stalls: saved and stopped, at once, or told what is missing."""

import os
import pathlib
import signal
import subprocess
import sys
import threading

import pytest

from diff_jax import watch

ROOT = pathlib.Path(__file__).parents[1]
FOREVER_S = 600  # longer than any test may take


def wait_for(condition):
  event = threading.Event()
  while not condition():
    event.wait(0.005)


@pytest.mark.parametrize(
    "number, status", [(signal.SIGTERM, 0), (signal.SIGINT, 130)]
)
def test_the_first_signal_asks_to_stop(capfd, number, status):
  seen = []

  def work(watching):
    os.kill(os.getpid(), number)
    wait_for(lambda: watching.stop)
    seen.append(watching.stop)

  before = signal.getsignal(number)
  assert watch.watched(work) == status
  assert seen == [number] and signal.getsignal(number) is before
  assert f"{number.name}: saving after this step" in capfd.readouterr().err


@pytest.mark.parametrize("error", [ValueError("x"), KeyboardInterrupt()])
def test_what_the_training_raises_is_raised(error):
  def work(_):
    raise error

  with pytest.raises(type(error)):
    watch.watched(work)


def test_work_that_ends_by_itself_is_a_success():
  assert watch.watched(lambda _: None) == 0


def test_only_a_wait_that_is_too_long_is_overdue(monkeypatch):
  watching, now_s = watch.Watch(), [100.0]
  monkeypatch.setattr(watch.time, "monotonic", lambda: now_s[0])
  assert watching.overdue() is None
  with pytest.raises(StopIteration), watching.waiting("no batch", 10.0):
    now_s[0] = 109.9
    assert watching.overdue() is None
    now_s[0] = 110.0
    assert watching.overdue() == "no batch"
    raise StopIteration
  now_s[0] = 1000.0
  assert watching.overdue() is None


def run_child(work):
  """`watched(work)` in a process of its own, which may end at once."""
  program = f"""
import os, signal, sys, threading, time
from diff_jax.watch import watched
def work(watch):
{work}
sys.exit(watched(work))
"""
  return subprocess.run(
      [sys.executable, "-c", program],
      cwd=ROOT,
      capture_output=True,
      text=True,
      timeout=FOREVER_S / 10,
      check=False,
  )


@pytest.mark.parametrize(
    "number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)]
)
def test_the_second_signal_ends_the_process_at_once(number, status):
  """Whatever the other thread does; here it sleeps for minutes."""
  found = run_child(f"""
  os.kill(os.getpid(), signal.{number.name})
  while not watch.stop: time.sleep(0.005)
  os.kill(os.getpid(), signal.{number.name})
  time.sleep({FOREVER_S})
""")
  assert found.returncode == status
  assert "ended at once" in found.stderr and "Traceback" not in found.stderr


def test_a_wait_that_is_overdue_ends_the_process_with_the_reason():
  found = run_child(f"""
  with watch.waiting("no batch from data 'x'", 0.01):
    time.sleep({FOREVER_S})
""")
  assert found.returncode == 1
  assert "diff-jax: no batch from data 'x'; " in found.stderr
  assert "Traceback" not in found.stderr
