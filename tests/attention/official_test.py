# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""DIFF against numbers computed by the official code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import diff_jax
from tests.attention import numpy_layer

# The official files: microsoft/unilm, Diff-Transformer, run in fp32. Every
# tensor is scale * sin(0.7071 n + phase) at flat index n, in torch's (out, in).
GOLDEN = {
    # kv heads: y[0, 5, :4], sum(y), sum(|y|)
    4: ([0.094069, -0.181127, 0.197344, -0.136380], 0.061339, 32.058132),
    2: ([-0.162290, -0.068496, 0.272492, -0.369916], 0.267924, 44.930191),
}
# The official naive file repeats keys before it pairs them.
NAIVE_TWO_KV_HEADS = [-0.183460, 0.148666, -0.055727, -0.059006]


def wave(shape, phase, scale):
  index = np.arange(np.prod(shape), dtype=np.float64)
  return (scale * np.sin(0.7071 * index + phase)).reshape(shape)


def golden_layer(kv_heads):
  width, heads, h = 32, 4, 4
  module = numpy_layer.random_module(
      lambda: diff_jax.DiffAttention(
          width, heads, num_kv_heads=kv_heads, depth=3, rngs=nnx.Rngs(0)
      )
  )
  narrow = width * kv_heads // heads
  weights = {
      "w_q": wave((width, width), 0.1, 0.5).T.reshape(width, heads, 2, h),
      "w_k": wave((narrow, width), 0.2, 0.5).T.reshape(width, kv_heads, 2, h),
      "w_v": wave((narrow, width), 0.3, 0.5).T.reshape(width, kv_heads, 2 * h),
      "w_o": wave((width, width), 0.4, 0.5).T.reshape(heads, 2 * h, width),
      "lambda_q1": wave((h,), 0.5, 0.3),
      "lambda_k1": wave((h,), 0.6, 0.3),
      "lambda_q2": wave((h,), 0.7, 0.3),
      "lambda_k2": wave((h,), 0.8, 0.3),
      "head_norm_weight": 1 + wave((2 * h,), 0.9, 0.25),
  }
  for name, value in weights.items():
    getattr(module, name)[...] = jnp.asarray(value, jnp.float32)
  return module


GOLDEN_X = jnp.asarray(wave((1, 6, 32), 1.0, 1.0), jnp.float32)


@jax.jit
def run(module, x):
  return module(x)


@pytest.mark.parametrize("kv_heads", GOLDEN)
def test_official_vectors(kv_heads):
  module = golden_layer(kv_heads)
  np.testing.assert_allclose(module.initial_lambda(3), 0.556058204, rtol=1e-6)
  np.testing.assert_allclose(module.lam(3), 0.558915436, rtol=1e-6)
  y = np.asarray(run(module, GOLDEN_X))
  row, total, size = GOLDEN[kv_heads]
  np.testing.assert_allclose(y[0, 5, :4], row, rtol=0, atol=1e-5)
  np.testing.assert_allclose(y.sum(), total, rtol=0, atol=1e-5)
  np.testing.assert_allclose(np.abs(y).sum(), size, rtol=1e-6)


def test_grouped_queries_differ_from_the_official_naive_file():
  row = np.asarray(run(golden_layer(2), GOLDEN_X))[0, 5, :4]
  assert np.abs(row - NAIVE_TWO_KV_HEADS).max() > 0.1


@pytest.mark.parametrize("kv_heads", GOLDEN)
def test_official_vectors_in_bf16(kv_heads):
  module = golden_layer(kv_heads)
  y = run(module, GOLDEN_X.astype(jnp.bfloat16))
  assert y.dtype == jnp.bfloat16
  wide = np.asarray(y, np.float32)
  np.testing.assert_allclose(wide, run(module, GOLDEN_X), rtol=0, atol=2e-2)


def test_numpy_layer_gives_the_official_vectors():
  """The other tests' reference is the official layer too."""
  for kv_heads, (row, _, _) in GOLDEN.items():
    module = golden_layer(kv_heads)
    y = numpy_layer.apply(module, GOLDEN_X, numpy_layer.lambda_init(3))
    np.testing.assert_allclose(y[0, 5, :4], row, rtol=0, atol=1e-5)
