# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The whole model: who sees whom, what is equal to what, how it starts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from diff_jax import layers, transformer
from diff_jax.config import ModelConfig
from tests.attention import numpy_layer

B, T, V, D, L = 2, 8, 24, 16, 2
CONFIG = ModelConfig(
    vocab_size=V, d_model=D, num_layers=L, num_heads=2, mlp_dim=12
)
# Two rows of distinct tokens, so that a token's gradient is its position's.
TOKENS = jnp.asarray(
    np.stack([np.arange(T), np.random.default_rng(0).permutation(V)[:T]])
)


@functools.cache
def make(**changes):
  """The model of a changed config with random weights, norms included."""
  config = dataclasses.replace(CONFIG, **changes)
  return numpy_layer.random_module(
      lambda: transformer.Transformer(config, rngs=nnx.Rngs(0))
  )


@jax.jit
def hidden(model, tokens, **keywords):
  return model(tokens, **keywords)


def assert_close(actual, wanted, atol=2e-5):
  np.testing.assert_allclose(actual, wanted, rtol=2e-5, atol=atol)


# Who sees whom.


@jax.jit
def influence(model, **keywords):
  """Largest gradient of the hidden state at t by the embedding at s, [t, s]."""

  def run(table):
    changed = jax.tree.map(lambda x: x, model)
    changed.embedding = nnx.Param(table)
    return changed(TOKENS[:1], **keywords)[0]

  out, vjp = jax.vjp(run, model.embedding[...])
  direction = jax.random.normal(jax.random.key(0), out.shape)
  cotangents = jnp.eye(T)[:, :, None] * direction[None]
  gradients = jax.vmap(lambda cotangent: vjp(cotangent)[0])(cotangents)
  return jnp.abs(gradients[:, TOKENS[0]]).max(axis=-1)


def sees(model, **keywords):
  return np.asarray(influence(model, **keywords)) != 0


@pytest.mark.parametrize("attention", ["softmax", "diff"])
def test_gradients_by_later_tokens_are_exactly_zero(attention):
  np.testing.assert_array_equal(
      sees(make(attention=attention)), np.tri(T, dtype=bool)
  )


def test_without_causal_every_token_sees_every_token():
  assert sees(make(causal=False)).all()


def test_a_window_reaches_further_with_every_layer():
  """Two layers with a window of 3 reach back 2 + 2 tokens."""
  distance = np.arange(T)[:, None] - np.arange(T)
  np.testing.assert_array_equal(
      sees(make(window=3)), (distance >= 0) & (distance <= 4)
  )


def test_segments_see_themselves_and_padding_sees_itself():
  segment_ids = jnp.array([[1, 1, 1, 2, 2, 0, 0, 0]])
  same = segment_ids[0][:, None] == segment_ids[0][None]
  wanted = np.where(segment_ids[0] == 0, np.eye(T), np.tri(T) * same) != 0
  found = sees(make(), segment_ids=segment_ids)
  np.testing.assert_array_equal(found, wanted)


def test_packed_sequences_equal_each_alone():
  """With segments, and positions that begin anew."""
  packed = hidden(
      make(),
      TOKENS,
      positions=jnp.array([[0, 1, 2, 3, 4, 0, 1, 2]] * B),
      segment_ids=jnp.array([[1, 1, 1, 1, 1, 2, 2, 2]] * B),
  )
  shifted = jnp.roll(TOKENS, -5, axis=1)  # the second sequence comes first
  assert_close(packed[:, :5], hidden(make(), TOKENS)[:, :5])
  assert_close(packed[:, 5:], hidden(make(), shifted)[:, :3])


def test_only_relative_positions_matter():
  positions = jnp.arange(T)[None].repeat(B, 0)
  plain = hidden(make(), TOKENS)
  assert_close(hidden(make(), TOKENS, positions=positions), plain)
  assert_close(hidden(make(), TOKENS, positions=positions + 5), plain, 2e-4)
  stretched = hidden(make(), TOKENS, positions=3 * positions)
  assert np.abs(stretched - plain)[:, 2:].max(axis=(1, 2)).min() > 0.01


def test_without_rope_the_order_of_earlier_tokens_is_unknown():
  order = jnp.array([3, 0, 2, 1, 4, 5, 6, 7])
  one_layer = {"num_layers": 1}  # a second one sees what the first one saw

  def change(model):
    difference = hidden(model, TOKENS[:, order]) - hidden(model, TOKENS)
    return np.abs(difference)[:, 4:].max()

  assert change(make(rope="none", **one_layer)) < 2e-5
  assert change(make(**one_layer)) > 0.01


# What goes in and out.


def test_embeddings_of_a_position_are_summed():
  model = make()
  np.testing.assert_array_equal(
      hidden(model, TOKENS[..., None]), hidden(model, TOKENS)
  )
  summed = jax.tree.map(lambda x: x, model)
  table = model.embedding[...]
  summed.embedding = nnx.Param(
      table.at[:T].set(table[:T] + table[8 : 8 + T] + table[16 : 16 + T])
  )
  one = np.arange(T)[None].repeat(B, 0)
  three = np.stack([one, one + 8, one + 16], axis=-1)
  assert_close(
      hidden(model, jnp.asarray(three)), hidden(summed, jnp.asarray(one))
  )


@pytest.mark.parametrize(
    "changes,outputs",
    [({}, V), (dict(output_size=5), 5), (dict(tie_embeddings=True), V)],
    ids=["untied", "output_size", "tied"],
)
def test_head(changes, outputs):
  model = make(**changes)
  tied = "tie_embeddings" in changes
  assert (model.w_head is None) == tied
  matrix = np.asarray((model.embedding if tied else model.w_head)[...])
  assert matrix.shape == (outputs, D)
  x = np.random.default_rng(1).standard_normal((B, T, D)).astype(np.float32)
  logits = jax.jit(type(model).logits)(model, x)
  assert logits.dtype == jnp.float32
  assert_close(logits, x @ matrix.T)


def test_scan_over_layers_equals_the_blocks_one_by_one():
  model = make()

  @jax.jit
  def one_by_one(model):
    x = model.embedding[...][TOKENS]
    for depth in range(L):
      block = jax.tree.map(lambda x, depth=depth: x[depth], model.blocks)
      x = block(x, depth, None, None)
    return layers.rms_norm(x, model.final_norm[...], model.config.norm_eps)

  assert_close(hidden(model, TOKENS), one_by_one(model))


def test_a_block_is_pre_norm():
  """x + attention(norm(x)), then x + mlp(norm(x)); SwiGLU by its formula."""
  block = jax.tree.map(lambda x: x[1], make(attention="softmax").blocks)
  x = np.random.default_rng(2).standard_normal((1, T, D))

  def normed(x, weight):
    return numpy_layer.rms_normed(x, np.asarray(weight[...], np.float64))

  w = numpy_layer.arrays(block.attention)
  heads = numpy_layer.attend(
      w, normed(x[0], block.attention_norm), 1, visible=numpy_layer.causal(T)
  )
  wanted = x[0] + numpy_layer.project_out(w, heads)
  mlp = numpy_layer.arrays(block.mlp)
  y = normed(wanted, block.mlp_norm)
  gate = y @ mlp.w_gate
  silu = gate / (1 + np.exp(-gate))
  wanted += (silu * (y @ mlp.w_up)) @ mlp.w_down

  out = jax.jit(lambda block, x: block(x, 1, None, None))(
      block, jnp.asarray(x, jnp.float32)
  )
  assert_close(out[0], wanted, atol=1e-4)


# What is said about a model.


def test_mechanism_metrics_has_one_lambda_a_layer():
  model = make(num_layers=3, lambda_depth_offset=1)
  vectors = numpy_layer.arrays(model.blocks.attention)
  wanted = []
  for layer in range(3):
    of_layer = {
        name: value[layer]
        for name, value in vars(vectors).items()
        if name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2")
    }
    initial_lambda = numpy_layer.lambda_init(layer + 1)
    wanted.append(
        numpy_layer.lam(type(vectors)(**of_layer), initial_lambda)
    )  # fmt: skip
  metrics = jax.jit(type(model).mechanism_metrics)(model)
  assert set(metrics) == {"lambda"}
  assert_close(metrics["lambda"], wanted)
  assert make(attention="softmax").mechanism_metrics() == {}


@pytest.mark.parametrize("attention", ["softmax", "diff"])
def test_row_maps_of_all_layers(attention):
  """As each layer's own, at the layer's own input."""
  model = make(attention=attention)
  rows = jnp.array([6, 0, 3])

  @jax.jit
  def run(model):
    maps, weights = model.row_maps(TOKENS, rows)
    first, second = (
        jax.tree.map(lambda x, depth=depth: x[depth], model.blocks)
        for depth in range(L)
    )
    x = first(model.embedding[...][TOKENS], 0, None, None)
    own = second.attention.row_maps(second.attention_input(x), rows, depth=1)
    return maps, weights, own

  maps, weights, own = run(model)
  c = 1 if attention == "softmax" else 2
  assert maps.shape == (L, B, 2, c, 3, T) and weights.shape == (L, B, 3, 2, c)
  assert_close(maps.sum(-1), np.ones((L, B, 2, c, 3)))
  assert not np.any(maps[..., 1, 1:]) and not np.any(maps[..., 2, 4:])
  assert_close(maps[1], own[0])
  assert_close(weights[1], own[1])


@pytest.mark.parametrize(
    "changes,hand",
    [
        # Embedding and head; layers of q, k, v, o, MLP, two norms; last norm.
        (
            dict(attention="softmax"),
            2 * 24 * 16 + 2 * (4 * 16 * 16 + 3 * 16 * 12 + 2 * 16) + 16,
        ),
        # Maps of width 4: four lambda vectors and a norm of 8 more a layer.
        (
            dict(attention="diff", tie_embeddings=True),
            24 * 16 + 2 * (4 * 16 * 16 + 6 * 4 + 3 * 16 * 12 + 2 * 16) + 16,
        ),
        # One pair of keys for both heads; biases; the norm without weights.
        (
            dict(
                attention="diff", num_kv_heads=1, attention_bias=True,
                head_norm_weight=False, output_size=5,
            ),
            (24 + 5) * 16
            + 2 * ((16 + 8 + 8 + 16) * 16 + 48 + 4 * 4 + 3 * 16 * 12 + 2 * 16)
            + 16,
        ),
    ],
    ids=["softmax", "diff_tied", "diff_grouped"],
)  # fmt: skip
def test_num_parameters_by_hand(changes, hand):
  config = dataclasses.replace(CONFIG, **changes)
  assert transformer.num_parameters(config) == hand
  assert sum(x.size for x in jax.tree.leaves(make(**changes))) == hand
