# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the Hopper kernels can take, and everything static about one call."""

from typing import NamedTuple

import jax.numpy as jnp

from diff_jax.kernels.attention import kernel_limits
from diff_jax.kernels.attention.block_sizes import round_up
from diff_jax.kernels.attention.mosaic_gpu_backward_config import (
    BackwardConfig,
    choose_backward,
)
from diff_jax.kernels.attention.mosaic_gpu_common import (
    MAP_LANES,
    VALUE_LANES,
    Shape,
)
from diff_jax.kernels.attention.mosaic_gpu_config import (
    ForwardConfig,
    choose_forward,
)

# Hopper's matrix product takes 16 bits.
DTYPES = ("bfloat16", "float16")
MAX_WIDTH = 128


class Plan(NamedTuple):
  """Everything static about one call."""

  shape: Shape
  forward: ForwardConfig
  backward: BackwardConfig
  scale: float


def unsupported(q, k, v, *, bias_slopes=None, sink=None, **_) -> str | None:
  """Why the kernels cannot take a call, in words; None if they can."""
  del k
  return kernel_limits.unsupported(
      q, v, dtypes=DTYPES, max_width=MAX_WIDTH, bias_slopes=bias_slopes,
      sink=sink,
  )  # fmt: skip


def make_plan(
    q, k, v, *, causal=True, window=None, scale=None, out_dtype,
    first_weight_is_one, configs=None,
) -> Plan:  # fmt: skip
  """The plan of a supported call.

  Args:
    q, k, v, causal, window, scale: as for `api.attention`.
    out_dtype: of the output.
    first_weight_is_one: see `mosaic_gpu.attention`.
    configs: `ForwardConfig` and `BackwardConfig`; None chooses.
  """
  n, c, h = q.shape[2:]
  kv_heads, key_maps = k.shape[2:4]
  shape = Shape(
      heads=n,
      groups=n // kv_heads,
      maps=c,
      key_maps=key_maps,
      map_width=round_up(h, MAP_LANES),
      value_width=round_up(v.shape[-1], VALUE_LANES),
      causal=causal,
      window=window,
      first_weight_is_one=first_weight_is_one,
      saved_maps=tuple(range(int(first_weight_is_one), c)),
      out_dtype=jnp.dtype(out_dtype),
  )
  scale = h**-0.5 if scale is None else scale
  if configs is None:
    configs = choose_forward(shape), choose_backward(shape)
  return Plan(shape, *configs, scale)
