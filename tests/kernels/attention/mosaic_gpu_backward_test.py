# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The backward Hopper kernels, interpreted with race detection, and lowered."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from diff_jax.kernels.attention import masking as masking_lib
from diff_jax.kernels.attention import (
    mosaic_gpu,
    mosaic_gpu_backward,
    mosaic_gpu_common,
    reference,
    weighted_gradient,
)
from diff_jax.kernels.attention import (
    mosaic_gpu_backward_config as config_lib,
)
from diff_jax.kernels.attention.block_sizes import round_up
from tests.kernels.attention import cases

BackwardConfig = config_lib.BackwardConfig
DqConfig, DkvConfig = config_lib.DqConfig, config_lib.DkvConfig
interpreted = functools.partial(
    mosaic_gpu_common.interpreted, detect_races=True
)


def make_config(block_kv=64, block_q=64, stages=2, split=False):
  return BackwardConfig(
      DqConfig(block_kv, stages, split), DkvConfig(block_q, stages, split)
  )


BOTH, SPLIT = make_config(), make_config(split=True)
SEGMENTS = jnp.repeat(
    jnp.array([[0, 1, 2, 0]]), jnp.array([20, 50, 20, 10]), axis=1
)
CASES = {
    "both_maps": (
        BOTH, cases.Case(t=140, s=140, n=1, k=1, weights=(1, 140, 1, 2))
    ),
    "split_maps_of_groups": (SPLIT, cases.Case(t=70, s=70, n=4, k=1)),
    "one_map_full": (
        make_config(64, 128),
        cases.Case(t=70, s=330, n=1, c=1, k_maps=1, k=1, weights=None,
                   options=dict(causal=False)),
    ),
    "one_map_wide": (
        BackwardConfig(DqConfig(64, 2, False), DkvConfig(64, 2, True)),
        cases.Case(t=70, s=70, n=1, c=1, k_maps=1, k=1, e=96, weights=None),
    ),
    "shared_keys_and_nothing_visible": (
        BackwardConfig(DqConfig(64, 2, True), DkvConfig(64, 2, False)),
        cases.Case(b=2, t=70, s=150, n=1, k=1, k_maps=1,
                   options=dict(q_offset=np.array([90, -200]))),
    ),
    "shared_keys_wide_segments": (
        SPLIT,
        cases.Case(t=100, s=100, n=1, k=1, k_maps=1,
                   options=dict(window=20, segment_ids=SEGMENTS)),
    ),
}  # fmt: skip


def make_inputs(name, case, dtype):
  """q, k, v in `dtype`, weights, and the cotangents of out and lse."""
  inputs, _ = cases.make_inputs(name, case)
  q, k, v = (jnp.asarray(inputs[x], dtype) for x in "qkv")
  weights = jnp.broadcast_to(
      jnp.asarray(inputs.get("weights", 1.0), jnp.float32), q.shape[:-1]
  )
  normal = np.random.default_rng(0).standard_normal
  dout = jnp.asarray(normal((*q.shape[:3], v.shape[-1])), dtype)
  dlse = jnp.asarray(normal(q.shape[:-1]), jnp.float32)
  return (q, k, v, weights), (dout.astype(jnp.float32), dlse)


def shape_of(q, k, v, *, causal=True, window=None, **_):
  n, c, h = q.shape[2:]
  return mosaic_gpu_common.Shape(
      heads=n, groups=n // k.shape[2], maps=c, key_maps=k.shape[3],
      map_width=round_up(h, 32), value_width=round_up(v.shape[-1], 64),
      causal=causal, window=window,
      first_weight_is_one=False, saved_maps=tuple(range(c)),
      out_dtype=q.dtype,
  )  # fmt: skip


def pad(x, width=32, length=8):
  """Zeros up to the widths and lengths that TMA takes."""
  pads = [(0, 0)] * x.ndim
  pads[1], pads[-1] = (0, -x.shape[1] % length), (0, -x.shape[-1] % width)
  return jnp.pad(x, pads)


def maps_in_a_row(x):
  x = pad(x)
  return x.reshape(*x.shape[:2], -1, x.shape[-1])


def gradients(config, options, primals, cotangents):
  """dq, dk, dv of the kernels, with what the forward pass would have saved."""
  (q, k, v, weights), (dout, dlse) = primals, cotangents
  wide = [x.astype(jnp.float32) for x in (q, k, v)]
  o, lse = reference.parts(*wide, **options)
  rows, h = weighted_gradient.rows, q.shape[-1]
  saved = [o[..., c, :] for c in range(q.shape[3])]
  dweights = weighted_gradient.dot_outputs(
      dout, None, saved, rows(weights), first_weight_is_one=False
  )
  stats, sign = weighted_gradient.row_stats(
      rows(weights), rows(lse), dweights, rows(dlse)
  )
  do = (dout * jnp.moveaxis(sign, 2, 1)[..., None]).astype(v.dtype)
  scaled = (wide[0] * (h**-0.5 / weighted_gradient.LN_2)).astype(q.dtype)
  masking = masking_lib.make_masking(
      q.shape[1], k.shape[1], options.get("segment_ids"),
      options.get("q_offset", 0), options.get("kv_offset", 0),
  )  # fmt: skip
  dq, dk, dv = mosaic_gpu_backward.backward(
      shape_of(q, k, v, **options), masking, maps_in_a_row(scaled),
      maps_in_a_row(k), pad(v, 64), pad(do, 64), stats, scale=h**-0.5,
      config=config,
  )  # fmt: skip

  def like(x, y):
    x = x[:, : y.shape[1], ..., : y.shape[-1]]
    return x.reshape(y.shape)

  return like(dq, q), like(dk, k), like(dv, v)


def check(config, options, primals, cotangents, allowed):
  """Against automatic differentiation of the reference, in fp32."""
  with interpreted():
    actual = jax.jit(functools.partial(gradients, config, options))(
        primals, cotangents
    )
  q, k, v, weights = primals

  def exact(*qkv):
    return reference.attention(*qkv, weights, return_lse=True, **options)

  @jax.jit
  def pull(cotangents):
    _, pullback = jax.vjp(exact, *(x.astype(jnp.float32) for x in (q, k, v)))
    return pullback(cotangents)

  for name, x, y in zip("qkv", actual, pull(cotangents), strict=True):
    if not np.abs(y).max():
      np.testing.assert_array_equal(x, 0)
    else:
      error = cases.relative_error(x, y)
      assert error <= allowed, f"d{name}: {error} > {allowed}"


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_reference(name):
  """Operands of products are rounded to 8 bits, 2^-9, in four places."""
  config, case = CASES[name]
  primals, cotangents = make_inputs(name, case, jnp.bfloat16)
  check(config, case.options, primals, cotangents, 2**-7)


def test_a_whole_gradient_in_fp16_of_vmap_in_shard_map():
  """With the forward kernel, and the weights' gradient.

  On one device: the interpreter cannot run on two at a time. Two are lowered
  in `mosaic_gpu_test.py`.
  """
  case = cases.Case(b=2, t=40, s=40, n=1, k=1, h=8, e=16, weights=(2, 40, 1, 2))
  primals, (dout, _) = make_inputs("whole", case, jnp.float16)

  def gradients_of(op, *arguments):
    def loss(q, k, v, weights, dout):
      return (dout * op(q, k, v, weights).astype(jnp.float32)).sum()

    return jax.grad(loss, argnums=range(4))(*arguments)

  def of_sequences(*arguments):
    gradients = functools.partial(gradients_of, mosaic_gpu.attention)
    found = jax.vmap(gradients)(*(x[:, None] for x in arguments))
    return [x[:, 0] for x in found]

  mesh = jax.make_mesh((1,), ("x",), axis_types=(AxisType.Auto,))
  with interpreted(detect_races=False):
    actual = jax.jit(
        jax.shard_map(
            of_sequences, mesh=mesh, in_specs=P("x"), out_specs=P("x")
        )
    )(*primals, dout)
  expected = jax.jit(functools.partial(gradients_of, reference.attention))(
      *(x.astype(jnp.float32) for x in primals), dout
  )
  for x, y in zip(actual, expected, strict=True):
    assert cases.relative_error(x, y) <= 2**-9


# Lowering and sizes.

SIZES = {  # h, e, maps, maps of the keys
    "64_128": (64, 128, 2, 2),
    "96_192": (96, 192, 2, 2),
    "128_256": (128, 256, 2, 2),
    "128_128_shared_keys": (128, 128, 2, 1),
    "128_128_one_map": (128, 128, 1, 1),
    "64_64_one_map": (64, 64, 1, 1),
}


@pytest.mark.parametrize("name", SIZES)
def test_lowers_for_cuda(name):
  h, e, maps, key_maps = SIZES[name]
  q, k, v = (
      jax.ShapeDtypeStruct((1, 300, *rest), jnp.bfloat16)
      for rest in ((2, maps, h), (1, key_maps, h), (1, e))
  )
  maps_of = functools.partial(jax.eval_shape, maps_in_a_row)
  op = functools.partial(
      mosaic_gpu_backward.backward,
      shape_of(q, k, v, window=100),
      masking_lib.make_masking(300, 300, None, 0, 0),
      scale=1.0,
  )
  lowered = (
      jax.jit(op)
      .trace(
          maps_of(q), maps_of(k), jax.eval_shape(pad, v),
          jax.ShapeDtypeStruct((1, 304, 2, e), jnp.bfloat16),
          jax.ShapeDtypeStruct((1, 2, 3 * maps, 300), jnp.float32),
      )
      .lower(lowering_platforms=("cuda",))
  )  # fmt: skip
  assert lowered.as_text().count("custom_call @mosaic_gpu") == 2


@pytest.mark.parametrize("h", [32, 64, 96, 128])
@pytest.mark.parametrize("e", [64, 128, 192, 256])
@pytest.mark.parametrize("maps", [(1, 1), (2, 1), (2, 2)])
def test_every_supported_width_fits(h, e, maps):
  c, key_maps = maps
  q, k, v = (
      jnp.zeros((1, 1, *rest)) for rest in ((1, c, h), (1, key_maps, h), (1, e))
  )
  shape = shape_of(q, k, v)
  for config in config_lib.choose_backward(shape):
    assert config.smem_bytes(shape) <= 227 * 1024


def test_config_is_checked():
  with pytest.raises(ValueError, match="block_kv=96 must be one of"):
    DqConfig(96, 2, split_maps=False)
  with pytest.raises(ValueError, match="block_q=32 must be one of"):
    DkvConfig(32, 2, split_maps=False)
  with pytest.raises(ValueError, match="stages=1 must be an int of at least 2"):
    DkvConfig(64, 1, split_maps=True)
