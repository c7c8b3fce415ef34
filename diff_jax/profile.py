# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A trace of some training steps, for xprof."""

import os
import pathlib
import re
import sys

import jax

from diff_jax.config import ConfigError


class Profile:
  """An xprof trace of some steps, in the run's folder.

  Args:
    workdir: the run's folder.
    steps: FIRST-LAST, from 1; empty: none.
    last_step: of the run.

  Raises:
    ConfigError: for steps that the run does not have.
  """

  def __init__(self, workdir: str | os.PathLike, steps: str, last_step: int):
    self.folder = pathlib.Path(workdir) / "profile"
    self.first = self.last = 0
    self.tracing = False
    if steps:
      found = re.fullmatch(r"(\d+)-(\d+)", steps)
      if not found or not 1 <= int(found[1]) <= int(found[2]) <= last_step:
        raise ConfigError(
            f"profile={steps!r} must be FIRST-LAST, two steps from 1 to"
            f" {last_step}."
        )
      self.first, self.last = int(found[1]), int(found[2])

  def check_ahead(self, step: int) -> None:
    """Tells that a run continues after the first of the steps."""
    if 0 < self.first <= step:
      print(
          f"no profile: step {self.first} is past, the run is at {step}",
          file=sys.stderr,
      )

  def before(self, step: int) -> None:
    if step == self.first:
      jax.profiler.start_trace(str(self.folder))
      self.tracing = True

  def after(self, step: int, metrics) -> None:
    """Ends the trace once the last of its steps is done."""
    if self.tracing and step == self.last:
      jax.block_until_ready(metrics)
      jax.profiler.stop_trace()
      self.tracing = False
      print(
          f"\nprofile of steps {self.first}-{self.last}: {self.folder}",
          file=sys.stderr,
      )
