# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The backward pass on Hopper: one kernel for dQ, one for dK and dV.

With E_c = |w_c| P_c, signs s_c of the weights, and s_1 = 1 (it is in dO):

    dP = dO V^T                    dS_c = s_c E_c (dP - delta_c)
    dV = (sum_c s_c E_c)^T dO      dQ_c = dS_c K_c,  dK_c = dS_c^T Q_c

|w_c| is part of the log-sum-exp that a row brings. Both kernels compute the
scores and dP anew, and each sum belongs to one warpgroup: the result does not
depend on timing. Rows past the end are zeros, whose dP, delta and dO are zero.
"""

import dataclasses

import jax.numpy as jnp

from diff_jax.kernels.attention.mosaic_gpu_backward_common import Inputs
from diff_jax.kernels.attention.mosaic_gpu_backward_config import (
    BackwardConfig,
    choose_backward,
)
from diff_jax.kernels.attention.mosaic_gpu_common import Shape, make_tables
from diff_jax.kernels.attention.mosaic_gpu_dkv import dkv
from diff_jax.kernels.attention.mosaic_gpu_dq import dq


def backward(
    shape: Shape, masking, q, k, v, do, stats, *, scale: float,
    config: BackwardConfig | None = None,
):  # fmt: skip
  """Runs both kernels.

  TMA reads zeros past the end of q, k, v and dO, and writes nothing there; t
  and s are multiples of `mosaic_gpu_common.TILE_ROWS`.

  Args:
    shape: static facts.
    masking: `masking.Masking` of t queries and s keys, or of fewer.
    q: [b, t, n * c, h], scaled, in units of log 2.
    k: [b, s, k * ck, h].
    v: [b, s, k, e].
    do: [b, t, n, e], times the sign of the first weight, rounded as v is.
    stats: [b, n, 3c, at most t], fp32, see `weighted_gradient.row_stats`.
    scale: what q was scaled by, log 2 aside.
    config: tiles; None chooses.

  Returns:
    dq with the scale, dk and dv, as q, k and v.
  """
  if config is None:
    config = choose_backward(shape)

  def inputs(blocks, keys_outer):
    tables = make_tables(
        shape, masking, blocks.block_q, blocks.block_kv, keys_outer=keys_outer
    )
    rows = tables.q_side.shape[-1] - stats.shape[-1]
    padded = jnp.pad(stats, ((0, 0),) * 3 + ((0, rows),))
    return Inputs(*tables, q, k, v, do, padded)

  dk, dv = _dkv(shape, config.dkv, inputs(config.dkv, keys_outer=True))
  return dq(shape, config.dq, inputs(config.dq, False), scale), dk, dv


def _dkv(shape: Shape, config, inputs: Inputs):
  """dk and dv; a split kernel's maps do not share keys."""
  if not config.split_maps or shape.key_maps == shape.maps:
    return dkv(shape, config, inputs)
  own = dataclasses.replace(shape, key_maps=shape.maps)
  k = jnp.repeat(inputs.k, shape.maps, axis=2)
  dk, dv = dkv(own, config, inputs._replace(k=k))
  dk = dk.reshape(*inputs.k.shape[:3], shape.maps, -1).astype(jnp.float32)
  return dk.sum(3).astype(k.dtype), dv
