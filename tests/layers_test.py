# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Rotary positions, and how weights are drawn."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from diff_jax import layers, transformer
from diff_jax.config import ModelConfig
from tests.attention import numpy_layer

# Positions.


def test_rope_styles():
  """The two are one rotation of differently ordered columns."""
  h, theta = 8, 500.0
  x = np.random.default_rng(0).standard_normal((2, 5, 3, 2, h), np.float32)
  rotate = jax.jit(layers.rope, static_argnames=("theta", "style"))
  positions = jnp.array([[0, 1, 2, 3, 4], [9, 4, 0, 100, 7]])
  order = np.array([0, 4, 1, 5, 2, 6, 3, 7])  # the halves' pairs side by side

  def run(x, style):
    out = rotate(jnp.asarray(x), positions, theta=theta, style=style)
    return np.asarray(out)

  interleaved, half = run(x, "interleaved"), run(x, "half")
  np.testing.assert_allclose(
      run(x[..., order], "interleaved"), half[..., order], atol=1e-6
  )
  np.testing.assert_array_equal(run(x, "none"), x)
  for out, style in ((interleaved, "interleaved"), (half, "half")):
    wanted = numpy_layer.rope(
        x[1, :, 2, 1].astype(np.float64), positions[1], theta, style
    )
    np.testing.assert_allclose(out[1, :, 2, 1], wanted, atol=2e-5)
    np.testing.assert_allclose(
        np.linalg.norm(out, axis=-1), np.linalg.norm(x, axis=-1), rtol=1e-5
    )


def test_rope_angles_are_fp32_in_bf16():
  """bf16 would place position 4,095 at 4,096."""
  x = jnp.ones((1, 1, 1, 1, 4), jnp.bfloat16)

  def run(x, position):
    positions = jnp.array([[position]])
    return layers.rope(x, positions, theta=10_000.0, style="interleaved")

  exact = run(x.astype(jnp.float32), 4095)
  assert run(x, 4095).dtype == jnp.bfloat16
  np.testing.assert_allclose(
      np.asarray(run(x, 4095), np.float32), exact, atol=0.01
  )


# Initialisation.

L = 2
CONFIG = ModelConfig(
    d_model=64, num_layers=L, num_heads=3, head_dim=16, mlp_dim=40,
    vocab_size=100, attention="softmax",
)  # fmt: skip


def initial(select, key=0, **changes):
  """Parts of a freshly drawn model; what is not selected is not drawn."""
  config = dataclasses.replace(CONFIG, **changes)
  key = jax.random.key(key, impl="rbg")  # compiles in half the time
  return jax.jit(
      lambda: select(transformer.Transformer(config, rngs=nnx.Rngs(key)))
  )()


def outputs(model):
  return model.blocks.attention.w_o[...], model.blocks.mlp.w_down[...]


@pytest.fixture(scope="module")
def fan_in():
  """(value, fan in) of the weights at the default initialisation."""
  model = initial(lambda model: model, embedding_std=0.5)
  attention, mlp = model.blocks.attention, model.blocks.mlp
  return {
      "w_q": (attention.w_q, 64), "w_k": (attention.w_k, 64),
      "w_v": (attention.w_v, 64), "w_o": (attention.w_o, 48),
      "w_gate": (mlp.w_gate, 64), "w_up": (mlp.w_up, 64),
      "w_down": (mlp.w_down, 40), "w_head": (model.w_head, 64),
      "embedding": (model.embedding, 4),
  }  # fmt: skip


def test_fan_in_and_embedding_std(fan_in):
  """std fan_in ** -0.5; the embedding's is its own setting, here 0.5."""
  for name, (weight, inputs) in fan_in.items():
    value = np.asarray(weight[...])
    standard_error = (2 * value.size) ** -0.5
    found = value.std() * inputs**0.5
    assert abs(found - 1) < 5 * standard_error, name
    assert np.abs(value).max() > 3 * value.std(), f"{name} is not normal"


def test_layers_are_drawn_apart(fan_in):
  for name, (weight, _) in fan_in.items():
    if weight.shape[0] == L:
      first, second = np.asarray(weight[...]).reshape(L, -1)
      assert abs(np.corrcoef(first, second)[0, 1]) < 0.1, name


def test_normal_0_02():
  for value in initial(outputs, init="normal_0.02"):
    np.testing.assert_allclose(value.std(), 0.02, rtol=0.05)


def test_kaiming_uniform_is_the_default_of_torch_linear():
  values = initial(outputs, init="kaiming_uniform")
  for value, inputs in zip(values, (48, 40), strict=True):
    bound = inputs**-0.5
    assert 0.99 * bound < np.abs(value).max() <= bound
    np.testing.assert_allclose(value.std(), bound / 3**0.5, rtol=0.05)


def test_scale_residual_init_divides_the_two_outputs_only(fan_in):
  def select(model):
    return (*outputs(model), model.blocks.attention.w_v, model.blocks.mlp.w_up)

  values = initial(select, scale_residual_init=True)
  names = ("w_o", "w_down", "w_v", "w_up")
  for name, value in zip(names, values, strict=True):
    factor = (2 * L) ** -0.5 if name in ("w_o", "w_down") else 1
    wanted = factor * np.asarray(fan_in[name][0][...])
    np.testing.assert_allclose(value[...], wanted, rtol=1e-6)


@pytest.mark.usefixtures("no_shape_checks")
def test_an_unknown_init_is_refused():
  with pytest.raises(ValueError, match="init='xavier'.*kaiming_uniform"):
    layers.matrix(jax.random.key(0), (2, 2), 2, init="xavier")


def test_arms_of_one_key_share_mlp_embedding_and_head():
  def shared(model):
    mlp = model.blocks.mlp
    weights = mlp.w_gate, mlp.w_down, model.embedding, model.w_head
    return [weight[...] for weight in weights]

  arms = {
      "diff": initial(shared, key=3, attention="diff"),
      "softmax": initial(shared, key=3, attention="softmax", num_heads=6),
  }
  for a, b in zip(*arms.values(), strict=True):
    np.testing.assert_array_equal(a, b)


# Linear layers.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_gradients_of_linear_are_those_of_einsum(dtype):
  spec = "btd,dnh->btnh"
  keys = jax.random.split(jax.random.key(0), 3)
  x = jax.random.normal(keys[0], (2, 5, 8), dtype)
  weight = jax.random.normal(keys[1], (8, 3, 4))
  gradient = jax.random.normal(keys[2], (2, 5, 3, 4), dtype)

  def einsum(x, weight):
    return jnp.einsum(spec, x, weight.astype(x.dtype))

  results = []
  for function in (functools.partial(layers.linear, spec), einsum):
    out, vjp = jax.vjp(function, x, weight)
    results.append((out, *vjp(gradient)))
  for actual, expected in zip(*results, strict=True):
    assert actual.dtype == expected.dtype
    np.testing.assert_allclose(
        np.asarray(actual, np.float32),
        np.asarray(expected, np.float32),
        rtol=8 * jnp.finfo(dtype).eps,
        atol=8 * float(jnp.finfo(dtype).eps),
    )


def test_linear_inside_a_shard_map_with_a_weight_that_devices_share():
  """The weight's gradient is summed over the devices."""
  mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
  x = jax.random.normal(jax.random.key(0), (8, 3, 4))
  weight = jax.random.normal(jax.random.key(1), (4, 5))
  linear = functools.partial(layers.linear, "btd,df->btf")
  on_devices = jax.shard_map(
      linear, mesh=mesh, in_specs=(P("data"), P()), out_specs=P("data")
  )

  def gradients(function):
    return jax.grad(lambda *y: (function(*y) ** 2).sum(), (0, 1))(x, weight)

  for actual, expected in zip(
      gradients(on_devices), gradients(linear), strict=True
  ):
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
