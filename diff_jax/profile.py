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

  Raises:
    ConfigError: unless `steps` is FIRST-LAST, from 1, or empty.
  """

  def __init__(self, workdir: str | os.PathLike, steps: str):
    self.folder = pathlib.Path(workdir) / "profile"
    self.first = self.last = 0
    if steps:
      found = re.fullmatch(r"(\d+)-(\d+)", steps)
      if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ConfigError(
            f"profile={steps!r} must be FIRST-LAST, two steps from 1 on."
        )
      self.first, self.last = int(found[1]), int(found[2])

  def before(self, step: int) -> None:
    if step == self.first:
      jax.profiler.start_trace(str(self.folder))

  def after(self, step: int, last_step: int, metrics) -> None:
    """Ends the trace once the last of its steps is done."""
    if self.first <= step and step == min(self.last, last_step):
      jax.block_until_ready(metrics)
      jax.profiler.stop_trace()
      print(
          f"\nprofile of steps {self.first}-{step}: {self.folder}",
          file=sys.stderr,
      )
