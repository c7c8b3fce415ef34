# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Which numbers are bf16, and that recomputing layers changes none."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from diff_jax import transformer
from diff_jax.config import ModelConfig
from tests.attention import numpy_layer

CONFIG = ModelConfig(
    vocab_size=24, d_model=16, num_layers=2, num_heads=2, mlp_dim=12
)
TOKENS = jnp.asarray(np.random.default_rng(0).integers(24, size=(2, 8)))


@functools.cache
def make(**changes):
  """The model of a changed config with random weights, norms included."""
  config = dataclasses.replace(CONFIG, **changes)
  return numpy_layer.random_module(
      lambda: transformer.Transformer(config, rngs=nnx.Rngs(0))
  )


@jax.jit
def hidden(model):
  return model(TOKENS)


def test_remat_changes_no_loss_and_no_gradient():
  @jax.jit
  def gradients(model):
    return jax.value_and_grad(lambda m: m.logits(m(TOKENS)).sum())(model)

  plain = jax.tree.leaves(gradients(make()))
  for policy in ("dots", "save_attention", "full"):
    for a, b in zip(
        jax.tree.leaves(gradients(make(remat=policy))), plain, strict=True
    ):
      assert np.linalg.norm(a - b) <= 1e-5 * np.linalg.norm(b)


def test_bf16_keeps_parameters_gradients_and_logits_in_fp32():
  model = make(compute_dtype="bfloat16")
  out = hidden(model)
  logits = jax.eval_shape(type(model).logits, model, out)
  gradients = jax.eval_shape(
      jax.grad(lambda m: m.logits(m(TOKENS)).sum()), model
  )
  assert out.dtype == jnp.bfloat16 and logits.dtype == jnp.float32
  assert {x.dtype for x in jax.tree.leaves(model)} == {jnp.dtype("float32")}
  assert {x.dtype for x in jax.tree.leaves(gradients)} == {jnp.dtype("float32")}
  exact = np.asarray(hidden(make()))
  error = np.linalg.norm(np.asarray(out, np.float32) - exact)
  assert error < 0.05 * np.linalg.norm(exact)


def equations(jaxpr):
  """All equations of a jaxpr, of the loops and calls in it too."""
  for equation in jaxpr.eqns:
    yield equation
    for value in jax.tree.leaves(
        list(equation.params.values()),
        is_leaf=lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr"),
    ):
      inner = getattr(value, "jaxpr", value)
      if hasattr(inner, "eqns"):
        yield from equations(inner)


@pytest.mark.parametrize("implementation", ["xla", "reference"])
def test_in_bf16_matrices_are_bf16_and_softmax_norm_and_rope_fp32(
    implementation,
):
  model = make(compute_dtype="bfloat16", implementation=implementation)
  jaxpr = jax.make_jaxpr(lambda m: m.logits(m(TOKENS)))(model)
  dtypes = {}
  for equation in equations(jaxpr.jaxpr):
    kinds = {str(x.aval.dtype) for x in equation.invars}
    name = equation.primitive.name
    name = "exp" if name == "exp2" else name
    dtypes.setdefault(name, []).append(kinds)
  for name in ("exp", "rsqrt", "cos", "sin"):
    assert dtypes[name] and all(x == {"float32"} for x in dtypes[name]), name
  # q, k, v, o, gate, up, down of the scanned block, and the head.
  assert dtypes["dot_general"].count({"bfloat16"}) >= 8
  mixed = [x for x in dtypes["dot_general"] if len(x) > 1]
  assert not mixed
