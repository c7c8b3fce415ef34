# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Held-out loss of a model that knows nothing, in every unit."""

import jax
import numpy as np
import pytest

from diff_jax import data
from diff_jax.config import MeshConfig, ModelConfig
from diff_jax.data import tokenizers
from diff_jax.evaluators.loss import Loss, held_out_batches
from diff_jax.sharding import ON_MESH, make_mesh
from diff_jax.transformer import Transformer, nnx


@pytest.fixture
def mesh():
  mesh = make_mesh(MeshConfig(), jax.devices()[:1])
  with jax.set_mesh(mesh):
    yield mesh


@pytest.fixture
def text(tmp_path):
  (tmp_path / "text.txt").write_text("x" * 60 + "\n\u00e4\n" + "abc " * 7)
  words = ["abc abc abc", "\u00e4", "x" * 9]
  tokenizers.train_bpe(words, 264, tmp_path / "tokenizer.json")
  return tmp_path


@pytest.mark.parametrize("tokenizer", ["bytes", "tokenizer.json"])
def test_bits_per_byte_for_any_tokenizer(text, mesh, tokenizer):
  if tokenizer != "bytes":
    tokenizer = str(text / tokenizer)
  source = data.Text(
      path=str(text / "text.txt"), tokenizer=tokenizer, seq_len=8,
      eval_path=str(text / "text.txt"),
  )  # fmt: skip
  config = ModelConfig(
      vocab_size=source.vocab_size, d_model=16,
      num_layers=1, num_heads=1, tie_embeddings=True, embedding_std=0.0,
      attention="softmax", implementation="reference",
  )  # fmt: skip
  model = jax.jit(
      lambda: Transformer(config, shardings=ON_MESH, rngs=nnx.Rngs(0))
  )()
  rows = source.examples("eval", 0)
  found = dict(Loss(source, mesh, batch_size=1, num_batches=len(rows))(model))

  # All logits are 0: log v nats a target, once every token of the text.
  described = source.corpus()
  tokens, num_bytes = described["tokens"] / 2, described["bytes"] / 2
  nats = np.log(config.vocab_size)
  assert found["num_targets"] == tokens
  assert found["loss"] == pytest.approx(nats, rel=1e-5)
  assert num_bytes == len((text / "text.txt").read_bytes())
  assert found["bits_per_byte"] == pytest.approx(
      nats * tokens / np.log(2) / num_bytes, rel=1e-5
  )


@pytest.mark.parametrize("source", [data.Text(seq_len=8), data.Recall()])
def test_batches_are_the_same_at_every_call(source, mesh):
  first, again = (list(held_out_batches(source, mesh, 4, 3)) for _ in range(2))
  assert len(first) == 3
  for a, b in zip(first, again, strict=True):
    assert a.keys() == b.keys() == source.examples("eval", 0)[0].keys()
    jax.tree.map(np.testing.assert_array_equal, a, b)
