# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Samples of a model whose next token is known."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from diff_jax import data
from diff_jax.config import ConfigError, MeshConfig
from diff_jax.evaluators.sample import Sample
from diff_jax.sharding import make_mesh

SEPARATOR = 256


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Chain:
  """A model of 300 ids for which one token follows each token."""

  table: jax.Array  # float [v,v], logits

  @classmethod
  def of(cls, text, end=()):
    ids = [SEPARATOR, *text.encode(), *end]
    table = np.zeros((300, 300), np.float32)
    table[ids[:-1], ids[1:]] = 1e3
    table[:, 280] = 1e6  # no id of the tokenizer
    return cls(jax.device_put(jnp.asarray(table), P(None, "tensor")))

  def __call__(self, tokens):
    return tokens

  def logits(self, tokens):
    return jnp.einsum("btv,vw->btw", jax.nn.one_hot(tokens, 300), self.table)


@pytest.fixture(params=["fsdp", "tensor"])
def mesh(request):
  sizes = {"fsdp": 1} | {request.param: 2}
  mesh = make_mesh(MeshConfig(**sizes), jax.devices()[:2])
  with jax.set_mesh(mesh):
    yield mesh


def test_a_document_is_continued_until_its_end(mesh):
  source = data.Text(seq_len=16)
  model = Chain.of("def(x): ok", end=(SEPARATOR,))
  for prompt in ("", "d", "def(x)"):
    assert dict(Sample(source, mesh, prompt=prompt)(model)) == {
        "text": "def(x): ok"
    }


@pytest.mark.parametrize(("num_tokens", "length"), [(0, 1), (5, 6), (99, 15)])
def test_a_sample_has_so_many_tokens_at_most(mesh, num_tokens, length):
  letters = "abcdefghijklmnopqrstuvwxyz"
  sample = Sample(
      data.Text(seq_len=16), mesh, prompt="a", num_tokens=num_tokens
  )
  assert dict(sample(Chain.of(letters))) == {"text": letters[:length]}


def test_characters_of_several_bytes_survive(mesh):
  source = data.Text(seq_len=32)
  sample = Sample(source, mesh, prompt="\u2603")
  model = Chain.of("\u2603\u00fc", end=(SEPARATOR,))
  assert dict(sample(model)) == {"text": "\u2603\u00fc"}


def test_temperature_and_seed_choose_among_tokens(mesh):
  uniform = Chain(jnp.zeros((300, 300)))

  def text(**settings):
    sample = Sample(data.Text(seq_len=64), mesh, prompt="", **settings)
    (tokens,) = dict(sample(uniform)).values()
    return tokens

  assert text() == text() != text(seed=1)


def test_what_cannot_be_sampled_is_named(mesh):
  with pytest.raises(ConfigError, match="data.name='recall' has no tokenizer"):
    Sample(data.Recall(), mesh)
  with pytest.raises(ConfigError, match="'12345678' must be shorter than data"):
    Sample(data.Text(seq_len=9), mesh, prompt="12345678")
