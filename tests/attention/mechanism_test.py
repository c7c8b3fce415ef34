# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention in other people's models, and other people's mechanisms."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import diff_jax
from diff_jax import transformer
from diff_jax.attention import arm_label, find_mechanism
from diff_jax.config import ConfigError, ModelConfig
from tests.attention import numpy_layer

D, T = 16, 6
X = jnp.asarray(np.random.default_rng(7).standard_normal((1, T, D)), "float32")


@jax.jit
def apply(module, x):
  return module(x)


def assert_close(actual, wanted):
  np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=2e-5)


class UsersModel(nnx.Module):
  """What a reader of the README writes."""

  def __init__(self, rngs):
    self.embed = nnx.Embed(11, D, rngs=rngs)
    self.attention = diff_jax.DiffAttention(
        D, 2, depth=1, implementation="reference", rngs=rngs
    )
    self.head = nnx.Linear(D, 11, rngs=rngs)

  def __call__(self, tokens):
    x = self.embed(tokens)
    return self.head(x + self.attention(x))


def test_in_a_users_nnx_model():
  model = UsersModel(nnx.Rngs(0))
  optimizer = nnx.Optimizer(model, optax.adam(1e-2), wrt=nnx.Param)
  tokens = jnp.array([[3, 1, 4, 1, 5, 9]])

  @nnx.jit
  def step(model, optimizer):
    def loss(model):
      logits = model(tokens[:, :-1])
      return optax.softmax_cross_entropy_with_integer_labels(
          logits, tokens[:, 1:]
      ).mean()

    value, gradients = nnx.value_and_grad(loss)(model)
    optimizer.update(model, gradients)
    return value

  before = jax.tree.map(np.asarray, nnx.state(model.attention, nnx.Param))
  values = [step(model, optimizer) for _ in range(5)]
  assert values[-1] < values[0]
  after = nnx.state(model.attention, nnx.Param)
  moved = jax.tree.map(lambda a, b: bool((a != b).any()), before, after)
  assert len(jax.tree.leaves(moved)) == 9 and all(jax.tree.leaves(moved))
  merged = nnx.merge(*nnx.split(model))
  assert jax.tree.all(jax.tree.map(jnp.array_equal, merged, model))


def test_in_plain_jax():
  """The module is a pytree: jit, grad and vmap take it as an argument."""
  module = numpy_layer.random_module(
      lambda: diff_jax.DiffAttention(
          D, 2, implementation="reference", rngs=nnx.Rngs(0)
      )
  )

  @jax.jit
  def gradients(module, x):
    return jax.grad(lambda module: (module(x) ** 2).sum())(module)

  found = gradients(module, X)
  assert jax.tree.structure(found) == jax.tree.structure(module)
  for gradient, value in zip(
      jax.tree.leaves(found), jax.tree.leaves(module), strict=True
  ):
    assert gradient.shape == value.shape
    assert np.isfinite(gradient).all() and np.any(gradient)
  stepped = jax.tree.map(lambda x, g: x - 1e-3 * g, module, found)
  before, after = ((apply(m, X) ** 2).sum() for m in (module, stepped))
  assert after < before


# A mechanism of one's own: Diff V2 (microsoft/unilm, Diff-Transformer-V2).

V2 = '''
import jax
import jax.numpy as jnp

from diff_jax import Attention
from diff_jax.layers import matrix


class DiffV2(Attention):
  """softmax(q1 k) - sigmoid(x W) softmax(q2 k): one key for both maps."""

  num_maps = 2
  num_key_maps = 1
  value_widths = 1

  def __init__(self, d_model, num_heads, *, rngs, **settings):
    super().__init__(d_model, num_heads, rngs=rngs, **settings)
    self.w_lambda = matrix(rngs.params(), (d_model, num_heads), d_model)

  def weights(self, x, depth):
    lam = jax.nn.sigmoid(jnp.einsum("btd,dn->btn", x, self.w_lambda[...]))
    return jnp.stack([jnp.ones_like(lam), -lam], axis=-1)
'''


@pytest.fixture
def v2_file(tmp_path):
  path = tmp_path / "diff_v2.py"
  path.write_text(V2)
  return path


@functools.cache
def layer_v2(**settings):
  names = {}
  exec(V2, names)
  return numpy_layer.random_module(
      lambda: names["DiffV2"](D, 2, rngs=nnx.Rngs(0), **settings)
  )


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_a_mechanism_in_a_few_lines(kv_heads):
  assert len(V2.splitlines()) < 40
  module = layer_v2(num_kv_heads=kv_heads)
  w = numpy_layer.arrays(module)
  assert w.w_q.shape == (D, 2, 2, 8) and w.w_k.shape == (D, kv_heads, 1, 8)
  lam = 1 / (1 + np.exp(-(X[0] @ w.w_lambda)))
  heads = numpy_layer.attend(
      w,
      X[0],
      np.stack([np.ones_like(lam), -lam], axis=-1),
      visible=numpy_layer.causal(T),
  )
  assert_close(apply(module, X)[0], numpy_layer.project_out(w, heads))


def test_row_maps_weights_of_each_token():
  module = layer_v2()
  maps, weights = jax.jit(type(module).row_maps)(module, X, jnp.array([4]))
  w = numpy_layer.arrays(module)
  lam = 1 / (1 + np.exp(-(X[0, 4] @ w.w_lambda)))
  assert maps.shape == (1, 2, 2, 1, T)
  np.testing.assert_allclose(weights[0, 0, :, 1], -lam, rtol=1e-5)


def users_config(path):
  return ModelConfig(
      vocab_size=7, d_model=D, num_layers=2, num_heads=2, num_kv_heads=1,
      mlp_dim=8, attention=f"{path}:DiffV2", implementation="reference",
  )  # fmt: skip


def test_a_mechanism_by_file_path_in_the_transformer(v2_file):
  config = users_config(v2_file)
  assert arm_label(config) == "DiffV2"
  model = numpy_layer.random_module(
      lambda: transformer.Transformer(config, rngs=nnx.Rngs(0))
  )
  assert model.blocks.attention.w_lambda.shape == (2, D, 2)

  @jax.jit
  def gradients(model, tokens):
    return jax.grad(lambda m: jnp.square(m.logits(m(tokens))).sum())(model)

  found = gradients(model, jnp.array([[1, 2, 3, 4]]))
  assert np.all(np.any(found.blocks.attention.w_lambda[...], axis=(1, 2)))
  assert model.mechanism_metrics() == {}
  hand = (
      7 * D * 2
      + D
      + 2
      * (  # embedding, head, final norm; layers:
          2 * D + D * 2 * 2 * 8 + 2 * D * 8 + 2 * 8 * D + D * 2 + 3 * D * 8
      )
  )
  assert transformer.num_parameters(config) == hand


@pytest.mark.parametrize("source", ["name", "file"])
def test_models_of_one_config_have_one_structure(source, v2_file):
  """Else jax.tree.map refuses a model and its shapes, or its average."""
  config = ModelConfig() if source == "name" else users_config(v2_file)
  one, other = transformer.abstract(config), transformer.abstract(config)
  assert jax.tree.structure(one) == jax.tree.structure(other)


def test_unknown_mechanisms_are_refused_by_name(v2_file):
  def message(name):
    with pytest.raises(ConfigError) as error:
      find_mechanism(name)
    return str(error.value)

  for name in ("sofmax", str(v2_file)):  # a misspelling; a file without a class
    text = message(name)
    assert f"model.attention={name!r}" in text
    assert "'diff', 'softmax'" in text and "path/to/file.py:Class" in text
  missing = f"{v2_file.parent}/nothing.py"
  assert f"there is no file {missing}" in message(f"{missing}:DiffV2")
  for name in ("DiffV3", "jnp", "matrix"):
    text = message(f"{v2_file}:{name}")
    assert f"must define the class {name}" in text and str(v2_file) in text


def test_arm_labels():
  labels = {
      (kind, norm): arm_label(ModelConfig(attention=kind, head_norm=norm))
      for kind in ("softmax", "diff")
      for norm in (None, False, True)
  }
  assert labels == {
      ("softmax", None): "Transformer",
      ("softmax", False): "Transformer",
      ("softmax", True): "Transformer + norm",
      ("diff", None): "DIFF",
      ("diff", False): "DIFF - norm",
      ("diff", True): "DIFF",
  }
