# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The forward Hopper kernel, interpreted with race detection, and lowered."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from diff_jax.kernels.attention import masking as masking_lib
from diff_jax.kernels.attention import (
    mosaic_gpu,
    mosaic_gpu_common,
    mosaic_gpu_config,
)
from tests.kernels.attention import cases, numpy_attention


def interpreted(detect_races=True):
  return mosaic_gpu_common.interpreted(detect_races=detect_races)


ForwardConfig = mosaic_gpu_config.ForwardConfig
EACH = ForwardConfig(64, 2, split_maps=False)  # Both maps in a warpgroup.
SPLIT = ForwardConfig(64, 2, split_maps=True)
SEGMENTS = jnp.repeat(
    jnp.array([[0, 1, 2, 0]]), jnp.array([20, 70, 40, 20]), axis=1
)
CASES = {
    "both_maps": (EACH, cases.Case(t=150, s=150, n=1, k=1, weights=(2,))),
    "split_maps": (SPLIT, cases.Case(t=150, s=150, n=1, k=1, h=96, e=192)),
    "one_map_full": (
        EACH,
        cases.Case(
            t=70, s=330, c=1, k_maps=1, k=1, weights=None,
            options=dict(causal=False),
        ),
    ),
    "shared_keys": (
        ForwardConfig(64, 2, split_maps=False),
        cases.Case(b=2, t=70, s=150, n=1, k=1, k_maps=1,
                   options=dict(q_offset=jnp.array([3, 90]))),
    ),
    "window": (
        ForwardConfig(128, 2, split_maps=True),
        cases.Case(t=150, s=150, n=1, k=1, options=dict(window=50)),
    ),
    "segments": (
        EACH,
        cases.Case(t=150, s=150, n=1, k=1,
                   options=dict(segment_ids=SEGMENTS)),
    ),
    "nothing_visible": (
        EACH,
        cases.Case(t=37, s=37, n=1, k=1, options=dict(kv_offset=100)),
    ),
}  # fmt: skip


def make_inputs(name, case, dtype=jnp.float16):
  """q, k, v in `dtype`, and weights."""
  inputs, _ = cases.make_inputs(name, case)
  weights = np.broadcast_to(
      np.float32(inputs.get("weights", 1)), inputs["q"].shape[:-1]
  )
  return *(jnp.asarray(inputs[x], dtype) for x in "qkv"), jnp.asarray(weights)


def define(q, k, v, weights, **options):
  """(out, lse) by the definition, in fp64, of the rounded operands."""
  wide = (np.asarray(x, np.float64) for x in (q, k, v, weights))
  return numpy_attention.attention(*wide, **options)


# Of what is rounded: the scaled q, the probabilities and the output.
TOLERANCE = {jnp.float16: 2**-10, jnp.bfloat16: 2**-7}


@pytest.mark.parametrize("name", CASES)
def test_matches_the_definition(name):
  config, case = CASES[name]
  dtype = jnp.bfloat16 if name == "both_maps" else jnp.float16
  arguments = make_inputs(name, case, dtype)
  op = functools.partial(
      mosaic_gpu.attention,
      return_lse=True,
      configs=(config, None),
      **case.options,
  )
  with interpreted():
    out, lse = jax.jit(op)(*arguments)
  expected, expected_lse = define(*arguments, **case.options)
  assert cases.relative_error(out, expected) <= TOLERANCE[dtype]
  blind = np.isneginf(expected_lse)
  np.testing.assert_array_equal(np.isneginf(lse), blind)
  np.testing.assert_allclose(
      lse[~blind], expected_lse[~blind], rtol=0, atol=2 * TOLERANCE[dtype]
  )
  assert (np.asarray(out)[blind.all(-1)] == 0).all()


def test_groups_and_vmap():
  """Two heads of each of two kv heads; vmap over the sequences."""
  case = cases.Case(b=2, t=40, s=40, n=4, k=2)
  arguments = make_inputs("groups", case)
  with interpreted(detect_races=False):
    out = jax.jit(jax.vmap(mosaic_gpu.attention))(
        *(x[:, None] for x in arguments)
    )
  expected, _ = define(*arguments)
  assert cases.relative_error(out[:, 0], expected) <= 2**-10


def test_parts_match_the_definition():
  case = cases.Case(t=40, s=40, n=2, k=1, k_maps=1)
  q, k, v, _ = make_inputs("parts", case)
  with interpreted(detect_races=False):
    o, lse = jax.jit(mosaic_gpu.parts)(q, k, v)
  for c in range(2):
    of_map = q[:, :, :, c : c + 1], k, v, np.float32(1)
    expected, expected_lse = define(*of_map)
    assert cases.relative_error(o[:, :, :, c], expected) <= 2**-10
    np.testing.assert_allclose(
        lse[..., c], expected_lse[..., 0], rtol=0, atol=2**-9
    )


# Lowering.

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
  shapes = [
      jax.ShapeDtypeStruct(shape, jnp.bfloat16)
      for shape in (
          (1, 300, 2, maps, h), (1, 300, 1, key_maps, h), (1, 300, 1, e),
          (1, 300, 2, maps),
      )
  ]  # fmt: skip
  op = functools.partial(mosaic_gpu.attention, window=100)
  traced = jax.jit(op).trace(*shapes)
  text = traced.lower(lowering_platforms=("cuda",)).as_text()
  assert text.count("custom_call @mosaic_gpu") == 1


def test_named_outputs_spare_the_forward_kernel_inside_shard_map():
  """A gradient on a mesh: the forward kernel once, dQ, and dK with dV."""
  mesh = jax.sharding.AbstractMesh(
      (2,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,)
  )
  spec = P("x")
  sharded = jax.shard_map(
      mosaic_gpu.attention, mesh=mesh, in_specs=spec, out_specs=spec
  )
  remat = jax.checkpoint(
      sharded,
      policy=jax.checkpoint_policies.save_only_these_names("attention"),
  )
  shapes = [
      jax.ShapeDtypeStruct(shape, dtype, sharding=jax.NamedSharding(mesh, spec))
      for shape, dtype in (
          ((2, 300, 2, 2, 64), jnp.bfloat16),
          ((2, 300, 1, 2, 64), jnp.bfloat16),
          ((2, 300, 1, 128), jnp.bfloat16),
          ((2, 300, 2, 2), jnp.float32),
      )
  ]
  gradient = jax.grad(
      lambda *x: remat(*x).astype(jnp.float32).sum(), argnums=(0, 1, 2, 3)
  )
  with jax.sharding.use_abstract_mesh(mesh):
    traced = jax.jit(gradient).trace(*shapes)
    text = traced.lower(lowering_platforms=("cuda",)).as_text()
  assert text.count("custom_call @mosaic_gpu") == 3


# Tables and sizes.


@pytest.mark.parametrize("keys_outer", [False, True])
def test_tables_name_every_visible_tile_once(keys_outer):
  masking = masking_lib.make_masking(150, 150, SEGMENTS, 0, 0)
  shape = _shape(64, 128, 2, 2)
  order, counts, q_side, kv_side = mosaic_gpu_common.make_tables(
      shape, masking, 32, 16, keys_outer=keys_outer
  )
  assert q_side.shape[-1] == kv_side.shape[-1] == 160
  seen = np.zeros((160, 160), bool)
  seen[:150, :150] = masking_lib.visible(masking, causal=True, window=None)[0]
  tiles = seen.reshape(5, 32, 10, 16).swapaxes(1, 2)
  if keys_outer:
    tiles = tiles.swapaxes(0, 1)
  for outer, row in enumerate(tiles):
    unmasked, visited = counts[0, outer]
    visits = np.asarray(order[0, outer, :visited])
    assert len(set(visits)) == visited
    assert set(np.flatnonzero(row.any((1, 2)))) <= set(visits)
    assert row[visits[:unmasked]].all()


def _shape(h, e, maps, key_maps, dtype=jnp.bfloat16):
  return mosaic_gpu_common.Shape(
      heads=1, groups=1, maps=maps, key_maps=key_maps, map_width=h,
      value_width=e, causal=True, window=None, first_weight_is_one=True,
      saved_maps=tuple(range(1, maps)), out_dtype=jnp.dtype(dtype),
  )  # fmt: skip


@pytest.mark.parametrize("h", [64, 128])
@pytest.mark.parametrize("e", [64, 128, 192, 256])
@pytest.mark.parametrize("maps", [(1, 1), (2, 1), (2, 2)])
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float32])
def test_every_supported_width_fits_shared_memory(h, e, maps, dtype):
  shape = _shape(h, e, *maps, dtype)
  config = mosaic_gpu_config.choose_forward(shape)
  assert config.smem_bytes(shape) <= mosaic_gpu_config.MAX_SMEM_BYTES


def test_config_is_checked():
  with pytest.raises(ValueError, match="block_kv=96 must be one of"):
    ForwardConfig(96, 2, split_maps=False)
  with pytest.raises(ValueError, match="stages=1 must be an int of at least 2"):
    ForwardConfig(64, 1, split_maps=False)


@pytest.mark.parametrize(
    ("changes", "dtype", "reason"),
    [
        (dict(), jnp.float32, "q.dtype=float32 is neither"),
        (dict(c=3, k_maps=3), jnp.bfloat16, "3 maps, more than 2"),
        (dict(h=160), jnp.bfloat16, "is wider than"),
        (dict(sink=True), jnp.bfloat16, "sink is given"),
        (dict(bias_slopes=True), jnp.bfloat16, "bias_slopes is given"),
        (dict(), jnp.float16, None),
    ],
)
def test_says_what_it_cannot_take(changes, dtype, reason):
  inputs, _ = cases.make_inputs("unsupported", cases.Case(t=4, s=4, **changes))
  q, k, v = (jnp.asarray(inputs.pop(x), dtype) for x in "qkv")
  inputs.pop("weights")
  found = mosaic_gpu.unsupported(q, k, v, **inputs)
  assert found is None if reason is None else reason in found
