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


def to_rows(x, kv_heads, block):
  """[b,t,n,c,h] -> [i,b,k,c,r,h] with r = (t, g), in one transposition."""
  x = split(x, 1, block)  # i b t n c h
  x = masking_lib.split_heads(x, kv_heads, axis=3)  # i b t k g c h
  x = x.transpose(0, 1, 3, 5, 2, 4, 6)
  return x.reshape(*x.shape[:4], -1, x.shape[6])


def from_rows(x, groups, length):
  """[i,b,k,c,r,h] -> [b,t,n,c,h]."""
  x = x.reshape(*x.shape[:4], -1, groups, x.shape[5])  # i b k c t g h
  x = x.transpose(1, 0, 4, 2, 5, 3, 6)
  x = x.reshape(x.shape[0], -1, x.shape[3] * groups, *x.shape[5:])
  return jax.lax.slice_in_dim(x, 0, length, axis=1)
