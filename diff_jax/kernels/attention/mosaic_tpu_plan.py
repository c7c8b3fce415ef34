# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the TPU kernels can take, and everything static about one call."""

from typing import NamedTuple

import jax.numpy as jnp

from diff_jax.kernels.attention import block_sizes as block_sizes_lib
from diff_jax.kernels.attention.block_sizes import LANES, BlockSizes, round_up
from diff_jax.kernels.attention.mosaic_tpu_common import Shape

DTYPES = (jnp.bfloat16, jnp.float32)
MAX_WIDTH = 256  # Of one map, and of half a value head.
MAX_MAPS = 2
# The tables of visits share scalar memory, 1 MiB, with what the compiler needs.
MAX_TABLE_BYTES = 768 * 1024


class Plan(NamedTuple):
  """Everything static about one call."""

  shape: Shape
  forward: BlockSizes
  backward: BlockSizes
  scale: float


def unsupported(q, k, v, *, bias_slopes=None, sink=None, **masks) -> str | None:
  """Why the kernels cannot take a call, in words; None if they can."""
  h, e = q.shape[-1], v.shape[-1]
  if q.dtype not in DTYPES:
    return f"q.dtype={q.dtype} is neither bfloat16 nor float32"
  if q.shape[3] > MAX_MAPS:
    return f"q.shape={q.shape} has {q.shape[3]} maps, more than {MAX_MAPS}"
  if h > MAX_WIDTH or e > 2 * MAX_WIDTH:
    return f"(h, e)={h, e} is wider than {MAX_WIDTH, 2 * MAX_WIDTH}"
  for name, x in (("bias_slopes", bias_slopes), ("sink", sink)):
    if x is not None:
      return f"{name} is given"
  table = _table_bytes(q, k, v, **masks)
  if table > MAX_TABLE_BYTES:
    return (
        f"the tables of visited tiles need {table:,} bytes of scalar memory,"
        f" more than {MAX_TABLE_BYTES:,}"
    )
  return None


def _table_bytes(
    q, k, v, *, q_offset=0, kv_offset=0, segment_ids=None, window=None, **_
):
  """Of the backward kernel's: five numbers a tile."""
  _, sizes = block_sizes_lib.choose(
      q, k, v, window=window, segmented=segment_ids is not None
  )
  batched = segment_ids is not None or any(
      jnp.ndim(x) and jnp.shape(x)[0] > 1 for x in (q_offset, kv_offset)
  )
  tiles = -(-q.shape[1] // sizes.q) * -(-k.shape[1] // sizes.kv)
  groups = q.shape[2] // k.shape[2]
  return 5 * 4 * tiles * groups * (q.shape[0] if batched else 1)


def make_plan(
    q, k, v, *, causal=True, window=None, segment_ids=None, scale=None,
    out_dtype, first_weight_is_one, sizes=None,
) -> Plan:  # fmt: skip
  """The plan of a supported call.

  Args:
    q, k, v, causal, window, segment_ids, scale: as for `api.attention`.
    out_dtype: of the output.
    first_weight_is_one: see `mosaic_tpu.attention`.
    sizes: of the forward and the backward kernel; None chooses.
  """
  n, c, h = q.shape[2:]
  kv_heads, key_maps = k.shape[2:4]
  if sizes is None:
    sizes = block_sizes_lib.choose(
        q, k, v, window=window, segmented=segment_ids is not None
    )
  packs = c == key_maps == 2 and h <= LANES // 2
  shape = Shape(
      heads=n,
      groups=n // kv_heads,
      maps=c,
      key_maps=key_maps,
      map_width=LANES // 2 if packs else round_up(h, LANES),
      value_width=round_up(v.shape[-1], LANES),
      causal=causal,
      window=window,
      first_weight_is_one=first_weight_is_one,
      saved_maps=tuple(range(int(first_weight_is_one), c)),
      out_dtype=jnp.dtype(out_dtype),
      vmem_limit_bytes=block_sizes_lib.chip().vmem_bytes,
  )
  scale = h**-0.5 if scale is None else scale
  t, s = q.shape[1], k.shape[1]
  return Plan(shape, *(size.fit(t, s) for size in sizes), scale)
