# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Tiles of the forward Hopper kernel, and the shared memory that they need."""

import dataclasses

from diff_jax.kernels.attention.mosaic_gpu_common import Shape

MAX_SMEM_BYTES = 227 * 1024  # Of one program.
OTHER_SMEM_BYTES = 2048  # Barriers and the compiler's own, at most.
WGMMA_ROWS = 64  # Of one warpgroup.
BLOCKS_KV = (64, 128)
MIN_STAGES = 2  # See `mosaic_gpu_common.Ring`.


@dataclasses.dataclass(frozen=True)
class ForwardConfig:
  """Tiles of the forward kernel.

  Either each of two warpgroups has 64 queries and works on all maps, or both
  have the same 64 queries and each works on one map: two wide accumulators do
  not fit a warpgroup's registers.
  """

  block_kv: int  # Keys of a tile.
  stages: int  # Tiles of keys and values in shared memory at once.
  split_maps: bool  # Whether a warpgroup works on one map.

  warpgroups = 2

  def __post_init__(self):
    if self.block_kv not in BLOCKS_KV:
      raise ValueError(
          f"block_kv={self.block_kv} must be one of {BLOCKS_KV} keys."
      )
    if type(self.stages) is not int or self.stages < MIN_STAGES:
      raise ValueError(
          f"stages={self.stages} must be an int of at least {MIN_STAGES}."
      )

  @property
  def block_q(self) -> int:
    """Queries of a program."""
    return WGMMA_ROWS * (1 if self.split_maps else self.warpgroups)

  def smem_bytes(self, shape: Shape) -> int:
    """Shared memory that the kernel needs, at most; operands have 16 bits."""
    rows, e = self.block_q, shape.value_width
    q = 2 * rows * shape.maps * shape.map_width
    k = 2 * self.block_kv * shape.key_maps * shape.map_width
    v = 2 * self.block_kv * e
    # The outputs take the place of the keys and values.
    out = rows * e * shape.out_dtype.itemsize
    saved = 2 * rows * e * len(shape.saved_maps)
    exchanged = 4 * rows * e * self.split_maps
    lse = 4 * self.warpgroups * WGMMA_ROWS * shape.maps
    written = out + saved + exchanged + lse
    return q + max(self.stages * (k + v), written) + OTHER_SMEM_BYTES


def choose_forward(shape: Shape) -> ForwardConfig:
  """Tiles that compile without spilled registers (`make check-gpu`)."""
  split_maps = shape.maps == 2 and shape.value_width > 128
  wide = shape.value_width > 128 or (shape.maps == 2 and shape.map_width > 64)
  block_kv = 64 if wide else 128
  for stages in (3, MIN_STAGES):
    config = ForwardConfig(block_kv, stages, split_maps)
    if config.smem_bytes(shape) <= MAX_SMEM_BYTES:
      return config
  raise AssertionError(f"{shape=} does not fit; `unsupported` let it through.")
