# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""On an explicit mesh the op gives what it gives on one device."""

import functools

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import diff_jax
from diff_jax.kernels.attention import api
from tests.kernels.attention import cases

CASE = cases.Case(
    b=4, t=24, s=24, n=4, weights=(4, 24, 4, 2), sink=True, bias_slopes=True
)
MASKS = dict(
    segment_ids=np.repeat([[1, 2, 0]], [9, 12, 3], axis=1)
    .repeat(4, axis=0)
    .astype(np.int32),
    q_offset=np.array([2, 0, 7, 1], np.int32),
    kv_offset=np.array([[0, 12]], np.int32),
)
# What a model has: parameters whole on every device; and all that can be split.
LAYOUTS = {
    "whole_parameters": dict(
        weights=P(), sink=P(), bias_slopes=P(), segment_ids=P(), q_offset=P()
    ),
    "split_parameters": dict(
        weights=P("fsdp", None, "tensor"),
        sink=P("tensor"),
        bias_slopes=P("tensor"),
        segment_ids=P("fsdp"),
        q_offset=P("fsdp"),
    ),
}
ROWS = P("fsdp", None, "tensor")

implementations = pytest.mark.parametrize(
    "implementation", ["reference", "xla"]
)


@pytest.fixture(scope="module")
def mesh():
  """Batch over four devices, heads over two."""
  return jax.make_mesh(
      (4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 2
  )


def put(mesh, arrays, specs):
  return {
      name: jax.device_put(x, NamedSharding(mesh, specs.get(name, P())))
      for name, x in arrays.items()
  }


def assert_equal(actual, expected, tolerance):
  """Relative to each array's norm: the devices sum in another order."""
  for name, x in expected.items():
    difference = np.linalg.norm(np.asarray(actual[name]) - x)
    assert difference <= tolerance * np.linalg.norm(x), name


def results(function, inputs, masks, cotangent):
  """The output and all gradients of one call, as a dict of arrays."""

  @jax.jit
  def run(inputs, masks, cotangent):
    out, vjp = jax.vjp(lambda inputs: function(**inputs, **masks), inputs)
    return dict(vjp(cotangent)[0], out=out)

  return run(inputs, masks, cotangent)


@implementations
@pytest.mark.parametrize("layout", LAYOUTS)
def test_all_arguments(mesh, layout, implementation):
  inputs, cotangents = cases.make_inputs("sharding", CASE)
  op = functools.partial(api.attention, implementation=implementation)
  expected = results(op, inputs, MASKS, cotangents["out"])
  specs = dict(q=ROWS, k=ROWS, v=ROWS, out=ROWS) | LAYOUTS[layout]
  with jax.set_mesh(mesh):
    actual = results(
        op,
        put(mesh, inputs, specs),
        put(mesh, MASKS, specs),
        put(mesh, cotangents, specs)["out"],
    )
  assert actual["out"].sharding.spec[:3] == tuple(ROWS)
  # fp32 of eps 1.2e-7: 4 x eps x sqrt(the longest sum: b, t, s of a slope).
  tolerance = 4 * np.finfo(np.float32).eps * (4 * 24 * 24) ** 0.5
  assert_equal(actual, jax.tree.map(np.asarray, expected), tolerance)


@implementations
def test_scalar_lambda(mesh, implementation):
  inputs, cotangents = cases.make_inputs("sharding", CASE)
  inputs = {name: inputs[name] for name in "qkv"} | dict(lam=np.float32(0.8))
  op = functools.partial(diff_jax.diff_attention, implementation=implementation)
  expected = results(op, inputs, {}, cotangents["out"])
  specs = dict(q=ROWS, k=ROWS, v=ROWS, out=ROWS)
  with jax.set_mesh(mesh):
    actual = results(
        op,
        put(mesh, inputs, specs),
        {},
        put(mesh, cotangents, specs)["out"],
    )
  assert actual["lam"].sharding.is_fully_replicated
  # dlam is a sum of b x t x n x e terms of both signs: relative to its size
  # this is the walk's error times the cancellation, sqrt(terms) again.
  terms = cotangents["out"].size
  tolerance = 4 * np.finfo(np.float32).eps * terms**0.5
  assert_equal(actual, jax.tree.map(np.asarray, expected), tolerance)


@implementations
def test_inside_a_shard_map_over_the_length(implementation):
  """Context parallelism: queries split, keys, values and lambda whole."""
  inputs, cotangents = cases.make_inputs("sharding", CASE)
  inputs = {name: inputs[name] for name in "qkv"} | dict(lam=np.float32(0.8))
  op = functools.partial(diff_jax.diff_attention, implementation=implementation)
  shard_length = CASE.t // 8

  def one_device(q, k, v, lam):
    q_offset = shard_length * jax.lax.axis_index("context")
    return op(q, k, v, lam, q_offset=q_offset)

  rows = P(None, "context")
  on_all = jax.shard_map(
      one_device,
      mesh=jax.make_mesh((8,), ("context",), axis_types=(AxisType.Auto,)),
      in_specs=(rows, P(), P(), P()),
      out_specs=rows,
  )
  expected = results(op, inputs, {}, cotangents["out"])
  actual = results(
      lambda q, k, v, lam: on_all(q, k, v, lam), inputs, {}, cotangents["out"]
  )
  tolerance = 4 * np.finfo(np.float32).eps * cotangents["out"].size ** 0.5
  assert_equal(actual, jax.tree.map(np.asarray, expected), tolerance)


@pytest.mark.usefixtures("no_shape_checks")
def test_a_kv_head_that_two_devices_need_is_refused(mesh):
  inputs, _ = cases.make_inputs("sharding", CASE)
  q, k, v = inputs["q"], inputs["k"][:, :, :1], inputs["v"][:, :, :1]
  specs = dict(q=ROWS, k=P("fsdp"), v=P("fsdp"))
  with jax.set_mesh(mesh), pytest.raises(ValueError) as error:
    jax.jit(api.attention)(**put(mesh, dict(q=q, k=k, v=v), specs))
  assert "k.shape=(4, 24, 1, 2, 8)" in str(error.value)


@pytest.mark.usefixtures("no_shape_checks")
def test_a_sharded_length_is_refused(mesh):
  inputs, _ = cases.make_inputs("sharding", CASE)
  specs = dict(q=P(None, "fsdp"), k=P(), v=P())
  arrays = {name: inputs[name] for name in "qkv"}
  with jax.set_mesh(mesh), pytest.raises(ValueError) as error:
    jax.jit(api.attention)(**put(mesh, arrays, specs))
  assert "q is sharded" in str(error.value) and "fsdp" in str(error.value)
