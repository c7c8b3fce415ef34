# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Tiles of the backward Hopper kernels, and the memory that they need."""

import dataclasses
from typing import NamedTuple

from diff_jax.kernels.attention.mosaic_gpu_common import Shape
from diff_jax.kernels.attention.mosaic_gpu_config import (
    MAX_SMEM_BYTES,
    MIN_STAGES,
    OTHER_SMEM_BYTES,
    WGMMA_ROWS,
)

WARPGROUPS = 2
MAX_STAGES = 3
BLOCKS = (64, 128)
# Registers of a thread that sums may take beside two 64 x 64 tiles.
MAX_DQ_REGISTERS, MAX_DKV_REGISTERS = 96, 128


@dataclasses.dataclass(frozen=True)
class DqConfig:
  """Tiles of the kernel that computes dQ: 64 queries a warpgroup.

  A program works on all maps of a head, or on one map: then dP is computed for
  each map anew, but wide sums of two maps would not fit a warpgroup's registers
  beside dP.
  """

  block_kv: int  # Keys of a tile.
  stages: int  # Tiles of keys and values in shared memory at once.
  split_maps: bool  # Whether a program works on one map.

  block_q = WARPGROUPS * WGMMA_ROWS  # Queries of a program.

  def __post_init__(self):
    _check("block_kv", self.block_kv, self.stages)

  def smem_bytes(self, shape: Shape) -> int:
    """Shared memory that the kernel needs, at most; operands have 16 bits."""
    maps = 1 if self.split_maps else shape.maps
    key_maps = 1 if self.split_maps else shape.key_maps
    q = self.block_q * (maps * shape.map_width + shape.value_width)
    kv = self.block_kv * (key_maps * shape.map_width + shape.value_width)
    return 2 * (q + self.stages * kv) + OTHER_SMEM_BYTES


@dataclasses.dataclass(frozen=True)
class DkvConfig:
  """Tiles of the kernel that computes dK and dV.

  Either each warpgroup has 64 keys and works on all maps, or both have the same
  64 keys, and each works on dK of one map and on half of the columns of dV: all
  of these sums would not fit a warpgroup's registers. Maps that share keys then
  get their own copies; the dK of a single map is computed by both.
  """

  block_q: int  # Queries of a tile.
  stages: int  # Tiles of queries in shared memory at once.
  split_maps: bool  # Whether a warpgroup works on one map.

  def __post_init__(self):
    _check("block_q", self.block_q, self.stages)

  @property
  def block_kv(self) -> int:
    """Keys of a program."""
    return WGMMA_ROWS * (1 if self.split_maps else WARPGROUPS)

  def smem_bytes(self, shape: Shape) -> int:
    """Shared memory that the kernel needs, at most; operands have 16 bits."""
    key_maps = shape.maps if self.split_maps else shape.key_maps
    kv = self.block_kv * (key_maps * shape.map_width + shape.value_width)
    q = self.block_q * (shape.maps * shape.map_width + shape.value_width)
    stats = 4 * self.block_q * 3 * shape.maps
    exchanged = 2 * WARPGROUPS * WGMMA_ROWS * self.block_q * self.split_maps
    ring = self.stages * (2 * q + stats)
    return 2 * kv + ring + exchanged + OTHER_SMEM_BYTES


class BackwardConfig(NamedTuple):
  """Tiles of both kernels."""

  dq: DqConfig
  dkv: DkvConfig


def _check(name: str, block: int, stages: int):
  if block not in BLOCKS:
    raise ValueError(f"{name}={block} must be one of {BLOCKS}.")
  if type(stages) is not int or stages < MIN_STAGES:
    raise ValueError(
        f"stages={stages} must be an int of at least {MIN_STAGES}."
    )


def choose_backward(shape: Shape) -> BackwardConfig:
  """Tiles that compile without serialised products (`make check-gpu`)."""
  # A sum of 64 rows takes half a register of a thread for each column.
  dq_registers = shape.maps * shape.map_width // 2
  dkv_registers = (shape.key_maps * shape.map_width + shape.value_width) // 2
  split_dq = shape.maps > 1 and dq_registers > MAX_DQ_REGISTERS
  split_dkv = dkv_registers > MAX_DKV_REGISTERS
  block_kv = 64 if shape.maps > 1 or shape.value_width > 128 else 128
  return BackwardConfig(
      _deepest(lambda stages: DqConfig(block_kv, stages, split_dq), shape),
      _deepest(lambda stages: DkvConfig(64, stages, split_dkv), shape),
  )


def _deepest(config, shape: Shape):
  for stages in range(MAX_STAGES, MIN_STAGES - 1, -1):
    found = config(stages)
    if found.smem_bytes(shape) <= MAX_SMEM_BYTES:
      return found
  raise AssertionError(f"{shape=} does not fit; `unsupported` let it through.")
