# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Signals, a data worker that hangs, a clock that jumps."""

import pathlib
import re
import signal
import time

from child import (
  Child,
  Row,
  finish,
  last_line,
  losses,
  said,
  saved_steps,
  sessions,
)  # fmt: skip

STEPS = 400
SHORT_S = 10  # what `at once` may take on a busy machine


def sigterm(out: pathlib.Path) -> list[Row]:
  workdir, steps = out / "sigterm", f"--config.num_steps={STEPS}"
  child = Child(workdir, steps)
  child.wait_for_step(23)
  child.process.send_signal(signal.SIGTERM)
  status, words = child.finish()
  reached, saved = max(losses(workdir)), max(saved_steps(workdir))
  again, _ = finish(workdir, steps)
  finish(out / "sigterm_whole", steps)
  same = losses(workdir) == losses(out / "sigterm_whole")
  first = sessions(workdir)[-1]["first_step"]
  passed = (
      status == again == 0 and reached == saved == first < STEPS and same
      and said(words, "SIGTERM: saving", f"step {saved} of {STEPS}")
  )  # fmt: skip
  happened = (
      f"exit {status} at step {reached}, saved at {saved}, the same command"
      f" went on after {first}; losses {'the same' if same else 'DIFFER'}"
  )
  return [Row("SIGTERM", "during steps", happened, passed)]


def ctrl_c(out: pathlib.Path) -> list[Row]:
  child = Child(out / "ctrl_c", f"--config.num_steps={STEPS}")
  child.wait_for_step(3)
  child.process.send_signal(signal.SIGINT)
  status, words = child.finish()
  where = re.search(r"seed 0 at step (\d+) of \d+, saved at step \1:", words)
  passed = status == 130 and bool(where) and said(words, "same command")
  happened = f"exit {status}: {last_line(words)}"
  return [Row("Ctrl-C", "during steps", happened, passed)]


def second_sigterm(out: pathlib.Path) -> list[Row]:
  child = Child(out / "second_sigterm", inject="compile")
  child.wait_until(lambda: (out / "second_sigterm" / "run.json").exists())
  time.sleep(8)  # it traces, then compiles, for minutes
  child.process.send_signal(signal.SIGTERM)
  child.wait_until(lambda: "SIGTERM" in child.words())
  child.process.send_signal(signal.SIGTERM)
  begin_s = time.monotonic()
  status, words = child.finish()
  passed_s = time.monotonic() - begin_s
  passed = status == 143 and passed_s < SHORT_S and said(words, "at once")
  happened = f"exit {status} within {passed_s:.1f} s: {last_line(words)}"
  return [Row("SIGTERM twice", "during a long compile", happened, passed)]


def stop_in_last_evaluation(out: pathlib.Path) -> list[Row]:
  workdir, argument = out / "last_evaluation", "--config.num_steps=20"
  config = pathlib.Path(__file__).with_name("config.py:evaluated")
  child = Child(workdir, argument, config=config)
  child.wait_for_step(20)
  child.process.send_signal(signal.SIGTERM)
  status, words = child.finish()
  again, _ = finish(workdir, argument, config=config)
  text = (workdir / "metrics.jsonl").read_text()
  passed = status == again == 0 and text.count("recall/accuracy_1x") == 1
  passed &= said(words, "stopped: seed 0 at step 20 of 20")  # not too late
  happened = (
      f"exit {status}; after the same command the last evaluation is"
      f" {text.count('recall/accuracy_1x')} times in metrics.jsonl"
  )
  done = "during the evaluation after the last step"
  return [Row("SIGTERM", done, happened, passed)]


def hung_data(out: pathlib.Path) -> list[Row]:
  """With 8 examples a step and some prefetched; 20 steps."""
  arguments = ("--config.num_steps=20", "--config.data_timeout_s=10")
  status, words = finish(out / "hung", *arguments, inject="hang=120")
  passed = status == 1 and said(words, "data_timeout_s=10", "saved at step 10")
  rows = [
      Row(
          "hung data worker",
          "before the batch of step 16",
          f"exit {status}: {last_line(words)}",
          passed,
      )
  ]
  begin_s = time.monotonic()
  status, words = finish(out / "hung_late", *arguments, inject="hang=160")
  passed = status == 0 and "Traceback" not in words
  passed &= saved_steps(out / "hung_late")[-1:] == [20]
  happened = (
      f"exit {status} after {time.monotonic() - begin_s:.0f} s,"
      f" saved at {saved_steps(out / 'hung_late')}"
  )
  done = "in a batch that is prefetched, but beyond the last step"
  return [*rows, Row("hung data worker", done, happened, passed)]


def jumping_clock(out: pathlib.Path) -> list[Row]:
  whole, workdir, steps = out / "whole", out / "clock", "--config.num_steps=400"
  finish(whole, steps)
  status, words = finish(workdir, steps, inject="clock")
  same = len(losses(workdir)) == 400 and losses(workdir) == losses(whole)
  passed = status == 0 and same and "Traceback" not in words
  passed &= (
      saved_steps(workdir)[-1:] == [400] and len(saved_steps(workdir)) == 2
  )
  happened = (
      f"exit {status}; losses {'the same' if same else 'DIFFER'};"
      f" {words.count('training goes on')} saves timed out and were tried again"
  )
  done = "time.time jumps by days, twice a second"
  return [Row("clock that jumps", done, happened, passed)]
