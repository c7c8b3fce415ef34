# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""From the public layout to blocks of rows, heads first, and back."""

import jax
import jax.numpy as jnp

from diff_jax.kernels.attention import masking as masking_lib


def split(x, axis, block, mode="constant"):
  """Pads `axis` to whole blocks and moves the block index to the front."""
  blocks = -(-x.shape[axis] // block)
  pad = blocks * block - x.shape[axis]
  if pad:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, pad)
    x = jnp.pad(x, widths, mode=mode)
  x = x.reshape(*x.shape[:axis], blocks, block, *x.shape[axis + 1 :])
  return jnp.moveaxis(x, axis, 0)


def join(x, axis, length):
  """Undoes `split`."""
  x = jnp.moveaxis(x, 0, axis)
  x = x.reshape(*x.shape[:axis], -1, *x.shape[axis + 2 :])
  return jax.lax.slice_in_dim(x, 0, length, axis=axis)


def to_rows(x, kv_heads, block):
  """[b,t,n,...] -> [blocks, b, k, ..., r(, last)] with r = (t, g).

  x is [b,t,n,c], [b,t,n,e] or [b,t,n,c,h]; a map axis goes before the rows.
  """
  x = split(x, 1, block)  # blocks b t n ...
  x = masking_lib.split_heads(x, kv_heads, axis=3)  # blocks b t k g ...
  x = jnp.moveaxis(x, 3, 2)  # blocks b k t g ...
  return x.reshape(*x.shape[:3], -1, *x.shape[5:])  # blocks b k r ...


def from_rows(x, groups, length):
  """[blocks, b, k, r, ...] -> [b,t,n,...]."""
  x = x.reshape(*x.shape[:3], -1, groups, *x.shape[4:])
  x = jnp.moveaxis(x, 2, 3)
  x = x.reshape(*x.shape[:3], -1, *x.shape[5:])
  return join(x, 1, length)
