# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Programs that are compiled or lowered, never run: memory and platforms."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import diff_jax

_GIB = 2**30


def value_and_grads(q, k, v, lam, implementation="xla"):
  def loss(*arguments):
    out = diff_jax.diff_attention(*arguments, implementation=implementation)
    return out.astype(jnp.float32).sum()

  return jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(q, k, v, lam)


def arguments(length, dtype, sharding=None):
  """Heads of the paper's width, h = 64, e = 128: one, or one a device."""
  b, n = (1, 1) if sharding is None else (4, 2)
  rows = functools.partial(jax.ShapeDtypeStruct, dtype=dtype, sharding=sharding)
  return (
      rows((b, length, n, 2, 64)),
      rows((b, length, n, 2, 64)),
      rows((b, length, n, 128)),
      jax.ShapeDtypeStruct((), jnp.float32),
  )


@functools.cache
def temporaries_bytes(length, dtype):
  compiled = jax.jit(value_and_grads).lower(*arguments(length, dtype)).compile()
  return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_temporaries_of_64k_tokens_are_under_a_gib(dtype):
  assert temporaries_bytes(65_536, dtype) < _GIB


def test_temporaries_grow_linearly():
  short = temporaries_bytes(32_768, "float32")
  assert temporaries_bytes(65_536, "float32") <= 2.1 * short


DEVICES = {
    "tpu": jax.sharding.AbstractDevice("TPU v5", 1, "tpu"),
    "cuda": jax.sharding.AbstractDevice("NVIDIA H200", None, "cuda"),
}


@pytest.mark.parametrize("implementation", [None, "xla"])
@pytest.mark.parametrize("on_a_mesh", [False, True])
@pytest.mark.parametrize("platform", DEVICES)
def test_lowers_for_another_platform(platform, on_a_mesh, implementation):
  context, sharding = contextlib.nullcontext(), None
  if on_a_mesh:
    mesh = jax.sharding.AbstractMesh(
        (4, 2),
        ("fsdp", "tensor"),
        axis_types=(AxisType.Explicit,) * 2,
        abstract_device=DEVICES[platform],
    )
    context = jax.sharding.use_abstract_mesh(mesh)
    sharding = NamedSharding(mesh, P("fsdp", None, "tensor"))
  run = functools.partial(value_and_grads, implementation=implementation)
  with context:
    traced = jax.jit(run).trace(*arguments(1024, jnp.bfloat16, sharding))
    lowered = traced.lower(lowering_platforms=(platform,))
  assert "@main" in lowered.as_text()
