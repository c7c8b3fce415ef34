# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention on Hopper by Pallas Mosaic GPU kernels.

Here the gradient is put together; the kernels are in `mosaic_gpu_forward.py`
and `mosaic_gpu_backward.py`. Arrays keep the public layout, which TMA reads as
it is; only lengths that are no multiple of 8, and widths that are none of 32 (q
and k) or 64 (v), are padded.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.ad_checkpoint import checkpoint_name

from diff_jax.kernels.attention import masking as masking_lib
from diff_jax.kernels.attention import weighted_gradient
from diff_jax.kernels.attention.block_sizes import round_up
from diff_jax.kernels.attention.mosaic_gpu_backward import backward
from diff_jax.kernels.attention.mosaic_gpu_common import (
    TILE_ROWS,
    make_tables,
)
from diff_jax.kernels.attention.mosaic_gpu_forward import forward
from diff_jax.kernels.attention.mosaic_gpu_plan import make_plan, unsupported
from diff_jax.kernels.attention.varying import varying_like
from diff_jax.kernels.attention.weighted_gradient import LN_2, rows, unrows

__all__ = ["attention", "parts", "unsupported"]


def attention(
    q, k, v, weights, *, return_lse=False, first_weight_is_one=False,
    configs=None, **masks,
):  # fmt: skip
  """out [b,t,n,e] in q's dtype, or (out, lse); see `api.attention`.

  Args:
    q, k, v: see there.
    weights: [b,t,n,c].
    return_lse: whether to return lse [b,t,n,c].
    first_weight_is_one: that weights[..., 0] is 1, which saves the backward
      pass the output of the first map; its gradient is not to be used.
    configs: tiles of the forward and the backward kernels; None chooses.
    **masks: see there.
  """
  plan, masking = _prepare(
      q, k, v, out_dtype=q.dtype, first_weight_is_one=first_weight_is_one,
      configs=configs, **masks,
  )  # fmt: skip
  out, lse = _attention(plan, masking, q, k, v, weights)
  return (out, lse) if return_lse else out


def parts(q, k, v, **masks):
  """(o [b,t,n,c,e], lse [b,t,n,c]); see `api.parts`."""

  def one_map(q, k, v, weights):
    plan, masking = _prepare(
        q, k, v, out_dtype=jnp.float32, first_weight_is_one=True, **masks
    )
    return _attention(plan, masking, q, k, v, weights)

  return weighted_gradient.parts_by_heads(one_map, q, k, v)


def _prepare(
    q, k, v, *, q_offset=0, kv_offset=0, segment_ids=None, bias_slopes=None,
    sink=None, **static,
):  # fmt: skip
  assert bias_slopes is None and sink is None  # `unsupported` said so.
  masking = masking_lib.make_masking(
      q.shape[1], k.shape[1], segment_ids, q_offset, kv_offset
  )
  return make_plan(q, k, v, **static), masking


def _pad(x, width: int):
  """Zeros up to a width, and up to a length of whole tiles of TMA."""
  length = round_up(x.shape[1], TILE_ROWS)
  pads = [(0, 0)] * x.ndim
  pads[1], pads[-1] = (0, length - x.shape[1]), (0, width - x.shape[-1])
  return jnp.pad(x, pads)


def _operands(plan, q, k, v):
  """q, k and v as the kernels read them; q has the scale, in units of log 2."""
  q = (q.astype(jnp.float32) * (plan.scale / LN_2)).astype(q.dtype)

  def maps_in_a_row(x):
    x = _pad(x, plan.shape.map_width)
    return x.reshape(*x.shape[:2], -1, x.shape[-1])

  return maps_in_a_row(q), maps_in_a_row(k), _pad(v, plan.shape.value_width)


def _cut(x, shape):
  """Undoes `_pad` and what `_operands` does to a shape."""
  x = x.reshape(*x.shape[:2], *shape[2:-1], x.shape[-1])
  return x[:, : shape[1], ..., : shape[-1]]


def _varying(kernel, *arguments, **keywords):
  """Runs a kernel; its outputs vary over the mesh axes that its operands do.

  Inside `jax.shard_map`, Mosaic GPU's kernels come back without that mark.
  """
  outputs = kernel(*arguments, **keywords)
  operands = [x for x in jax.tree.leaves(arguments) if isinstance(x, jax.Array)]
  return jax.tree.map(lambda x: varying_like(x, operands), outputs)


# The gradient.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(plan, masking, q, k, v, weights):
  return _attention_fwd(plan, masking, q, k, v, weights)[0]


def _attention_fwd(plan, masking, q, k, v, weights):
  shape, config = plan.shape, plan.forward
  t, out_shape = q.shape[1], (*q.shape[:3], v.shape[-1])
  tables = make_tables(shape, masking, config.block_q, config.block_kv)
  padding = tables.q_side.shape[-1] - t
  w = jnp.pad(
      rows(weights.astype(jnp.float32)), ((0, 0),) * 3 + ((0, padding),)
  )
  out, lse, saved = _varying(
      forward, shape, config, tables, *_operands(plan, q, k, v), w
  )
  # Named before they become both output and residual, so that a policy that
  # keeps the name spares the backward pass a second run of the kernel.
  out, lse, saved = checkpoint_name(
      (
          _cut(out, out_shape),
          lse[..., :t],
          [_cut(o, out_shape) for o in saved],
      ),
      "attention",
  )
  return (out, unrows(lse)), (masking, q, k, v, weights, out, lse, saved)


def _attention_bwd(plan, residuals, cotangents):
  masking, q, k, v, weights, out, lse, saved = residuals
  dout, dlse = cotangents
  # Delta and the kernels see the same rounded dO, or dS sums to more than 0.
  dout = lax.optimization_barrier(dout.astype(v.dtype))
  w = rows(weights.astype(jnp.float32))
  dweights = weighted_gradient.dot_outputs(
      dout, out, saved, w,
      first_weight_is_one=plan.shape.first_weight_is_one,
  )  # fmt: skip
  stats, sign = weighted_gradient.row_stats(w, lse, dweights, rows(dlse))
  sign = jnp.moveaxis(sign, 2, 1)[..., None]  # b t n 1
  do = (dout.astype(jnp.float32) * sign).astype(v.dtype)
  dq, dk, dv = _varying(
      backward,
      plan.shape,
      masking,
      *_operands(plan, q, k, v),
      _pad(do, plan.shape.value_width),
      stats,
      scale=plan.scale,
      config=plan.backward,
  )
  return (
      None,
      _cut(dq, q.shape),
      _cut(dk, k.shape),
      _cut(dv, v.shape),
      unrows(dweights).astype(weights.dtype),
  )


_attention.defvjp(_attention_fwd, _attention_bwd)
