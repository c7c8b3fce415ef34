# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The Hopper kernel for dQ; formulas in `mosaic_gpu_backward.py`.

A program has 128 queries of one head, 64 for each of two warpgroups; blocks of
keys and values go through a ring of slots (`mosaic_gpu_ring.Ring`).

Barriers, and why nothing waits for ever: both warpgroups read the same counts
and make the same steps. `own_ready` completes once. Of a step's slot, `k_ready`
and `v_ready` complete when the copies have arrived, one arrival for each copy;
each warpgroup waits for them once a step, and a slot is filled again only after
both have. Products are complete where `products` returns, so that a slot is
given back only after its last reading.
"""

import functools
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from diff_jax.kernels.attention import mosaic_gpu_backward_common as backward
from diff_jax.kernels.attention import mosaic_gpu_common as common
from diff_jax.kernels.attention.mosaic_gpu_backward_common import (
    Inputs,
    zeros,
)
from diff_jax.kernels.attention.mosaic_gpu_backward_config import (
    WARPGROUPS,
    DqConfig,
)
from diff_jax.kernels.attention.mosaic_gpu_common import (
    OF_ROWS,
    Shape,
    products,
)
from diff_jax.kernels.attention.mosaic_gpu_config import WGMMA_ROWS
from diff_jax.kernels.attention.mosaic_tpu_common import MASKED_SCORE
from diff_jax.kernels.attention.varying import out_struct


class Scratch(NamedTuple):
  """Shared memory and barriers; m maps of a program, mk of its keys."""

  q: object  # [2, m, 64, h], and dq at the end
  do: object  # [2, 64, e]
  k: object  # [stages, mk, block_kv, h]
  v: object  # [stages, block_kv, e]
  own_ready: object
  k_ready: object
  v_ready: object
  free: object


class _Program:
  """What a program works on."""

  def __init__(self, shape, config, scale, inputs, scratch):
    self.shape, self.config, self.scale = shape, config, scale
    self.inputs, self.scratch = inputs, scratch
    self.batch = lax.axis_index("batch")
    self.head = lax.axis_index("heads")
    block = lax.axis_index("blocks")
    if shape.causal:  # The longest first.
      block = inputs.counts.shape[1] - 1 - block
    self.block = block
    self.maps = range(shape.maps)
    if config.split_maps:
      self.maps = [lax.axis_index("maps")]
    self.table = common.entry(inputs.counts, self.batch), block
    self.unmasked = inputs.counts[*self.table, 0]
    self.visited = inputs.counts[*self.table, 1]

  def rows(self, warpgroup):
    first = self.block * self.config.block_q + warpgroup * WGMMA_ROWS
    return pl.ds(first, WGMMA_ROWS)

  def keys(self, step):
    block_kv = self.config.block_kv
    return pl.ds(self.inputs.order[*self.table, step] * block_kv, block_kv)

  def load_own(self):
    """Begins the copies of q and dO."""
    inputs, scratch, batch = self.inputs, self.scratch, self.batch
    for warpgroup in range(WARPGROUPS):
      rows = self.rows(warpgroup)
      for i, c in enumerate(self.maps):
        plgpu.copy_gmem_to_smem(
            inputs.q.at[batch, rows, self.head * self.shape.maps + c],
            scratch.q.at[warpgroup, i],
            scratch.own_ready,
        )
      plgpu.copy_gmem_to_smem(
          inputs.do.at[batch, rows, self.head],
          scratch.do.at[warpgroup],
          scratch.own_ready,
      )

  def load(self, step, slot):
    """Begins the copies of a step's keys and values."""
    inputs, scratch, shape = self.inputs, self.scratch, self.shape
    kv_head = lax.div(self.head, jnp.asarray(shape.groups, self.head.dtype))
    place = self.batch, self.keys(step)
    plgpu.copy_gmem_to_smem(
        inputs.v.at[*place, kv_head],
        scratch.v.at[slot],
        scratch.v_ready.at[slot],
    )
    for i, c in enumerate(list(self.maps)[: scratch.k.shape[1]]):
      plgpu.copy_gmem_to_smem(
          inputs.k.at[*place, kv_head * shape.key_maps + shape.key_map(c)],
          scratch.k.at[slot, i],
          scratch.k_ready.at[slot],
      )

  def compute(self, warpgroup, ring, dq_ref):
    """A warpgroup: 64 queries."""
    shape, rows = self.shape, self.rows(warpgroup)

    def stat(row):
      return plgpu.load(
          self.inputs.stats.at[self.batch, self.head, row, rows],
          layout=OF_ROWS,
          optimized=False,
      )

    stats = [(stat(c), stat(shape.maps + c)) for c in self.maps]
    step = functools.partial(self._step, warpgroup, ring, rows, stats)
    plgpu.barrier_wait(self.scratch.own_ready)
    width = self.scratch.q.shape[-1]
    sums = [zeros((WGMMA_ROWS, width)) for _ in self.maps]
    sums = lax.fori_loop(0, self.unmasked, step, sums)
    sums = lax.fori_loop(
        self.unmasked, self.visited, functools.partial(step, masked=True), sums
    )
    q_smem = self.scratch.q.at[warpgroup]  # Of this warpgroup alone.
    for i, (c, dq) in enumerate(zip(self.maps, sums, strict=True)):
      sign = common.along_rows(stat(2 * shape.maps + c), dq.shape)
      q_smem[i] = (dq * (self.scale * sign)).astype(q_smem.dtype)
    plgpu.commit_smem()
    for i, c in enumerate(self.maps):
      plgpu.copy_smem_to_gmem(
          q_smem.at[i],
          dq_ref.at[self.batch, rows, self.head * shape.maps + c],
      )
    plgpu.wait_smem_to_gmem(0)

  def _step(
      self, warpgroup, ring, rows, stats, step, sums, masked=False
  ):  # fmt: skip
    """One block of keys; the signs of the weights come at the end."""
    scratch, sums = self.scratch, list(sums)
    tile = WGMMA_ROWS, self.config.block_kv
    warpgroup, slot = backward.opaque(warpgroup, ring.slot(step))

    def k(i):
      return scratch.k.at[slot, min(i, scratch.k.shape[1] - 1)]

    def scores(i):
      return scratch.q.at[warpgroup, i], k(i).T

    def dp_operands():
      return scratch.do.at[warpgroup], scratch.v.at[slot].T

    def start():
      """Of the scores: the mask takes no registers after the product."""
      if not masked:
        return zeros(tile)
      mask = backward.seen(
          self.shape, self.inputs, self.batch, rows, self.keys(step), tile
      )
      return jnp.where(mask, 0.0, MASKED_SCORE)

    plgpu.barrier_wait(scratch.v_ready.at[slot])
    plgpu.barrier_wait(scratch.k_ready.at[slot])
    for i, (lse, delta) in enumerate(stats):
      score = start(), functools.partial(scores, i)
      if i == 0:
        score, dp = products(score, (zeros(tile), dp_operands))
        ring.advance(step)
      else:
        score, sums[i - 1] = products(score, pending)
      probs = jnp.exp2(score - common.along_rows(lse, tile))
      ds = probs * (dp - common.along_rows(delta, tile))
      ds = ds.astype(scratch.q.dtype)
      pending = sums[i], lambda ds=ds, i=i: (ds, k(i))
    (sums[-1],) = products(pending)
    ring.release(slot)
    return sums


def _scratch(shape: Shape, config: DqConfig, q, v):
  maps = 1 if config.split_maps else shape.maps
  key_maps = 1 if config.split_maps else shape.key_maps
  stages, block_kv, dtype = config.stages, config.block_kv, q.dtype
  h, e = q.shape[-1], v.shape[-1]
  smem = common.tiled_smem
  ring = functools.partial(plgpu.Barrier, num_barriers=stages)
  return Scratch(
      q=smem((WARPGROUPS, maps, WGMMA_ROWS, h), dtype),
      do=smem((WARPGROUPS, WGMMA_ROWS, e), dtype),
      k=smem((stages, key_maps, block_kv, h), dtype),
      v=smem((stages, block_kv, e), dtype),
      own_ready=plgpu.Barrier(num_arrivals=WARPGROUPS * (maps + 1)),
      k_ready=ring(num_arrivals=key_maps),
      v_ready=ring(num_arrivals=1),
      free=ring(num_arrivals=WARPGROUPS),
  )


def dq(shape: Shape, config: DqConfig, inputs: Inputs, scale: float):
  """scale * dQ, as `inputs.q`; the tables are of blocks of queries."""
  q = inputs.q
  grid = {"batch": q.shape[0], "heads": shape.heads}
  if config.split_maps:
    grid["maps"] = shape.maps
  grid["blocks"] = inputs.counts.shape[1]  # They share keys in L2.
  (dq,) = backward.launch(
      functools.partial(_Program, shape, config, scale),
      "diff_attention_dq",
      grid,
      [out_struct(q.shape, q.dtype, inputs)],
      _scratch(shape, config, q, inputs.v),
      inputs,
  )
  return dq
