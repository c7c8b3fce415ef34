# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""One decoding step of DIFF over a long cache, (h, e) = (128, 256), in bf16.

Beside it the matched Transformer, whose heads are twice as many, half as wide
in V and of the same bytes; the two maps in calls of their own, which read V
twice; and a copy of the cache, which is how fast this memory is.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from diff_jax.bench import Options
from diff_jax.bench.table import Table, Target, check_agreement, milliseconds
from diff_jax.bench.timing import interleave, ratio
from diff_jax.kernels.attention import target
from diff_jax.kernels.attention.decode import decode

WEIGHTS = (1.0, -0.8)
# b, s, n pairs of maps
CPU_SIZE = (2, 8192, 4)
ACCELERATOR_SIZE = (32, 32_768, 12)
TOLERANCE = 2e-2  # relative Frobenius error


class Step:
  """Decodes one token with each of some caches, over and over.

  The caches are full but for the token, and written in place.
  """

  def __init__(self, queries, caches, weights):
    """queries [b,1,n,c,h], caches [b,s,k,r] and weights [c] of each call."""
    self.queries, self.caches, self.weights = queries, caches, weights
    self.new = [jnp.copy(cache[:, -1:]) for cache in caches]
    self._compiled = jax.jit(self._all, donate_argnums=1)

  def _all(self, queries, caches, new, implementation=None):
    out, written = 0.0, []
    for q, cache, row, weights in zip(
        queries, caches, new, self.weights, strict=True
    ):
      b, s = cache.shape[:2]
      x, cache = decode(
          q,
          row,
          cache,
          jnp.asarray(weights),
          lengths=jnp.full(b, s - 1, jnp.int32),
          value_dim=cache.shape[3] - q.shape[3] * q.shape[4],
          implementation=implementation,
      )
      out = out + x.astype(jnp.float32)
      written.append(cache)
    return out, written

  def __call__(self):
    out, self.caches = self._compiled(self.queries, self.caches, self.new)
    return out

  def reference(self):
    """The first sequence by the reference implementation."""
    first = jax.tree.map(lambda x: x[:1], (self.queries, self.caches, self.new))
    return self._all(*first, implementation="reference")[0]

  @property
  def num_bytes(self) -> int:
    """That a step reads."""
    return sum(cache.nbytes for cache in self.caches)


def candidates(b: int, s: int, n: int, h: int) -> dict[str, Step]:
  keys = jax.random.split(jax.random.key(0), 2)
  q = jax.random.normal(keys[0], (b, 1, n, 2, h), jnp.bfloat16)
  cache = jax.random.normal(keys[1], (b, s, n, 4 * h), jnp.bfloat16)
  maps = (cache[..., :h], cache[..., h : 2 * h])
  v = cache[..., 2 * h :]
  return {
      "Transformer": Step(
          [q.reshape(b, 1, 2 * n, 1, h)],
          [cache.reshape(b, s, 2 * n, 2 * h)],
          [(1.0,)],
      ),
      "DIFF, a call for each map": Step(
          [q[:, :, :, i : i + 1] for i in range(2)],
          [jnp.concatenate([k, v], axis=-1) for k in maps],
          [(w,) for w in WEIGHTS],
      ),
      "DIFF": Step([q], [cache], [WEIGHTS]),
  }


def run(options: Options) -> Table:
  on_cpu = target.platform() == "cpu"
  b, s, n = CPU_SIZE if on_cpu else ACCELERATOR_SIZE
  h = 128
  if options.smoke:
    b, s, n, h = 1, 64, 2, 8
  steps = candidates(b, s, n, h)
  notes = []
  for name, step in steps.items():
    error = check_agreement(name, step()[:1], step.reference(), TOLERANCE)
    notes.append(f"{name}: equals the reference to {error:.0e}")
  one, two = steps["DIFF"](), steps["DIFF, a call for each map"]()
  check_agreement("one call and two", one, two, TOLERANCE)
  buffer = jnp.copy(steps["DIFF"].caches[0])
  num_bytes = {name: step.num_bytes for name, step in steps.items()}
  num_bytes["copy"] = 2 * buffer.nbytes
  copy = functools.partial(jax.jit(jnp.copy), buffer)
  times_s = interleave({**steps, "copy": copy}, options.rounds)
  rows = [
      {
          "candidate": name,
          "mib_a_sequence": num_bytes[name] / b / 2**20,
          **milliseconds(x),
          "gb_per_s": num_bytes[name] / float(np.median(x)) / 1e9,
          "times_transformer": ratio(x, times_s["Transformer"]).median,
      }
      for name, x in times_s.items()
  ]
  # A copy reads and writes what DIFF reads.
  bandwidth = ratio(times_s["copy"] / 2, times_s["DIFF"])
  targets = [
      Target(
          "time of DIFF / Transformer",
          ratio(times_s["DIFF"], times_s["Transformer"]),
          bound=1.08,
      ),
      Target(
          "DIFF / copy, bytes a second", bandwidth, bound=0.75, at_most=False
      ),
  ]
  title = (
      f"Decoding a token, batch {b}, {s:,} tokens cached, {n} pairs of"
      f" ({h}, {2 * h})"
  )
  return Table(title, rows, targets, notes)
