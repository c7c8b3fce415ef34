# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The layers around attention: initialisation, norm, rotary positions, MLP."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P
from jaxtyping import Array, Float, Int

from diff_jax.kernels.attention import target
from diff_jax.sharding import Shardings

ROPE_STYLES = ("interleaved", "half", "none")


def matrix(
    key: jax.Array,
    shape: tuple[int, ...],
    fan_in: int,
    *,
    init: str = "fan_in",
    gain: float = 1.0,
    sharding: P | None = None,
) -> nnx.Param:
  """An fp32 weight, born with its sharding.

  Args:
    key: PRNG key.
    shape: of the weight.
    fan_in: the number of inputs that each output sums.
    init: `fan_in`, normal with std fan_in ** -0.5; `normal_0.02`;
      `kaiming_uniform`, uniform within +-fan_in ** -0.5, the default of
      torch.nn.Linear.
    gain: multiplies the draw.
    sharding: the weight's PartitionSpec.
  """
  if init == "kaiming_uniform":
    bound = gain * fan_in**-0.5
    draw = jax.random.uniform(
        key, shape, jnp.float32, -bound, bound, out_sharding=sharding
    )
    return nnx.Param(draw)
  stds = {"fan_in": fan_in**-0.5, "normal_0.02": 0.02}
  if init not in stds:
    raise ValueError(
        f"{init=} must be one of {sorted([*stds, 'kaiming_uniform'])}."
    )
  draw = jax.random.normal(key, shape, jnp.float32, out_sharding=sharding)
  return nnx.Param(gain * stds[init] * draw)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 3))
def linear(
    spec: str,
    x: Float[Array, "..."],
    weight: Float[Array, "..."],
    sharding: P | None = None,
) -> Float[Array, "..."]:
  """einsum(spec, x, weight) with a gradient of the weight that is fast on CPU.

  JAX's own is the product gradient^T x, transposed: XLA computes what precedes
  the product, such as silu's derivative, column by column. Here it is x^T
  gradient. Weights may be shared by the devices of a `jax.shard_map`.
  """
  return jnp.einsum(spec, x, weight.astype(x.dtype), out_sharding=sharding)


def _linear_fwd(spec, x, weight, sharding):
  out = linear(spec, x, weight, sharding)
  return checkpoint_name(out, "linear"), (x, weight)


def _linear_bwd(spec, sharding, residuals, gradient):
  del sharding
  x, weight = residuals
  if target.platform() == "cpu":
    # Computed once, then transposed; elsewhere it only costs fusions.
    x = jax.lax.optimization_barrier(x)
  operands, out = spec.split("->")
  x_axes, weight_axes = operands.split(",")

  def product(spec, first, second, like):
    y = jnp.einsum(spec, first, second, out_sharding=jax.typeof(like).sharding)
    missing = (
        jax.typeof(y).manual_axis_type.varying
        - jax.typeof(like).manual_axis_type.varying
    )
    return jax.lax.psum(y.astype(like.dtype), tuple(sorted(missing)))

  return (
      product(
          f"{out},{weight_axes}->{x_axes}", gradient, weight.astype(x.dtype), x
      ),
      product(f"{x_axes},{out}->{weight_axes}", x, gradient, weight),
  )


linear.defvjp(_linear_fwd, _linear_bwd)


def rms_norm(
    x: Float[Array, "... d"], weight: Float[Array, " d"] | None, eps: float
) -> Float[Array, "... d"]:
  """x / rms(x) over the last axis, in fp32, times the weight (in x's dtype)."""
  wide = x.astype(jnp.float32)
  mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
  out = wide * jax.lax.rsqrt(mean_square + eps)
  if weight is not None:
    out = out * weight.reshape((1,) * (x.ndim - 1) + weight.shape)
  return out.astype(x.dtype)


def rope(
    x: Float[Array, "b t n c h"],
    positions: Int[Array, "b1 t"],
    *,
    theta: float,
    style: str,
) -> Float[Array, "b t n c h"]:
  """Rotary position embedding (arXiv 2104.09864), angles in fp32.

  Args:
    x: queries or keys.
    positions: of each row, in tokens.
    theta: the base; frequencies are theta ** (-2i / h).
    style: `interleaved` rotates the pairs (2i, 2i + 1), as the official code
      does; `half` the pairs (i, i + h/2), as Llama does; `none` returns x.
  """
  if style not in ROPE_STYLES:
    raise ValueError(f"{style=} must be one of {ROPE_STYLES}.")
  if style == "none":
    return x
  h = x.shape[-1]
  lane = np.arange(h)
  if style == "interleaved":
    pair, other, is_first = lane // 2, lane ^ 1, lane % 2 == 0
  else:
    pair, other = lane % (h // 2), (lane + h // 2) % h
    is_first = lane < h // 2
  # (x_1, x_2) -> (-x_2, x_1) as a product with a signed permutation: exact, and
  # a TPU moves single lanes far more slowly (kernels/attention/README.md).
  turn = np.zeros((h, h), np.float32)
  turn[other, lane] = np.where(is_first, -1, 1)
  turned = jnp.einsum(
      "btnch,hi->btnci",
      x,
      jnp.asarray(turn, x.dtype),
      precision=jax.lax.Precision.HIGHEST,
  )
  frequencies = jnp.asarray(theta ** (-2 * pair / h), jnp.float32)
  angles = positions[..., None].astype(jnp.float32) * frequencies[None, None]
  cos, sin = (f(angles)[:, :, None, None] for f in (jnp.cos, jnp.sin))
  out = x.astype(jnp.float32) * cos + turned.astype(jnp.float32) * sin
  return out.astype(x.dtype)


def embed(
    table: Float[Array, "v d"],
    tokens: Int[Array, "b t"] | Int[Array, "b t i"],
    sharding: P | None,
) -> Float[Array, "b t d"]:
  """Rows of the table; the i embeddings of a position are summed."""
  if tokens.ndim == 2:
    return table.at[tokens].get(out_sharding=sharding)
  if sharding is not None:
    sharding = P(sharding[0], sharding[1], None, sharding[2])
  return table.at[tokens].get(out_sharding=sharding).sum(axis=2)


class SwiGLU(nnx.Module):
  """(silu(x W_gate) * x W_up) W_down (arXiv 2002.05202), without biases."""

  def __init__(
      self,
      d_model: int,
      mlp_dim: int,
      *,
      init: str = "fan_in",
      output_gain: float = 1.0,
      shardings: Shardings = Shardings(),  # noqa: B008, it is frozen
      rngs: nnx.Rngs,
  ):
    s = self.shardings = shardings
    wide, narrow = (d_model, mlp_dim), (mlp_dim, d_model)
    self.w_gate = matrix(
        rngs.params(), wide, d_model, init=init, sharding=s.w_df
    )
    self.w_up = matrix(rngs.params(), wide, d_model, init=init, sharding=s.w_df)
    self.w_down = matrix(
        rngs.params(),
        narrow,
        mlp_dim,
        init=init,
        gain=output_gain,
        sharding=s.w_fd,
    )

  def __call__(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    s = self.shardings
    gate = linear("btd,df->btf", x, self.w_gate[...], s.act_btf)
    up = linear("btd,df->btf", x, self.w_up[...], s.act_btf)
    hidden = jax.nn.silu(gate) * up
    return linear("btf,fd->btd", hidden, self.w_down[...], s.act_btd)
