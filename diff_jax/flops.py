# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Matrix-product FLOPs of a model, counted from its weights and its maps.

A multiply-add is 2 FLOPs. XLA's own count is no substitute: it counts the body
of a scan once, whatever the number of layers.

For each (query, key) pair and head with c maps of width h and a value of width
e, attention costs 2c(h + e) forward and 6ch + 4e backward: the scores again,
dQ and dK for each map, and dO V^T and dV once. A differential head (c = 2,
e = 2h) costs 12h + 20h, the two heads of a Transformer that it replaces
8h + 20h.

Matrices are the weights named `w_*`. Document borders in packed rows are not
seen: for packed text the maps' share is an upper bound.
"""

import dataclasses

import jax

from diff_jax import transformer
from diff_jax.config import ConfigError, ModelConfig


def attention_flops_per_pair(model: transformer.Transformer) -> tuple[int, int]:
  """(forward, backward) FLOPs of all heads and layers for one visible pair."""
  attention = model.blocks.attention
  c, h, e = attention.num_maps, attention.head_dim, attention.value_dim
  heads = attention.num_heads * model.config.num_layers
  return heads * 2 * c * (h + e), heads * (6 * c * h + 4 * e)


def visible_pairs_per_token(config: ModelConfig, seq_len: int) -> float:
  """Mean number of keys that a query sees in a sequence without padding."""
  window = min(config.window or seq_len, seq_len)
  if config.causal:
    # The first `window` queries see 1, 2, ..., the others `window` keys.
    return window - window * (window - 1) / (2 * seq_len)
  return 2 * window - 1 - window * (window - 1) / seq_len


def train_flops_per_token(
    config: ModelConfig, seq_len: int
) -> dict[str, float]:
  """FLOPs of forward and backward for one token: attention maps and weights.

  The head is counted for every position, as a language model uses it.
  """
  model = transformer.abstract(config)
  pairs = visible_pairs_per_token(config, seq_len)
  maps = pairs * sum(attention_flops_per_pair(model))
  matrices = sum(
      leaf.size
      for path, leaf in jax.tree_util.tree_leaves_with_path(model)
      if ".w_" in jax.tree_util.keystr(path)
  )
  if config.tie_embeddings:
    matrices += model.embedding.size
  return {"maps": maps, "matrices": 6.0 * matrices}


def baseline(
    config: ModelConfig, match: str = "params", seq_len: int | None = None
) -> ModelConfig:
  """The Transformer that a differential model is compared with.

  Two ordinary heads replace each pair, so that every matrix keeps its size.

  Args:
    config: a model whose heads have two maps.
    match: `params`: the same MLP, so that only the lambda vectors and the head
      norm (6h a layer) are missing; `flops`: the MLP is widened until forward
      and backward FLOPs at `seq_len` agree to 0.5 %.
    seq_len: tokens in a sequence, for `flops`.

  Raises:
    ConfigError: for another `match`, or `flops` without `seq_len`.
  """
  if config.attention != "diff":
    raise ConfigError(
        f"model.attention={config.attention!r} must be 'diff' to have a"
        " matched Transformer."
    )
  h = transformer.abstract(config).blocks.attention.head_dim
  matched = dataclasses.replace(
      config,
      attention="softmax",
      num_heads=2 * config.num_heads,
      num_kv_heads=2 * config.kv_heads,
      head_dim=h,
      mlp_dim=config.mlp_width,
      head_norm=None,
      head_norm_scale=None,
  )
  if match == "params":
    return matched
  if match != "flops" or seq_len is None:
    raise ConfigError(
        f"{match=} must be 'params', or 'flops' with seq_len={seq_len} in"
        " tokens."
    )
  target = sum(train_flops_per_token(config, seq_len).values())
  missing = target - sum(train_flops_per_token(matched, seq_len).values())
  width = matched.mlp_width + missing / (
      18 * config.d_model * config.num_layers
  )
  # The roundest width that still agrees: hardware likes multiples of 128.
  for multiple in (128, 64, 32, 16, 8, 4, 2, 1):
    rounded = max(multiple, round(width / multiple) * multiple)
    candidate = dataclasses.replace(matched, mlp_dim=rounded)
    flops = sum(train_flops_per_token(candidate, seq_len).values())
    if abs(flops / target - 1) < 0.005:
      return candidate
  raise ConfigError(
      f"{match=}: no MLP width agrees to 0.5 % at {seq_len=}; the model is too"
      " small."
  )


# Dense bf16 products a second of one device, by `jax.Device.device_kind`, from
# the makers' data sheets.
PEAK_FLOPS_PER_S = {
    "TPU v4": 275e12,
    "TPU v5 lite": 197e12,
    "TPU v5": 459e12,
    "TPU v5p": 459e12,
    "TPU v6 lite": 918e12,
    "TPU7x": 2307e12,
    "NVIDIA A100": 312e12,
    "NVIDIA H100": 989e12,
    "NVIDIA H200": 989e12,
}


def peak_flops_per_s(mesh: jax.sharding.Mesh) -> float | None:
  """Of all devices of a mesh; None if the table does not know them."""
  kind = mesh.devices.flat[0].device_kind
  names = [name for name in PEAK_FLOPS_PER_S if kind.startswith(name)]
  if not names:
    return None
  return mesh.size * PEAK_FLOPS_PER_S[max(names, key=len)]
