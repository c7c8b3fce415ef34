# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What holds for every attention op, whatever its inputs: no numbers here.

Tolerances are `cases.relative_tolerance` unless a test asks for equal bits.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diff_jax
from diff_jax.kernels.attention import api
from tests.kernels.attention import cases

IMPLEMENTATIONS = ("reference", "xla")
CASE = cases.Case(t=70, s=70, n=4, k=2)
LAM = 0.8

pytestmark = [
    pytest.mark.parametrize("implementation", IMPLEMENTATIONS),
    pytest.mark.usefixtures("small_blocks"),
]


def qkv(name="properties", case=CASE):
  inputs, _ = cases.make_inputs(name, case)
  return tuple(map(jnp.asarray, (inputs["q"], inputs["k"], inputs["v"])))


def tolerance(case=CASE, lam=LAM):
  """Absolute error of an output: its relative error times its largest term."""
  inputs, _ = cases.make_inputs("properties", case)
  largest = (1 + abs(lam)) * np.abs(inputs["v"]).max()
  return cases.relative_tolerance("properties", case) * largest


def assert_close(actual, expected):
  """Every array of two trees, relative to the array's norm."""
  allowed = cases.relative_tolerance("properties", CASE)
  for a, b in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
    assert jnp.linalg.norm(a - b) <= allowed * jnp.linalg.norm(b)


def op(implementation, **keywords):
  """A new compiled `diff_attention`, so that no test sees another's cache."""
  return jax.jit(
      functools.partial(
          diff_jax.diff_attention, implementation=implementation, **keywords
      )
  )


def test_lambda_of_zero_is_plain_attention(implementation):
  q, k, v = qkv()
  plain = jax.jit(
      functools.partial(api.attention, implementation=implementation)
  )(q[:, :, :, :1], k[:, :, :, :1], v)
  actual = op(implementation)(q, k, v, jnp.float32(0))
  np.testing.assert_allclose(actual, plain, rtol=0, atol=tolerance(lam=0))


def test_rows_sum_to_one_minus_lambda(implementation):
  q, k, v = qkv()
  out = op(implementation)(q, k, jnp.ones_like(v), LAM)
  np.testing.assert_allclose(
      out, np.full_like(out, 1 - LAM), rtol=0, atol=tolerance()
  )


def test_equal_maps_cancel_at_lambda_one(implementation):
  q, k, v = qkv()
  q = jnp.broadcast_to(q[:, :, :, :1], q.shape)
  k = jnp.broadcast_to(k[:, :, :, :1], k.shape)

  @jax.jit
  def run(*arguments):
    out, vjp = jax.vjp(op(implementation), *arguments)
    return out, vjp(jnp.ones_like(out))

  out, gradients = run(q, k, v, jnp.float32(1))
  np.testing.assert_allclose(
      out, np.zeros_like(out), rtol=0, atol=tolerance(lam=1)
  )
  assert all(jnp.isfinite(gradient).all() for gradient in gradients)


def test_causality_by_exactly_zero_gradients(implementation):
  q, k, v = qkv()
  query = 40

  @jax.jit
  def gradients(q, k, v, lam):
    def one_row(q, k, v, lam):
      return op(implementation)(q, k, v, lam)[:, query].sum()

    return jax.grad(one_row, argnums=(0, 1, 2))(q, k, v, lam)

  dq, dk, dv = gradients(q, k, v, LAM)
  others = np.arange(CASE.t) != query
  assert (dq[:, others] == 0).all() and (dq[:, query] != 0).all()
  assert (dk[:, query + 1 :] == 0).all() and (dk[:, : query + 1] != 0).all()
  assert (dv[:, query + 1 :] == 0).all() and (dv[:, : query + 1] != 0).all()


def test_segments_are_isolated_to_the_bit(implementation):
  q, k, v = qkv()
  segment_ids = np.repeat([[1, 2, 0]], [30, 33, 7], axis=1).astype(np.int32)
  in_second = (segment_ids == 2)[..., None, None]
  attention = op(implementation, causal=False)
  out = attention(q, k, v, LAM, segment_ids=segment_ids)
  k = jnp.where(in_second[..., None], 50 * k + 9, k)
  v = jnp.where(in_second, 50 * v + 9, v)
  changed = attention(q, k, v, LAM, segment_ids=segment_ids)
  first = np.asarray(segment_ids == 1)
  np.testing.assert_array_equal(changed[first], out[first])
  assert (changed[segment_ids == 2] != out[segment_ids == 2]).all()
  assert (changed[segment_ids == 0] == 0).all()


def test_parts_merge_over_key_shards(implementation):
  q, k, v = qkv()
  half = CASE.s // 2
  parts = functools.partial(api.parts, window=30, implementation=implementation)

  def whole(q, k, v):
    return parts(q, k, v)

  def merged(q, k, v):
    shards = [
        parts(q, k[:, at], v[:, at], kv_offset=jnp.int32(at.start))
        for at in (slice(0, half), slice(half, 2 * half))
    ]
    (left, right), (left_lse, right_lse) = zip(*shards, strict=True)
    lse = jnp.logaddexp(left_lse, right_lse)
    left = jnp.exp(left_lse - lse)[..., None] * left
    return left + jnp.exp(right_lse - lse)[..., None] * right, lse

  cotangents = tuple(
      jnp.asarray(cases.make_inputs("parts", CASE)[1][name])
      for name in ("out", "lse")
  )

  def run(function):
    def results(q, k, v):
      (out, lse), vjp = jax.vjp(function, q, k, v)
      cotangent = jnp.broadcast_to(cotangents[0][:, :, :, None], out.shape)
      return out, lse, *vjp((cotangent, cotangents[1]))

    return jax.jit(results)(q, k, v)

  # The first and the last rows see keys of one shard only.
  assert_close(run(merged), run(whole))


def test_vmap_is_a_loop(implementation):
  calls = [qkv(name) for name in ("first", "second", "third")]
  q, k, v = map(jnp.stack, zip(*calls, strict=True))
  lams = jnp.array([0.2, 0.8, 1.5], jnp.float32)
  offsets = jnp.array([0, 30, 5], jnp.int32)

  def run(q, k, v, lam, kv_offset):
    attention = op(implementation, window=20)

    def loss(*arguments):
      return (attention(*arguments, kv_offset=kv_offset) ** 2).sum()

    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(q, k, v, lam)

  one = jax.jit(run)
  mapped = jax.jit(jax.vmap(run))(q, k, v, lams, offsets)
  for i, call in enumerate(calls):
    expected = one(*call, lams[i], offsets[i])
    actual = jax.tree.map(lambda x, i=i: x[i], mapped)
    assert_close(actual, expected)


def test_traced_offsets_compile_once(implementation):
  q, k, v = qkv()
  traces = []

  @jax.jit
  def decode(q, k, v, q_offset):
    traces.append(q_offset)
    return diff_jax.diff_attention(
        q, k, v, LAM, q_offset=q_offset, implementation=implementation
    )

  whole = op(implementation)(q, k, v, LAM)
  for position in (0, 31, 69):
    row = slice(position, position + 1)
    out = decode(q[:, row], k, v, jnp.int32(position))
    np.testing.assert_allclose(out, whole[:, row], rtol=0, atol=tolerance())
  assert len(traces) == 1


def test_two_runs_give_equal_bits(implementation):
  q, k, v = qkv()

  def loss(*arguments):
    return (op(implementation)(*arguments) ** 2).sum()

  run = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2, 3)))
  jax.tree.map(
      np.testing.assert_array_equal, run(q, k, v, LAM), run(q, k, v, LAM)
  )
