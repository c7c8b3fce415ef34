# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The XLA attention op against the reference, and two maps against one.

Causal, fp32. "one map" is what the Transformer runs in place of the pairs:
twice the heads, each with one map of the same width and half the value.
"""

import functools

import jax
import jax.numpy as jnp

from diff_jax.bench import Options
from diff_jax.bench.table import (
    Table,
    Target,
    check_agreement,
    milliseconds,
)
from diff_jax.bench.timing import interleave, ratio
from diff_jax.kernels.attention import api

# b, n pairs of maps, h
SIZES = {"tiny_lm (16, 32)": (2, 3, 16), "(64, 128)": (1, 4, 64)}
TOLERANCE = 1e-4  # relative Frobenius error of outputs and gradients


def two_maps(q, k, v, lam, implementation):
  return api.diff_attention(q, k, v, lam, implementation=implementation)


def one_map(q, k, v, lam, implementation):
  """The same arrays as ordinary heads: every map with half of the value."""
  del lam
  b, t, n, c, h = q.shape
  q, k = (x.reshape(b, t, n * c, 1, h) for x in (q, k))
  v = v.reshape(b, t, n * c, h)
  return api.attention(q, k, v, implementation=implementation)


CANDIDATES = {
    "xla": functools.partial(two_maps, implementation="xla"),
    "reference": functools.partial(two_maps, implementation="reference"),
    "xla, one map": functools.partial(one_map, implementation="xla"),
}


def inputs(b: int, t: int, n: int, h: int):
  """q, k, v, lambda and the gradient of the output."""
  keys = jax.random.split(jax.random.key(0), 4)
  q, k = (jax.random.normal(key, (b, t, n, 2, h)) for key in keys[:2])
  v, gradient = (jax.random.normal(key, (b, t, n, 2 * h)) for key in keys[2:])
  return (q, k, v, jnp.full((), 0.8)), gradient


def forward(function, arguments, gradient):
  del gradient
  return function(*arguments)


def forward_backward(function, arguments, gradient):
  out, pullback = jax.vjp(function, *arguments)
  return out, pullback(gradient.reshape(out.shape))


PASSES = {"forward": forward, "forward+backward": forward_backward}


def run(options: Options) -> Table:
  t = 64 if options.smoke else 2048
  rows, targets, notes = [], [], []
  sizes = list(SIZES.items())[: 1 if options.smoke else None]
  for size, (b, n, h) in sizes:
    arguments = inputs(b, t, n, h)
    for what, passes in PASSES.items():
      calls = {}
      for name, function in CANDIDATES.items():
        call = jax.jit(functools.partial(passes, function))
        calls[name] = functools.partial(call, *arguments)
      label = f"{size}, {what}"
      error = check_agreement(
          label, calls["xla"](), calls["reference"](), TOLERANCE
      )
      notes.append(f"{label}: equals the reference to {error:.0e}")
      times_s = interleave(calls, options.rounds)
      for name, x in times_s.items():
        row = {"size": size, "pass": what, "candidate": name}
        row |= milliseconds(x)
        row["times_xla"] = ratio(x, times_s["xla"]).median
        rows.append(row)
      if what == "forward+backward":
        speedup = ratio(times_s["reference"], times_s["xla"])
        targets.append(
            Target(f"{label}: reference / xla", speedup, 1.5, at_most=False)
        )
  return Table(f"Attention op at {t} tokens", rows, targets, notes)
