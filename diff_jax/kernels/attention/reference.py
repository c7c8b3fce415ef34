# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The equations of attention as a weighted sum of softmax maps, as written.

    out[t,n] = sum_c weights[t,n,c] *
        softmax_s(scale * q[t,n,c] . k[s,k(n),c] + bias[n,t-s] ; sink[n,c])
        @ v[s,k(n)]                                        k(n) = n // (n / k)

One map with weight 1 is the Transformer; two maps with weights (1, -lambda)
are the Differential Transformer (arXiv 2410.05258, section 2.1). Heads are
paired first and repeated over grouped queries after, as in the official flash
files; the official naive file does it the other way round and is a different
function under grouped queries.

Never optimised: memory grows with t * s. Every kernel is tested against this
file, and what the formula cannot hold (talking heads, thresholds, other
normalisations) lives here, as a function of the maps.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from diff_jax.kernels.attention import masking as masking_lib

# A hook sees whole maps; at 4,096 positions one head's pair in fp32 is 128 MiB.
MAX_HOOK_LENGTH = 4096


def maps(
    q: Float[Array, "b t n c h"],
    k: Float[Array, "b s k ck h"],
    *,
    causal: bool = True,
    window: int | None = None,
    segment_ids=None,
    q_offset=0,
    kv_offset=0,
    scale: float | None = None,
    bias_slopes: Float[Array, " n"] | None = None,
    sink: Float[Array, "n c"] | None = None,
) -> tuple[Float[Array, "b n c t s"], Float[Array, "b t n c"]]:
  """The softmax maps themselves, and the log of their denominators.

  The keywords are those of `api.attention`.

  Returns:
    maps [b,n,c,t,s], whose rows sum to 1 (less, with a sink; 0 where a row
    sees no key), and lse [b,t,n,c] in nats; fp32, or fp64 for fp64 inputs.
  """
  dtype = masking_lib.accumulation_dtype(q.dtype)
  t, h = q.shape[1], q.shape[-1]
  s, kv_heads = k.shape[1], k.shape[2]
  scale = h**-0.5 if scale is None else scale
  q = masking_lib.split_heads(q.astype(dtype), kv_heads, axis=2)
  k = jnp.broadcast_to(k.astype(dtype), (*k.shape[:3], q.shape[4], h))
  scores = scale * jnp.einsum(
      "btkgch,bskch->bkgcts", q, k, precision=jax.lax.Precision.HIGHEST
  )
  scores = scores.reshape(scores.shape[0], -1, *scores.shape[3:])  # b n c t s
  masking = masking_lib.make_masking(t, s, segment_ids, q_offset, kv_offset)
  if bias_slopes is not None:
    distances = masking_lib.distances(masking)[:, None, None].astype(dtype)
    slopes = bias_slopes.astype(dtype)[None, :, None, None, None]
    scores = scores - slopes * distances
  mask = masking_lib.visible(masking, causal=causal, window=window)
  if mask is not None:
    scores = jnp.where(mask[:, None, None], scores, -jnp.inf)

  highest = jax.lax.stop_gradient(jnp.max(scores, axis=-1, keepdims=True))
  sees_a_key = highest > -jnp.inf
  shift = jnp.where(sees_a_key, highest, 0)
  if sink is not None:
    sink = jnp.broadcast_to(
        sink.astype(dtype)[None, :, :, None, None], highest.shape
    )
    shift = jnp.maximum(shift, jax.lax.stop_gradient(sink))
  exps = jnp.exp(scores - shift)
  total = jnp.sum(exps, axis=-1, keepdims=True)
  if sink is not None:
    total = total + jnp.where(sees_a_key, jnp.exp(sink - shift), 0)
  total = jnp.where(sees_a_key, total, 1)
  lse = jnp.where(sees_a_key, shift + jnp.log(total), -jnp.inf)
  return exps / total, jnp.moveaxis(lse[..., 0], 3, 1)


def _combine(maps_bncts, v):
  """Values gathered by each map: [b,t,n,c,e]."""
  kv_heads = v.shape[2]
  grouped = masking_lib.split_heads(maps_bncts, kv_heads, axis=1)
  out = jnp.einsum(
      "bkgcts,bske->btkgce",
      grouped,
      v.astype(maps_bncts.dtype),
      precision=jax.lax.Precision.HIGHEST,
  )
  return out.reshape(*out.shape[:2], -1, *out.shape[4:])


def unsupported(*args, **masks) -> None:
  """Nothing is."""
  del args, masks


def parts(q, k, v, **masks):
  """What each map gathers: see `api.parts`."""
  maps_bncts, lse = maps(q, k, **masks)
  return _combine(maps_bncts, v), lse


def attention(
    q: Float[Array, "b t n c h"],
    k: Float[Array, "b s k ck h"],
    v: Float[Array, "b s k e"],
    weights: Float[Array, "..."] | float | None = None,
    *,
    return_lse: bool = False,
    first_weight_is_one: bool = False,
    maps_fn: Callable[[jax.Array], jax.Array] | None = None,
    **masks,
) -> (
    Float[Array, "b t n e"]
    | tuple[Float[Array, "b t n e"], Float[Array, "b t n c"]]
):
  """The op by its definition; arguments and result are `api.attention`'s.

  Args:
    q: queries.
    k: keys; a single map axis is shared by all maps of a head.
    v: values.
    weights: broadcastable to [b,t,n,c]; None means 1.
    return_lse: whether to return (out, lse).
    first_weight_is_one: of no use here.
    maps_fn: changes the maps [b,n,c,t,s] before they are weighted and summed.
    **masks: the other keywords of `api.attention`.

  Raises:
    ValueError: with `maps_fn`, above 4,096 positions.
  """
  del first_weight_is_one
  longest = max(q.shape[1], k.shape[1])
  if maps_fn is not None and longest > MAX_HOOK_LENGTH:
    raise ValueError(
        f"maps_fn={maps_fn!r} needs whole maps, which exist up to"
        f" {MAX_HOOK_LENGTH:,} positions; this call has {longest:,}. Express"
        " the mechanism as weights, or shorten the sequence."
    )
  maps_bncts, lse = maps(q, k, **masks)
  if maps_fn is not None:
    maps_bncts = maps_fn(maps_bncts)
  weights = jnp.asarray(1 if weights is None else weights, maps_bncts.dtype)
  out = jnp.einsum(
      "btnce,btnc->btne",
      _combine(maps_bncts, v),
      jnp.broadcast_to(weights, q.shape[:-1]),
      precision=jax.lax.Precision.HIGHEST,
  ).astype(q.dtype)
  return (out, lse) if return_lse else out
