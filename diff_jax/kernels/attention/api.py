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
from collections.abc import Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from absl import logging
from jax.sharding import AxisType
from jaxtyping import Array, Float, Int, Num

from diff_jax.kernels.attention import (
    mosaic_gpu,
    mosaic_tpu,
    reference,
    target,
    two_call,
    xla,
)
from diff_jax.kernels.attention.checks import (
    check_lambda,
    check_masks,
    check_weights,
)
from diff_jax.kernels.attention.sharded_call import sharded

type Implementation = Literal[
    "mosaic_tpu", "mosaic_gpu", "two_call", "xla", "reference"
]
type SegmentIds = (
    Int[Array, "b t"] | tuple[Int[Array, "b t"], Int[Array, "b s"]]
)
type Offset = int | Int[Array, "..."]
type Weight = Num[Array, "..."] | float | int
type Weights = Weight | Sequence[Weight] | None

IMPLEMENTATIONS = {
    "mosaic_tpu": mosaic_tpu,
    "mosaic_gpu": mosaic_gpu,
    "two_call": two_call,
    "xla": xla,
    "reference": reference,
}
# By platform; others, and calls that these cannot take, run as plain XLA.
# mosaic_gpu is not here before it has run on a GPU.
PREFERRED = {"tpu": "mosaic_tpu", "gpu": "two_call"}
# Elsewhere these run only in Pallas's interpreter.
PLATFORMS = {
    "mosaic_tpu": ("tpu",),
    "mosaic_gpu": ("gpu",),
    "two_call": ("tpu", "gpu"),
}


def attention(
    q: Float[Array, "b t n c h"],
    k: Float[Array, "b s k ck h"],
    v: Float[Array, "b s k e"],
    weights: Weights = None,
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
    weights: broadcastable to [b,t,n,c]; or a sequence of c, one a map, each
      broadcastable to [b,t,n]; None means 1. A first entry that is the number 1
      spares the backward pass the first map's output.
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
    implementation: None is the platform's best, see `PREFERRED`. A call that
      `mosaic_tpu`, `mosaic_gpu` or `two_call` cannot take runs as `xla`, and the log says
      why, once. On several devices the mesh must be explicit (`jax.set_mesh`),
      or the call in a `jax.shard_map`: XLA cannot partition a kernel.

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
  weights, first_weight_is_one = check_weights(weights, q)
  name = _choose(implementation)

  def local(q, k, v, weights, masks):
    return _able(name, q, k, v, masks).attention(
        q,
        k,
        v,
        jnp.broadcast_to(weights, q.shape[:-1]),
        first_weight_is_one=first_weight_is_one,
        return_lse=return_lse,
        **masks,
    )

  return sharded(local, q, k, v, masks, weights, check_vma=_checks_vma(name))


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
  name = _choose(implementation)

  def local(q, k, v, masks):
    return _able(name, q, k, v, masks).parts(q, k, v, **masks)

  return sharded(local, q, k, v, masks, check_vma=_checks_vma(name))


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

  arXiv 2410.05258, equation 1: `attention` with weights (1, -lam), no per-head
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
  return attention(
      q,
      k,
      v,
      (1, -check_lambda(q, lam)),
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


# Implementations.


def _choose(implementation) -> str:
  """The name of the implementation asked for, or of the platform's best."""
  if implementation is None:
    return PREFERRED.get(target.platform(), "xla")
  if implementation not in IMPLEMENTATIONS:
    raise ValueError(
        f"{implementation=} must be None or one of {sorted(IMPLEMENTATIONS)}."
    )
  platforms = PLATFORMS.get(implementation)
  if platforms and target.platform() not in platforms:
    _log_once(
        f"{implementation=} is for {' and '.join(platforms)}; on"
        f" {target.platform()} it runs only in Pallas's interpreter, which the"
        " caller must force."
    )
  return implementation


def _able(name, q, k, v, masks):
  """The implementation of a name, or XLA for a call that it cannot take."""
  backend = IMPLEMENTATIONS[name]
  reason = backend.unsupported(q, k, v, **masks)
  if reason is None and name in PLATFORMS:
    reason = _why_not_partitioned()
  if reason is None:
    return backend
  _log_once(f"attention runs as plain XLA, not as {name}: {reason}.")
  return xla


def _why_not_partitioned() -> str | None:
  """Why a kernel cannot run on the current mesh, or None."""
  mesh = jax.sharding.get_abstract_mesh()
  automatic = [
      axis
      for axis, kind in zip(mesh.axis_names, mesh.axis_types, strict=True)
      if kind == AxisType.Auto and mesh.shape[axis] > 1
  ]
  if not automatic:
    return None
  return (
      f"XLA cannot partition a kernel over the automatic mesh axes {automatic}:"
      " make them explicit (jax.sharding.AxisType.Explicit), or call the op in"
      " a jax.shard_map"
  )


def _checks_vma(name) -> bool:
  """Whether the kernels say which mesh axes their results vary over."""
  return name != "two_call"


@functools.cache
def _log_once(message: str):
  logging.warning(message)
