# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The tables that the TPU kernels' grids walk."""

import jax.numpy as jnp
import numpy as np
import pytest

from diff_jax.kernels.attention import masking as masking_lib
from diff_jax.kernels.attention import mosaic_tpu, tile_visits


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 9])
@pytest.mark.parametrize("seed", range(3))
def test_visited_tiles_hold_every_visible_pair(causal, window, seed):
  rng = np.random.default_rng(seed)
  t, s, block = 40, 64, 8
  segments = None
  if seed:
    segments = tuple(
        jnp.sort(jnp.asarray(rng.integers(0, 4, (2, length))))
        for length in (t, s)
    )
  masking = masking_lib.make_masking(
      t, s, segments, rng.integers(0, 30, (1, 2)), rng.integers(0, 30, 2)
  )
  sides = tile_visits.pad_sides(masking, t, s)
  needed, full = tile_visits.tiles(
      sides, block, block, causal=causal, window=window
  )
  mask = masking_lib.visible(masking, causal=causal, window=window)
  mask = np.ones((1, t, s), bool) if mask is None else np.asarray(mask)
  mask = mask.reshape(-1, t // block, block, s // block, block)
  assert not (mask.any((2, 4)) & ~needed).any()
  assert not (full & ~mask.all((2, 4))).any()

  visits = tile_visits.visit(needed, full)
  outer, inner, kind = (np.asarray(x) for x in visits[:3])
  for row in range(kind.shape[0]):
    active = kind[row] > 0
    visited = np.zeros(needed.shape[1:], bool)
    visited[outer[row][active], inner[row][active]] = True
    assert visited.sum() == active.sum()
    assert (visited >= np.asarray(needed[row])).all()
    assert visited.any(1).all()
  assert visits.count == (kind > 0).sum(1).max()


NAMES = (
    "FIRST LAST COMPUTE MASKED LOAD WAIT PREFETCH RUN_START RUN_END SECOND_RUN"
    " THIRD_RUN DRAIN"
).split()


class Player:
  """Does what the backward kernel does; copies take as long as they may."""

  def __init__(self):
    self.memory = {}  # Of each block: whose visits are summed there.
    self.held = {}  # By slot, as the copies: (block, visits).
    self.loading, self.storing = {}, {}

  def wait_for_store(self, slot):
    block, visited = self.storing.pop(slot)  # Fails if none was started.
    self.memory[block] = visited

  def start_load(self, slot, block):
    assert slot not in self.loading and slot not in self.storing
    assert block not in [x for x, _ in self.storing.values()]
    self.loading[slot] = block, self.memory[block]

  def step(self, kind, block, following, outer):
    bits = {x for x in NAMES if kind & getattr(tile_visits, x)}
    slot, slots = kind >> tile_visits.SLOT_SHIFT, tile_visits.NUM_SLOTS
    if {"RUN_START", "THIRD_RUN"} <= bits:
      self.wait_for_store((slot + 1) % slots)
    if "LOAD" in bits:
      if "WAIT" in bits:
        self.start_load(slot, block)
      self.held[slot] = self.loading.pop(slot)
    elif "RUN_START" in bits:
      assert block not in self.memory and slot not in self.storing
      self.held[slot] = block, frozenset()
    if "PREFETCH" in bits:
      self.start_load((slot + 1) % slots, following)
    if "COMPUTE" in bits:
      held, visited = self.held[slot]
      assert held == block and slot not in self.storing
      self.held[slot] = block, visited | {outer}
    if "RUN_END" in bits:
      assert slot not in self.storing
      self.storing[slot] = self.held[slot]
    if "DRAIN" in bits:
      if "SECOND_RUN" in bits:
        self.wait_for_store((slot + 2) % slots)
      self.wait_for_store(slot)


@pytest.mark.parametrize("share", [0.0, 0.2, 0.6, 1.0])
@pytest.mark.parametrize("blocks", [(1, 1), (2, 5), (6, 1), (6, 5)])
def test_sums_are_moved_without_a_race(share, blocks):
  rng = np.random.default_rng(0)
  needed, groups = rng.random((3, *blocks)) < share, 2  # b1 i j
  visits = mosaic_tpu._backward_visits(
      jnp.asarray(needed), jnp.zeros_like(needed), groups
  )
  outer, inner, kinds = (np.asarray(x).tolist() for x in visits[:3])
  for row in range(3):
    player = Player()
    for step in range(int(visits.count)):
      following = inner[row][step + 1] if step + 1 < len(inner[row]) else None
      player.step(
          kinds[row][step], inner[row][step], following, outer[row][step]
      )
    assert not player.loading and not player.storing
    for block in range(blocks[0] * groups):
      keys = np.flatnonzero(needed[row, block % blocks[0]])
      # Every tile that is needed, and at least one.
      assert player.memory[block] >= set(keys.tolist()) | {
          outer[row][inner[row].index(block)]
      }
