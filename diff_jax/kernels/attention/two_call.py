# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A library's attention kernel, called once a map: the peer of our kernels.

    out = sum_c w_c O_c       O_c = softmax(scale q_c k_c) v: one library call

TPU: JAX's splash attention; GPU: cuDNN through `jax.nn`. The libraries bring
the gradient of each O_c; that of the sum is autodiff's, in fp32:
dO_c = w_c dO, dw_c = rowsum(dO O_c). Two maps read V twice and do the work of
dO V^T and of dV twice, which is what our own kernels save.

Where `tokamax` is installed its kernel runs on GPU instead: values as wide as a
pair, where cuDNN through `jax.nn` takes one call for each width of a key.

What the libraries cannot do: `unsupported`.
"""

import dataclasses
import functools
import importlib.util
import math

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_kernel as splash_lib,
)
from jax.experimental.pallas.ops.tpu.splash_attention import (
    splash_attention_mask as splash_masks,
)

from diff_jax.kernels.attention import masking as masking_lib
from diff_jax.kernels.attention import target, xla

# Kept by `jax.checkpoint_policies.save_only_these_names`, it spares the
# backward pass a second run of the forward kernel.
CHECKPOINT_NAME = "attention"
LANES = 128
# The first that is installed: its name, and a package that says so.
GPU_LIBRARIES = (
    ("tokamax", "tokamax"),
    ("cudnn", "jax_cuda13_plugin"),
    ("cudnn", "jax_cuda12_plugin"),
)


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
  return_lse: bool
  forward: Tile
  backward: Tile


def unsupported(q, k, v, **masks) -> str | None:
  """Why the libraries cannot take a call, or None: arguments of `attention`."""
  del v
  platform = target.platform()
  for name in ("bias_slopes", "sink"):
    if masks.get(name) is not None:
      return f"{name} is not None"
  for name in ("q_offset", "kv_offset"):
    offset = masks.get(name, 0)
    if type(offset) is not int or offset:
      return f"{name} is not the number 0"
  if q.dtype == jnp.float64:
    return "q is float64"
  if masks.get("window") is not None and q.shape[1] > k.shape[1]:
    return "window with more queries than keys"  # Splash gives NaN.
  if platform == "gpu":
    if gpu_library() is None:
      return "neither tokamax nor JAX's CUDA plugin is installed"
    if q.dtype == jnp.float32:
      return "q is float32, the libraries take 16 bits"
    if masks.get("segment_ids") is not None:
      return "segment_ids is not None"
    if masks.get("window") is not None and not masks.get("causal", True):
      return "window without causal"
    if q.shape[1] != k.shape[1]:
      return "queries and keys differ in length"
  return None


def gpu_library() -> str | None:
  """The installed library whose kernel runs on GPU."""
  for library, package in GPU_LIBRARIES:
    if importlib.util.find_spec(package):
      return library
  return None


def attention(
    q, k, v, weights, *, return_lse=False, first_weight_is_one=False, **keywords
):  # fmt: skip
  """out [b,t,n,e] in q's dtype, or (out, lse); see `api.attention`.

  Args:
    q, k, v, weights: as for `api.attention`; weights are [b,t,n,c].
    return_lse: whether to return lse [b,t,n,c], which costs calls of its own.
    first_weight_is_one: of no use here.
    **keywords: masks; `tile` and `backward_tile`, a `Tile` each.
  """
  del first_weight_is_one
  o, lse = _maps(q, k, v, return_lse=return_lse, **keywords)
  out = jnp.einsum("btnce,btnc->btne", o, weights.astype(o.dtype))
  out = out.astype(q.dtype)
  return (out, lse) if return_lse else out


def parts(q, k, v, **keywords):
  """(o [b,t,n,c,e], lse [b,t,n,c]), fp32; see `api.parts`.

  A map's output has been rounded to q's dtype by the library.
  """
  return _maps(q, k, v, return_lse=True, **keywords)


def _maps(
    q, k, v, *, return_lse, causal=True, window=None, segment_ids=None,
    scale=None, tile=Tile(), backward_tile=Tile(),  # noqa: B008, frozen
    q_offset=0, kv_offset=0, bias_slopes=None, sink=None,
):  # fmt: skip
  """(o, lse or None) of every map."""
  del q_offset, kv_offset, bias_slopes, sink  # See `unsupported`.
  scale = q.shape[-1] ** -0.5 if scale is None else scale
  static = _Static(causal, window, scale, return_lse, tile, backward_tile)
  call = _gpu if target.platform() == "gpu" else _splash
  maps = [
      call(static, q[:, :, :, c], k[:, :, :, min(c, k.shape[3] - 1)], v,
           segment_ids)
      for c in range(q.shape[3])
  ]  # fmt: skip
  sees_a_key = _rows_with_keys(static, q, k, segment_ids)
  o = jnp.stack([o for o, _ in maps], axis=3).astype(jnp.float32)
  if sees_a_key is not None:
    o = jnp.where(sees_a_key[:, :, None, None, None], o, 0)
  if not return_lse:
    return o, None
  lse = jnp.stack([lse for _, lse in maps], axis=3)
  if sees_a_key is not None:
    lse = jnp.where(sees_a_key[:, :, None, None], lse, -jnp.inf)
  return o, lse


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
  """(o [b,t,n,e], lse [b,t,n] or None) of q [b,t,n,h], k and v [b,s,k,...]."""
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
  o = jnp.swapaxes(o, 1, 2)[:, :t]
  if not static.return_lse:
    return o, None
  lse = _splash_lse(static, q, k, segment_ids)
  return o, jnp.swapaxes(lse, 1, 2)[:, :t]


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


# GPU: no segments (see `unsupported`).


def _gpu(static, q, k, v, segment_ids):
  del segment_ids
  call = _tokamax if gpu_library() == "tokamax" else _cudnn
  o = checkpoint_name(call(static, q, k, v), CHECKPOINT_NAME)
  if not static.return_lse:
    return o, None
  # The libraries do not return it, or round it to 16 bits.
  _, lse = xla.parts(
      q[:, :, :, None], k[:, :, :, None], v[..., :1], causal=static.causal,
      window=static.window, scale=static.scale,
  )  # fmt: skip
  return o, lse[..., 0]


def _gpu_masks(static):
  window = static.window
  return dict(
      scale=static.scale,
      is_causal=static.causal,
      local_window_size=None if window is None else (window - 1, 0),
  )


def _tokamax(static, q, k, v):
  import tokamax

  return tokamax.dot_product_attention(
      q, k, v, implementation="mosaic", **_gpu_masks(static)
  )


def _cudnn(static, q, k, v):
  """`jax.nn` wants values as wide as the keys."""
  h, e = q.shape[-1], v.shape[-1]
  slices = -(-e // h)
  v = _pad(v, slices * h, axis=3)
  o = [
      jax.nn.dot_product_attention(
          q,
          k,
          v[..., i * h : (i + 1) * h],
          implementation="cudnn",
          **_gpu_masks(static),
      )
      for i in range(slices)
  ]
  return jnp.concatenate(o, axis=-1)[..., :e]
