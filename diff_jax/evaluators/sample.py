# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A sample of a language model's own text."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from diff_jax.config import ConfigError
from diff_jax.sharding import put_batch


class Sample:
  """Continues a document that begins with a prompt, until the model ends it.

  The random numbers are the same at every call. Without a cache: the whole row
  is computed for each new token, which is fine for the few hundred tokens of a
  tiny model.

  Raises:
    ConfigError: the source has no tokenizer, or the prompt fills a row.
  """

  def __init__(
      self,
      source,
      mesh,
      *,
      prompt: str = "\n",
      num_tokens: int = 200,
      temperature: float = 0.7,
      seed: int = 0,
  ):
    self.mesh, self.temperature, self.seed = mesh, temperature, seed
    if not hasattr(source, "open_tokenizer"):
      raise ConfigError(
          f"evaluators.sample needs data of text: data.name={source.name!r} has"
          " no tokenizer"
      )
    self.tokenizer = source.open_tokenizer()
    separator = [self.tokenizer.separator]
    self.prompt = separator + self.tokenizer.encode(prompt).tolist()
    if len(self.prompt) >= source.seq_len:
      raise ConfigError(
          f"evaluators.sample.{prompt=} must be shorter than data.seq_len="
          f"{source.seq_len}: it is {len(self.prompt)} tokens with the separator"
          " before it"
      )
    self.length = min(len(self.prompt) + num_tokens, source.seq_len)

  def __call__(self, model) -> Iterator[tuple[str, str]]:
    rows = self.mesh.shape["replica"] * self.mesh.shape["fsdp"]
    row = np.zeros((rows, self.length), np.int32)
    row[:, : len(self.prompt)] = self.prompt
    tokens = put_batch({"tokens": row}, self.mesh)["tokens"]
    tokens = _continue(
        model,
        tokens,
        jax.random.key(self.seed),
        start=len(self.prompt),
        temperature=self.temperature,
        vocab_size=self.tokenizer.vocab_size,
    )
    text = jax.device_get(tokens)[0, 1:].tolist()
    if self.tokenizer.separator in text:
      text = text[: text.index(self.tokenizer.separator)]
    yield "text", self.tokenizer.decode(text)


def _continue(model, tokens, key, *, start, temperature, vocab_size):
  def body(i, tokens):
    logits = model.logits(model(tokens))
    previous = jax.lax.dynamic_index_in_dim(logits, i - 1, 1, keepdims=False)
    # A model's vocabulary is often rounded up: those ids stand for nothing.
    ids = jax.lax.broadcasted_iota(jnp.int32, (1, previous.shape[-1]), 1)
    previous = jnp.where(ids < vocab_size, previous / temperature, -jnp.inf)
    drawn = jax.random.categorical(jax.random.fold_in(key, i), previous)
    here = jnp.arange(tokens.shape[1])[None] == i
    return jnp.where(here, drawn[:, None].astype(tokens.dtype), tokens)

  return jax.lax.fori_loop(start, tokens.shape[1], body, tokens)


_continue = jax.jit(
    _continue, static_argnames=("start", "temperature", "vocab_size")
)
