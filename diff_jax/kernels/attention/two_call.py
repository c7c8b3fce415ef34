# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A library's attention kernel, called once a map: the peer of our kernels.

    out = sum_c w_c O_c       O_c = softmax(scale q_c k_c) v: one library call

TPU: JAX's splash attention; GPU: cuDNN through `jax.nn`. The libraries bring
the gradient of each O_c; that of the sum is autodiff's, in fp32:
dO_c = w_c dO, dw_c = rowsum(dO O_c). Two maps read V twice and do the work of
dO V^T and of dV twice, which is what our own kernels save.

What the libraries cannot do: `unsupported`.
"""

import dataclasses
import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash_lib,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask as splash_masks,
)

from diff_jax.kernels.attention import masking as masking_lib
from diff_jax.kernels.attention import xla

# Kept by `jax.checkpoint_policies.save_only_these_names`, it spares the
# backward pass a second run of the forward kernel.
CHECKPOINT_NAME = "attention"
LANES = 128


@dataclasses.dataclass(frozen=True)
class Tile:
  """Rows of one step of splash's grid: queries, keys, keys in one product.

  The defaults are within 4 % of the best that `diff-jax bench --static` tries.
  """

  block_q: int = 1024
  block_kv: int = 1024
  block_kv_compute: int = 512

  def __post_init__(self):
    for field in dataclasses.fields(self):
      rows = getattr(self, field.name)
      if type(rows) is not int or rows < 1 or rows % LANES:
        raise ValueError(
            f"{field.name}={rows} must be a positive multiple of {LANES}."
        )
    if self.block_kv % self.block_kv_compute:
      raise ValueError(
          f"block_kv_compute={self.block_kv_compute} must divide"
          f" block_kv={self.block_kv}."
      )


@dataclasses.dataclass(frozen=True)
class _Static:
  """What is known at trace time."""

  causal: bool
  window: int | None
  scale: float
  forward: Tile
  backward: Tile


def unsupported(q, k, v, *, platform: str, **masks) -> str | None:
  """Why the libraries cannot take a call, or None: arguments of `attention`."""
  del v
  for name in ("bias_slopes", "sink"):
    if masks.get(name) is not None:
      return f"{name} is not None"
  for name in ("q_offset", "kv_offset"):
    offset = masks.get(name, 0)
    if isinstance(offset, jax.core.Tracer) or np.any(offset):
      return f"{name} is not 0"
  if q.dtype == jnp.float64:
    return "q is float64"
  if masks.get("window") is not None and q.shape[1] > k.shape[1]:
    return "window with more queries than keys"  # Splash gives NaN.
  if platform == "gpu":
    if q.dtype == jnp.float32:
      return "q is float32, cuDNN takes 16 bits"
    if masks.get("segment_ids") is not None:
      return "segment_ids is not None"
    if masks.get("window") is not None and not masks.get("causal", True):
      return "window without causal"
    if q.shape[1] != k.shape[1]:
      return "queries and keys differ in length"
  return None


def platform() -> str:
  """`tpu`, `gpu` or `cpu`: what the current mesh or process compiles for."""
  device = jax.sharding.get_abstract_mesh().abstract_device
  name = jax.default_backend() if device is None else device.platform
  return "gpu" if name in ("cuda", "rocm") else name


def attention(q, k, v, weights, **keywords):
  """(out [b,t,n,e] in q's dtype, lse [b,t,n,c]); see `api.attention`.

  Args:
    q, k, v, weights: as for `api.attention`; weights are [b,t,n,c].
    **keywords: its masks; `tile` and `backward_tile`, a `Tile` each.
  """
  o, lse = parts(q, k, v, **keywords)
  out = jnp.einsum("btnce,btnc->btne", o, weights.astype(o.dtype))
  return out.astype(q.dtype), lse


def parts(
    q, k, v, *, causal=True, window=None, segment_ids=None, scale=None,
    tile=Tile(), backward_tile=Tile(), **masks,  # noqa: B008, they are frozen
):  # fmt: skip
  """(o [b,t,n,c,e], lse [b,t,n,c]), fp32; see `api.parts`.

  A map's output has been rounded to q's dtype by the library.

  Raises:
    ValueError: for what `unsupported` says.
  """
  where = platform()
  reason = unsupported(
      q, k, v, platform=where, causal=causal, window=window,
      segment_ids=segment_ids, **masks,
  )  # fmt: skip
  if reason:
    raise ValueError(
        f"implementation='two_call' cannot take this call: {reason}. Use"
        " implementation='xla'."
    )
  scale = q.shape[-1] ** -0.5 if scale is None else scale
  static = _Static(causal, window, scale, tile, backward_tile)
  call = _cudnn if where == "gpu" else _splash
  maps = [
      call(static, q[:, :, :, c], k[:, :, :, min(c, k.shape[3] - 1)], v,
           segment_ids)
      for c in range(q.shape[3])
  ]  # fmt: skip
  o = jnp.stack([o for o, _ in maps], axis=3).astype(jnp.float32)
  lse = jnp.stack([lse for _, lse in maps], axis=3)
  sees_a_key = _rows_with_keys(static, q, k, segment_ids)
  if sees_a_key is None:
    return o, lse
  sees_a_key = sees_a_key[:, :, None, None]
  o = jnp.where(sees_a_key[..., None], o, 0)
  return o, jnp.where(sees_a_key, lse, -jnp.inf)


def _rows_with_keys(static, q, k, segment_ids):
  """Queries that see a key [b1, t]; None: all. The libraries assume all."""
  t, s = q.shape[1], k.shape[1]
  if segment_ids is None and t <= s:
    return None  # Query i sees key i.
  masking = masking_lib.make_masking(t, s, segment_ids, 0, 0)
  mask = masking_lib.visible(
      masking, causal=static.causal, window=static.window
  )
  return None if mask is None else mask.any(-1)


# Splash attention: heads first, one sequence a call, lengths in whole blocks.


def _splash(static, q, k, v, segment_ids):
  """One map: (o [b,t,n,e], lse [b,t,n]) of q [b,t,n,h], k and v [b,s,k,...]."""
  t, s = q.shape[1], k.shape[1]
  static = dataclasses.replace(
      static,
      forward=_fit(static.forward, t, s),
      backward=_fit(static.backward, t, s),
  )
  tiles = (static.forward, static.backward)
  rows = _round_up(t, math.lcm(*(x.block_q for x in tiles)))
  columns = _round_up(s, math.lcm(*(x.block_kv for x in tiles)))
  if segment_ids is None and columns > s and not (static.causal and t <= s):
    ones = (jnp.ones((q.shape[0], x), jnp.int32) for x in (t, s))
    segment_ids = tuple(ones)
  if segment_ids is not None:
    segment_ids = splash_lib.SegmentIds(
        _pad(segment_ids[0], rows), _pad(segment_ids[1], columns)
    )
  q = (q.astype(jnp.float32) * static.scale).astype(q.dtype)
  q, k, v = (
      _pad(jnp.swapaxes(x, 1, 2), length, axis=2)
      for x, length in ((q, rows), (k, columns), (v, columns))
  )
  o = _splash_call(static, q, k, v, segment_ids, save_residuals=False)
  lse = _splash_lse(static, q, k, segment_ids)
  return jnp.swapaxes(o, 1, 2)[:, :t], jnp.swapaxes(lse, 1, 2)[:, :t]


def _fit(tile: Tile, t: int, s: int) -> Tile:
  """No block longer than its sequence, in whole lanes."""
  block_q = min(tile.block_q, _round_up(t, LANES))
  block_kv = min(tile.block_kv, _round_up(s, LANES))
  compute = tile.block_kv_compute
  return Tile(block_q, block_kv, LANES if block_kv % compute else compute)


def _round_up(length: int, block: int) -> int:
  return -(-length // block) * block


def _pad(x, length: int, axis: int = 1):
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, length - x.shape[axis])
  return jnp.pad(x, widths)


def _splash_call(static, q, k, v, segment_ids, *, save_residuals):
  (_, n, t, _), s = q.shape, k.shape[2]
  if static.window is not None:
    after = 0 if static.causal else static.window - 1
    mask = splash_masks.LocalMask((t, s), (static.window - 1, after), 0)
  else:
    kind = splash_masks.CausalMask if static.causal else splash_masks.FullMask
    mask = kind((t, s))
  forward, backward = static.forward, static.backward
  kernel = splash_lib.make_splash_mha_single_device(
      splash_masks.MultiHeadMask([mask] * n),
      block_sizes=splash_lib.BlockSizes(
          block_q=forward.block_q,
          block_kv=forward.block_kv,
          block_kv_compute=forward.block_kv_compute,
          block_q_dkv=backward.block_q,
          block_kv_dkv=backward.block_kv,
          block_kv_dkv_compute=backward.block_kv_compute,
          use_fused_bwd_kernel=True,
      ),
      save_residuals=save_residuals,
      residual_checkpoint_name=CHECKPOINT_NAME,
  )
  return jax.vmap(kernel)(q, k, v, segment_ids)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _splash_lse(static, q, k, segment_ids):
  """lse [b,n,t] of scaled queries. Costs a call of its own, if it is used."""
  _, (lse,) = _splash_call(static, q, k, k, segment_ids, save_residuals=True)
  return lse


def _splash_lse_fwd(static, q, k, segment_ids):
  return _splash_lse(static, q, k, segment_ids), (q, k, segment_ids)


def _splash_lse_bwd(static, residuals, dlse):
  """dlse_i / dq_i = sum_j P_ij k_j, attention whose values are the keys."""
  q, k, segment_ids = residuals

  def gather(values):
    return _splash_call(static, q, k, values, segment_ids, save_residuals=False)

  mean_key, pullback = jax.vjp(gather, k)
  dlse = jnp.where(jnp.isfinite(dlse), dlse, 0)[..., None]
  (dk,) = pullback((dlse * q).astype(q.dtype))
  return (dlse * mean_key).astype(q.dtype), dk, None


_splash_lse.defvjp(_splash_lse_fwd, _splash_lse_bwd)


# cuDNN through `jax.nn`, whose values are as wide as the keys.


def _cudnn(static, q, k, v, segment_ids):
  del segment_ids  # None: see `unsupported`.
  h, e = q.shape[-1], v.shape[-1]
  slices = -(-e // h)
  v = _pad(v, slices * h, axis=3)
  window = static.window
  o = [
      jax.nn.dot_product_attention(
          q,
          k,
          v[..., i * h : (i + 1) * h],
          scale=static.scale,
          is_causal=static.causal,
          local_window_size=None if window is None else (window - 1, 0),
          implementation="cudnn",
      )
      for i in range(slices)
  ]
  o = checkpoint_name(jnp.concatenate(o, axis=-1)[..., :e], CHECKPOINT_NAME)
  # `jax.nn` rounds lse to 16 bits. This one costs nothing unless it is used.
  _, lse = xla.parts(
      q[:, :, :, None], k[:, :, :, None], v[..., :1], causal=static.causal,
      window=window, scale=static.scale,
  )  # fmt: skip
  return o, lse[..., 0]
