# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Both attention layers against the same formulas in numpy."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import diff_jax
from diff_jax import layers
from diff_jax.attention import find_mechanism
from diff_jax.attention.base import lambda_init_by_depth
from diff_jax.config import ConfigError
from diff_jax.kernels.attention import api
from tests.attention import numpy_layer

D, T = 16, 6  # width and length of most tests
X = jnp.asarray(np.random.default_rng(7).standard_normal((1, T, D)), "float32")


@functools.cache
def layer(kind, **settings):
  """A small layer with random weights, norms and biases."""
  heads = settings.pop("num_heads", 2)
  cls = find_mechanism(kind)
  return numpy_layer.random_module(
      lambda: cls(D, heads, rngs=nnx.Rngs(0), **settings)
  )


@jax.jit
def apply(module, x):
  return module(x)


def assert_close(actual, wanted):
  np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=2e-5)


# Norm, scale, lambda.


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("weight", [False, True])
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("kind", ["softmax", "diff"])
def test_head_norm_weight_and_scale(kind, norm, weight, scale):
  module = layer(
      kind,
      head_norm=norm,
      head_norm_weight=weight,
      head_norm_scale=scale,
      depth=2,
      implementation="reference",
  )
  assert (module.head_norm_weight is not None) == (norm and weight)
  assert_close(
      apply(module, X), numpy_layer.apply(module, X, numpy_layer.lambda_init(2))
  )


def test_norm_and_scale_by_default():
  """DIFF norms and scales; the Transformer with a norm does not scale."""
  chosen = {
      (kind, norm): layer(kind, head_norm=norm)
      for kind in ("softmax", "diff")
      for norm in (None, False, True)
  }
  assert {
      key: (module.head_norm, module.head_norm_scale)
      for key, module in chosen.items()
  } == {
      ("softmax", None): (False, False),
      ("softmax", False): (False, False),
      ("softmax", True): (True, False),
      ("diff", None): (True, True),
      ("diff", False): (False, False),
      ("diff", True): (True, True),
  }


def test_lambda_init_of_the_paper():
  """arXiv 2410.05258, section 2.1, by layers counted from 1."""
  by_layer = {
      1: 0.2, 2: 0.3555, 3: 0.4707, 4: 0.5561, 6: 0.6661, 8: 0.7265,
      12: 0.7779, 16: 0.7933, 24: 0.7994, 28: 0.7998,
  }  # fmt: skip
  depths = jnp.array(list(by_layer)) - 1
  values = jax.vmap(lambda_init_by_depth)(depths)
  assert values.dtype == jnp.float32
  # The paper's four digits are cut, not rounded.
  np.testing.assert_allclose(values, list(by_layer.values()), rtol=0, atol=1e-4)


def test_lambda_init_constant_offset_and_traced_depth():
  assert layer("diff", lambda_init=0.8).initial_lambda(5) == np.float32(0.8)
  module = layer("diff", lambda_depth_offset=2)
  np.testing.assert_allclose(
      module.initial_lambda(1), numpy_layer.lambda_init(3), rtol=1e-6
  )
  traced = jax.jit(lambda module, depth: module(X, depth=depth))(module, 1)
  assert_close(traced, numpy_layer.apply(module, X, numpy_layer.lambda_init(3)))


def test_lambda_vectors_start_at_a_tenth():

  @jax.jit
  def vectors():
    module = diff_jax.DiffAttention(8, 1, head_dim=4000, rngs=nnx.Rngs(0))
    names = ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    return [getattr(module, name)[...] for name in names]

  for vector in vectors():
    assert vector.dtype == jnp.float32
    np.testing.assert_allclose(vector.std(), 0.1, rtol=0.05)
    np.testing.assert_allclose(vector.mean(), 0, atol=0.01)


# Positions, biases, windows, groups.


@pytest.mark.parametrize(
    "settings",
    [
        dict(rope="half", head_dim=4, rope_theta=100.0),
        dict(rope="none", head_dim=3),
        dict(window=3),
        dict(causal=False),
        dict(causal=False, window=2),
        dict(num_heads=3, num_kv_heads=1, head_dim=4),
        dict(num_heads=4, num_kv_heads=2, bias=True, head_dim=2),
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["softmax", "diff"])
def test_settings(kind, settings):
  module = layer(kind, **settings)
  distance = np.arange(T)[:, None] - np.arange(T)
  visible = (distance >= 0) | (not module.causal)
  visible &= np.abs(distance) < (module.window or T)
  wanted = numpy_layer.apply(
      module,
      X,
      numpy_layer.lambda_init(0),
      visible=visible,
      style=module.rope,
      theta=module.rope_theta,
  )
  assert_close(apply(module, X), wanted)


@pytest.mark.usefixtures("no_shape_checks")
def test_an_unknown_rope_style_is_refused():
  with pytest.raises(ValueError, match=r"rope.*neox"):
    jax.eval_shape(
        lambda: diff_jax.DiffAttention(D, 2, rope="neox", rngs=nnx.Rngs(0))(X)
    )


def test_segments_and_positions():
  """Two packed sequences, each with positions from 0, are two sequences."""
  module = layer("diff")
  packed = jnp.concatenate([X[:, :4], X[:, :2]], axis=1)
  out = jax.jit(
      lambda module, x: module(
          x,
          positions=jnp.array([[0, 1, 2, 3, 0, 1]]),
          segment_ids=jnp.array([[1, 1, 1, 1, 2, 2]]),
      )
  )(module, packed)
  alone = np.asarray(apply(module, X))
  assert_close(out, np.concatenate([alone[:, :4], alone[:, :2]], axis=1))


# Shapes and sizes.


def test_parameter_shapes():
  """Heads of width e = 2h; every weight named by its letters."""
  module = jax.eval_shape(
      lambda: diff_jax.DiffAttention(
          32, 4, num_kv_heads=2, bias=True, rngs=nnx.Rngs(0)
      )
  )
  shapes = {
      name: value.shape
      for name, value in vars(module).items()
      if isinstance(value, nnx.Param)
  }
  assert shapes == {
      "w_q": (32, 4, 2, 4), "w_k": (32, 2, 2, 4), "w_v": (32, 2, 8),
      "w_o": (4, 8, 32), "b_q": (4, 2, 4), "b_k": (2, 2, 4), "b_v": (2, 8),
      "b_o": (32,), "lambda_q1": (4,), "lambda_k1": (4,), "lambda_q2": (4,),
      "lambda_k2": (4,), "head_norm_weight": (8,),
  }  # fmt: skip


@pytest.mark.parametrize("kv_share", [1, 2])
def test_diff_has_6h_more_parameters_than_the_transformer(kv_share):
  """Four lambda vectors of h and a norm of 2h, at half the heads."""

  def size(cls, heads):
    module = jax.eval_shape(
        lambda: cls(64, heads, num_kv_heads=heads // kv_share, rngs=nnx.Rngs(0))
    )
    return sum(x.size for x in jax.tree.leaves(module)), module.head_dim

  transformer_size, h = size(diff_jax.SoftmaxAttention, 8)
  assert size(diff_jax.DiffAttention, 4) == (transformer_size + 6 * h, h)


@pytest.mark.parametrize(
    "settings,words",
    [
        (dict(d_model=30), ["d_model=30", "multiple of 4", "num_heads=2"]),
        (dict(num_kv_heads=3), ["num_kv_heads=3", "divide", "num_heads=2"]),
        (dict(head_dim=5), ["head_dim=5", "even", "rope='interleaved'"]),
    ],
    ids=["width", "kv_heads", "odd"],
)
def test_impossible_heads_are_refused_by_name(settings, words):
  settings = {"d_model": 32} | settings
  with pytest.raises(ConfigError) as error:
    diff_jax.DiffAttention(num_heads=2, rngs=nnx.Rngs(0), **settings)
  for word in words:
    assert word in str(error.value)


# The maps that analyses see.


@pytest.mark.parametrize("kind", ["softmax", "diff"])
def test_row_maps_give_the_ops_rows(kind):
  """sum_c w_c map_c @ v is what the op returns for those rows."""
  module = layer(kind, num_heads=3, num_kv_heads=1, head_dim=4, window=2)
  rows = jnp.array([5, 0, 2])
  segment_ids = jnp.array([[1, 1, 1, 2, 2, 2]])

  @jax.jit
  def run(module, x):
    maps, weights = module.row_maps(x, rows, segment_ids=segment_ids, depth=1)
    q, k, v = module.project(x)
    q, k = (
        layers.rope(y, jnp.arange(T)[None], theta=1e4, style="interleaved")
        for y in (q, k)
    )
    out = api.attention(
        q, k, v, module.weights(x, 1), window=2, segment_ids=segment_ids
    )
    return maps, weights, v, out

  maps, weights, v, out = run(module, X)
  c = module.num_maps
  assert maps.shape == (1, 3, c, 3, T) and weights.shape == (1, 3, 3, c)
  np.testing.assert_allclose(maps.sum(-1), np.ones((1, 3, c, 3)), rtol=1e-5)
  gathered = np.einsum("bncrs,brnc,bse->brne", maps, weights, v[:, :, 0])
  assert_close(out[:, rows], gathered)
  unseen = np.array(
      [[1, 1, 1, 1, 0, 0], [0, 1, 1, 1, 1, 1], [1, 0, 0, 1, 1, 1]]
  )
  assert not np.any(np.asarray(maps) * unseen[None, None, None])
