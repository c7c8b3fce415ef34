# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Every implementation of the op against its definition in fp64 numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import test_util

import diff_jax
from diff_jax.kernels.attention import api, reference
from tests.kernels.attention import cases, numpy_attention

IMPLEMENTATIONS = ("reference", "xla")

pytestmark = pytest.mark.usefixtures("small_blocks")


def split_options(options):
  """(arrays, traced under jit; Python values, static) of keyword arguments."""
  arrays = {
      name: value
      for name, value in options.items()
      if isinstance(value, (np.ndarray, np.generic, tuple))
  }
  return arrays, {k: v for k, v in options.items() if k not in arrays}


@functools.cache
def evaluate(name, implementation):
  """out, lse and the gradients of one case, compiled as one program."""
  case = cases.CASES[name]
  inputs, cotangents = cases.make_inputs(name, case)
  arrays, static = split_options(case.options)

  @jax.jit
  def run(inputs, arrays, cotangents):
    def op(inputs):
      out, lse = api.attention(
          **inputs,
          **arrays,
          **static,
          return_lse=True,
          implementation=implementation,
      )
      return dict(out=out, lse=lse)

    results, vjp = jax.vjp(op, inputs)
    return results, vjp(cotangents)[0]

  return jax.tree.map(np.asarray, run(inputs, arrays, cotangents))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", cases.CASES)
def test_forward_is_the_definition(name, implementation):
  case = cases.CASES[name]
  inputs, _ = cases.make_inputs(name, case)
  out, lse, tolerance = cases.definition(name)
  results, _ = evaluate(name, implementation)
  assert results["out"].dtype == results["lse"].dtype == np.float32
  weights = np.broadcast_to(inputs.get("weights", np.float32(1)), lse.shape)
  largest = np.abs(weights).sum(-1).max() * np.abs(inputs["v"]).max()
  np.testing.assert_allclose(
      results["out"], out, rtol=0, atol=tolerance * largest
  )
  np.testing.assert_allclose(results["lse"], lse, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", cases.CASES)
def test_gradients_match_the_reference(name):
  _, expected = evaluate(name, "reference")
  _, actual = evaluate(name, "xla")
  _, _, tolerance = cases.definition(name)
  for argument in expected:
    assert np.isfinite(expected[argument]).all(), argument
    error = cases.relative_error(actual[argument], expected[argument])
    assert error <= tolerance, f"{argument}: {error} > {tolerance}"


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    "name", ["late_keys", "late_keys_sink", "padding", "nothing_visible"]
)
def test_row_without_a_visible_key(name, implementation):
  blind = np.isneginf(cases.definition(name)[1]).all(axis=(2, 3))
  assert blind.any()
  results, gradients = evaluate(name, implementation)
  assert (results["out"][blind] == 0).all()
  assert (results["lse"][blind] == -np.inf).all()
  assert (gradients["q"][blind] == 0).all()
  if blind.all():
    assert all((gradient == 0).all() for gradient in gradients.values())


def _check_gradients(function, *arguments):
  """Reverse mode against finite differences, in fp64."""
  with jax.enable_x64(True):
    arguments = jax.tree.map(
        lambda x: jnp.asarray(np.asarray(x, np.float64)), arguments
    )
    test_util.check_grads(
        jax.jit(function),
        arguments,
        order=1,
        modes=["rev"],
        atol=1e-6,
        rtol=1e-6,
    )


_SMALL = cases.Case(
    t=9,
    s=11,
    n=2,
    k=1,
    h=3,
    e=4,
    weights=(9, 2, 2),
    bias_slopes=True,
    sink=True,
)
_SMALL_SEGMENTS = (
    [[0, 1, 1, 1, 1, 2, 2, 2, 2]],
    [[1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 0]],
)


def _small_options():
  segment_ids = tuple(jnp.array(ids, jnp.int32) for ids in _SMALL_SEGMENTS)
  return dict(q_offset=3, window=6, segment_ids=segment_ids)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients_are_finite_differences(implementation):
  inputs, cotangents = cases.make_inputs("small", _SMALL)

  def loss(inputs):
    out, lse = api.attention(
        **inputs,
        **_small_options(),
        return_lse=True,
        implementation=implementation,
    )
    assert out.dtype == lse.dtype == jnp.float64
    visible = jnp.isfinite(lse)
    return (out * cotangents["out"]).sum() + (
        jnp.where(visible, lse, 0) * cotangents["lse"]
    ).sum()

  _check_gradients(loss, inputs)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_gradients_of_parts_are_finite_differences(implementation):
  inputs, cotangents = cases.make_inputs("small", _SMALL)
  del inputs["weights"]

  def loss(inputs):
    out, lse = api.parts(
        **inputs, **_small_options(), implementation=implementation
    )
    assert out.dtype == lse.dtype == jnp.float64
    visible = jnp.isfinite(lse)
    return (out * cotangents["out"][:, :, :, None]).sum() + (
        jnp.where(visible, lse, 0) * cotangents["lse"]
    ).sum()

  _check_gradients(loss, inputs)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["late_keys_sink", "everything"])
def test_parts_are_the_definition(name, implementation):
  case = cases.CASES[name]
  inputs, _ = cases.make_inputs(name, case)
  _, _, tolerance = cases.definition(name)
  del inputs["weights"]
  arrays, static = split_options(case.options)
  parts = functools.partial(api.parts, **static, implementation=implementation)
  out, lse = jax.jit(parts)(**inputs, **arrays)
  expected_out, expected_lse = numpy_attention.parts(**inputs, **case.options)
  assert out.dtype == lse.dtype == jnp.float32
  largest = np.abs(inputs["v"]).max()
  np.testing.assert_allclose(
      out, expected_out, rtol=0, atol=tolerance * largest
  )
  np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=tolerance)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("shape", [(2,), (37, 1), (1, 37, 2)])
def test_lambda_broadcasts_to_rows_and_heads(shape, implementation):
  case = cases.CASES["scale"]
  inputs, _ = cases.make_inputs("scale", case)
  q, k, v = (inputs[name] for name in "qkv")
  lam = np.linspace(0.1, 0.9, np.prod(shape), dtype=np.float32).reshape(shape)
  op = functools.partial(diff_jax.diff_attention, implementation=implementation)
  weights = np.stack([np.ones_like(lam), -lam], axis=-1)
  expected, _ = numpy_attention.attention(q, k, v, weights)
  tolerance = cases.definition("scale")[2] / case.options["scale"]
  np.testing.assert_allclose(
      jax.jit(op)(q, k, v, lam),
      expected,
      rtol=0,
      atol=2 * np.abs(v).max() * tolerance,
  )


def test_maps_fn_sees_and_changes_the_maps():
  case = cases.CASES["scale"]
  inputs, _ = cases.make_inputs("scale", case)
  q, k, v = (jnp.asarray(inputs[name]) for name in "qkv")

  def second_minus_first(maps):
    assert maps.shape == (case.b, case.n, case.c, case.t, case.s)
    return jnp.stack([-maps[:, :, 0], maps[:, :, 1]], axis=2)

  changed = reference.attention(q, k, v, maps_fn=second_minus_first)
  weights = jnp.array([-1.0, 1.0])
  np.testing.assert_allclose(
      changed, reference.attention(q, k, v, weights), rtol=0, atol=1e-6
  )
