# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Which tiles the TPU kernels work on: the largest that fit fast memory.

What a kernel needs is estimated here before anything is compiled. Blocks and
sums are exact, what the compiler keeps between products is a bound on what it
was seen to keep.
"""

from collections.abc import Callable

from diff_jax.kernels.attention import block_sizes, tile_visits
from diff_jax.kernels.attention.block_sizes import LANES, BlockSizes
from diff_jax.kernels.attention.mosaic_tpu_common import Shape

# Where the edges of what is seen are many, small tiles waste less.
EDGED = 512
# A product of fp32 is six of bf16, all unrolled: longer blocks take the
# compiler more than some seconds.
FP32 = 256
FP32_BYTES = 4
# The tables of visits share scalar memory, 1 MiB, with what the compiler needs.
MAX_TABLE_BYTES = 768 * 1024
# A row of lanes, such as positions, takes at most a register of 8.
ROW_BYTES = 8 * FP32_BYTES


def forward_vmem_bytes(shape: Shape, sizes: BlockSizes, itemsize: int) -> int:
  """What the forward kernel needs of VMEM, at most.

  Args:
    shape: static facts.
    sizes: of its tiles.
    itemsize: bytes of a number in q, k and v.
  """
  value, keys = shape.value_width, shape.k_width + shape.value_width
  outputs = value * (
      shape.out_dtype.itemsize + itemsize * len(shape.saved_maps)
  )
  query = shape.q_width * itemsize + outputs + 3 * ROW_BYTES
  blocks = sizes.q * query + sizes.kv * (keys * itemsize + ROW_BYTES)
  sums = sizes.q * shape.maps * (2 * LANES + value) * FP32_BYTES
  # The last step weighs and writes a whole block at once.
  last = sizes.q * (4 * LANES + 2 * value) * FP32_BYTES
  temporaries = last + _piece_bytes(shape, sizes, itemsize, arrays=2)
  return 2 * blocks + sums + temporaries


def backward_vmem_bytes(shape: Shape, sizes: BlockSizes, itemsize: int) -> int:
  """The same of the backward kernel."""
  value, keys = shape.value_width, shape.k_width + shape.value_width
  query = (shape.q_width + value) * itemsize + 2 * ROW_BYTES
  # Keys and values are read, their gradients written.
  blocks = sizes.q * query + sizes.kv * (2 * keys * itemsize + ROW_BYTES)
  slots = tile_visits.NUM_SLOTS * sizes.q * shape.q_width
  sums = (slots + sizes.kv * keys) * FP32_BYTES
  temporaries = _piece_bytes(shape, sizes, itemsize, arrays=4)
  return 2 * blocks + sums + temporaries


def _piece_bytes(shape: Shape, sizes: BlockSizes, itemsize, arrays: int) -> int:
  """Of some arrays of scores, and of the bf16 parts of fp32 operands."""
  scores = arrays * sizes.q_compute * sizes.kv_compute
  rows = sizes.q_compute + sizes.kv_compute
  parts = 3 * rows * (shape.q_width + shape.value_width)
  return FP32_BYTES * (scores + (parts if itemsize >= FP32_BYTES else 0))


def table_bytes(
    shape: Shape, sizes: BlockSizes, t: int, s: int, rows: int
) -> int:
  """What the visits need of scalar memory: five numbers a tile."""
  tiles = -(-t // sizes.q) * -(-s // sizes.kv)
  return 5 * 4 * tiles * shape.groups * rows


def choose(
    shape: Shape, t: int, s: int, *, itemsize: int, segmented: bool, rows: int
) -> tuple[BlockSizes, BlockSizes]:
  """Sizes of the forward and of the backward kernel.

  Args:
    shape: static facts.
    t: queries.
    s: keys.
    itemsize: bytes of a number in q, k and v.
    segmented: whether there are segment ids.
    rows: sequences that have tables of visits of their own, or 1.
  """
  chip = block_sizes.chip()
  windowed = shape.window is not None and shape.window <= 2 * EDGED

  def largest(tuned: BlockSizes, vmem_bytes: Callable) -> BlockSizes:
    whole = most = max(tuned.q, tuned.kv)
    if segmented or windowed:
      most = min(most, EDGED)
    if itemsize >= FP32_BYTES:
      most = min(most, FP32)
    # Many small tiles may be more than the tables can hold.
    while most < whole and MAX_TABLE_BYTES < table_bytes(
        shape, tuned.at_most(most), t, s, rows
    ):
      most *= 2
    while most > LANES and shape.vmem_limit_bytes < vmem_bytes(
        shape, tuned.at_most(most), itemsize
    ):
      most //= 2
    return tuned.at_most(most).fit(t, s)

  return (
      largest(chip.forward, forward_vmem_bytes),
      largest(chip.backward, backward_vmem_bytes),
  )
