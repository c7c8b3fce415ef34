# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The Hopper kernel for dK and dV; formulas in `mosaic_gpu_backward.py`.

A program has a block of keys of one kv head; two warpgroups compute, in one of
two ways (`DkvConfig`). Blocks of queries of all heads of the group go through a
ring of slots (`mosaic_gpu_ring.Ring`). Tiles lie keys by queries, so that
what belongs to a query is a column.

Barriers, and why nothing waits for ever: both warpgroups read the same counts
and make the same steps. `own_ready` completes once. Of a step's slot, `ready`
completes when the copies have arrived, and each warpgroup waits for it once; a
slot is filled again only after both have.

Where two maps are split, warpgroup w hands its signed probabilities to the
other one in `probs[w]`, once a step: w waits for `read[w]`, writes, arrives at
`written[w]`, waits for `written[1 - w]`, reads, arrives at `read[1 - w]`. One
more arrival at each `read` before the first step says that nothing is there. So
each arrives before it waits for the other one's same step, and neither of these
barriers gets two completions ahead of its waiter. `done` completes once, when
both have read K and V for the last time.
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
    DkvConfig,
)
from diff_jax.kernels.attention.mosaic_gpu_common import (
    OF_COLUMNS,
    Shape,
    products,
)
from diff_jax.kernels.attention.mosaic_gpu_config import WGMMA_ROWS
from diff_jax.kernels.attention.mosaic_tpu_common import MASKED_SCORE
from diff_jax.kernels.attention.varying import out_struct
from diff_jax.kernels.attention.weighted_gradient import LN_2


class Scratch(NamedTuple):
  """One owner of keys and two parts of e where maps are split, else 2 and 1."""

  k: object  # [owners, ck, 64, h], and dk at the end
  v: object  # [owners, parts, 64, e / parts], and dv at the end
  q: object  # [stages, c, block_q, h]
  do: object  # [stages, parts, block_q, e / parts]
  stats: object  # [stages, 3c, block_q]
  own_ready: object
  ready: object
  free: object
  done: object
  # These only where two maps are split.
  probs: object = None  # [2, 64, block_q]
  written: object = None
  read: object = None


class _Program:
  """What a program works on."""

  def __init__(self, shape, config, inputs, scratch):
    self.shape, self.config = shape, config
    self.inputs, self.scratch = inputs, scratch
    self.batch = lax.axis_index("batch")
    self.kv_head = lax.axis_index("heads")
    self.block = lax.axis_index("blocks")
    _, self.parts, _, self.part = scratch.v.shape
    self.exchanges = config.split_maps and shape.maps > 1
    self.table = common.entry(inputs.counts, self.batch), self.block
    # A step is a block of queries of one head of the group.
    self.unmasked = inputs.counts[*self.table, 0] * shape.groups
    self.visited = inputs.counts[*self.table, 1] * shape.groups

  def keys(self, owner):
    first = self.block * self.config.block_kv + owner * WGMMA_ROWS
    return pl.ds(first, WGMMA_ROWS)

  def rows(self, step):
    visit = lax.div(step, jnp.asarray(self.shape.groups, step.dtype))
    block_q = self.config.block_q
    return pl.ds(self.inputs.order[*self.table, visit] * block_q, block_q)

  def columns(self, part):
    return pl.ds(part * self.part, self.part)

  def load_own(self):
    """Begins the copies of k and v."""
    inputs, scratch, shape = self.inputs, self.scratch, self.shape
    for owner, keys in enumerate(map(self.keys, range(scratch.k.shape[0]))):
      place = self.batch, keys
      for c in range(shape.key_maps):
        plgpu.copy_gmem_to_smem(
            inputs.k.at[*place, self.kv_head * shape.key_maps + c],
            scratch.k.at[owner, c],
            scratch.own_ready,
        )
      for part in range(self.parts):
        plgpu.copy_gmem_to_smem(
            inputs.v.at[*place, self.kv_head, self.columns(part)],
            scratch.v.at[owner, part],
            scratch.own_ready,
        )

  def load(self, step, slot):
    """Begins the copies of a step's queries and of what belongs to them."""
    inputs, scratch, shape = self.inputs, self.scratch, self.shape
    ready, place = scratch.ready.at[slot], (self.batch, self.rows(step))
    head = common.remainder(step, shape.groups)
    head += self.kv_head * shape.groups
    for c in range(shape.maps):
      plgpu.copy_gmem_to_smem(
          inputs.q.at[*place, head * shape.maps + c],
          scratch.q.at[slot, c],
          ready,
      )
    for part in range(self.parts):
      plgpu.copy_gmem_to_smem(
          inputs.do.at[*place, head, self.columns(part)],
          scratch.do.at[slot, part],
          ready,
      )
    batch, rows = place
    plgpu.copy_gmem_to_smem(
        inputs.stats.at[batch, head, :, rows], scratch.stats.at[slot], ready
    )

  def places(self, warpgroup):
    """What is a warpgroup's: owner, part, maps of q, maps of k."""
    if self.exchanges:
      return 0, warpgroup, [warpgroup], [warpgroup]
    maps, key_maps = range(self.shape.maps), range(self.shape.key_maps)
    if self.config.split_maps:
      return 0, warpgroup, maps, key_maps
    return warpgroup, 0, maps, key_maps

  def compute(self, warpgroup, ring, dk_ref, dv_ref):
    """What a warpgroup does."""
    scratch, split = self.scratch, self.config.split_maps
    *_, key_maps = self.places(warpgroup)
    if self.exchanges:
      plgpu.barrier_arrive(scratch.read.at[1 - warpgroup])
    step = functools.partial(self._step, warpgroup, ring)
    plgpu.barrier_wait(scratch.own_ready)
    width = scratch.k.shape[-1]
    sums = (
        [zeros((WGMMA_ROWS, width)) for _ in key_maps],
        zeros((WGMMA_ROWS, self.part)),
    )
    sums = lax.fori_loop(0, self.unmasked, step, sums)
    dks, dv = lax.fori_loop(
        self.unmasked, self.visited, functools.partial(step, masked=True), sums
    )
    if split:
      plgpu.barrier_arrive(scratch.done)
      plgpu.barrier_wait(scratch.done)
    # The dK of a single map that is split has been computed by both.
    pl.when(not split or self.exchanges or warpgroup == 0)(
        functools.partial(self._write_dk, warpgroup, dks, dk_ref)
    )
    self._write_dv(warpgroup, dv, dv_ref)
    plgpu.wait_smem_to_gmem(0)

  def _write_dk(self, warpgroup, dks, dk_ref):
    """Begins to write, from where K was."""
    owner, _, _, key_maps = self.places(warpgroup)
    k_smem, keys = self.scratch.k, (self.batch, self.keys(owner))
    for c, dk in zip(key_maps, dks, strict=True):
      k_smem[owner, c] = (LN_2 * dk).astype(k_smem.dtype)
    plgpu.commit_smem()
    for c in key_maps:
      place = *keys, self.kv_head * self.shape.key_maps + c
      plgpu.copy_smem_to_gmem(k_smem.at[owner, c], dk_ref.at[*place])

  def _write_dv(self, warpgroup, dv, dv_ref):
    """Begins to write, from where V was."""
    owner, part, *_ = self.places(warpgroup)
    v_smem = self.scratch.v
    v_smem[owner, part] = dv.astype(v_smem.dtype)
    plgpu.commit_smem()
    place = self.batch, self.keys(owner), self.kv_head, self.columns(part)
    plgpu.copy_smem_to_gmem(v_smem.at[owner, part], dv_ref.at[*place])

  def _step(self, warpgroup, ring, step, sums, masked=False):
    """One block of queries of one head."""
    shape, scratch = self.shape, self.scratch
    dks, dv = sums
    tile = WGMMA_ROWS, self.config.block_q
    warpgroup, slot = backward.opaque(warpgroup, ring.slot(step))
    owner, part, maps, _ = self.places(warpgroup)

    def stat(row):
      values = plgpu.load(scratch.stats.at[slot, row], layout=OF_COLUMNS)
      return common.along_columns(values, tile)

    def start(c):
      """Of the scores, so that neither takes registers after the product."""
      if not masked:
        return -stat(c)
      mask = backward.seen(
          shape, self.inputs, self.batch, self.rows(step), self.keys(owner),
          tile, keys_by_queries=True,
      )  # fmt: skip
      return jnp.where(mask, -stat(c), MASKED_SCORE)

    def score_operands(c):
      return scratch.k.at[owner, shape.key_map(c)], scratch.q.at[slot, c].T

    def dp_operands(i):
      return scratch.v.at[owner, i], scratch.do.at[slot, i].T

    plgpu.barrier_wait(scratch.ready.at[slot])
    scores = products(
        *[(start(c), functools.partial(score_operands, c)) for c in maps]
    )
    ring.advance(step)
    probs = [jnp.exp2(x) for x in scores]
    for i, c in enumerate(maps):
      if self.exchanges or c:  # The first map's is 1.
        probs[i] *= stat(2 * shape.maps + c)
    mixed = sum(probs[1:], probs[0])
    if self.exchanges:
      mixed += self._other_map(warpgroup, mixed)
    mixed = mixed.astype(scratch.do.dtype)
    parts = [functools.partial(dp_operands, i) for i in range(self.parts)]
    dv, dp = products(
        (dv, lambda: (mixed, scratch.do.at[slot, part])), (zeros(tile), *parts)
    )
    dk_sums = [[dk] for dk in dks]
    for i, c in enumerate(maps):
      ds = (probs[i] * (dp - stat(shape.maps + c))).astype(scratch.q.dtype)
      dk_sums[min(i, len(dks) - 1)].append(
          lambda ds=ds, c=c: (ds, scratch.q.at[slot, c])
      )
    dks = products(*dk_sums)
    ring.release(slot)
    return dks, dv

  def _other_map(self, warpgroup, probs):
    """The other warpgroup's probabilities, for one's own, rounded."""
    scratch = self.scratch
    plgpu.barrier_wait(scratch.read.at[warpgroup])
    scratch.probs[warpgroup] = probs.astype(scratch.probs.dtype)
    plgpu.barrier_arrive(scratch.written.at[warpgroup])
    plgpu.barrier_wait(scratch.written.at[1 - warpgroup])
    other = plgpu.load(scratch.probs.at[1 - warpgroup], layout=common.WGMMA)
    plgpu.barrier_arrive(scratch.read.at[1 - warpgroup])
    return other.astype(jnp.float32)


def _scratch(shape: Shape, config: DkvConfig, q, v):
  split, stages, block_q = config.split_maps, config.stages, config.block_q
  owners, parts = (1, WARPGROUPS) if split else (WARPGROUPS, 1)
  h, part = q.shape[-1], v.shape[-1] // parts
  smem = common.tiled_smem
  ring = functools.partial(plgpu.Barrier, num_barriers=stages)
  exchanged = {}
  if split and shape.maps > 1:
    pair = plgpu.Barrier(num_barriers=WARPGROUPS)
    probs = smem((WARPGROUPS, WGMMA_ROWS, block_q), v.dtype)
    exchanged = dict(probs=probs, written=pair, read=pair)
  return Scratch(
      k=smem((owners, shape.key_maps, WGMMA_ROWS, h), q.dtype),
      v=smem((owners, parts, WGMMA_ROWS, part), v.dtype),
      q=smem((stages, shape.maps, block_q, h), q.dtype),
      do=smem((stages, parts, block_q, part), v.dtype),
      stats=plgpu.SMEM((stages, 3 * shape.maps, block_q), jnp.float32),
      own_ready=plgpu.Barrier(num_arrivals=owners * (shape.key_maps + parts)),
      ready=ring(num_arrivals=shape.maps + parts + 1),
      free=ring(num_arrivals=WARPGROUPS),
      done=plgpu.Barrier(num_arrivals=WARPGROUPS),
      **exchanged,
  )


def dkv(shape: Shape, config: DkvConfig, inputs: Inputs):
  """dK as `inputs.k` and dV as `inputs.v`; the tables are of blocks of keys."""
  k, v = inputs.k, inputs.v
  blocks = inputs.counts.shape[1]  # Of causal ones, the first are the longest.
  return backward.launch(
      functools.partial(_Program, shape, config),
      "diff_attention_dkv",
      {"batch": k.shape[0], "heads": v.shape[2], "blocks": blocks},
      [out_struct(x.shape, x.dtype, inputs) for x in (k, v)],
      _scratch(shape, config, inputs.q, v),
      inputs,
  )
