# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""How tiles reach the Hopper kernels while they compute."""

from collections.abc import Callable

import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from diff_jax.kernels.attention.mosaic_gpu_common import remainder


class Ring:
  """Slots of shared memory that tiles go through, step after step.

  No warpgroup only loads: it would take registers that the others get back by
  `setmaxnreg` alone, which is ignored where jax has kernels compiled for
  linking (see `check_gpu_child.compile_op`). Warpgroup 0 begins the copies:
  before the loop those of the first steps; in step i, of step i - 1 + `stages`,
  into the slot that step i - 1 used. That is in the midst of step i: it waits
  for the other warpgroup to end step i - 1, and at the start of step i would
  keep both in step, so that both use the tensor cores and then neither does.

  Nothing waits for ever: the copies that step i - 1 needs began in step
  i - `stages`, an earlier one than i - 1 as there are two slots at least; so the
  other warpgroup ends step i - 1 without anything that warpgroup 0 has yet to
  do. A slot's `free` does not complete again before the slot is filled again,
  for which warpgroup 0 has waited: it never gets two completions ahead.
  """

  def __init__(self, stages: int, steps, warpgroup, free, load: Callable):
    """Of one warpgroup.

    Args:
      stages: slots.
      steps: how many steps both warpgroups make.
      warpgroup: this one.
      free: barriers [stages] of two arrivals.
      load: begins the copies of a step's tiles into a slot: load(step, slot).
    """
    self.stages, self.steps = stages, steps
    self.warpgroup, self.free, self.load = warpgroup, free, load

  def slot(self, step):
    return remainder(step, self.stages)

  def start(self, load_own: Callable):
    """Begins the copies of what stays, by `load_own`, and of the first steps."""

    @pl.when(self.warpgroup == 0)
    def _():
      load_own()

      @pl.loop(0, jnp.minimum(self.stages, self.steps))
      def _(step):
        self.load(step, step)

  def advance(self, step):
    """To be called once in the midst of each step."""
    refill = step - 1 + self.stages
    wanted = (step > 0) & (refill < self.steps)

    @pl.when((self.warpgroup == 0) & wanted)
    def _():
      slot = self.slot(refill)
      plgpu.barrier_wait(self.free.at[slot])
      self.load(refill, slot)

  def release(self, slot):
    """To be called when a warpgroup has read a step's tiles."""
    plgpu.barrier_arrive(self.free.at[slot])
