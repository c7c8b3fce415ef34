# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments of `decode` raise a ValueError that names them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from diff_jax.kernels.attention.decode import decode

pytestmark = pytest.mark.usefixtures("no_shape_checks")

Q, CACHE = (4, 3, 4, 2, 8), (4, 88, 2, 32)


def zeros(shape, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(shape, dtype)


BAD = {
    "q_rank": (dict(q=zeros((4, 3, 4, 16))), ["q.shape", "(4, 3, 4, 16)"]),
    "cache_rank": (dict(cache=zeros((4, 88, 64))), ["cache.shape", "4 axes"]),
    "cache_dtype": (
        dict(cache=zeros(CACHE, jnp.bfloat16)),
        ["cache.dtype=bfloat16", "float32"],
    ),
    "integer_q": (
        dict(
            q=zeros(Q, jnp.int32),
            cache=zeros(CACHE, jnp.int32),
            new_kv=None,
        ),
        ["q.dtype=int32"],
    ),
    "new_kv": (
        dict(new_kv=zeros((4, 2, 2, 32))),
        ["new_kv.shape=(4, 2, 2, 32)", "(4, 3, 2, 32)"],
    ),
    "key_width": (
        dict(value_dim=12),
        ["value_dim=12", "20", "16", "8", "share"],
    ),
    "value_dim": (dict(value_dim=32), ["value_dim=32", "31"]),
    "heads": (
        dict(q=zeros((4, 3, 3, 2, 8))),
        ["cache.shape", "2 kv heads", "3 heads"],
    ),
    "batch": (
        dict(cache=zeros((3, 88, 2, 32))),
        ["cache.shape=(3, 88, 2, 32)", "batch 4", "page_table"],
    ),
    "lengths": (dict(lengths=zeros((3,), jnp.int32)), ["lengths", "(4,)"]),
    "real_lengths": (dict(lengths=zeros((4,))), ["lengths", "float32"]),
    "page_table": (
        dict(page_table=zeros((3, 5), jnp.int32)),
        ["page_table.shape=(3, 5)", "4"],
    ),
    "real_page_table": (
        dict(page_table=zeros((4, 5))),
        ["page_table.dtype=float32"],
    ),
    "too_many": (
        dict(cache=zeros((4, 2, 2, 32))),
        ["3 tokens", "2 positions"],
    ),
    "weights": (dict(weights=zeros((3,))), ["weights.shape=(3,)"]),
    "window": (dict(window=0), ["window=0"]),
    "scale": (dict(scale="1"), ["scale='1'"]),
    "implementation": (dict(implementation="cuda"), ["implementation='cuda'"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_wrong_argument_is_named(name):
  wrong, words = BAD[name]
  good = dict(
      q=zeros(Q),
      new_kv=zeros((4, 3, 2, 32)),
      cache=zeros(CACHE),
      weights=zeros((2,)),
      lengths=zeros((4,), jnp.int32),
      value_dim=16,
  )
  given = good | wrong
  static = {
      key: x
      for key, x in given.items()
      if not isinstance(x, jax.ShapeDtypeStruct)
  }
  arrays = {key: x for key, x in given.items() if key not in static}
  jax.eval_shape(
      functools.partial(decode, value_dim=16),
      **{key: x for key, x in good.items() if key != "value_dim"},
  )
  with pytest.raises(ValueError) as error:
    jax.eval_shape(functools.partial(decode, **static), **arrays)
  for word in words:
    assert word in str(error.value)


@pytest.fixture(scope="module")
def mesh():
  """Batch over four devices, heads over two."""
  return jax.make_mesh(
      (4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 2
  )


@pytest.mark.parametrize(
    "specs, words",
    [
        (dict(q=P(None, "fsdp")), ["q is sharded", "length"]),
        (dict(q=P("fsdp")), ["cache is sharded", "moved"]),
        (
            dict(q=P("fsdp"), cache=P("fsdp", "tensor")),
            ["cache is sharded", "tensor"],
        ),
        (
            dict(q=P(None, None, "fsdp"), cache=P()),
            ["cache.shape", "2 kv heads", "4 devices"],
        ),
        (dict(q=P("fsdp"), page_table=P()), ["page_table", "batch"]),
    ],
)
def test_a_wrong_sharding_is_refused(mesh, specs, words):
  shapes = dict(q=(4, 4, 4, 2, 8), cache=CACHE, page_table=(4, 2))
  if "page_table" not in specs:
    del shapes["page_table"]
  arrays = {
      key: jax.ShapeDtypeStruct(
          shape,
          jnp.int32 if key == "page_table" else jnp.float32,
          sharding=NamedSharding(mesh, specs.get(key, P())),
      )
      for key, shape in shapes.items()
  }
  function = functools.partial(
      decode, new_kv=None, lengths=np.zeros(4, np.int32), value_dim=16
  )
  with jax.set_mesh(mesh), pytest.raises(ValueError) as error:
    jax.eval_shape(function, **arrays)
  for word in words:
    assert word in str(error.value)
