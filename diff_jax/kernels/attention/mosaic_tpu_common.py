# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the TPU kernels share: static facts, products, small layouts."""

import dataclasses

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from diff_jax.kernels.attention import tile_visits
from diff_jax.kernels.attention.block_sizes import LANES, BlockSizes

MASKED_SCORE = -1e30  # Finite: -inf - -inf is not a number.
# x @ y.T, x @ y and x.T @ y, as the compiler likes them said.
NT = (((1,), (1,)), ((), ()))
NN = (((1,), (0,)), ((), ()))
TN = (((0,), (0,)), ((), ()))


@dataclasses.dataclass(frozen=True)
class Shape:
  """What a kernel knows at trace time. Widths are padded, in lanes."""

  groups: int  # Query heads of a kv head.
  maps: int
  key_maps: int
  map_width: int  # Of one map; half a register where two maps share it.
  value_width: int
  causal: bool
  window: int | None
  first_weight_is_one: bool
  saved_maps: tuple[int, ...]  # Whose outputs the backward pass needs.
  out_dtype: jnp.dtype
  vmem_limit_bytes: int

  @property
  def packed(self) -> bool:
    """Whether two maps share the 128 lanes of a register.

    A product with the other map's lanes set to zero costs no more than one of
    half the width, which the hardware would pad; and arrays are half as large.
    """
    return self.map_width < LANES

  @property
  def q_width(self) -> int:
    return self.maps * self.map_width

  @property
  def k_width(self) -> int:
    return self.key_maps * self.map_width

  def q_lanes(self, c: int):
    """Where map c lies in a head's queries."""
    if self.packed:
      return slice(0, self.q_width)
    return slice(c * self.map_width, (c + 1) * self.map_width)

  def k_lanes(self, c: int):
    return self.q_lanes(min(c, self.key_maps - 1))

  def select(self, x, c: int):
    """x with zeros in the lanes of other maps."""
    if not self.packed:
      return x
    lane = lax.broadcasted_iota(jnp.int32, (1, x.shape[1]), 1)
    keep = (lane >= c * self.map_width) & (lane < (c + 1) * self.map_width)
    return jnp.where(keep, x, jnp.zeros_like(x))


def has(kind, bit):
  """Whether a bit of `tile_visits.Visits.kind` is set."""
  return kind & bit != 0


def pieces(sizes: BlockSizes, *, keys_first=False):
  """(rows, keys) of each piece of a tile; which of the two changes last."""
  rows, keys = (
      [pl.ds(x, piece) for x in range(0, block, piece)]
      for block, piece in (
          (sizes.q, sizes.q_compute),
          (sizes.kv, sizes.kv_compute),
      )
  )
  if keys_first:
    return [(row, key) for key in keys for row in rows]
  return [(row, key) for row in rows for key in keys]


def run_tile(kind, pieces, compute):
  """Calls compute(rows, keys, masked) for each piece, if `kind` says so.

  The pieces are unrolled twice: tiles that no mask touches do not pay for it.
  """

  def tile(masked):
    for rows, keys in pieces:
      compute(rows, keys, masked)

  masks = has(kind, tile_visits.MASKED)
  pl.when(has(kind, tile_visits.COMPUTE) & ~masks)(lambda: tile(False))
  pl.when(masks)(lambda: tile(True))


def visible(shape: Shape, inputs, rows, keys, *, keys_first: bool):
  """Whether some queries see some keys: [rows, keys], or [keys, rows].

  Args:
    shape: static facts.
    inputs: refs; of `q_side` and `kv_side`, see `tile_visits.Sides`.
    rows: of the block of queries.
    keys: of the block of keys.
    keys_first: which way the scores lie.
  """

  def lines(side_ref, lanes, is_column):
    found = [side_ref[r : r + 1, lanes] for r in range(side_ref.shape[0])]
    return [column(x) for x in found] if is_column else found

  return tile_visits.visible(
      lines(inputs.q_side, rows, not keys_first),
      lines(inputs.kv_side, keys, keys_first),
      causal=shape.causal,
      window=shape.window,
  )


def dot(x, y, dimensions):
  """A product summed in fp32; exact to fp32 for fp32 operands."""
  precision = lax.Precision.HIGHEST if x.dtype == jnp.float32 else None
  return lax.dot_general(
      x, y, dimensions, precision=precision,
      preferred_element_type=jnp.float32,
  )  # fmt: skip


def column(row):
  """[1, t] -> [t, 1]."""
  return jnp.broadcast_to(row, (8, row.shape[1])).T[:, :1]


def entry(table_ref, b, step):
  """Index of a visit of sequence b in a table, which may serve all sequences.

  Index maps do no arithmetic on the place in the grid: in `jax.shard_map` the
  interpreter knows it as varying over devices, and constants as not.
  """
  return (b if table_ref.shape[0] > 1 else 0), step
