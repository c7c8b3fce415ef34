# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Sizes of the tiles that the TPU kernels work on."""

import dataclasses

from diff_jax.kernels.attention import target

LANES = 128  # Of a vector register, the last axis of a tile.
MIB = 2**20


@dataclasses.dataclass(frozen=True)
class BlockSizes:
  """Rows of queries and of keys that a kernel holds at once.

  A block is what one grid step reads; it is computed in pieces (`compute`),
  which the compiler schedules together.
  """

  q: int
  kv: int
  q_compute: int
  kv_compute: int

  def __post_init__(self):
    for name, size in dataclasses.asdict(self).items():
      if type(size) is not int or size < LANES or size % LANES:
        raise ValueError(
            f"block size {name}={size} must be a positive multiple of {LANES}."
        )
    for whole, piece in (("q", "q_compute"), ("kv", "kv_compute")):
      if getattr(self, whole) % getattr(self, piece):
        raise ValueError(
            f"block size {piece}={getattr(self, piece)} must divide"
            f" {whole}={getattr(self, whole)}."
        )

  def fit(self, t: int, s: int) -> "BlockSizes":
    """No larger, and such that t queries and s keys are padded little."""
    q, q_compute = _fit(self.q, self.q_compute, t)
    kv, kv_compute = _fit(self.kv, self.kv_compute, s)
    return BlockSizes(q, kv, q_compute, kv_compute)

  def at_most(self, most: int) -> "BlockSizes":
    """No block and no piece larger than `most`."""
    return BlockSizes(
        **{
            name: min(size, most)
            for name, size in dataclasses.asdict(self).items()
        }
    )


def _fit(block, piece, length):
  piece = round_up(-(-length // -(-length // piece)), LANES)
  pieces = -(-length // piece)
  blocks = -(-pieces // max(block // piece, 1))
  return piece * -(-pieces // blocks), piece


def round_up(x: int, multiple: int) -> int:
  return -(-x // multiple) * multiple


@dataclasses.dataclass(frozen=True)
class Chip:
  """Forward and backward sizes by the static schedule, and room for them.

  `diff_jax.bench.tune_tpu` finds the sizes; they are powers of two.
  """

  forward: BlockSizes
  backward: BlockSizes
  vmem_bytes: int  # That a kernel may use, of 64 or 128 MiB.


_V5 = BlockSizes(1024, 1024, 512, 512)
# The vector unit is the limit of a forward tile: long rows of scores spare it
# reductions over lanes and corrections of the accumulators.
_V6 = BlockSizes(1024, 1024, 1024, 1024)
CHIPS = {
    "TPU v5": Chip(_V5, _V5, 56 * MIB),  # v5p
    "TPU v5 lite": Chip(_V5, _V5, 100 * MIB),  # v5e
    "TPU v6 lite": Chip(_V6, _V5, 100 * MIB),  # v6e
    "TPU7x": Chip(_V6, _V5, 56 * MIB),
}
_OTHER = Chip(_V5, _V5, 56 * MIB)


def chip() -> Chip:
  """That of the device that the program is compiled for."""
  return CHIPS.get(target.device_kind(), _OTHER)
