# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Whole attention layers in fp64 numpy, head by head, as the papers write them.

Nothing here is shared with the package: not even the rotary formula.
"""

import types

import jax
import jax.numpy as jnp
import numpy as np


def arrays(module):
  """A module's own weights by name, in fp64; None where it has none."""
  named = {}
  for name, value in vars(module).items():
    if name.startswith(("w_", "b_", "lambda_", "head_norm_weight")):
      is_array = hasattr(value, "shape")
      named[name] = np.asarray(value[...], np.float64) if is_array else value
  return types.SimpleNamespace(**named)


def random_module(make):
  """The module that `make()` makes, every weight, norm and bias drawn anew."""
  rng = np.random.default_rng(0)
  return jax.tree.map(
      lambda x: jnp.asarray(0.5 * rng.standard_normal(x.shape), jnp.float32),
      jax.eval_shape(make),
  )


def rope(x, positions, theta, style):
  """Rotates x [t, h]: pairs of columns as complex numbers."""
  h = x.shape[-1]
  turn = np.exp(1j * np.outer(positions, theta ** (-2 * np.arange(h // 2) / h)))
  out = np.empty_like(x)
  if style == "interleaved":
    z = (x[:, ::2] + 1j * x[:, 1::2]) * turn
    out[:, ::2], out[:, 1::2] = z.real, z.imag
  elif style == "half":
    z = (x[:, : h // 2] + 1j * x[:, h // 2 :]) * turn
    out[:, : h // 2], out[:, h // 2 :] = z.real, z.imag
  else:
    out[:] = x
  return out


def softmax_map(q, k, visible):
  """softmax(q k / sqrt(h)) over the visible keys of each row, [t, s]."""
  scores = np.where(visible, q @ k.T / np.sqrt(q.shape[-1]), -np.inf)
  scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
  return scores / scores.sum(axis=-1, keepdims=True)


def causal(t):
  return np.tri(t, dtype=bool)


def plus(x, bias):
  return x if bias is None else x + bias


def attend(w, x, weights, *, visible, style="interleaved", theta=10_000.0):
  """Heads [t, n, e] of x [t, d] before the norm.

  Args:
    w: `arrays` of the module.
    x: one sequence.
    weights: of the maps, broadcastable to [t, n, c].
    visible: [t, s], which query sees which key.
    style: of the rotary positions.
    theta: their base.
  """
  q = plus(np.einsum("td,dnch->tnch", x, w.w_q), w.b_q)
  k = plus(np.einsum("td,dkch->tkch", x, w.w_k), w.b_k)
  v = plus(np.einsum("td,dke->tke", x, w.w_v), w.b_v)
  t, n, c = q.shape[:3]
  weights = np.broadcast_to(weights, (t, n, c))
  group = n // v.shape[1]
  positions = np.arange(t)
  heads = np.zeros((t, n, v.shape[-1]))
  for head in range(n):
    kv = head // group
    for i in range(c):
      key = k[:, kv, i if k.shape[2] > 1 else 0]
      probs = softmax_map(
          rope(q[:, head, i], positions, theta, style),
          rope(key, positions, theta, style),
          visible,
      )
      heads[:, head] += weights[:, head, i, None] * (probs @ v[:, kv])
  return heads


def rms_normed(heads, weight, eps=1e-5):
  size = np.sqrt(np.mean(heads**2, axis=-1, keepdims=True) + eps)
  return heads / size * (1 if weight is None else weight)


def project_out(w, heads):
  return plus(np.einsum("tne,ned->td", heads, w.w_o), w.b_o)


def lambda_init(depth):
  return 0.8 - 0.6 * np.exp(-0.3 * depth)


def lam(w, initial):
  """Equation 2 of arXiv 2410.05258."""
  return (
      np.exp(w.lambda_q1 @ w.lambda_k1)
      - np.exp(w.lambda_q2 @ w.lambda_k2)
      + initial
  )


def apply(module, x, initial, **keywords):
  """A softmax or diff module's output for x [1, t, d].

  Args:
    module: of the package.
    x: one sequence.
    initial: lambda_init.
    **keywords: those of `attend`; `visible` is causal unless given.
  """
  w, x = arrays(module), np.asarray(x, np.float64)
  keywords.setdefault("visible", causal(x.shape[1]))
  weights = [1.0, -lam(w, initial)] if hasattr(w, "lambda_q1") else [1.0]
  heads = attend(w, x[0], weights, **keywords)
  if module.head_norm:
    heads = rms_normed(heads, w.head_norm_weight)
  if module.head_norm_scale:
    heads = heads * (1 - initial)
  return project_out(w, heads)[None]
