# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The TPU kernels, interpreted on the CPU, against the reference."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from diff_jax.kernels.attention import (
    api,
    block_sizes,
    mosaic_tpu,
    reference,
)
from tests.kernels.attention import cases

# The smallest tiles, so that short sequences have several.
TILE = block_sizes.BlockSizes(128, 128, 128, 128)
PIECES = block_sizes.BlockSizes(256, 256, 128, 128)


def _ids(*lengths_and_ids):
  return np.concatenate(
      [np.full((1, length), i, np.int32) for length, i in lengths_and_ids], 1
  )


def _interpreted(races: bool = True):
  """Races raise, and memory that nobody wrote is not a number."""
  return pltpu.force_tpu_interpret_mode(
      pltpu.InterpretParams(detect_races=races, uninitialized_memory="nan")
  )


# Each case stands for several features at once: interpreting is slow.
CASES = {
    "one_map_of_groups": (
        cases.Case(
            b=2, t=140, s=140, c=1, n=2, k=1, k_maps=1, e=8, weights=None,
            options=dict(causal=False, scale=0.1),
        ),
        {},
    ),  # fmt: skip
    "shared_keys_window": (
        cases.Case(
            t=290, s=290, n=1, k=1, k_maps=1, e=8, weights=(290, 1, 2),
            options=dict(window=50),
        ),
        {},
    ),  # fmt: skip
    "segments_per_sequence": (
        cases.Case(
            b=2, t=300, s=300, n=1, k=1,
            options=dict(segment_ids=np.concatenate([
                _ids((100, 1), (1, 2), (150, 3), (49, 4)),
                _ids((7, 0), (203, 1), (60, 2), (30, 0)),
            ])),
        ),
        {},
    ),  # fmt: skip
    "chunks_per_sequence": (
        cases.Case(
            b=2, t=86, s=172, n=1, k=1,
            h=96,
            e=192,
            options=dict(
                q_offset=np.array([[43, 129], [86, 0]], np.int32),
                kv_offset=np.array(
                    [[0, 43, 86, 129], [129, 43, 0, 86]], np.int32
                ),
            ),
        ),
        {},
    ),  # fmt: skip
    "late_keys_pieces": (
        cases.Case(t=500, s=500, n=1, k=1, options=dict(kv_offset=130)),
        dict(sizes=PIECES),
    ),
}  # fmt: skip


@functools.cache
def evaluate(name, implementation):
  """(out, lse) and the gradients of one case."""
  case, settings = CASES[name]
  inputs, cotangents = cases.make_inputs(name, case)
  weights = inputs.pop("weights", np.float32(1))
  weights = np.broadcast_to(weights, inputs["q"].shape[:-1])
  if implementation == "reference":
    op = functools.partial(reference.attention, return_lse=True)
  else:
    sizes = (settings.get("sizes", TILE),) * 2
    op = functools.partial(
        mosaic_tpu.attention, return_lse=True, block_sizes=sizes
    )

  @jax.jit
  def run(inputs, cotangents):
    (out, lse), vjp = jax.vjp(
        lambda x: op(x["q"], x["k"], x["v"], x["weights"], **case.options),
        inputs,
    )
    return dict(out=out, lse=lse), vjp((cotangents["out"], cotangents["lse"]))

  with _interpreted():
    results, (gradients,) = run(inputs | dict(weights=weights), cotangents)
    return jax.tree.map(np.asarray, (results, gradients))


@pytest.mark.parametrize("name", CASES)
def test_matches_the_reference(name):
  case, _ = CASES[name]
  (expected, expected_gradients), (actual, gradients) = (
      evaluate(name, implementation)
      for implementation in ("reference", "mosaic_tpu")
  )
  tolerance = cases.relative_tolerance(name, case)
  blind = np.isneginf(expected["lse"])
  np.testing.assert_array_equal(np.isneginf(actual["lse"]), blind)
  np.testing.assert_allclose(
      actual["lse"][~blind], expected["lse"][~blind], rtol=0, atol=tolerance
  )
  assert (actual["out"][blind.all(-1)] == 0).all()
  assert (gradients["q"][blind] == 0).all()
  for argument, x in (expected_gradients | dict(out=expected["out"])).items():
    y = actual["out"] if argument == "out" else gradients[argument]
    error = cases.relative_error(y, x)
    assert error <= tolerance, f"{argument}: {error} > {tolerance}"


def test_parts_match_the_reference():
  case = cases.Case(t=140, s=140, n=2, k=1, k_maps=1, e=8)
  inputs, cotangents = cases.make_inputs("parts", case)
  q, k, v = (jnp.asarray(inputs[name]) for name in "qkv")
  do = np.repeat(cotangents["out"][:, :, :, None], 2, axis=3)

  def run(implementation):
    def op(q, k, v):
      return api.parts(q, k, v, implementation=implementation)

    results, vjp = jax.vjp(jax.jit(op), q, k, v)
    return *results, *vjp((do, cotangents["lse"]))

  expected = run("reference")
  with _interpreted(races=False):
    actual = jax.tree.map(np.asarray, run("mosaic_tpu"))
  for x, y in zip(actual, expected, strict=True):
    assert cases.relative_error(x, y) <= 1e-5


def test_bf16_error_is_at_most_twice_that_of_xla():
  """Both round the same operands, in another order."""
  case = cases.Case(t=200, s=200, n=1, k=1, h=64, e=128)
  inputs, cotangents = cases.make_inputs("bf16", case)
  inputs = {name: jnp.asarray(inputs[name], jnp.bfloat16) for name in "qkv"}
  cotangent = jnp.asarray(cotangents["out"], jnp.bfloat16)
  weights = jnp.asarray([1, -0.8])

  def run(implementation, dtype):
    @jax.jit
    def gradients(inputs, weights):
      def op(inputs, weights):
        return api.diff_attention(
            **inputs, lam=-weights[1], implementation=implementation
        )

      out, vjp = jax.vjp(op, inputs, weights)
      x, w = vjp(cotangent.astype(dtype))
      return dict(x, out=out, weights=w[1])

    arguments = jax.tree.map(lambda x: x.astype(dtype), inputs)
    return jax.tree.map(np.asarray, gradients(arguments, weights))

  exact, rounded = run("xla", jnp.float32), run("xla", jnp.bfloat16)
  with _interpreted(races=False):
    actual = run("mosaic_tpu", jnp.bfloat16)
  for name, x in exact.items():
    error = cases.relative_error(actual[name], x)
    allowed = 2 * cases.relative_error(rounded[name], x)
    assert error <= max(allowed, 2**-8), f"{name}: {error} > {allowed}"


# Dispatch.


def test_unsupported_calls_fall_to_xla(caplog):
  api._log_once.cache_clear()
  case = cases.Case(t=20, s=20, sink=True)
  inputs, _ = cases.make_inputs("fallback", case)
  inputs = jax.tree.map(jnp.asarray, inputs)
  for _ in range(2):
    out = api.attention(**inputs, implementation="mosaic_tpu")
  expected = api.attention(**inputs, implementation="xla")
  np.testing.assert_array_equal(out, expected)
  assert caplog.text.count("sink is given") == 1


def test_lowers_for_tpu():
  mesh = jax.sharding.AbstractMesh(
      (1,), ("x",), axis_types=(jax.sharding.AxisType.Explicit,),
      abstract_device=jax.sharding.AbstractDevice(
          device_kind="TPU v5", num_cores=2, platform="tpu"
      ),
  )  # fmt: skip

  def loss(q, k, v, lam):
    out = api.diff_attention(q, k, v, lam, implementation="mosaic_tpu")
    return out.astype(jnp.float32).sum()

  shapes = [(1, 300, 2, 2, 64), (1, 300, 1, 2, 64), (1, 300, 1, 128), ()]
  with jax.sharding.use_abstract_mesh(mesh):
    arguments = [jax.ShapeDtypeStruct(s, jnp.bfloat16) for s in shapes]
    traced = jax.jit(jax.grad(loss, (0, 1, 2, 3))).trace(*arguments)
    text = traced.lower(lowering_platforms=("tpu",)).as_text()
  assert text.count("tpu_custom_call") >= 2


def test_vmap_runs_the_kernels_one_by_one():
  """Outputs and gradients of three calls at once, each with its own lambda."""
  keys = jax.random.split(jax.random.key(0), 3)
  q, k = (jax.random.normal(key, (3, 1, 160, 1, 2, 64)) for key in keys[:2])
  v = jax.random.normal(keys[2], (3, 1, 160, 1, 128))
  lam = jnp.array([0.2, 0.5, 0.8])

  def mean(implementation, q, k, v, lam):
    out = api.diff_attention(q, k, v, lam, implementation=implementation)
    return (out**2).mean()

  def run(implementation):
    one = functools.partial(mean, implementation)
    return jax.vmap(jax.value_and_grad(one, (0, 1, 2, 3)))(q, k, v, lam)

  with pltpu.force_tpu_interpret_mode():
    found = run("mosaic_tpu")
  # fp32 sums over at most 160 keys of values of order 1.
  atol = 160**0.5 * np.finfo(np.float32).eps
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=atol),
      found,
      run("reference"),
  )


def test_two_devices_have_no_races():
  """In `shard_map`, with tables of each device's own segments."""
  mesh = jax.make_mesh(
      (2,), ("batch",), axis_types=(AxisType.Explicit,),
      devices=jax.devices()[:2],
  )  # fmt: skip
  case = cases.Case(
      b=2, t=160, s=160, n=1, k=1, weights=(1, 2),
      options=dict(segment_ids=np.concatenate([
          _ids((70, 1), (70, 2), (20, 0)), _ids((10, 1), (150, 2))
      ])),
  )  # fmt: skip
  inputs, cotangents = cases.make_inputs("two_devices", case)
  segment_ids, out = case.options["segment_ids"], cotangents["out"]

  def run(implementation, inputs, segment_ids, out):
    def op(inputs):
      return api.attention(
          **inputs, segment_ids=segment_ids, implementation=implementation
      )

    result, vjp = jax.vjp(op, inputs)
    return result, vjp(out)

  inputs = jax.tree.map(jnp.asarray, inputs)
  expected = jax.jit(functools.partial(run, "reference"))(
      inputs, segment_ids, out
  )
  with jax.set_mesh(mesh), _interpreted():
    spread = {name: P("batch") for name in "qkv"} | dict(weights=P())
    found = jax.jit(functools.partial(run, "mosaic_tpu"))(
        {name: jax.device_put(x, spread[name]) for name, x in inputs.items()},
        *(jax.device_put(x, P("batch")) for x in (segment_ids, out)),
    )
    found = jax.tree.map(np.asarray, found)
  for x, y in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
    assert cases.relative_error(x, y) <= 1e-5
