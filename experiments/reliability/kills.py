# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""SIGKILL at random moments, then the same command again, until the end."""

import pathlib
import random
import time

from child import (
  Child,
  Row,
  finish,
  is_saving,
  last_step,
  losses,
  saved_steps,
  sessions,
)  # fmt: skip

SAVE_STEPS, STEPS_PER_KILL = 40, 60


def sigkills(out: pathlib.Path, kills: int) -> list[Row]:
  """Kills one run again and again; it must equal one that nobody touched."""
  arguments = (
      f"--config.num_steps={(STEPS_PER_KILL + 20) * kills + 200}",
      f"--config.checkpoint_every_steps={SAVE_STEPS}",
  )
  finish(out / "whole", *arguments)
  draw, workdir = random.Random(0), out / "killed"
  words, stand, wrong = "", None, []
  killed = {"start": 0, "step": 0, "save": 0}
  lost, lost_while_saving = [0], [0]
  for number in range(kills + 1):
    known = len(sessions(workdir))
    child = Child(workdir, *arguments)
    if number < kills:
      moment = draw.choices(list(killed), (2, 4, 4))[0]
      _kill(child, moment, known, draw)
    status, said = child.finish()
    words += said
    if stand and len(sessions(workdir)) > known:
      reached, saved, saving = stand
      first = sessions(workdir)[-1]["first_step"]
      if first != saved:
        wrong.append(f"kill {number}: {saved} was saved, {first} was read")
      (lost_while_saving if saving else lost).append(reached - first)
    stand = (
        last_step(workdir), max(saved_steps(workdir), default=0),
        is_saving(workdir),
    )  # fmt: skip
    if number < kills and status == -9:
      killing_save = stand[2] and moment != "start"
      killed["save" if killing_save else moment] += 1
  expected, found = losses(out / "whole"), losses(workdir)
  differ = [step for step in expected if found.get(step) != expected[step]]
  left = [
      path.name
      for path in (workdir / "checkpoints" / "seed_0").iterdir()
      if not path.name.isdigit()
  ]
  passed = (
      status == 0 and not wrong and not left and not differ
      and expected.keys() == found.keys() and "Traceback" not in words
      and sum(killed.values()) == kills and max(lost) <= SAVE_STEPS
      # The save that the kill ended was of a step at most one interval old.
      and max(lost_while_saving) < 2 * SAVE_STEPS
  )  # fmt: skip
  counts = ", ".join(f"{n} during {name}" for name, n in killed.items())
  happened = (
      f"exit {status}; {len(found)} losses, {len(differ)} of them not bitwise"
      f" those of an unbroken run; at most {max(lost)} steps lost with a save"
      f" every {SAVE_STEPS}, {max(lost_while_saving)} if killed while saving;"
      f" left behind: {left or 'nothing'}"
  )
  if wrong:
    happened += f"; {wrong}"
  done = f"{sum(killed.values())} times ({counts}), the same command again"
  return [Row("SIGKILL", done, happened, passed)]


def _kill(child: Child, moment: str, known: int, draw: random.Random) -> None:
  """Kills at any time of the start, after some steps, or while it saves."""
  if moment == "start":
    time.sleep(draw.uniform(0, 4))
  else:
    child.wait_until(lambda: len(sessions(child.workdir)) > known)
    child.wait_for_step(
        max(saved_steps(child.workdir), default=0)
        + draw.randint(1, STEPS_PER_KILL)
    )
    if moment == "save":
      child.wait_until(lambda: is_saving(child.workdir))
    time.sleep(draw.uniform(0, 0.02))
  child.process.kill()
