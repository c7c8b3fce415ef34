# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Marks arrays as varying over axes of the mesh.

Inside `jax.shard_map`, the type of an array says over which axes its values may
differ between devices. Constants and outputs of kernels come without that mark,
which a loop's carry, an operation with other arrays, or a kernel needs.
"""

import jax
import jax.numpy as jnp


def axes_of(like) -> frozenset[str]:
  """The mesh axes that any of a tree of arrays varies over."""
  axes = (jax.typeof(x).manual_axis_type.varying for x in jax.tree.leaves(like))
  return frozenset().union(*axes)


def varying_like(x, like):
  """x, varying also over the mesh axes that any of `like` varies over.

  The transpose of this cast is the sum over those devices.
  """
  missing = axes_of(like) - axes_of(x)
  return jax.lax.pcast(x, tuple(sorted(missing)), to="varying")


def zeros(shape, dtype, like):
  """Zeros that vary over the mesh axes that any of `like` varies over."""
  return varying_like(jnp.zeros(shape, dtype), like)


def out_struct(shape, dtype, like) -> jax.ShapeDtypeStruct:
  """An output that varies over the mesh axes that any of `like` varies over."""
  axes = jax.sharding.ManualAxisType(varying=axes_of(like))
  return jax.ShapeDtypeStruct(shape, dtype, manual_axis_type=axes)
