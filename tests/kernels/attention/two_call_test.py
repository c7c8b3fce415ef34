# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Library calls combined: splash attention, interpreted, is the op."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

from diff_jax.kernels.attention import reference, target, two_call
from tests.kernels.attention import cases, numpy_attention

TILE = two_call.Tile(128, 128, 128)
T = 150  # Two tiles, the second not full.
_IDS = cases._ids((70, 1), (1, 2), (60, 3), (19, 0))
_OTHER_IDS = cases._ids((9, 0), (100, 3), (41, 1))

CASES = {
    "two_maps": cases.Case(t=T, s=T),
    "shared_keys_grouped": cases.Case(
        t=T, s=T, n=4, k=2, k_maps=1, e=8, weights=(1, T, 4, 2)
    ),
    "segments": cases.Case(
        t=T,
        s=T,
        c=1,
        k_maps=1,
        weights=(1,),
        options=dict(segment_ids=(_IDS, _OTHER_IDS), window=90),
    ),
    "full": cases.Case(
        t=37,
        s=T,
        c=1,
        k_maps=1,
        weights=(1,),
        options=dict(causal=False, scale=0.1, window=60),
    ),
    "more_queries": cases.Case(t=T, s=37, c=1, k_maps=1, weights=(1,)),
}


def inputs(name):
  """The case, its arrays by name with whole weights, and cotangents."""
  case = CASES[name]
  arrays, cotangents = cases.make_inputs(name, case)
  shape = arrays["q"].shape[:-1]
  arrays["weights"] = np.broadcast_to(arrays["weights"], shape)
  return case, {x: jnp.asarray(y) for x, y in arrays.items()}, cotangents


@pytest.mark.parametrize("name", CASES)
def test_is_the_definition_and_its_gradients(name):
  case, arrays, cotangents = inputs(name)

  def results(function, **keywords):
    def loss(*arrays):
      out, lse = function(*arrays, **case.options, **keywords)
      return jnp.sum(out * cotangents["out"]), (out, lse)

    whole = jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))
    return whole(*arrays.values())

  with pltpu.force_tpu_interpret_mode():
    gradients, (out, lse) = results(
        two_call.attention, return_lse=True, tile=TILE, backward_tile=TILE
    )
  wanted_gradients, _ = results(reference.attention, return_lse=True)
  wanted, wanted_lse = numpy_attention.attention(
      **{x: np.asarray(y) for x, y in arrays.items()}, **case.options
  )
  tolerance = cases.relative_tolerance(name, case)
  finite = np.isfinite(wanted_lse)
  np.testing.assert_array_equal(np.isfinite(lse), finite)
  for x, y in (
      (out, wanted),
      (lse[finite], wanted_lse[finite]),
      *zip(gradients, wanted_gradients, strict=True),
  ):
    assert cases.relative_error(x, y) < tolerance


def test_lse_is_differentiable():
  name = "segments"
  case, arrays, cotangents = inputs(name)

  def gradients(function, **keywords):
    def loss(q, k):
      _, lse = function(q, k, arrays["v"], **case.options, **keywords)
      return jnp.sum(jnp.where(jnp.isfinite(lse), lse, 0) * cotangents["lse"])

    return jax.jit(jax.grad(loss, (0, 1)))(arrays["q"], arrays["k"])

  with pltpu.force_tpu_interpret_mode():
    ours = gradients(two_call.parts, tile=TILE, backward_tile=TILE)
  for x, y in zip(ours, gradients(reference.parts), strict=True):
    assert cases.relative_error(x, y) < cases.relative_tolerance(name, case)


@pytest.mark.parametrize(
    ("platform", "masks", "reason"),
    [
        ("tpu", dict(sink=jnp.zeros((2, 2))), "sink"),
        ("tpu", dict(bias_slopes=jnp.zeros(2)), "bias_slopes"),
        ("tpu", dict(q_offset=jnp.int32(3)), "q_offset"),
        ("tpu", dict(kv_offset=jnp.int32(3)), "kv_offset"),
        ("tpu", dict(kv_offset=0), None),
        ("tpu", dict(window=9), None),
        ("gpu", dict(segment_ids=(_IDS, _IDS)), "segment_ids"),
        ("gpu", dict(causal=False, window=9), "window"),
        ("gpu", dict(window=9), None),
    ],
)
def test_says_what_it_cannot_take(monkeypatch, platform, masks, reason):
  monkeypatch.setattr(target, "platform", lambda: platform)
  monkeypatch.setattr(two_call, "gpu_library", lambda: "cudnn")
  q, k, v = (jnp.zeros((1, T, 2, 2, 8), jnp.bfloat16),) * 2 + (
      jnp.zeros((1, T, 2, 16), jnp.bfloat16),
  )
  found = two_call.unsupported(q, k, v, **masks)
  assert found is None if reason is None else found.startswith(reason)


@pytest.mark.parametrize("causal", [True, False])
def test_wide_values_are_split_for_cudnn(monkeypatch, causal):
  def of_equal_width(q, k, v, *, implementation, **keywords):
    assert implementation == "cudnn" and q.shape == k.shape == v.shape
    return xla(q, k, v, **keywords)

  xla = jax.nn.dot_product_attention
  monkeypatch.setattr(jax.nn, "dot_product_attention", of_equal_width)
  monkeypatch.setattr(target, "platform", lambda: "gpu")
  monkeypatch.setattr(two_call, "gpu_library", lambda: "cudnn")
  _, arrays, _ = inputs("two_maps")
  arrays = {name: x.astype(jnp.bfloat16) for name, x in arrays.items()}
  arrays["v"] = arrays["v"][..., :13]
  out, lse = two_call.attention(
      *arrays.values(), causal=causal, return_lse=True
  )
  wanted, wanted_lse = reference.attention(
      *arrays.values(), causal=causal, return_lse=True
  )
  assert cases.relative_error(out, wanted) < 2e-2
  assert cases.relative_error(lse, wanted_lse) < 1e-2


@pytest.mark.parametrize(
    "sizes", [(100, 128, 128), (128, 256, 384), (128, 0, 128)]
)
def test_a_tile_is_checked(sizes):
  with pytest.raises(ValueError, match="must"):
    two_call.Tile(*sizes)
