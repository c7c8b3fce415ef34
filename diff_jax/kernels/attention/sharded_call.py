# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The op on a mesh: each device computes its own batch and heads."""

import functools

import jax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from diff_jax.kernels.attention.varying import varying_like


def sharded(local, q, k, v, masks, *weights, check_vma: bool):
  """Calls `local` on each device's batch and heads.

  Only an explicit mesh says at trace time how arrays are laid out; on other
  meshes, and without one, XLA partitions the call like any other code.

  Args:
    local: of (q, k, v, *weights, masks): arrays that begin with q's [b, t, n].
    q, k, v, masks, *weights: checked arguments of the op.
    check_vma: as in `jax.shard_map`; a library's kernel may not pass.
  """
  mesh = jax.sharding.get_abstract_mesh()
  static, masks = _split_static(masks)
  local = functools.partial(_call, local, static)
  if AxisType.Explicit not in mesh.axis_types:
    return local((q, k, v, *weights), masks)
  batch, length, heads = (*jax.typeof(q).sharding.spec, None, None, None)[:3]
  if _axis_size(mesh, length) > 1:
    raise ValueError(
        f"q is sharded as {jax.typeof(q).sharding.spec}: its length (axis 1)"
        " must not be sharded."
    )
  kv_heads = k.shape[2]
  shards = _axis_size(mesh, heads)
  if kv_heads % shards:
    raise ValueError(
        f"k.shape={k.shape} has {kv_heads} kv heads, which must be a multiple"
        f" of the {shards} devices that q's heads are sharded over."
    )

  def rows(x, *rest):
    return P(batch if x.shape[0] > 1 else None, *rest)

  specs = dict.fromkeys(masks)
  for name in masks.keys() & {"q_offset", "kv_offset"}:
    specs[name] = rows(masks[name]) if masks[name].ndim else P()
  if masks["segment_ids"] is not None:
    specs["segment_ids"] = (P(batch, None), P(batch, None))
  if masks["bias_slopes"] is not None:
    specs["bias_slopes"] = P(heads)
  if masks["sink"] is not None:
    specs["sink"] = P(heads, None)
  of_heads = P(batch, None, heads, None)
  of_maps = P(batch, None, heads, None, None)
  weight_specs = tuple(
      rows(w, None, heads if w.shape[2] > 1 else None, None) for w in weights
  )
  in_specs = ((of_maps, of_maps, of_heads, *weight_specs), specs)
  arguments = ((q, k, v, *weights), masks)
  # An assertion for arrays that already lie as `in_specs` say.
  arguments = jax.tree.map(
      lambda spec, x: jax.reshard(x, spec),
      in_specs,
      arguments,
      is_leaf=lambda x: isinstance(x, P),
  )
  return jax.shard_map(
      local,
      in_specs=in_specs,
      out_specs=P(batch, None, heads),  # of every array that `local` returns
      check_vma=check_vma,
  )(*arguments)


def _split_static(masks):
  """What is known at trace time, and what may differ between devices."""
  names = {"causal", "window", "scale"}
  names |= {x for x in ("q_offset", "kv_offset") if type(masks[x]) is int}
  static = {name: masks[name] for name in names}
  return static, {name: x for name, x in masks.items() if name not in names}


def _call(local, static, arrays, masks):
  # What is equal on several devices varies over them from here on, so that the
  # gradients of lambda, slopes and sinks come out whole, as sums over devices.
  arguments = arrays, masks
  arrays, masks = jax.tree.map(lambda x: varying_like(x, arguments), arguments)
  return local(*arrays, masks | static)


def _axis_size(mesh, axes) -> int:
  if axes is None:
    return 1
  axes = (axes,) if isinstance(axes, str) else axes
  size = 1
  for axis in axes:
    size *= mesh.shape[axis]
  return size
