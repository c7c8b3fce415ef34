# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the Hopper kernels share: static facts, tables, products, masks.

The unit of a kernel's thread is a warpgroup of 128 threads; a product (wgmma)
is of 64 rows a warpgroup. Names of axes: `rows` are queries of a tile, `keys`
its keys; the dkv kernel's tiles lie keys by queries.
"""

import contextlib
import contextvars
import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jaxtyping import Array, Bool, Int

from diff_jax.kernels.attention import tile_visits
from diff_jax.kernels.attention.block_sizes import round_up

# In global memory, lengths and widths (of 16 bits) are multiples of a tile's:
TILE_ROWS, MAP_LANES, VALUE_LANES = 8, 32, 64
WGMMA = plgpu.Layout.WGMMA
OF_ROWS = WGMMA.reduce(1)  # One value a row of a tile,
OF_COLUMNS = WGMMA.reduce(0)  # one a column.


@dataclasses.dataclass(frozen=True)
class Shape:
  """What a kernel knows at trace time. Widths are padded to whole tiles."""

  heads: int
  groups: int  # Query heads of a kv head.
  maps: int
  key_maps: int
  map_width: int  # Of one map.
  value_width: int
  causal: bool
  window: int | None
  first_weight_is_one: bool
  saved_maps: tuple[int, ...]  # Whose outputs the backward pass needs.
  out_dtype: jnp.dtype

  def key_map(self, c):
    """The map of the keys that map c of the queries reads; c may be traced."""
    return c if self.key_maps > 1 else 0


# Tables.


class Tables(NamedTuple):
  """Which tiles a kernel visits, and what their masks are made of."""

  order: Int[Array, "b1 outer inner"]
  counts: Int[Array, "b1 outer 2"]
  q_side: Int[Array, "b1 r rows"]  # See `tile_visits.Sides`.
  kv_side: Int[Array, "b1 r keys"]


def make_tables(
    shape: Shape, masking, block_q: int, block_kv: int, *, keys_outer=False
) -> Tables:
  """The tables of a kernel whose outer blocks are of queries, or of keys."""
  rows = round_up(masking.q_positions.shape[1], block_q)
  keys = round_up(masking.kv_positions.shape[1], block_kv)
  sides = tile_visits.pad_sides(masking, rows, keys)
  needed, full = tile_visits.tiles(
      sides, block_q, block_kv, causal=shape.causal, window=shape.window
  )
  if keys_outer:
    needed, full = jnp.swapaxes(needed, 1, 2), jnp.swapaxes(full, 1, 2)
  return Tables(*order_tiles(needed, full), *sides)


def order_tiles(
    needed: Bool[Array, "b1 outer inner"], full: Bool[Array, "b1 outer inner"]
) -> tuple[Int[Array, "b1 outer inner"], Int[Array, "b1 outer 2"]]:
  """Which inner blocks each outer block visits, the unmasked ones first.

  Returns:
    order: inner blocks; past its count a row names blocks not to visit.
    counts: how many are unmasked, and how many are visited in all.
  """
  full = needed & full
  rank = jnp.where(full, 0, jnp.where(needed, 1, 2))
  order = jnp.argsort(rank, axis=-1, stable=True).astype(jnp.int32)
  counts = jnp.stack([full.sum(-1), needed.sum(-1)], -1).astype(jnp.int32)
  return order, counts


def entry(table_ref, b):
  """The row of sequence b of a table, which may serve all sequences."""
  return b if table_ref.shape[0] > 1 else 0


# Products.


_INTERPRETED = contextvars.ContextVar("interpreted", default=False)


@contextlib.contextmanager
def interpreted(**parameters):
  """Kernels traced in this context run in Pallas's interpreter, on a CPU.

  Each warpgroup takes a thread of XLA's pool and may wait for another one, so
  the pool, of a thread a core, must be large enough: let JAX_NUM_CPU_DEVICES be
  8, or a computation of several kernels can hang on a small machine.

  Args:
    **parameters: of `plgpu.InterpretGPUParams`.
  """
  token = _INTERPRETED.set(True)
  try:
    with plgpu.force_gpu_interpret_mode(plgpu.InterpretGPUParams(**parameters)):
      yield
  finally:
    _INTERPRETED.reset(token)


def product(shape: tuple[int, int], x, y):
  """x @ y in fp32 registers; x and y in shared memory."""

  def compute(sum_ref):
    plgpu.wgmma(sum_ref, x, y)
    return sum_ref[...]

  return pl.run_scoped(compute, plgpu.ACC(shape, jnp.float32))


def products(*sums):
  """[total + x @ y + ... of (total, operands, ...) for each], all under way.

  Each `operands` is a function that returns x, in registers or shared memory,
  and y, in shared memory: an index that is a constant has to be made inside of
  the region that the compiler sees.
  """
  if _INTERPRETED.get():
    return [
        functools.reduce(_interpret_product, pairs, total)
        for total, *pairs in sums
    ]

  def compute(sum_refs):
    for sum_ref, (_, *pairs) in zip(sum_refs, sums, strict=True):
      for operands in pairs:
        plgpu.wgmma(sum_ref, *operands())

  totals = tuple(plgpu.ACC.init(total) for total, *_ in sums)
  return list(pl.run_state(compute)(totals))


def _interpret_product(total, operands):
  """The interpreter knows neither x in registers nor sums that go on."""
  x, y = operands()
  x = x if isinstance(x, jax.Array) else x[...]
  x, y = x.astype(jnp.float32), y[...].astype(jnp.float32)
  plgpu.commit_smem()  # What wgmma reads needs no fence before TMA writes.
  return total + jnp.dot(x, y, precision="highest")


def full(shape, value, layout):
  return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)


def along_rows(x, shape):
  """[rows] -> [rows, columns]."""
  return lax.broadcast_in_dim(x, shape, [0])


def along_columns(x, shape):
  """[columns] -> [rows, columns]."""
  return lax.broadcast_in_dim(x, shape, [1])


# Shared memory.


def tiled_smem(shape, dtype):
  """Tiles of 8 rows of 128 swizzled bytes, or of 64 where 128 do not divide.

  wgmma and TMA read and write these without conflicts.
  """
  row_bytes = shape[-1] * jnp.dtype(dtype).itemsize
  tile_bytes = 128 if row_bytes % 128 == 0 else 64
  lanes = tile_bytes // jnp.dtype(dtype).itemsize
  transforms = (
      plgpu.TilingTransform((TILE_ROWS, lanes)),
      plgpu.SwizzleTransform(tile_bytes),
  )
  return plgpu.SMEM(shape, dtype, transforms=transforms)


def remainder(x, y: int):
  return lax.rem(x, jnp.asarray(y, x.dtype))


# Masks.


def side_rows(side_ref, b, where, layout):
  """Positions, and segments if any, of rows or columns of a tile."""
  row = entry(side_ref, b)
  return [
      plgpu.load(side_ref.at[row, r, where], layout=layout, optimized=False)
      for r in range(side_ref.shape[1])
  ]


def visible(shape: Shape, tile, q_side, kv_side, *, keys_by_queries=False):
  """Which pairs of a tile are seen.

  Args:
    shape: static facts.
    tile: the tile's shape.
    q_side: `side_rows` of the queries, the rows of the tile.
    kv_side: `side_rows` of the keys, its columns.
    keys_by_queries: the other way round.
  """
  across = [along_rows, along_columns]
  of_queries, of_keys = across[::-1] if keys_by_queries else across
  return tile_visits.visible(
      [of_queries(x, tile) for x in q_side],
      [of_keys(x, tile) for x in kv_side],
      causal=shape.causal,
      window=shape.window,
  )
