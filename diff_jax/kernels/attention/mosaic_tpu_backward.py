# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The backward TPU kernel: all gradients in one pass over the tiles.

With E_c = |w_c| P_c, signs s_c of the weights, and s_1 = 1 (it is in dO):

    dP = dO V^T (once)               dS_c = s_c E_c (dP - delta_c)
    dV = (sum_c s_c E_c)^T dO (once) dQ_c = dS_c K_c,  dK_c = dS_c^T Q_c

so two maps cost five products of the width of a pair: what the Transformer's
two heads cost. |w_c| is part of the log-sum-exp that a row brings. Tiles lie
keys by queries, so that what belongs to a query is a row of lanes.

A step of the grid holds one block of keys, whose dK and dV stay in fast memory
while the queries of all heads of its group pass. The sums for dQ live in main
memory, in fp32, and are fetched and written back by the kernel itself, in the
order of `tile_visits.add_transfers`: the result does not depend on timing.
"""

import functools

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from diff_jax.kernels.attention import tile_visits
from diff_jax.kernels.attention.block_sizes import BlockSizes
from diff_jax.kernels.attention.mosaic_tpu_common import (
    LN_2,
    MASKED_SCORE,
    NN,
    NT,
    TN,
    Shape,
    column,
    dot,
    entry,
    out_struct,
    varying_like,
)


def _kernel(
    # Tables in scalar memory.
    kv_blocks, heads, q_blocks, kinds, steps_after, first_heads,
    # Inputs.
    q_ref, k_ref, v_ref, do_ref, stats_ref, q_side_ref, kv_side_ref,
    # Outputs.
    dq_hbm, dk_ref, dv_ref,
    # Scratch.
    dq_ref, dk_sum, dv_sum, load_semaphores, store_semaphores,
    *,
    shape: Shape,
    sizes: BlockSizes,
):  # fmt: skip
  del kv_blocks
  batch, kv_head = pl.program_id(0), pl.program_id(1)
  step = pl.program_id(2)
  kind = kinds[entry(kinds, batch, step)]
  slot = kind >> tile_visits.SLOT_SHIFT

  def has(bit):
    return kind & bit != 0

  def when(condition):
    return pl.when(condition)

  def dq_block(step):
    """Where the sums of a visit's queries live."""
    visit = entry(kinds, batch, step)
    first = pl.multiple_of(q_blocks[visit] * sizes.q, sizes.q)
    head = first_heads[kv_head] + heads[visit]
    lane = pl.multiple_of(head * shape.q_width, shape.q_width)
    return dq_hbm.at[batch, pl.ds(first, sizes.q), pl.ds(lane, shape.q_width)]

  def load(step, slot):
    return pltpu.make_async_copy(
        dq_block(step), dq_ref.at[slot], load_semaphores.at[slot]
    )

  def store(step, slot):
    return pltpu.make_async_copy(
        dq_ref.at[slot], dq_block(step), store_semaphores.at[slot]
    )

  def slot_after(runs):
    return lax.rem(slot + runs, tile_visits.NUM_SLOTS)

  @when(has(tile_visits.RUN_START) & has(tile_visits.THIRD_RUN))
  def _():
    store(step, slot_after(1)).wait()  # Of the run before the last.

  @when(has(tile_visits.LOAD))
  def _():
    @when(has(tile_visits.WAIT))
    def _():
      load(step, slot).start()

    load(step, slot).wait()

  @when(has(tile_visits.RUN_START) & ~has(tile_visits.LOAD))
  def _():
    dq_ref[slot] = jnp.zeros(dq_ref.shape[1:], dq_ref.dtype)

  @when(has(tile_visits.PREFETCH))
  def _():
    load(steps_after[step], slot_after(1)).start()

  @when(has(tile_visits.FIRST))
  def _():
    dk_sum[...] = jnp.zeros_like(dk_sum)
    dv_sum[...] = jnp.zeros_like(dv_sum)

  def tile(masked: bool):
    for j in range(sizes.kv // sizes.kv_compute):
      for i in range(sizes.q // sizes.q_compute):
        piece(
            pl.ds(i * sizes.q_compute, sizes.q_compute),
            pl.ds(j * sizes.kv_compute, sizes.kv_compute),
            masked,
        )

  def piece(rows, keys, masked):
    if masked:
      seen = tile_visits.visible(
          [q_side_ref[r : r + 1, rows] for r in range(q_side_ref.shape[0])],
          [column(kv_side_ref[r : r + 1, keys])
           for r in range(kv_side_ref.shape[0])],
          causal=shape.causal,
          window=shape.window,
      )  # fmt: skip
    do = do_ref[rows]
    dp = dot(v_ref[keys], do, NT)
    mixed = None
    for c in range(shape.maps):
      q = shape.select(q_ref[rows, shape.q_lanes(c)], c)
      k = k_ref[keys, shape.k_lanes(c)]
      scores = dot(k, q, NT)
      if masked:
        scores = jnp.where(seen, scores, MASKED_SCORE)

      def stat(row):
        return stats_ref[row : row + 1, rows]

      probs = jnp.exp2(scores - stat(c))
      if c:
        probs = probs * stat(2 * shape.maps + c)
      mixed = probs if mixed is None else mixed + probs
      ds = (probs * (dp - stat(shape.maps + c))).astype(q.dtype)
      dk_sum[keys, shape.k_lanes(c)] += dot(ds, q, NN)
      dq_ref[slot, rows, shape.q_lanes(c)] += dot(ds, shape.select(k, c), TN)
    dv_sum[keys] += dot(mixed.astype(do.dtype), do, NN)

  @when(has(tile_visits.COMPUTE) & ~has(tile_visits.MASKED))
  def _():
    tile(masked=False)

  @when(has(tile_visits.MASKED))
  def _():
    tile(masked=True)

  @when(has(tile_visits.LAST))
  def _():
    dk_ref[...] = (LN_2 * dk_sum[...]).astype(dk_ref.dtype)
    dv_ref[...] = dv_sum[...].astype(dv_ref.dtype)

  @when(has(tile_visits.RUN_END))
  def _():
    store(step, slot).start()

  @when(has(tile_visits.DRAIN))
  def _():
    @when(has(tile_visits.SECOND_RUN))
    def _():
      store(step, slot_after(2)).wait()

    store(step, slot).wait()


def backward(shape: Shape, sizes, visits, sides, q, k, v, do, stats):
  """Runs the kernel on arrays that are padded to whole blocks.

  Args:
    shape: static facts.
    sizes: `BlockSizes`.
    visits: of (kv blocks, g * q blocks), with transfers.
    sides: positions and segments.
    q: [b, t, n * q_width], scaled.
    k: [b, s, k * k_width].
    v: [b, s, k * e].
    do: [b, t, n * e], times the sign of the first weight.
    stats: [b, n, 3c, t], fp32: in rows c the log2-sum-exp less log2 |w_c|, then
      delta_c, then the sign of w_c over that of w_1.

  Returns:
    dq [b, t, n * q_width] in fp32, without the scale; dk and dv as k and v.
  """
  b, t, _ = q.shape
  e = shape.value_width
  blocks = t // sizes.q
  first_heads = jnp.arange(0, shape.heads, shape.groups, dtype=jnp.int32)
  steps_after = jnp.arange(1, visits.kind.shape[1] + 1, dtype=jnp.int32)
  tables = (
      visits.outer,
      visits.inner // blocks,
      visits.inner % blocks,
      visits.kind,
      varying_like(steps_after, visits),
      varying_like(first_heads, visits),
  )

  def q_place(b, kv_head, s, _, heads, q_blocks, __, ___, first_heads):
    visit = entry(heads, b, s)
    return b, first_heads[kv_head] + heads[visit], q_blocks[visit]

  def q_index(*args):
    b, head, block = q_place(*args)
    return b, block, head

  def row_index(*args):
    b, head, block = q_place(*args)
    return b, head, 0, block

  def q_side_index(*args):
    b, _, block = q_place(*args)
    return *entry(sides.q, b, 0), block

  def kv_index(b, kv_head, s, kv_blocks, *_):
    return b, kv_blocks[entry(kv_blocks, b, s)], kv_head

  def kv_side_index(*args):
    b, block, _ = kv_index(*args)
    return *entry(sides.kv, b, 0), block

  k_spec = pl.BlockSpec((None, sizes.kv, shape.k_width), kv_index)
  v_spec = pl.BlockSpec((None, sizes.kv, e), kv_index)
  like = (q, k, v, do, stats, sides, visits)
  return pl.pallas_call(
      functools.partial(_kernel, shape=shape, sizes=sizes),
      grid_spec=pltpu.PrefetchScalarGridSpec(
          num_scalar_prefetch=len(tables),
          grid=(b, shape.heads // shape.groups, visits.count),
          in_specs=[
              pl.BlockSpec((None, sizes.q, shape.q_width), q_index),
              k_spec,
              v_spec,
              pl.BlockSpec((None, sizes.q, e), q_index),
              pl.BlockSpec((None, None, stats.shape[2], sizes.q), row_index),
              pl.BlockSpec((None, sides.q.shape[1], sizes.q), q_side_index),
              pl.BlockSpec((None, sides.kv.shape[1], sizes.kv), kv_side_index),
          ],
          out_specs=[pl.BlockSpec(memory_space=pl.ANY), k_spec, v_spec],
          scratch_shapes=[
              pltpu.VMEM(
                  (tile_visits.NUM_SLOTS, sizes.q, shape.q_width), jnp.float32
              ),
              pltpu.VMEM((sizes.kv, shape.k_width), jnp.float32),
              pltpu.VMEM((sizes.kv, e), jnp.float32),
              pltpu.SemaphoreType.DMA((tile_visits.NUM_SLOTS,)),
              pltpu.SemaphoreType.DMA((tile_visits.NUM_SLOTS,)),
          ],
      ),
      out_shape=[
          out_struct(q.shape, jnp.float32, like),
          out_struct(k.shape, k.dtype, like),
          out_struct(v.shape, v.dtype, like),
      ],
      compiler_params=pltpu.CompilerParams(
          dimension_semantics=("parallel", "parallel", "arbitrary"),
          vmem_limit_bytes=shape.vmem_limit_bytes,
      ),
      name="diff_attention_backward",
  )(*tables, q, k, v, do, stats, *sides)
