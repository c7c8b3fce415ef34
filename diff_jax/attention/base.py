# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What every attention mechanism shares: projections, positions, op, norm.

A mechanism is a subclass that says how many maps a head has and how they are
weighted; it may also replace `project` and `merge`. README.md shows one.
"""

from typing import ClassVar

import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from diff_jax import layers
from diff_jax.config import ConfigError
from diff_jax.kernels.attention import api, reference
from diff_jax.kernels.attention.checks import check_weights
from diff_jax.sharding import Shardings, gathered


def lambda_init_by_depth(depth) -> Float[Array, ""]:
  """0.8 - 0.6 exp(-0.3 depth), depth 0 for the first layer.

  arXiv 2410.05258, section 2.1, where layers count from 1.
  """
  return 0.8 - 0.6 * jnp.exp(-0.3 * jnp.asarray(depth, jnp.float32))


class Attention(nnx.Module):
  """Base of all mechanisms: q, k, v -> weighted softmax maps -> output.

  Attributes:
    num_maps: c, softmax maps of a head.
    num_key_maps: c, or 1 if the maps of a head share their keys.
    value_widths: width of a value head in units of head_dim (e = this * h).
    default_head_norm: whether heads are normed unless the caller says.
    label: what reports call the mechanism; empty: the class's name.
  """

  num_maps: ClassVar[int] = 1
  num_key_maps: ClassVar[int] = 1
  value_widths: ClassVar[int] = 1
  default_head_norm: ClassVar[bool] = False
  label: ClassVar[str] = ""

  def __init__(
      self,
      d_model: int,
      num_heads: int,
      *,
      num_kv_heads: int | None = None,
      head_dim: int | None = None,
      depth: int = 0,
      head_norm: bool | None = None,
      head_norm_weight: bool = True,
      head_norm_scale: bool | None = None,
      lambda_init: float | None = None,
      lambda_depth_offset: int = 0,
      rope: str = "interleaved",
      rope_theta: float = 10_000.0,
      window: int | None = None,
      causal: bool = True,
      bias: bool = False,
      norm_eps: float = 1e-5,
      init: str = "fan_in",
      output_gain: float = 1.0,
      implementation: str | None = None,
      shardings: Shardings = Shardings(),  # noqa: B008, it is frozen
      rngs: nnx.Rngs,
  ):
    """Makes the weights.

    Args:
      d_model: width of input and output.
      num_heads: value heads; a differential head is a pair of maps.
      num_kv_heads: key/value heads, a divisor of num_heads; None: as many.
      head_dim: h, the width of one map; None: d_model / (num_heads * e/h).
      depth: index of the layer from 0, for lambda_init.
      head_norm: whether each head's output is RMS-normed over its width.
      head_norm_weight: whether that norm has a weight [e], shared by heads.
      head_norm_scale: whether the output is multiplied by 1 - lambda_init;
        None: if the mechanism norms its heads by default, and does so here.
      lambda_init: a constant; None: `lambda_init_by_depth`.
      lambda_depth_offset: added to depth in `lambda_init_by_depth`.
      rope: `interleaved`, `half` or `none`; see `layers.rope`.
      rope_theta: base of the rotary frequencies.
      window: tokens that a query sees; None: all.
      causal: whether a query sees earlier positions only.
      bias: whether the four projections have biases.
      norm_eps: of the head norm.
      init: of the projections; see `layers.matrix`.
      output_gain: multiplies the initial output projection.
      implementation: of the op; None: the platform's best.
      shardings: where weights and activations lie; `Shardings()`: no mesh.
      rngs: gives the keys, stream `params`.

    Raises:
      ConfigError: if the heads do not divide the width.
    """
    widths = num_heads * self.value_widths
    if head_dim is None and d_model % widths:
      raise ConfigError(
          f"{d_model=} must be a multiple of {widths} = {num_heads=} *"
          f" {self.value_widths} map widths a value head, unless head_dim is"
          " given."
      )
    kv_heads = num_heads if num_kv_heads is None else num_kv_heads
    if kv_heads < 1 or num_heads % kv_heads:
      raise ConfigError(f"{num_kv_heads=} must divide {num_heads=}.")
    if rope not in layers.ROPE_STYLES:
      raise ConfigError(f"{rope=} must be one of {layers.ROPE_STYLES}.")
    h = head_dim or d_model // widths
    if rope != "none" and h % 2:
      raise ConfigError(f"head_dim={h} must be even for {rope=}.")
    if head_norm is None:
      head_norm = self.default_head_norm
    if head_norm_scale is None:
      head_norm_scale = head_norm and self.default_head_norm

    self.num_heads, self.kv_heads = num_heads, kv_heads
    self.head_dim, self.value_dim = h, h * self.value_widths
    self.depth, self.lambda_init = depth, lambda_init
    self.lambda_depth_offset = lambda_depth_offset
    self.head_norm, self.head_norm_scale = head_norm, head_norm_scale
    self.rope, self.rope_theta = rope, rope_theta
    self.window, self.causal, self.norm_eps = window, causal, norm_eps
    self.implementation, self.shardings = implementation, shardings
    self._make_weights(d_model, bias, init, output_gain, rngs)
    normed = head_norm and head_norm_weight
    self.head_norm_weight = (
        nnx.Param(jnp.ones(self.value_dim)) if normed else None
    )

  def _make_weights(self, d_model, bias, init, output_gain, rngs):
    n, k, c, e = self.num_heads, self.kv_heads, self.num_maps, self.value_dim
    s, h, ck = self.shardings, self.head_dim, self.num_key_maps

    def inward(shape, sharding):
      return layers.matrix(
          rngs.params(), (d_model, *shape), d_model, init=init,
          sharding=sharding,
      )  # fmt: skip

    self.w_q = inward((n, c, h), s.w_dnch)
    self.w_k = inward((k, ck, h), s.w_dkch)
    self.w_v = inward((k, e), s.w_dke)
    self.w_o = layers.matrix(
        rngs.params(), (n, e, d_model), n * e, init=init, gain=output_gain,
        sharding=s.w_ned,
    )  # fmt: skip
    self.b_q, self.b_k, self.b_v, self.b_o = (
        nnx.Param(jnp.zeros(shape)) if bias else None
        for shape in ((n, c, h), (k, ck, h), (k, e), (d_model,))
    )

  # What a mechanism may replace.

  def project(self, x: Float[Array, "b t d"]) -> tuple[
      Float[Array, "b t n c h"],
      Float[Array, "b t k ck h"],
      Float[Array, "b t k e"],
  ]:
    """Queries, keys and values, before rotary positions."""
    s = self.shardings
    q = _project("btd,dnch->btnch", x, self.w_q, self.b_q, s.act_btnch)
    k = _project("btd,dkch->btkch", x, self.w_k, self.b_k, s.act_bskch)
    v = _project("btd,dke->btke", x, self.w_v, self.b_v, s.act_bske)
    return q, k, v

  def weights(self, x: Float[Array, "b t d"], depth=None) -> api.Weights:
    """Weights of a head's maps: one array, or one entry for each map.

    Broadcastable to [b,t,n,c], or each entry to [b,t,n]; a first entry that is
    the number 1 saves memory, see `api.attention`.
    """
    del x, depth
    if self.num_maps > 1:
      raise NotImplementedError(
          f"{type(self).__name__} has num_maps={self.num_maps}: it must define"
          " weights(x, depth)."
      )
    return None

  def merge(
      self, out: Float[Array, "b t n e"], depth=None
  ) -> Float[Array, "b t d"]:
    """Norms the heads (if set) and projects them back."""
    if self.head_norm:
      weight = self.head_norm_weight
      weight = None if weight is None else weight[...]
      out = layers.rms_norm(out, weight, self.norm_eps)
    if self.head_norm_scale:
      out = out * (1 - self.initial_lambda(depth)).astype(out.dtype)
    return _project(
        "btne,ned->btd", out, self.w_o, self.b_o, self.shardings.act_btd
    )

  def metrics(self, depth=None) -> dict[str, Float[Array, ""]]:
    """Scalars worth watching in training, by name."""
    del depth
    return {}

  # What all mechanisms share.

  def initial_lambda(self, depth=None) -> Float[Array, ""]:
    """lambda_init of a layer: the constant, or by depth (None: our own)."""
    depth = self.depth if depth is None else depth
    if self.lambda_init is not None:
      return jnp.float32(self.lambda_init)
    return lambda_init_by_depth(jnp.asarray(depth) + self.lambda_depth_offset)

  def __call__(
      self,
      x: Float[Array, "b t d"],
      *,
      positions: Int[Array, "b1 t"] | None = None,
      segment_ids: Int[Array, "b t"] | None = None,
      depth=None,
  ) -> Float[Array, "b t d"]:
    """Attends.

    Args:
      x: the normed residual stream.
      positions: for the rotary embedding; None: 0, 1, 2, ...
      segment_ids: packed sequences; 0 is padding.
      depth: index of the layer from 0, may be traced; None: the layer's own.
    """
    q, k, v = self._rotated(x, positions)
    out = api.attention(
        q,
        k,
        v,
        self.weights(x, depth),
        causal=self.causal,
        window=self.window,
        segment_ids=segment_ids,
        implementation=self.implementation,
    )
    return self.merge(out, depth)

  def _rotated(self, x, positions):
    if positions is None:
      positions = jnp.arange(x.shape[1])[None]
    q, k, v = self.project(x)
    q, k = (
        layers.rope(y, positions, theta=self.rope_theta, style=self.rope)
        for y in (q, k)
    )
    return q, k, v

  def row_maps(
      self,
      x: Float[Array, "b t d"],
      rows: Int[Array, " r"],
      *,
      positions: Int[Array, "b1 t"] | None = None,
      segment_ids: Int[Array, "b t"] | None = None,
      depth=None,
  ) -> tuple[Float[Array, "b n c r s"], Float[Array, "b r n c"]]:
    """Softmax maps of chosen query rows, and the weights of those rows.

    Memory grows with r * s, so a few rows of a long sequence are cheap.
    """
    q, k, _ = self._rotated(x, positions)

    @gathered
    def rows_of(q, k, weights, segment_ids, rows):
      if segment_ids is not None:
        segment_ids = (segment_ids[:, rows], segment_ids)
      maps, _ = reference.maps(
          q[:, rows],
          k,
          causal=self.causal,
          window=self.window,
          segment_ids=segment_ids,
          q_offset=rows[None],  # each row is a chunk of its own
      )
      return maps, jnp.broadcast_to(weights, q.shape[:-1])[:, rows]

    weights, _ = check_weights(self.weights(x, depth), q)
    return rows_of(q, k, weights, segment_ids, rows)


def _project(spec, x, weight, bias, sharding):
  out = layers.linear(spec, x, weight[...], sharding)
  if bias is None:
    return out
  bias = bias.astype(x.dtype)
  return out + bias.reshape((1,) * (out.ndim - bias.ndim) + bias.shape)
