# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention as a weighted sum of softmax maps: the public functions.

Arguments are checked here, once (`checks.py`); an implementation is chosen
here; and where the arrays are sharded on an explicit mesh, the call is wrapped
in `jax.shard_map` here, so that neither models nor kernels mention it.

Gradients are first-order and reverse-mode (`jax.grad`, `jax.vjp`); use
`implementation="reference"` for others.
"""

import functools
from typing import Literal

import jax
import jax.numpy as jnp
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from diff_jax.kernels.attention import reference, xla
from diff_jax.kernels.attention.checks import (
    check_lambda,
    check_masks,
    check_weights,
)

type Implementation = Literal["xla", "reference"]
type SegmentIds = (
    Int[Array, "b t"] | tuple[Int[Array, "b t"], Int[Array, "b s"]]
)
type Offset = int | Int[Array, "..."]

IMPLEMENTATIONS = {"xla": xla, "reference": reference}


def attention(
    q: Float[Array, "b t n c h"],
    k: Float[Array, "b s k ck h"],
    v: Float[Array, "b s k e"],
    weights: Float[Array, "..."] | float | None = None,
    *,
    causal: bool = True,
    window: int | None = None,
    segment_ids: SegmentIds | None = None,
    q_offset: Offset = 0,
    kv_offset: Offset = 0,
    scale: float | None = None,
    bias_slopes: Float[Array, " n"] | None = None,
    sink: Float[Array, "n c"] | None = None,
    return_lse: bool = False,
    implementation: Implementation | None = None,
) -> (
    Float[Array, "b t n e"]
    | tuple[Float[Array, "b t n e"], Float[Array, "b t n c"]]
):
  """Attention as a weighted sum of softmax maps over one value head.

      out[t,n] = sum_c weights[t,n,c] *
          softmax_s(scale * q[t,n,c] . k[s,k(n),c] + bias[n,t-s] ; sink[n,c])
          @ v[s,k(n)]                                      k(n) = n // (n / k)

  One map is the Transformer's attention; two maps with weights (1, -lambda)
  are the Differential Transformer's (arXiv 2410.05258, section 2.1).

  Args:
    q: queries, c maps for each head.
    k: keys; a map axis of 1 is shared by all maps of a head.
    v: values, one head for all maps.
    weights: broadcastable to [b,t,n,c]; None means 1.
    causal: whether query i sees keys j <= i only.
    window: query i sees keys with |i - j| < window only, in tokens; None: all.
    segment_ids: equal ids see each other; 0 is padding, which sees nothing and
      is seen by nothing. One array (t == s) or a pair for queries and keys.
    q_offset: position of the first query: a scalar; [b], one for each
      sequence; or [1 or b, m], one for each of m equal chunks of the queries.
      Traced values are allowed.
    kv_offset: the same for the keys.
    scale: multiplies q . k; None means h ** -0.5.
    bias_slopes: ALiBi: adds -bias_slopes[n] * (i - j) to the scores.
    sink: a logit that joins the denominator of each row's softmax.
    return_lse: whether to return (out, lse).
    implementation: None chooses for the platform.

  Returns:
    out [b,t,n,e] in q's dtype; with `return_lse` also the log-sum-exp of each
    map's scores (and sink) [b,t,n,c] in nats, fp32 (fp64 for fp64 inputs). A
    row that sees no key is 0, its lse -inf and its gradients 0.

  Raises:
    ValueError: for a shape, dtype or value that does not fit.
  """
  masks = check_masks(
      q, k, v, causal, window, segment_ids, q_offset, kv_offset, scale,
      bias_slopes, sink,
  )  # fmt: skip
  weights = check_weights(weights, q)
  backend = _backend(implementation)

  def local(q, k, v, weights, masks):
    weights = jnp.broadcast_to(weights, q.shape[:-1])
    if backend is reference:
      return reference.attention(q, k, v, weights, return_lse=True, **masks)
    return backend.attention(q, k, v, weights, **masks)

  out, lse = _sharded(local, q, k, v, masks, weights, per_map=False)
  return (out, lse) if return_lse else out


def parts(
    q: Float[Array, "b t n c h"],
    k: Float[Array, "b s k ck h"],
    v: Float[Array, "b s k e"],
    *,
    causal: bool = True,
    window: int | None = None,
    segment_ids: SegmentIds | None = None,
    q_offset: Offset = 0,
    kv_offset: Offset = 0,
    scale: float | None = None,
    bias_slopes: Float[Array, " n"] | None = None,
    sink: Float[Array, "n c"] | None = None,
    implementation: Implementation | None = None,
) -> tuple[Float[Array, "b t n c e"], Float[Array, "b t n c"]]:
  """What each map gathers on its own, in a form that merges over key shards.

  With (o_i, lse_i) over disjoint keys, the whole is lse = logsumexp_i(lse_i)
  and o = sum_i exp(lse_i - lse) o_i. Give a sink to one of the shards only.

  Args: as for `attention`.

  Returns:
    o [b,t,n,c,e] and lse [b,t,n,c] in nats, fp32 (fp64 for fp64 inputs).

  Raises:
    ValueError: for a shape, dtype or value that does not fit.
  """
  masks = check_masks(
      q, k, v, causal, window, segment_ids, q_offset, kv_offset, scale,
      bias_slopes, sink,
  )  # fmt: skip
  backend = _backend(implementation)

  def local(q, k, v, masks):
    return backend.parts(q, k, v, **masks)

  return _sharded(local, q, k, v, masks, per_map=True)


def diff_attention(
    q: Float[Array, "b t n 2 h"],
    k: Float[Array, "b s k ck h"],
    v: Float[Array, "b s k e"],
    lam: Float[Array, "..."] | float,
    *,
    causal: bool = True,
    window: int | None = None,
    segment_ids: SegmentIds | None = None,
    q_offset: Offset = 0,
    kv_offset: Offset = 0,
    scale: float | None = None,
    bias_slopes: Float[Array, " n"] | None = None,
    sink: Float[Array, "n 2"] | None = None,
    return_lse: bool = False,
    implementation: Implementation | None = None,
) -> (
    Float[Array, "b t n e"]
    | tuple[Float[Array, "b t n e"], Float[Array, "b t n 2"]]
):
  """Differential attention: (softmax(q1 k1) - lam softmax(q2 k2)) v.

  arXiv 2410.05258, equation 1: `attention` with weights (1, -lam). No per-head
  norm and no (1 - lambda_init): see `diff_jax.DiffAttention` for the layer.

  Args:
    q: queries of both maps.
    k: keys of both maps, or one that they share.
    v: values; in the paper e = 2h.
    lam: a scalar, or broadcastable to [b,t,n].
    causal, window, segment_ids, q_offset, kv_offset, scale, bias_slopes, sink,
      return_lse, implementation: as for `attention`.

  Returns:
    As `attention`.

  Raises:
    ValueError: as `attention`, or if q does not have two maps.
  """
  lam = check_lambda(q, lam)
  return attention(
      q,
      k,
      v,
      jnp.stack([jnp.ones_like(lam), -lam], axis=-1),
      causal=causal,
      window=window,
      segment_ids=segment_ids,
      q_offset=q_offset,
      kv_offset=kv_offset,
      scale=scale,
      bias_slopes=bias_slopes,
      sink=sink,
      return_lse=return_lse,
      implementation=implementation,
  )


def _backend(implementation):
  if implementation is None:
    return xla
  if implementation not in IMPLEMENTATIONS:
    raise ValueError(
        f"{implementation=} must be None or one of {sorted(IMPLEMENTATIONS)}."
    )
  return IMPLEMENTATIONS[implementation]


# Sharding.


def _sharded(local, q, k, v, masks, *weights, per_map: bool):
  """Calls `local` on each device's batch and heads.

  Only an explicit mesh says at trace time how arrays are laid out; on other
  meshes, and without one, XLA partitions the call like any other code.
  """
  mesh = jax.sharding.get_abstract_mesh()
  static = {name: masks.pop(name) for name in ("causal", "window", "scale")}
  local = functools.partial(_call, local, static)
  if AxisType.Explicit not in mesh.axis_types:
    return local((q, k, v, *weights), masks)
  batch, length, heads = (*jax.typeof(q).sharding.spec, None, None, None)[:3]
  if _axis_size(mesh, length) > 1:
    raise ValueError(
        f"q is sharded as {jax.typeof(q).sharding.spec}: its length (axis 1)"
        " must not be sharded."
    )
  kv_heads = k.shape[2]
  shards = _axis_size(mesh, heads)
  if kv_heads % shards:
    raise ValueError(
        f"k.shape={k.shape} has {kv_heads} kv heads, which must be a multiple"
        f" of the {shards} devices that q's heads are sharded over."
    )

  def rows(x, *rest):
    return P(batch if x.shape[0] > 1 else None, *rest)

  specs = dict.fromkeys(masks)
  specs["q_offset"], specs["kv_offset"] = (
      rows(x) if x.ndim else P()
      for x in (masks["q_offset"], masks["kv_offset"])
  )
  if masks["segment_ids"] is not None:
    specs["segment_ids"] = (P(batch, None), P(batch, None))
  if masks["bias_slopes"] is not None:
    specs["bias_slopes"] = P(heads)
  if masks["sink"] is not None:
    specs["sink"] = P(heads, None)
  of_heads = P(batch, None, heads, None)
  of_maps = P(batch, None, heads, None, None)
  weight_specs = tuple(
      rows(w, None, heads if w.shape[2] > 1 else None, None) for w in weights
  )
  in_specs = ((of_maps, of_maps, of_heads, *weight_specs), specs)
  arguments = ((q, k, v, *weights), masks)
  # An assertion for arrays that already lie as `in_specs` say.
  arguments = jax.tree.map(
      lambda spec, x: jax.reshard(x, spec),
      in_specs,
      arguments,
      is_leaf=lambda x: isinstance(x, P),
  )
  return jax.shard_map(
      local,
      in_specs=in_specs,
      out_specs=(of_maps if per_map else of_heads, of_heads),
  )(*arguments)


def _call(local, static, arrays, masks):
  arrays, masks = _vary((arrays, masks))
  return local(*arrays, masks | static)


def _axis_size(mesh, axes) -> int:
  if axes is None:
    return 1
  axes = (axes,) if isinstance(axes, str) else axes
  size = 1
  for axis in axes:
    size *= mesh.shape[axis]
  return size


def _vary(arguments):
  """Marks what is equal on several devices as varying over them.

  The transpose of this cast is the sum over those devices, so that the
  gradients of lambda, slopes and sinks come out whole.
  """
  varying = set()
  for x in jax.tree.leaves(arguments):
    varying |= jax.typeof(x).manual_axis_type.varying

  def cast(x):
    missing = varying - jax.typeof(x).manual_axis_type.varying
    return jax.lax.pcast(x, tuple(sorted(missing)), to="varying")

  return jax.tree.map(cast, arguments)
