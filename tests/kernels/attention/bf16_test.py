# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""bf16 inputs: what the op may lose, and what it may not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from diff_jax.kernels.attention import api
from tests.kernels.attention import cases, numpy_attention

IMPLEMENTATIONS = ("reference", "xla")

pytestmark = pytest.mark.usefixtures("small_blocks")


def _unfused(q, k, v, weights):
  """Causal attention that rounds every intermediate to the inputs' dtype."""
  scores = jnp.einsum("btkgch,bskch->bkgcts", q, k) * q.shape[-1] ** -0.5
  t, s = scores.shape[-2:]
  scores = jnp.where(np.tri(t, s, dtype=bool)[(None,) * 4], scores, -jnp.inf)
  probs = jax.nn.softmax(scores.astype(jnp.float32)).astype(q.dtype)
  parts = jnp.einsum("bkgcts,bske->btkgce", probs, v)
  return jnp.einsum("btkgce,c->btkge", parts, weights.astype(q.dtype))


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bf16_error_is_at_most_twice_the_unfused(implementation):
  case = cases.CASES["two_groups"]
  inputs, cotangents = cases.make_inputs("bf16", case)
  del inputs["weights"]
  inputs = {k: jnp.asarray(v, jnp.bfloat16) for k, v in inputs.items()}
  inputs["weights"] = jnp.array([1, -0.8], jnp.float32)
  cotangent = jnp.asarray(cotangents["out"], jnp.bfloat16)

  def unfused(q, weights, **rest):
    b, t, n, c, h = q.shape
    groups = (case.k, n // case.k)
    out = _unfused(q.reshape(b, t, *groups, c, h), weights=weights, **rest)
    return out.reshape(b, t, n, -1)

  def run(function, dtype):
    @jax.jit
    def gradients(inputs, cotangent):
      out, vjp = jax.vjp(lambda inputs: function(**inputs), inputs)
      return dict(vjp(cotangent)[0], out=out)

    arguments = jax.tree.map(lambda x: x.astype(dtype), inputs)
    arguments["weights"] = inputs["weights"]
    return gradients(arguments, cotangent.astype(dtype))

  op = functools.partial(api.attention, implementation=implementation)
  lse = jax.eval_shape(functools.partial(op, return_lse=True), **inputs)[1]
  assert lse.dtype == jnp.float32
  actual = run(op, jnp.bfloat16)
  rounded = run(unfused, jnp.bfloat16)
  exact = run(unfused, jnp.float32)
  for name, expected in exact.items():
    if name != "weights":
      assert actual[name].dtype == jnp.bfloat16
    error = cases.relative_error(actual[name], expected)
    allowed = 2 * cases.relative_error(rounded[name], expected)
    assert error <= allowed, f"{name}: {error} > {allowed}"


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_bf16_maps_are_subtracted_before_they_are_rounded(implementation):
  """Equal logits, and a sink that takes a little of the second map only.

  The maps' outputs differ by less than bf16 can tell, 0.4 % in the last row,
  and so does the second weight from -1: only the difference may be rounded.
  """
  case = cases.Case(t=37, s=37, q_factor=0.0)
  inputs, _ = cases.make_inputs("subtraction", case)
  q, k, v = (jnp.asarray(inputs[name], jnp.bfloat16) for name in "qkv")
  sink = jnp.array([[-30.0, -2.0]] * case.n)
  weights = jnp.array([1, -0.999])
  expected, _ = numpy_attention.attention(q, k, v, weights, sink=sink)
  op = functools.partial(api.attention, implementation=implementation)
  actual = jax.jit(op)(q, k, v, weights, sink=sink)
  rounding = np.abs(inputs["v"]).max() * cases.relative_tolerance(
      "subtraction", case
  )
  np.testing.assert_allclose(
      actual.astype(jnp.float32), expected, rtol=2**-8, atol=2 * rounding
  )
