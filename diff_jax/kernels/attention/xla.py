# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Blockwise attention in plain XLA: runs everywhere, memory linear in length.

All maps of a head are computed in one pass over K and V with an online
softmax. The backward pass is our own: it recomputes the maps tile by tile and,
because the maps share the value head, needs dO V^T and the product for dV only
once for all of them (the identity behind every fused kernel here):

    dP_c = w_c (dO V^T)          dV = (sum_c w_c P_c)^T dO
    dS_c = P_c (dP_c - delta_c)  delta_c = w_c rowsum(dO O_c) - dlse_c
    dQ_c = scale dS_c K_c        dK_c = scale dS_c^T Q_c

Tiles outside the hull of visible keys of a query block are never visited.

Layout inside: heads first, the rows of a block being (t, g), so that grouped
queries are more rows of one product:
q [b,k,c,r,h], k [b,k,c,s,h] (or [b,k,s,h] if the maps share it), v [b,k,s,e].
"""

import functools

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from diff_jax.kernels.attention import layout, varying
from diff_jax.kernels.attention import masking as masking_lib
from diff_jax.kernels.attention.blocks import (
    KeyMask,
    Operands,
    Rows,
    block_masking,
    block_operands,
    prepare,
)


def unsupported(*args, **masks) -> None:
  """Nothing is."""
  del args, masks


def attention(
    q, k, v, weights, *, return_lse=False, first_weight_is_one=False, **masks
):  # fmt: skip
  """out [b,t,n,e] in q's dtype, or (out, lse); see `api.attention`."""
  del first_weight_is_one  # The outputs of all maps are kept.
  out, lse = _attention(*prepare(q, k, v, **masks), weights)
  return (out, lse) if return_lse else out


def parts(q, k, v, **masks):
  """(o [b,t,n,c,e], lse [b,t,n,c]); see `api.parts`."""
  return _parts(*prepare(q, k, v, **masks))


def _dtype(x):
  return masking_lib.accumulation_dtype(x.dtype)


def _dot(spec, x, y):
  """A product of storage-width operands, summed in fp32 (fp64 for fp64)."""
  return jnp.einsum(spec, x, y, preferred_element_type=_dtype(x))


def _weighted_sum(maps, weights):
  """[...,c,r,x], [...,c,r] -> [...,r,x], term by term: cheaper than a `sum`."""
  c = weights.shape[-2]
  return sum(maps[..., i, :, :] * weights[..., i, :, None] for i in range(c))


def _shared_key(k) -> bool:
  return k.ndim == 4


def _scores(static, q, k, slopes, rows: Rows, keys: KeyMask):
  """Masked scores of one tile [b,k,c,r,s], and i - j for the bias."""
  spec = "bkcrh,bksh->bkcrs" if _shared_key(k) else "bkcrh,bkcsh->bkcrs"
  scores = static.scale * _dot(spec, q, k)
  masking = masking_lib.Masking(
      rows.positions, keys.positions, rows.segments, keys.segments
  )
  distances = None
  if slopes is not None:
    distances = masking_lib.distances(masking)[:, None, None]
    distances = distances.astype(scores.dtype)
    scores = scores - slopes[None, :, None, :, None] * distances
  mask = masking_lib.visible(
      masking, causal=static.causal, window=static.window
  )
  if mask is not None:
    scores = jnp.where(mask[:, None, None], scores, -jnp.inf)
  return scores, distances


def _forward(static, masking, operands: Operands):
  """Normalised outputs of each map and lse, in row blocks.

  Returns:
    o [i,b,k,c,r,e] and lse [i,b,k,c,r] in the accumulation dtype.
  """
  blocks = block_operands(static, operands)
  t, s = operands.q.shape[1], operands.k.shape[1]
  groups = operands.q.shape[2] // operands.k.shape[2]
  rows, keys = block_masking(static, masking, t, s, groups)
  dtype, value_dim = _dtype(blocks.q), blocks.v.shape[-1]

  def query_block(_, inputs):
    q, rows = inputs

    def tile(j, carry):
      highest, total, acc = carry
      k, v, key_mask = jax.tree.map(lambda x: x[j], (blocks.k, blocks.v, keys))
      scores, _ = _scores(static, q, k, blocks.slopes, rows, key_mask)
      raised = jnp.maximum(highest, scores.max(-1))
      # A row that has seen no key yet has highest = -inf: exp(-inf - 0) = 0.
      shift = jnp.where(raised == -jnp.inf, 0, raised)
      probs = jnp.exp(scores - shift[..., None])
      decay = jnp.exp(highest - shift)
      total = decay * total + probs.sum(-1)
      gathered = _dot("bkcrs,bkse->bkcre", probs.astype(v.dtype), v)
      return raised, total, decay[..., None] * acc + gathered

    like = q, blocks, rows, keys
    zero = varying.zeros(q.shape[:-1], dtype, like)
    acc = varying.zeros((*q.shape[:-1], value_dim), dtype, like)
    highest, total, acc = jax.lax.fori_loop(
        rows.first, rows.last, tile, (zero - jnp.inf, zero, acc)
    )
    sees_a_key = total > 0
    safe_total = jnp.where(sees_a_key, total, 1)
    o = acc / safe_total[..., None]
    lse = jnp.where(sees_a_key, highest + jnp.log(safe_total), -jnp.inf)
    return None, (o, lse)

  _, (o, lse) = jax.lax.scan(query_block, None, (blocks.q, rows))
  if operands.sink is not None:
    o, lse = _add_sink(o, lse, _sink_rows(operands, lse))
  return o, lse


def _sink_rows(operands: Operands, lse):
  """sink [n,c] as [i,b,k,c,r] with i = b = 1."""
  kv_heads = operands.k.shape[2]
  sink = masking_lib.split_heads(operands.sink.astype(lse.dtype), kv_heads, 0)
  groups = sink.shape[1]
  sink = jnp.tile(jnp.moveaxis(sink, 2, 1), lse.shape[-1] // groups)
  return sink[None, None]


def _add_sink(o, lse, sink):
  """A sink is one more key whose value is 0; a row without keys stays empty."""
  with_sink = jnp.where(lse == -jnp.inf, lse, jnp.logaddexp(lse, sink))
  share = jnp.where(lse == -jnp.inf, 0, jnp.exp(lse - with_sink))
  return o * share[..., None], with_sink


def _backward(static, masking, operands: Operands, o, lse, do, dlse, weights):
  """Gradients of `operands`, and rowsum(dO O_c) for the weights.

  With weights [i,b,k,c,r], do [i,b,k,1,r,e] is the gradient of the weighted
  sum; without, do [i,b,k,c,r,e] is that of each map's output.
  """
  blocks = block_operands(static, operands)
  t, s = operands.q.shape[1], operands.k.shape[1]
  groups = operands.q.shape[2] // operands.k.shape[2]
  rows, keys = block_masking(static, masking, t, s, groups)
  dtype = _dtype(blocks.q)
  fused = weights is not None
  dot_o = (do.astype(dtype) * o).sum(-1)
  delta = (weights * dot_o if fused else dot_o) - dlse
  # exp(score - inf) = 0: a row without a key has no gradient.
  safe_lse = jnp.where(lse == -jnp.inf, jnp.inf, lse)
  do = do.astype(blocks.v.dtype)

  def query_block(carry, inputs):
    q, do, w, delta, lse, rows = inputs

    def tile(j, carry):
      dq, dk, dv, dslopes = carry
      k, v, key_mask = jax.tree.map(lambda x: x[j], (blocks.k, blocks.v, keys))
      scores, distances = _scores(static, q, k, blocks.slopes, rows, key_mask)
      probs = jnp.exp(scores - lse[..., None])
      if fused:
        dp = _dot("bkcre,bkse->bkcrs", do, v) * w[..., None]
        mixed = _weighted_sum(probs, w).astype(v.dtype)
        dv_tile = _dot("bkre,bkrs->bkes", do[:, :, 0], mixed)
      else:
        dp = _dot("bkcre,bkse->bkcrs", do, v)
        dv_tile = _dot("bkcre,bkcrs->bkes", do, probs.astype(v.dtype))
      ds = probs * (dp - delta[..., None])
      if distances is not None:
        dslopes = dslopes - (ds * distances).sum((0, 2, 4))
      ds = ds.astype(q.dtype)
      if _shared_key(k):
        dq = dq + _dot("bkcrs,bksh->bkcrh", ds, k)
        dk_tile = _dot("bkcrh,bkcrs->bkhs", q, ds)
      else:
        dq = dq + _dot("bkcrs,bkcsh->bkcrh", ds, k)
        dk_tile = _dot("bkcrh,bkcrs->bkchs", q, ds)
      return dq, dk.at[j].add(dk_tile), dv.at[j].add(dv_tile), dslopes

    dq = varying.zeros(q.shape, dtype, (q, blocks, rows, keys, do, w, delta))
    dq, *carry = jax.lax.fori_loop(rows.first, rows.last, tile, (dq, *carry))
    return tuple(carry), dq

  like = (blocks, rows, keys, do, weights, delta)
  carry = (
      varying.zeros(jnp.matrix_transpose(blocks.k).shape, dtype, like),
      varying.zeros(jnp.matrix_transpose(blocks.v).shape, dtype, like),
      varying.zeros((blocks.k.shape[2], blocks.q.shape[4]), dtype, like),
  )
  (dk, dv, dslopes), dq = jax.lax.scan(
      query_block, carry, (blocks.q, do, weights, delta, safe_lse, rows)
  )
  gradients = _unblock(static, operands, dq, dk, dv, dslopes, delta, safe_lse)
  return gradients, dot_o


def _unblock(static, operands, dq, dk, dv, dslopes, delta, safe_lse):
  """Gradients in the public layout and in the dtypes of their arguments."""
  q, k, v, bias_slopes, sink = operands
  groups = q.shape[2] // k.shape[2]
  dk, dv = jnp.matrix_transpose(dk), jnp.matrix_transpose(dv)
  if _shared_key(dk[0]):
    dk = dk[:, :, :, None]
  dq = layout.from_rows(dq, groups, q.shape[1])
  dk = layout.from_rows(dk, 1, k.shape[1])
  dv = layout.from_rows(dv[:, :, :, None], 1, v.shape[1])[:, :, :, 0]
  dsink = None
  if bias_slopes is not None:
    dslopes = dslopes.reshape(k.shape[2], -1, groups).sum(1).reshape(-1)
    dslopes = dslopes.astype(bias_slopes.dtype)
  if sink is not None:
    probs = jnp.exp(_sink_rows(operands, safe_lse) - safe_lse)
    dsink = -(probs * delta).sum((0, 1))  # k c r
    dsink = dsink.reshape(*dsink.shape[:2], -1, groups).sum(2)
    dsink = jnp.moveaxis(dsink, 1, 2).reshape(sink.shape).astype(sink.dtype)
  return Operands(
      (static.scale * dq).astype(q.dtype),
      (static.scale * dk).astype(k.dtype),
      dv.astype(v.dtype),
      None if bias_slopes is None else dslopes,
      dsink,
  )


# The two entry points: a weighted sum of the maps, and the maps apart.


def _to_rows(static, operands, x):
  """[b,t,n,c] -> [i,b,k,c,r]; [b,t,n,c,e] -> [i,b,k,c,r,e]."""
  if x.ndim == 4:
    return _to_rows(static, operands, x[..., None])[..., 0]
  return layout.to_rows(x, operands.k.shape[2], static.block_q)


def _from_rows(operands, x):
  """Undoes `_to_rows`."""
  if x.ndim == 5:
    return _from_rows(operands, x[..., None])[..., 0]
  q, k = operands.q, operands.k
  return layout.from_rows(x, q.shape[2] // k.shape[2], q.shape[1])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(static, masking, operands, weights):
  return _attention_fwd(static, masking, operands, weights)[0]


def _attention_fwd(static, masking, operands, weights):
  o, lse = _forward(static, masking, operands)
  o, lse = checkpoint_name((o, lse), "attention")
  weight_rows = _to_rows(static, operands, weights.astype(o.dtype))
  out = _weighted_sum(o, weight_rows).astype(operands.q.dtype)
  out = _from_rows(operands, out[:, :, :, None])[:, :, :, 0]
  residuals = (masking, operands, weights, o.astype(operands.v.dtype), lse)
  return (out, _from_rows(operands, lse)), residuals


def _attention_bwd(static, residuals, cotangents):
  masking, operands, weights, o, lse = residuals
  dout, dlse = cotangents
  gradients, dweights = _backward(
      static,
      masking,
      operands,
      o,
      lse,
      _to_rows(static, operands, dout[:, :, :, None]),
      _to_rows(static, operands, dlse),
      _to_rows(static, operands, weights.astype(lse.dtype)),
  )
  dweights = _from_rows(operands, dweights).astype(weights.dtype)
  return None, gradients, dweights


_attention.defvjp(_attention_fwd, _attention_bwd)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _parts(static, masking, operands):
  return _parts_fwd(static, masking, operands)[0]


def _parts_fwd(static, masking, operands):
  o, lse = _forward(static, masking, operands)
  public = _from_rows(operands, o), _from_rows(operands, lse)
  return public, (masking, operands, o, lse)


def _parts_bwd(static, residuals, cotangents):
  masking, operands, o, lse = residuals
  do, dlse = (_to_rows(static, operands, x) for x in cotangents)
  gradients, _ = _backward(
      static, masking, operands, o, lse, do, dlse, weights=None
  )
  return None, gradients


_parts.defvjp(_parts_fwd, _parts_bwd)
