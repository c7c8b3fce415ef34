# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Decoding over a cache is attention over the whole sequence."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from diff_jax.kernels.attention import api, decode_xla, target
from diff_jax.kernels.attention.decode import decode
from tests.kernels.attention import cases, numpy_attention
from tests.kernels.attention.decode_cases import (
    CAPACITY,
    CASES,
    arguments,
    assert_written,
    check,
    definition,
    differs,
    options,
    pack,
    paged,
    rows_of,
    run,
)

layouts = pytest.mark.parametrize("layout", ["dense", "paged"])
# One for each of the two paths.
both_paths = pytest.mark.parametrize("name", ["3_grouped_window", "17_window"])


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
  """Tiles of 16 positions, which do not divide the capacity."""
  monkeypatch.setattr(decode_xla, "CPU_TILE_BYTES", 1)
  monkeypatch.setattr(decode_xla, "MIN_BLOCK", 16)


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_definition(name):
  given = arguments(name, "dense")
  assert_written(check(name, given), given)


@pytest.mark.parametrize("name", ["1", "3_grouped_window", "17_window"])
def test_pages_are_the_definition(name):
  given = arguments(name, "paged")
  assert_written(check(name, given), given)


@pytest.mark.parametrize("name", ["3_grouped_window", "16_shared_keys"])
def test_one_tile_is_the_definition(name, monkeypatch):
  """What is compiled for GPU."""
  monkeypatch.setattr(target, "platform", lambda: "gpu")
  check(name, arguments(name, "dense"))


def test_the_reference_decodes_too():
  given = arguments("3_grouped_window", "paged")
  check("3_grouped_window", given, implementation="reference")


@pytest.mark.parametrize(
    "name, layout", [("3_grouped_window", "paged"), ("17_window", "dense")]
)
def test_tokens_that_the_cache_holds_already(name, layout):
  given = arguments(name, layout, new=False)
  cache = check(name, given)
  np.testing.assert_array_equal(cache, given["cache"])


def test_a_query_before_the_first_token_sees_nothing():
  given = arguments("3_one_map", "dense", new=False)
  given["lengths"] = np.array([0, 1, 3], np.int32)
  out = np.asarray(run("3_one_map", given)[0])
  for i, length in enumerate(given["lengths"]):
    assert not out[i, : 3 - length].any()
    assert out[i, 3 - length :].all()


@both_paths
def test_bf16(name):
  """Rounded are the probabilities and the result, each by 2^-9 at most."""
  given = arguments(name, "paged", jnp.bfloat16)
  out, _ = run(name, given)
  assert out.dtype == jnp.bfloat16
  inputs, _ = cases.make_inputs(name, CASES[name])
  rounded = {
      key: np.asarray(jnp.asarray(inputs[key], jnp.bfloat16), np.float64)
      for key in "qkv"
  }
  o, _ = numpy_attention.parts(**rounded, **CASES[name].options)
  weights = np.broadcast_to(inputs["weights"], o.shape[:-1])[..., None]
  exact = (weights * o).sum(3)
  error = np.linalg.norm(np.asarray(out, np.float64) - exact)
  terms = np.linalg.norm(weights * o) + np.linalg.norm(exact)
  assert error <= 2**-8 * terms


@layouts
def test_token_by_token_is_one_pass(layout):
  b, s, n, k, h, e = 2, CAPACITY, 4, 2, 8, 16
  whole = cases.Case(b=b, t=s, s=s, n=n, k=k, h=h, e=e, weights=(b, s, n, 2))
  inputs, _ = cases.make_inputs("tokens", whole)
  inputs = jax.tree.map(jnp.asarray, inputs)
  q, keys, v, weights = (inputs[x] for x in ("q", "k", "v", "weights"))
  rows, table = pack(keys, v), None
  cache = np.zeros_like(rows)
  if layout == "paged":
    cache, table = map(jnp.asarray, paged(rows, [0, 0]))
  step = jax.jit(
      functools.partial(decode, value_dim=e, window=30, page_table=table)
  )
  cache, outs, done = jnp.asarray(cache), [], 0
  for t in [17, *[1] * 23, 17, *[1] * 31]:
    lengths = np.full(b, done, np.int32)
    new = slice(done, done + t)
    out, cache = step(
        q[:, new], rows[:, new], cache, weights[:, new], lengths=lengths
    )
    outs.append(out)
    done += t
  assert done == s
  expected = api.attention(**inputs, window=30)
  tolerance = cases.relative_tolerance("tokens", whole)
  tolerance *= np.abs(weights).sum(-1).max() * np.abs(v).max()
  np.testing.assert_allclose(
      jnp.concatenate(outs, axis=1), expected, rtol=0, atol=tolerance
  )


@layouts
def test_what_does_not_fit_is_dropped(layout):
  given = arguments("3_one_map", layout)
  if layout == "paged":  # all pages are real: none may be hit by mistake
    rows = rows_of(np.asarray(given["cache"]), given)
    given["cache"], given["page_table"] = paged(rows, [CAPACITY] * 3)
  given["lengths"] = np.array([CAPACITY - 1, CAPACITY, 10**6], np.int32)
  before = np.asarray(given["cache"])
  cache = np.asarray(run("3_one_map", given)[1])
  expected = np.array(rows_of(before, given))
  expected[0, -1] = given["new_kv"][0, 0]
  np.testing.assert_array_equal(rows_of(cache, given), expected)
  assert differs(cache, before).sum() == 1


@layouts
def test_tiles_that_no_query_sees_are_not_read(layout):
  given = arguments("3_grouped_window", layout)
  given["lengths"] = np.array([40, 41, 43], np.int32)  # see 32 to 45
  rows = np.full((3, CAPACITY, 2, 32), np.nan, np.float32)
  rows[:, 32:48] = 1
  given["cache"] = rows
  if layout == "paged":
    pages, table = paged(rows, [CAPACITY] * 3)
    given |= dict(cache=pages, page_table=table)
  assert np.isfinite(run("3_grouped_window", given)[0]).all()


# The compiled program.


@pytest.mark.parametrize("t, layout", [(1, "dense"), (16, "paged")])
def test_a_donated_cache_is_written_in_place(t, layout, monkeypatch):
  monkeypatch.undo()  # tiles of the real size
  b, s, n, k, h, e = 2, 32_768, 4, 2, 16, 32
  r, page_size = 2 * h + e, 64
  shape = (b, s, k, r)
  table = None
  if layout == "paged":
    shape = (b * s // page_size, page_size, k, r)
    table = jax.ShapeDtypeStruct((b, s // page_size), jnp.int32)
  step = functools.partial(decode, value_dim=e)
  compiled = (
      jax.jit(step, donate_argnums=2)
      .lower(
          jax.ShapeDtypeStruct((b, t, n, 2, h), jnp.float32),
          jax.ShapeDtypeStruct((b, t, k, r), jnp.float32),
          jax.ShapeDtypeStruct(shape, jnp.float32),
          jax.ShapeDtypeStruct((2,), jnp.float32),
          lengths=jax.ShapeDtypeStruct((b,), jnp.int32),
          page_table=table,
      )
      .compile()
  )
  cache_bytes = 4 * np.prod(shape)
  memory = compiled.memory_analysis()
  assert memory.alias_size_in_bytes >= cache_bytes
  # The slices of one tile and its scores.
  assert memory.temp_size_in_bytes <= 3 * decode_xla.CPU_TILE_BYTES
  for dims in re.findall(r"= f32\[([\d,]+)\]\S* copy\(", compiled.as_text()):
    elements = np.prod([int(x) for x in dims.split(",")])
    assert 4 * elements <= decode_xla.CPU_TILE_BYTES


@pytest.mark.parametrize("platform", ["tpu", "cuda"])
@layouts
def test_lowers_for_another_platform(platform, layout, monkeypatch):
  kind = dict(tpu="tpu", cuda="gpu")[platform]
  monkeypatch.setattr(target, "platform", lambda: kind)
  given = arguments("3_grouped_window", layout)
  function = functools.partial(decode, **options("3_grouped_window"))
  lowered = (
      jax.jit(function).trace(**given).lower(lowering_platforms=(platform,))
  )
  assert "@main" in lowered.as_text()


# On a mesh.


@pytest.fixture(scope="module")
def mesh():
  """Batch over four devices, heads over two."""
  return jax.make_mesh(
      (4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 2
  )


def on_four(name):
  """The case's arguments and result with its last sequence once more."""

  def twice(x):
    return np.concatenate([x, x[-1:]])

  given = arguments(name, "dense")
  for key in ("q", "new_kv", "cache", "lengths"):
    given[key] = twice(given[key])
  expected, tolerance = definition(name)
  return given, twice(expected), tolerance


@pytest.mark.parametrize(
    "name, layout",
    [
        ("3_grouped_window", "dense"),
        ("17_window", "dense"),
        ("3_grouped_window", "paged"),
    ],
)
def test_on_a_mesh(mesh, name, layout):
  if layout == "dense":
    given, expected, tolerance = on_four(name)
  else:  # all sequences on all devices, since they share the pages
    given, (expected, tolerance) = arguments(name, layout), definition(name)
  batch = "fsdp" if layout == "dense" else None
  rows = P(batch, None, "tensor")
  specs = dict(q=rows, new_kv=rows, cache=rows, lengths=P(batch))
  with jax.set_mesh(mesh):
    placed = {
        key: jax.device_put(x, NamedSharding(mesh, specs.get(key, P())))
        for key, x in given.items()
    }
    out, cache = run(name, placed)
  for x in (out, cache):
    assert tuple(x.sharding.spec[:3]) == tuple(rows)
  np.testing.assert_allclose(out, expected, rtol=0, atol=tolerance)
  assert_written(cache, given)


def test_pages_of_a_device():
  """In a shard_map over sequences every device has a pool of its own."""
  name = "3_grouped_window"
  given, expected, tolerance = on_four(name)
  pools = [
      paged(rows[None], [length])
      for rows, length in zip(given["cache"], given["lengths"], strict=True)
  ]
  pages, table = map(np.concatenate, zip(*pools, strict=True))
  given |= dict(cache=pages, page_table=table)
  weights = given.pop("weights")
  function = functools.partial(decode, **options(name))
  on_all = jax.shard_map(
      lambda given, weights: function(weights=weights, **given),
      mesh=jax.make_mesh((4,), ("pool",), axis_types=(AxisType.Auto,)),
      in_specs=(P("pool"), P()),
      out_specs=P("pool"),
  )
  out, cache = jax.jit(on_all)(given, weights)
  np.testing.assert_allclose(out, expected, rtol=0, atol=tolerance)
  assert differs(np.asarray(cache), pages).sum() == 4 * CASES[name].t
