# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A sample of a byte-level language model's own text."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp

from diff_jax.sharding import put_batch


class Sample:
  """Continues a prompt; the same random numbers at every call.

  Without a cache: the whole row is computed for each new byte, which is fine
  for the few hundred bytes of a tiny model.
  """

  def __init__(
      self,
      source,
      mesh,
      *,
      prompt: str = "\n",
      num_bytes: int = 200,
      temperature: float = 0.7,
      seed: int = 0,
  ):
    self.mesh, self.temperature, self.seed = mesh, temperature, seed
    self.prompt = list(prompt.encode())
    self.length = min(len(self.prompt) + num_bytes, source.seq_len)

  def __call__(self, model) -> Iterator[tuple[str, str]]:
    rows = self.mesh.shape["replica"] * self.mesh.shape["fsdp"]
    row = jnp.zeros((rows, self.length), jnp.int32)
    row = row.at[:, : len(self.prompt)].set(jnp.asarray(self.prompt)[None])
    tokens = put_batch({"tokens": jax.device_get(row)}, self.mesh)["tokens"]
    tokens = _continue(
        model,
        tokens,
        jax.random.key(self.seed),
        start=len(self.prompt),
        temperature=self.temperature,
    )
    text = bytes(x for x in jax.device_get(tokens)[0].tolist() if x < 256)
    yield "text", text.decode(errors="replace")


def _continue(model, tokens, key, *, start, temperature):
  def body(i, tokens):
    logits = model.logits(model(tokens))
    previous = jax.lax.dynamic_index_in_dim(logits, i - 1, 1, keepdims=False)
    drawn = jax.random.categorical(
        jax.random.fold_in(key, i), previous / temperature
    )
    here = jnp.arange(tokens.shape[1])[None] == i
    return jnp.where(here, drawn[:, None].astype(tokens.dtype), tokens)

  return jax.lax.fori_loop(start, tokens.shape[1], body, tokens)


_continue = jax.jit(_continue, static_argnames=("start", "temperature"))
