# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the TPU kernels can take, and everything static about one call."""

from typing import NamedTuple

import jax.numpy as jnp

from diff_jax.kernels.attention import kernel_limits, mosaic_tpu_sizes
from diff_jax.kernels.attention.block_sizes import (
    LANES,
    BlockSizes,
    chip,
    round_up,
)
from diff_jax.kernels.attention.mosaic_tpu_common import Shape

DTYPES = ("bfloat16", "float32")
MAX_WIDTH = 256


class Plan(NamedTuple):
  """Everything static about one call."""

  shape: Shape
  forward: BlockSizes
  backward: BlockSizes
  scale: float


def unsupported(q, k, v, *, bias_slopes=None, sink=None, **masks) -> str | None:
  """Why the kernels cannot take a call, in words; None if they can."""
  reason = kernel_limits.unsupported(
      q, v, dtypes=DTYPES, max_width=MAX_WIDTH, bias_slopes=bias_slopes,
      sink=sink,
  )  # fmt: skip
  if reason is not None:
    return reason
  plan = make_plan(
      q, k, v, out_dtype=q.dtype, first_weight_is_one=True, **masks
  )
  table = mosaic_tpu_sizes.table_bytes(
      plan.shape, plan.backward, q.shape[1], k.shape[1], _rows(q, **masks)
  )
  if table > mosaic_tpu_sizes.MAX_TABLE_BYTES:
    return (
        f"the tables of visited tiles need {table:,} bytes of scalar memory,"
        f" more than {mosaic_tpu_sizes.MAX_TABLE_BYTES:,}"
    )
  return None


def make_plan(
    q, k, v, *, causal=True, window=None, scale=None, out_dtype,
    first_weight_is_one, sizes=None, **masks,
) -> Plan:  # fmt: skip
  """The plan of a supported call.

  Args:
    q, k, v, causal, window, scale: as for `api.attention`.
    out_dtype: of the output.
    first_weight_is_one: see `mosaic_tpu.attention`.
    sizes: of the forward and the backward kernel; None chooses.
    **masks: segments and offsets, as for `api.attention`.
  """
  shape = _make_shape(
      q, k, v, causal=causal, window=window, out_dtype=out_dtype,
      first_weight_is_one=first_weight_is_one,
  )  # fmt: skip
  t, s = q.shape[1], k.shape[1]
  if sizes is None:
    sizes = mosaic_tpu_sizes.choose(
        shape, t, s, itemsize=q.dtype.itemsize,
        segmented=masks.get("segment_ids") is not None, rows=_rows(q, **masks),
    )  # fmt: skip
  scale = q.shape[-1] ** -0.5 if scale is None else scale
  return Plan(shape, *(size.fit(t, s) for size in sizes), scale)


def _rows(q, *, segment_ids=None, q_offset=0, kv_offset=0, **_) -> int:
  """Sequences that have tables of visits of their own, or 1."""
  one_for_all = segment_ids is None and all(
      jnp.ndim(x) == 0 or jnp.shape(x)[0] == 1 for x in (q_offset, kv_offset)
  )
  return 1 if one_for_all else q.shape[0]


def _make_shape(
    q, k, v, *, causal, window, out_dtype, first_weight_is_one
) -> Shape:
  n, c, h = q.shape[2:]
  kv_heads, key_maps = k.shape[2:4]
  packs = c == key_maps == 2 and h <= LANES // 2
  return Shape(
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
      vmem_limit_bytes=chip().vmem_bytes,
  )
