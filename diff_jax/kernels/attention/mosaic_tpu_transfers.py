# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""How the backward TPU kernel keeps its sums for dq in main memory."""

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from diff_jax.kernels.attention import tile_visits
from diff_jax.kernels.attention.block_sizes import BlockSizes
from diff_jax.kernels.attention.mosaic_tpu_common import entry, has


class Transfers:
  """Moves the sums for dq between main memory and their slots.

  `tile_visits.add_transfers` plans it: every copy that is started is waited
  for once, and no copy outlives the visits of a kv head.

  Attributes:
    kind: what the visit of this grid step does, see `tile_visits.Visits`.
    slot: of `sums.dq`, where the sums of its queries are.
  """

  def __init__(self, tables, dq, sums, sizes: BlockSizes):
    self._tables, self._dq = tables, dq
    self._sums, self._sizes = sums, sizes
    self._batch, self._kv_head, self._step = map(pl.program_id, range(3))
    kinds = tables.kinds
    self.kind = kinds[entry(kinds, self._batch, self._step)]
    self.slot = self.kind >> tile_visits.SLOT_SHIFT

  def begin(self):
    """Before a tile: its slot holds what its queries' sums are so far."""
    kind, slot = self.kind, self.slot
    starts, loads = (
        has(kind, bit) for bit in (tile_visits.RUN_START, tile_visits.LOAD)
    )

    @pl.when(starts & has(kind, tile_visits.THIRD_RUN))
    def _():
      # Of the run before the last, whose slot is the next run's.
      self._store(self._step, self._slot_after(1)).wait()

    @pl.when(loads)
    def _():
      load = self._load(self._step, slot)
      pl.when(has(kind, tile_visits.WAIT))(load.start)
      load.wait()

    @pl.when(starts & ~loads)
    def _():
      dq = self._sums.dq
      dq[slot] = jnp.zeros(dq.shape[1:], dq.dtype)

    @pl.when(has(kind, tile_visits.PREFETCH))
    def _():
      following = self._tables.steps_after[self._step]
      self._load(following, self._slot_after(1)).start()

  def end(self):
    """After a tile: writes the slot if another block of queries follows."""
    kind, slot = self.kind, self.slot

    @pl.when(has(kind, tile_visits.RUN_END))
    def _():
      self._store(self._step, slot).start()

    @pl.when(has(kind, tile_visits.DRAIN))
    def _():
      @pl.when(has(kind, tile_visits.SECOND_RUN))
      def _():
        self._store(self._step, self._slot_after(2)).wait()

      self._store(self._step, slot).wait()

  def _block(self, step):
    """Where the sums of a visit's queries live."""
    tables, rows = self._tables, self._sizes.q
    visit = entry(tables.kinds, self._batch, step)
    first = pl.multiple_of(tables.q_blocks[visit] * rows, rows)
    head = tables.first_heads[self._kv_head] + tables.heads[visit]
    return self._dq.at[self._batch, head, pl.ds(first, rows)]

  def _load(self, step, slot):
    sums = self._sums
    return pltpu.make_async_copy(
        self._block(step), sums.dq.at[slot], sums.load_semaphores.at[slot]
    )

  def _store(self, step, slot):
    sums = self._sums
    return pltpu.make_async_copy(
        sums.dq.at[slot], self._block(step), sums.store_semaphores.at[slot]
    )

  def _slot_after(self, runs):
    return lax.rem(self.slot + runs, tile_visits.NUM_SLOTS)
