# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Tiles of the TPU kernels: what they are, and that they fit."""

import dataclasses

import jax
import jax.numpy as jnp
import pytest

from diff_jax.kernels.attention import (
    block_sizes,
    mosaic_tpu,
    mosaic_tpu_sizes,
)
from diff_jax.kernels.attention.block_sizes import MIB, BlockSizes
from diff_jax.kernels.attention.mosaic_tpu_plan import make_plan

KINDS = (*block_sizes.CHIPS, "another")
# What the compiler of libtpu 0.0.50.1 asked for, in MiB, on v5p and v6e: h, e,
# dtype, maps, rows of a block and of a piece, forward, backward.
COMPILED = (
    (128, 256, "bfloat16", 2, 1024, 512, 11.52, 13.86),
    (128, 256, "bfloat16", 2, 1024, 1024, 13.59, 23.54),
    (128, 256, "bfloat16", 2, 2048, 512, 23.57, 24.87),
    (256, 512, "bfloat16", 2, 1024, 512, 19.53, 25.43),
    (256, 512, "bfloat16", 2, 1024, 1024, 20.06, 33.88),
    (64, 128, "bfloat16", 2, 1024, 512, 7.79, 8.19),
    (128, 128, "bfloat16", 1, 1024, 512, 4.67, 6.99),
    (128, 256, "float32", 2, 512, 128, 8.03, 9.51),
    (128, 256, "float32", 2, 512, 512, 8.03, 15.76),
    (256, 512, "float32", 2, 256, 256, 10.98, 13.29),
)


def plan(h, e, dtype, maps=2, t=4096, **masks):
  q = jax.ShapeDtypeStruct((1, t, 2, maps, h), dtype)
  v = jax.ShapeDtypeStruct((1, t, 2, e), dtype)
  return make_plan(q, q, v, out_dtype=dtype, first_weight_is_one=True, **masks)


def needs(plan, dtype):
  itemsize = jnp.dtype(dtype).itemsize
  return (
      mosaic_tpu_sizes.forward_vmem_bytes(plan.shape, plan.forward, itemsize),
      mosaic_tpu_sizes.backward_vmem_bytes(plan.shape, plan.backward, itemsize),
  )


@pytest.mark.parametrize("case", COMPILED, ids=str)
def test_the_estimate_is_more_than_the_compiler_asks_for(case):
  h, e, dtype, maps, block, piece, *compiled_mib = case
  sizes = (BlockSizes(block, block, piece, piece),) * 2
  estimates = needs(plan(h, e, dtype, maps, sizes=sizes), dtype)
  for estimate, compiled in zip(estimates, compiled_mib, strict=True):
    assert compiled <= estimate / MIB <= 2.5 * compiled


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("width", [(64, 128), (128, 256), (256, 512)])
def test_chosen_sizes_fit(kind, dtype, width, monkeypatch):
  monkeypatch.setattr(block_sizes.target, "device_kind", lambda: kind)
  chosen = plan(*width, dtype)
  assert max(needs(chosen, dtype)) <= block_sizes.chip().vmem_bytes
  if dtype == "bfloat16":
    chip = block_sizes.chip()
    assert (chosen.forward, chosen.backward) == (chip.forward, chip.backward)
  else:
    assert max(dataclasses.astuple(chosen.backward)) == 256


def test_sizes_are_the_largest_that_fit(monkeypatch):
  whole = plan(128, 256, "bfloat16")
  need = needs(whole, "bfloat16")[1]
  for room, rows in ((need, 1024), (need - 1, 512), (1, 128)):
    small = dataclasses.replace(block_sizes._OTHER, vmem_bytes=room)
    monkeypatch.setattr(block_sizes, "_OTHER", small)
    assert plan(128, 256, "bfloat16").backward.q == rows


def test_small_tiles_where_edges_are_many():
  ids = jax.ShapeDtypeStruct((1, 4096), jnp.int32)
  for masks, rows in (
      (dict(segment_ids=ids), 512),
      (dict(window=1024), 512),
      (dict(window=4096), 1024),
  ):
    assert plan(64, 128, "bfloat16", **masks).forward.kv == rows


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_long_sequences_have_tables_that_fit(dtype):
  """A packed row of 64K, four heads a kv head; two rows take larger tiles."""
  t = 65_536
  rows = {}
  for b in (1, 2):
    q = jax.ShapeDtypeStruct((b, t, 8, 2, 64), dtype)
    k = jax.ShapeDtypeStruct((b, t, 2, 2, 64), dtype)
    v = jax.ShapeDtypeStruct((b, t, 2, 128), dtype)
    masks = dict(segment_ids=jax.ShapeDtypeStruct((b, t), jnp.int32))
    assert mosaic_tpu.unsupported(q, k, v, **masks) is None
    rows[b] = make_plan(
        q, k, v, out_dtype=dtype, first_weight_is_one=True, **masks
    ).backward.q
  assert rows == {1: 1024, 2: 1024}


def test_block_sizes_are_checked():
  with pytest.raises(ValueError, match="kv=100 must be a positive multiple"):
    block_sizes.BlockSizes(128, 100, 128, 100)
  with pytest.raises(ValueError, match="q_compute=256 must divide q=384"):
    block_sizes.BlockSizes(384, 128, 256, 128)


@pytest.mark.parametrize("t", [1, 127, 600, 1024, 1025, 5000])
def test_fitted_blocks_pad_little(t):
  sizes = block_sizes.BlockSizes(1024, 1024, 512, 512).fit(t, t)
  padded = block_sizes.round_up(t, sizes.q)
  assert sizes.q <= 1024
  assert padded - t < max(128 * (padded // sizes.q), 1) * 4
