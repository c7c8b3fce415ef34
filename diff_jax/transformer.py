# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The decoder-only Transformer: embed, scan over stacked blocks, head."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float, Int

from diff_jax import layers
from diff_jax.attention import find_mechanism
from diff_jax.config import ModelConfig
from diff_jax.sharding import Shardings


class Block(nnx.Module):
  """x += attention(norm(x)); x += mlp(norm(x)) (pre-norm)."""

  def __init__(
      self, config: ModelConfig, *, shardings: Shardings, rngs: nnx.Rngs
  ):
    # Attention and MLP draw from keys of their own: arms whose mechanisms need
    # different numbers of weights start from the same MLP.
    attention_key, mlp_key = jax.random.split(rngs.params())
    gain = 1.0
    if config.scale_residual_init:
      gain = (2 * config.num_layers) ** -0.5
    self.eps = config.norm_eps
    self.attention_norm = nnx.Param(jnp.ones(config.d_model))
    self.attention = find_mechanism(config.attention)(
        config.d_model,
        config.num_heads,
        num_kv_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        head_norm=config.head_norm,
        head_norm_weight=config.head_norm_weight,
        head_norm_scale=config.head_norm_scale,
        lambda_init=config.lambda_init,
        lambda_depth_offset=config.lambda_depth_offset,
        rope=config.rope,
        rope_theta=config.rope_theta,
        window=config.window,
        causal=config.causal,
        bias=config.attention_bias,
        norm_eps=config.norm_eps,
        init=config.init,
        output_gain=gain,
        implementation=config.implementation,
        shardings=shardings,
        rngs=nnx.Rngs(attention_key),
    )
    self.mlp_norm = nnx.Param(jnp.ones(config.d_model))
    self.mlp = layers.SwiGLU(
        config.d_model,
        config.mlp_width,
        init=config.init,
        output_gain=gain,
        shardings=shardings,
        rngs=nnx.Rngs(mlp_key),
    )

  def attention_input(self, x: Float[Array, "b t d"]) -> Float[Array, "b t d"]:
    return layers.rms_norm(x, self.attention_norm[...], self.eps)

  def __call__(
      self, x: Float[Array, "b t d"], depth, positions, segment_ids
  ) -> Float[Array, "b t d"]:
    x = x + self.attention(
        self.attention_input(x),
        positions=positions,
        segment_ids=segment_ids,
        depth=depth,
    )
    return x + self.mlp(layers.rms_norm(x, self.mlp_norm[...], self.eps))


# What the backward pass does not compute again. "dots" is the fastest on a CPU
# too, where fresh memory costs more than elementwise work done twice.
REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.save_only_these_names(
        "linear", "attention"
    ),
    # For long sequences, where the forward kernel is most of a layer.
    "save_attention": jax.checkpoint_policies.save_only_these_names(
        "attention"
    ),
    "full": jax.checkpoint_policies.nothing_saveable,
}


class Transformer(nnx.Module):
  """A language model: tokens -> hidden states; `logits` applies the head.

  A plain pytree: use `jax.jit`, `jax.grad` and optax on it directly. The
  weights of all layers are stacked on a leading axis and scanned over.
  """

  def __init__(
      self,
      config: ModelConfig,
      *,
      shardings: Shardings = Shardings(),  # noqa: B008, it is frozen
      rngs: nnx.Rngs,
  ):
    self.config, self.shardings = config, shardings
    embedding_key, head_key, blocks_key = jax.random.split(rngs.params(), 3)
    table = (config.vocab_size, config.d_model)
    self.embedding = nnx.Param(
        config.embedding_std
        * jax.random.normal(
            embedding_key, table, out_sharding=shardings.embedding_vd
        )
    )
    self.blocks = jax.vmap(
        lambda key: Block(config, shardings=shardings, rngs=nnx.Rngs(key))
    )(jax.random.split(blocks_key, config.num_layers))
    self.final_norm = nnx.Param(jnp.ones(config.d_model))
    head_shape = (config.num_outputs, config.d_model)
    self.w_head = (
        None
        if config.tie_embeddings
        else layers.matrix(
            head_key,
            head_shape,
            config.d_model,
            init=config.init,
            sharding=shardings.w_vd,
        )
    )

  def __call__(
      self,
      tokens: Int[Array, "b t"] | Int[Array, "b t i"],
      *,
      positions: Int[Array, "b t"] | None = None,
      segment_ids: Int[Array, "b t"] | None = None,
  ) -> Float[Array, "b t d"]:
    """Normed hidden states, ready for the head.

    Args:
      tokens: ids; with a third axis, the embeddings of a position are summed.
      positions: for the rotary embedding; None: 0, 1, 2, ...
      segment_ids: packed sequences; 0 is padding.
    """

    def block(x, layer):
      block, depth = layer
      return block(x, depth, positions, segment_ids), None

    if self.config.remat != "none":
      block = jax.checkpoint(
          block, policy=REMAT_POLICIES[self.config.remat], prevent_cse=False
      )
    x, _ = jax.lax.scan(block, self._embed(tokens), self._layers())
    return layers.rms_norm(x, self.final_norm[...], self.config.norm_eps)

  def _embed(self, tokens):
    dtype = jnp.dtype(self.config.compute_dtype)
    table = self.embedding.astype(dtype)
    return layers.embed(table, tokens, self.shardings.act_btd)

  def _layers(self):
    return self.blocks, jnp.arange(self.config.num_layers)

  def head(self) -> Float[Array, "v d"]:
    """The output matrix in the compute dtype: the embedding table if tied."""
    matrix = self.embedding if self.w_head is None else self.w_head
    return matrix.astype(jnp.dtype(self.config.compute_dtype))

  def logits(self, hidden: Float[Array, "b t d"]) -> Float[Array, "b t v"]:
    """fp32 logits of hidden states."""
    return output_logits(hidden, self.head(), self.shardings)

  def row_maps(
      self,
      tokens: Int[Array, "b t"] | Int[Array, "b t i"],
      rows: Int[Array, " r"],
      *,
      positions: Int[Array, "b t"] | None = None,
      segment_ids: Int[Array, "b t"] | None = None,
  ) -> tuple[Float[Array, "l b n c r s"], Float[Array, "l b r n c"]]:
    """Every layer's softmax maps and weights for chosen query rows."""

    def body(x, layer):
      block, depth = layer
      captured = block.attention.row_maps(
          block.attention_input(x),
          rows,
          positions=positions,
          segment_ids=segment_ids,
          depth=depth,
      )
      return block(x, depth, positions, segment_ids), captured

    _, captured = jax.lax.scan(body, self._embed(tokens), self._layers())
    return captured

  def mechanism_metrics(self) -> dict[str, Float[Array, " l"]]:
    """The mechanism's own scalars, one for each layer."""
    return jax.vmap(lambda block, depth: block.attention.metrics(depth))(
        *self._layers()
    )


def output_logits(
    hidden: Float[Array, "b t d"],
    head: Float[Array, "v d"],
    shardings: Shardings,
) -> Float[Array, "b t v"]:
  """fp32 logits; apart from the model so that a loss can chunk over t."""
  return jnp.einsum(
      "btd,vd->btv",
      hidden,
      head,
      preferred_element_type=jnp.float32,
      out_sharding=shardings.act_btv,
  )


def abstract(config: ModelConfig) -> Transformer:
  """The model's shapes and dtypes, without memory."""
  return jax.eval_shape(lambda: Transformer(config, rngs=nnx.Rngs(0)))


def num_parameters(config: ModelConfig) -> int:
  """Exact, counted from the model's own shapes."""
  return sum(leaf.size for leaf in jax.tree.leaves(abstract(config)))
