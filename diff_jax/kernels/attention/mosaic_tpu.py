# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention on TPU by two Pallas kernels, one pass over K and V in each.

Here the public layout becomes the kernels' and the gradient is put together;
the kernels are in `mosaic_tpu_forward.py` and `mosaic_tpu_backward.py`.
"""

import functools

import jax
import jax.custom_batching
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from diff_jax.kernels.attention import masking as masking_lib
from diff_jax.kernels.attention import tile_visits, weighted_gradient
from diff_jax.kernels.attention.block_sizes import round_up
from diff_jax.kernels.attention.mosaic_tpu_backward import backward
from diff_jax.kernels.attention.mosaic_tpu_forward import forward
from diff_jax.kernels.attention.mosaic_tpu_plan import make_plan, unsupported
from diff_jax.kernels.attention.weighted_gradient import LN_2, rows, unrows

__all__ = ["attention", "parts", "unsupported"]


def attention(
    q, k, v, weights, *, return_lse=False, first_weight_is_one=False,
    block_sizes=None, **masks,
):  # fmt: skip
  """out [b,t,n,e] in q's dtype, or (out, lse); see `api.attention`.

  Args:
    q, k, v: see there.
    weights: [b,t,n,c].
    return_lse: whether to return lse [b,t,n,c].
    first_weight_is_one: that weights[..., 0] is 1, which saves the backward
      pass the output of the first map; its gradient is not to be used.
    block_sizes: of the forward and the backward kernel; None chooses.
    **masks: see there.
  """
  plan, masking = _prepare(
      q, k, v, out_dtype=q.dtype, first_weight_is_one=first_weight_is_one,
      sizes=block_sizes, **masks,
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
  masks = dict(segment_ids=segment_ids, q_offset=q_offset, kv_offset=kv_offset)
  masking = masking_lib.make_masking(q.shape[1], k.shape[1], **masks)
  return make_plan(q, k, v, **masks, **static), masking


# Layout.


def _by_head(x, width: int, length: int):
  """[b, t, n, ..., w] -> [b, n, length, ... * width], padded with zeros."""
  b, t, n = x.shape[:3]
  x = jnp.swapaxes(x.reshape(b, t, n, -1, x.shape[-1]), 1, 2)
  pad = ((0, 0), (0, 0), (0, length - t), (0, 0), (0, width - x.shape[-1]))
  return jnp.pad(x, pad).reshape(b, n, length, -1)


def _by_row(x, width: int, shape):
  """Undoes `_by_head`: the result is of `shape`, x's axes are padded."""
  x = jnp.swapaxes(x[:, :, : shape[1]], 1, 2).reshape(*shape[:-1], width)
  return x[..., : shape[-1]]


def _pad_rows(x, length: int):
  """[b, n, c, t] -> [b, n, c, length], padded with zeros."""
  return jnp.pad(x, ((0, 0),) * 3 + ((0, length - x.shape[3]),))


def _operands(plan, q, k, v, sides):
  """q, k and v as the kernels read them; q has the scale, in units of log 2."""
  q = (q.astype(jnp.float32) * (plan.scale / LN_2)).astype(q.dtype)
  width, value_width = plan.shape.map_width, plan.shape.value_width
  padded_t, padded_s = sides.q.shape[2], sides.kv.shape[2]
  return (
      _by_head(q, width, padded_t),
      _by_head(k, width, padded_s),
      _by_head(v, value_width, padded_s),
  )


def _tiles(shape, sizes, masking):
  """Sides of whole blocks, and which tiles are needed and which are full."""
  sides = tile_visits.pad_sides(
      masking,
      round_up(masking.q_positions.shape[1], sizes.q),
      round_up(masking.kv_positions.shape[1], sizes.kv),
  )
  return sides, *tile_visits.tiles(
      sides, sizes.q, sizes.kv, causal=shape.causal, window=shape.window
  )


def _one_by_one(kernel, shape, sizes):
  """A kernel under `jax.vmap` runs once for each element: its grid is dynamic.

  Outside of vmap this changes nothing.
  """
  return jax.custom_batching.sequential_vmap(
      functools.partial(kernel, shape, sizes)
  )


# The gradient.


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(plan, masking, q, k, v, weights):
  return _attention_fwd(plan, masking, q, k, v, weights)[0]


def _attention_fwd(plan, masking, q, k, v, weights):
  shape, t = plan.shape, q.shape[1]
  sides, needed, full = _tiles(shape, plan.forward, masking)
  operands = _operands(plan, q, k, v, sides)
  out, lse, *saved = _one_by_one(forward, shape, plan.forward)(
      tile_visits.visit(needed, full),
      sides,
      *operands,
      _pad_rows(rows(weights.astype(jnp.float32)), operands[0].shape[2]),
  )
  # Named before they become both output and residual, so that a policy that
  # keeps the name spares the backward pass a second run of the kernel.
  out, lse, saved = checkpoint_name(
      (out[:, :, :t], lse[..., :t], [o[:, :, :t] for o in saved]), "attention"
  )
  out_shape = (*q.shape[:3], v.shape[-1])
  public = _by_row(out, shape.value_width, out_shape), unrows(lse)
  return public, (masking, q, k, v, weights, out, lse, saved)


def _attention_bwd(plan, residuals, cotangents):
  masking, q, k, v, weights, out, lse, saved = residuals
  dout, dlse = cotangents
  shape = plan.shape
  sides, needed, full = _tiles(shape, plan.backward, masking)
  operands = _operands(plan, q, k, v, sides)
  padded_t = operands[0].shape[2]

  w = rows(weights.astype(jnp.float32))
  out, *saved = (
      _by_row(o, shape.value_width, dout.shape) for o in (out, *saved)
  )
  dweights = weighted_gradient.dot_outputs(
      dout, out, saved, w, first_weight_is_one=shape.first_weight_is_one
  )
  stats, sign = weighted_gradient.row_stats(w, lse, dweights, rows(dlse))
  sign = jnp.moveaxis(sign, 2, 1)[..., None]  # b t n 1
  do = (dout.astype(jnp.float32) * sign).astype(v.dtype)
  dq, dk, dv = _one_by_one(backward, shape, plan.backward)(
      _backward_visits(needed, full, shape.groups),
      sides,
      *operands,
      _by_head(do, shape.value_width, padded_t),
      _pad_rows(stats, padded_t),
  )
  dq = plan.scale * _by_row(dq, shape.map_width, q.shape)
  return (
      None,
      dq.astype(q.dtype),
      _by_row(dk, shape.map_width, k.shape),
      _by_row(dv, shape.value_width, v.shape),
      unrows(dweights).astype(weights.dtype),
  )


def _backward_visits(needed, full, groups: int):
  """(kv blocks, g * q blocks): every block of either side is visited."""
  lonely = ~needed.any(2, keepdims=True)
  leftmost = jnp.arange(needed.shape[2])[None, None] == 0
  needed = needed | (lonely & leftmost)

  def turn(x):
    return jnp.tile(jnp.swapaxes(x, 1, 2), (1, 1, groups))

  return tile_visits.add_transfers(tile_visits.visit(turn(needed), turn(full)))


_attention.defvjp(_attention_fwd, _attention_bwd)
