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
from diff_jax.kernels.attention import tile_visits
from diff_jax.kernels.attention.block_sizes import round_up
from diff_jax.kernels.attention.mosaic_tpu_backward import backward
from diff_jax.kernels.attention.mosaic_tpu_common import LN_2
from diff_jax.kernels.attention.mosaic_tpu_forward import forward
from diff_jax.kernels.attention.mosaic_tpu_plan import make_plan, unsupported

__all__ = ["attention", "parts", "unsupported"]

# A weight of 0 has no logarithm; this one changes no fp32 sum.
MIN_WEIGHT = 2.0**-64


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
  """(o [b,t,n,c,e], lse [b,t,n,c]); see `api.parts`.

  The maps become heads of one map each, (k, c, g) of them: their outputs have
  gradients of their own, so that nothing is shared but K and V.
  """
  b, t, n, c, h = q.shape
  kv_heads, groups = k.shape[2], n // k.shape[2]

  def to_heads(x):
    x = x.reshape(b, t, kv_heads, groups, c, -1)
    return jnp.moveaxis(x, 4, 3).reshape(b, t, n * c, 1, -1)

  def from_heads(x):
    x = x.reshape(b, t, kv_heads, c, groups, -1)
    return jnp.moveaxis(x, 3, 4).reshape(b, t, n, c, -1)

  k = jnp.broadcast_to(k, (*k.shape[:3], c, h))
  k = k.reshape(*k.shape[:2], kv_heads * c, 1, h)
  q, v = to_heads(q), jnp.repeat(v, c, axis=2)
  plan, masking = _prepare(
      q, k, v, out_dtype=jnp.float32, first_weight_is_one=True, **masks
  )
  weights = jnp.ones_like(q[..., 0], jnp.float32)
  o, lse = _attention(plan, masking, q, k, v, weights)
  return from_heads(o), from_heads(lse)[..., 0]


def _prepare(
    q, k, v, *, q_offset=0, kv_offset=0, segment_ids=None, bias_slopes=None,
    sink=None, **static,
):  # fmt: skip
  assert bias_slopes is None and sink is None  # `unsupported` said so.
  masks = dict(segment_ids=segment_ids, q_offset=q_offset, kv_offset=kv_offset)
  masking = masking_lib.make_masking(q.shape[1], k.shape[1], **masks)
  return make_plan(q, k, v, **masks, **static), masking


# Layout.


def _by_head(x, width: int, rows: int):
  """[b, t, n, ..., w] -> [b, n, rows, ... * width], padded with zeros."""
  b, t, n = x.shape[:3]
  x = jnp.swapaxes(x.reshape(b, t, n, -1, x.shape[-1]), 1, 2)
  pad = ((0, 0), (0, 0), (0, rows - t), (0, 0), (0, width - x.shape[-1]))
  return jnp.pad(x, pad).reshape(b, n, rows, -1)


def _by_row(x, width: int, shape):
  """Undoes `_by_head`: the result is of `shape`, x's axes are padded."""
  x = jnp.swapaxes(x[:, :, : shape[1]], 1, 2).reshape(*shape[:-1], width)
  return x[..., : shape[-1]]


def _rows(x, rows: int, **mode):
  """[b,t,n,c] -> [b,n,c,rows]: lanes are positions."""
  x = jnp.moveaxis(x, 1, 3)
  return jnp.pad(x, ((0, 0),) * 3 + ((0, rows - x.shape[3]),), **mode)


def _blocks(sizes, t: int, s: int):
  return round_up(t, sizes.q), round_up(s, sizes.kv)


def _operands(plan, q, k, v, rows, keys):
  """q, k and v as the kernels read them; q has the scale, in units of log 2."""
  q = (q.astype(jnp.float32) * (plan.scale / LN_2)).astype(q.dtype)
  width, value_width = plan.shape.map_width, plan.shape.value_width
  return (
      _by_head(q, width, rows),
      _by_head(k, width, keys),
      _by_head(v, value_width, keys),
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
  shape, sizes = plan.shape, plan.forward
  t, s = q.shape[1], k.shape[1]
  rows, keys = _blocks(sizes, t, s)
  sides = tile_visits.pad_sides(masking, rows, keys)
  needed, full = tile_visits.tiles(
      sides, sizes.q, sizes.kv, causal=shape.causal, window=shape.window
  )
  out, lse, *saved = _one_by_one(forward, shape, sizes)(
      tile_visits.visit(needed, full),
      sides,
      *_operands(plan, q, k, v, rows, keys),
      _rows(weights.astype(jnp.float32), rows),
  )
  # Named before they become both output and residual, so that a policy that
  # keeps the name spares the backward pass a second run of the kernel.
  out, lse, saved = checkpoint_name(
      (out[:, :, :t], lse[..., :t], [o[:, :, :t] for o in saved]), "attention"
  )
  out_shape = (*q.shape[:3], v.shape[-1])
  public = _by_row(out, shape.value_width, out_shape), jnp.moveaxis(lse, 3, 1)
  return public, (masking, q, k, v, weights, out, lse, saved)


def _attention_bwd(plan, residuals, cotangents):
  masking, q, k, v, weights, out, lse, saved = residuals
  dout, dlse = cotangents
  shape, sizes = plan.shape, plan.backward
  t, s = q.shape[1], k.shape[1]
  rows, keys = _blocks(sizes, t, s)
  sides = tile_visits.pad_sides(masking, rows, keys)
  needed, full = tile_visits.tiles(
      sides, sizes.q, sizes.kv, causal=shape.causal, window=shape.window
  )
  visits = _backward_visits(needed, full, shape.groups)

  w = _rows(weights.astype(jnp.float32), t)
  dweights = _dot_outputs(plan, dout, out, saved, w)
  stats, sign = _stats(w, lse, dweights, jnp.moveaxis(dlse, 1, 3))
  stats = jnp.pad(stats, ((0, 0),) * 3 + ((0, rows - t),), constant_values=0)
  sign = jnp.moveaxis(sign, 2, 1)[..., None]  # b t n 1
  do = (dout.astype(jnp.float32) * sign).astype(v.dtype)
  dq, dk, dv = _one_by_one(backward, shape, sizes)(
      visits,
      sides,
      *_operands(plan, q, k, v, rows, keys),
      _by_head(do, shape.value_width, rows),
      stats,
  )
  dq = plan.scale * _by_row(dq, shape.map_width, q.shape)
  return (
      None,
      dq.astype(q.dtype),
      _by_row(dk, shape.map_width, k.shape),
      _by_row(dv, shape.value_width, v.shape),
      jnp.moveaxis(dweights, 3, 1).astype(weights.dtype),
  )


def _backward_visits(needed, full, groups: int):
  """(kv blocks, g * q blocks): every block of either side is visited."""
  lonely = ~needed.any(2, keepdims=True)
  leftmost = jnp.arange(needed.shape[2])[None, None] == 0
  needed = needed | (lonely & leftmost)

  def turn(x):
    return jnp.tile(jnp.swapaxes(x, 1, 2), (1, 1, groups))

  return tile_visits.add_transfers(tile_visits.visit(turn(needed), turn(full)))


def _dot_outputs(plan, dout, out, saved, w):
  """rowsum(dO O_c) of every map, the gradient of its weight: [b,n,c,t]."""
  dout = dout.astype(jnp.float32)

  def dot_rows(o):
    o = _by_row(o, plan.shape.value_width, dout.shape).astype(jnp.float32)
    return jnp.moveaxis((dout * o).sum(-1), 1, 2)  # b n t

  rows = [dot_rows(o) for o in saved]
  if plan.shape.first_weight_is_one:
    # O_1 = O - sum of the others: no third output needs to be kept.
    others = [w[:, :, c + 1] * row for c, row in enumerate(rows)]
    rows = [dot_rows(out) - sum(others), *rows]
  return jnp.stack(rows, axis=2)


def _stats(w, lse, dweights, dlse):
  """What the backward kernel knows of each query, and the sign of w_1.

  dS_c = w_c P_c (dP - delta_c) with delta_c = dweights_c - dlse_c / w_c, and
  |w_c| P_c = exp(score - (lse_c - log |w_c|)).
  """
  size = jnp.maximum(jnp.abs(w), MIN_WEIGHT)
  sign = jnp.where(w < 0, -1.0, 1.0)
  first = sign[:, :, :1]
  # A row that sees no key has no gradient: exp(score - inf) = 0.
  lse = jnp.where(lse == -jnp.inf, jnp.inf, lse)
  stats = (
      lse / LN_2 - jnp.log2(size),
      first * (dweights - dlse / (sign * size)),
      first * sign,
  )
  return jnp.concatenate(stats, axis=2), first[:, :, 0]


_attention.defvjp(_attention_fwd, _attention_bwd)
