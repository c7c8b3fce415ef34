# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a warpgroup of the forward Hopper kernel does.

See `mosaic_gpu_forward.py`, which says what the barriers are for.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from diff_jax.kernels.attention import mosaic_gpu_common as common
from diff_jax.kernels.attention.mosaic_gpu_common import (
    OF_COLUMNS,
    OF_ROWS,
    Shape,
)
from diff_jax.kernels.attention.mosaic_gpu_config import (
    WGMMA_ROWS,
    ForwardConfig,
)
from diff_jax.kernels.attention.mosaic_tpu_common import MASKED_SCORE
from diff_jax.kernels.attention.weighted_gradient import LN_2


class Inputs(NamedTuple):
  """Arrays in global memory: the tables, whose outer blocks are of queries,"""

  order: object
  counts: object
  q_side: object
  kv_side: object
  # and the operands.
  q: object  # [b, t, n * c, h], scaled
  k: object  # [b, s, k * ck, h]
  v: object  # [b, s, k, e]
  weights: object  # [b, n, c, rows], fp32


class Outputs(NamedTuple):
  """Arrays in global memory."""

  out: object  # [b, t, n, e]
  lse: object  # [b, n, c, rows]
  saved: list  # [b, t, n, e] of each saved map


class Scratch(NamedTuple):
  """Shared memory and barriers."""

  q: object  # [block_q / 64, c, 64, h]
  union: object  # Keys and values; when these are done, outputs.
  q_ready: object
  k_ready: object
  v_ready: object
  free: object
  loops_done: object
  exchanged: object


class Place(NamedTuple):
  """What a program works on."""

  batch: object
  head: object
  block: object


class Sums(NamedTuple):
  """Of one map: what a warpgroup carries from block to block."""

  acc: object  # [64, e]
  top: object  # [64], the running maximum
  total: object  # [64]


class Worker:
  """A warpgroup: the maps that it works on, and its 64 queries."""

  def __init__(
      self, shape: Shape, config: ForwardConfig, inputs, scratch, place, ring
  ):
    self.shape, self.config, self.ring = shape, config, ring
    self.inputs, self.scratch, self.place = inputs, scratch, place
    (self.k_smem, self.v_smem), written = scratch.union
    self.lse_smem, self.out_smem, *others = written
    if shape.saved_maps:
      self.saved_smem, *others = others
    if config.split_maps:
      (self.exchange,) = others
    self.warpgroup = ring.warpgroup
    self.group = 0 if config.split_maps else self.warpgroup
    self.maps = [self.warpgroup] if config.split_maps else range(shape.maps)
    first = place.block * config.block_q + self.group * WGMMA_ROWS
    self.rows = pl.ds(first, WGMMA_ROWS)

  def gather(self, unmasked, visited) -> list[Sums]:
    """Passes over the blocks of keys."""
    start = Sums(
        common.full(
            (WGMMA_ROWS, self.shape.value_width), 0.0, plgpu.Layout.WGMMA
        ),
        common.full((WGMMA_ROWS,), MASKED_SCORE, OF_ROWS),
        common.full((WGMMA_ROWS,), 0.0, OF_ROWS),
    )
    plgpu.barrier_wait(self.scratch.q_ready)
    sums = lax.fori_loop(0, unmasked, self._step, [start] * len(self.maps))
    self.q_side = common.side_rows(
        self.inputs.q_side, self.place.batch, self.rows, OF_ROWS
    )
    masked = functools.partial(self._step, masked=True)
    return lax.fori_loop(unmasked, visited, masked, sums)

  def _step(self, step, sums, masked=False):
    """One block of keys."""
    shape, config, scratch = self.shape, self.config, self.scratch
    slot = self.ring.slot(step)
    tile = (WGMMA_ROWS, config.block_kv)
    plgpu.barrier_wait(scratch.k_ready.at[slot])
    after = []
    for c, (acc, before, total) in zip(self.maps, sums, strict=True):
      scores = common.product(
          tile,
          scratch.q.at[self.group, c],
          self.k_smem.at[slot, shape.key_map(c)].T,
      )
      if masked:
        scores = jnp.where(self._seen(step, tile), scores, MASKED_SCORE)
      top = jnp.maximum(before, scores.max(axis=1))
      decay = jnp.exp2(before - top)
      probs = jnp.exp2(scores - common.along_rows(top, tile))
      total = total * decay + probs.sum(axis=1)
      acc = acc * common.along_rows(decay, acc.shape)
      if c is self.maps[0]:
        self.ring.advance(step)
        plgpu.barrier_wait(scratch.v_ready.at[slot])
      operands = probs.astype(self.v_smem.dtype), self.v_smem.at[slot]
      (acc,) = common.products((acc, lambda operands=operands: operands))
      after.append(Sums(acc, top, total))
    self.ring.release(slot)
    return after

  def _seen(self, step, tile):
    """Which keys of a step's block the queries see."""
    table = common.entry(self.inputs.order, self.place.batch), self.place.block
    first = self.inputs.order[*table, step] * self.config.block_kv
    keys = pl.ds(first, self.config.block_kv)
    kv_side = common.side_rows(
        self.inputs.kv_side, self.place.batch, keys, OF_COLUMNS
    )
    return common.visible(self.shape, tile, self.q_side, kv_side)

  def finish(self, sums, outputs):
    """Normalises, weights, adds up and writes the outputs."""
    parts = [
        self._normalise(i, c, *sums_of_map, outputs.lse)
        for i, (c, sums_of_map) in enumerate(zip(self.maps, sums, strict=True))
    ]
    if self.config.split_maps:
      self._finish_split(*parts, outputs)
      return
    for i, c in enumerate(self.shape.saved_maps):
      smem = self.saved_smem.at[self.warpgroup, i]
      self._write(parts[c], smem, outputs.saved[i])
    whole = self._weighted(0, parts[0])
    for c in range(1, self.shape.maps):
      whole += self._weighted(c, parts[c])
    self._write(whole, self.out_smem.at[self.warpgroup], outputs.out)
    plgpu.wait_smem_to_gmem(0)

  def _finish_split(self, part, outputs):
    """The second map is handed over to the first one's warpgroup."""

    @pl.when(self.warpgroup == 1)
    def _():
      self.exchange[...] = self._weighted(1, part)
      plgpu.barrier_arrive(self.scratch.exchanged)

    for i, c in enumerate(self.shape.saved_maps):

      @pl.when(self.warpgroup == c)
      def _(i=i):
        self._write(part, self.saved_smem.at[0, i], outputs.saved[i])

    @pl.when(self.warpgroup == 0)
    def _():
      plgpu.barrier_wait(self.scratch.exchanged)
      other = plgpu.load(self.exchange, layout=plgpu.Layout.WGMMA)
      self._write(
          self._weighted(0, part) + other, self.out_smem.at[0], outputs.out
      )

    plgpu.wait_smem_to_gmem(0)

  def _normalise(self, i, c, acc, top, total, lse_ref):
    """What one map gathered; writes its log-sum-exp."""
    blind = top < MASKED_SCORE / 2  # It has seen no key.
    lse = LN_2 * top + jnp.log(total)
    lse_smem = self.lse_smem.at[self.warpgroup, i]
    lse_smem[...] = jnp.where(blind, -jnp.inf, lse)
    plgpu.commit_smem()
    batch, head, _ = self.place
    plgpu.copy_smem_to_gmem(lse_smem, lse_ref.at[batch, head, c, self.rows])
    return acc * common.along_rows(jnp.where(blind, 0.0, 1 / total), acc.shape)

  def _weighted(self, c: int, part):
    if c == 0 and self.shape.first_weight_is_one:
      return part
    batch, head, _ = self.place
    weight = plgpu.load(
        self.inputs.weights.at[batch, head, c, self.rows],
        layout=OF_ROWS,
        optimized=False,
    )
    return part * common.along_rows(weight, part.shape)

  def _write(self, x, smem, ref):
    """Begins to write a tile of an output, through shared memory."""
    batch, head, _ = self.place
    smem[...] = x.astype(smem.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(smem, ref.at[batch, self.rows, head])
