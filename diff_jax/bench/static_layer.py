# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a layer around an attention op moves in memory, by the TPU compiler."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from diff_jax import layers

LENGTH = 4096  # several tiles of the largest size
D_MODEL = 3072


def compile_for(function, arguments, mesh):
  """Compiles for a mesh of one chip; (executable, abstract result)."""
  sharding = jax.NamedSharding(mesh, P())

  def place(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)

  local = jax.shard_map(
      function, mesh=mesh, in_specs=P(), out_specs=P(), check_vma=False
  )
  arguments = jax.tree.map(place, arguments)
  with jax.set_mesh(mesh):
    traced = jax.jit(local).trace(*arguments)
    return traced.lower().compile(), traced.out_info


def traffic(call, mesh) -> dict[str, float]:
  """MB that a layer reads and writes, and its temporaries, forward+backward.

  The layer is projections, RoPE, attention, the norm of DIFF's heads and output
  projection, for one sequence of 4,096 tokens, 3,072 wide.
  """
  heads, c = D_MODEL // call.e, call.row.maps
  shapes = dict(
      q=(D_MODEL, heads, c, call.h),
      k=(D_MODEL, heads, c, call.h),
      v=(D_MODEL, heads, call.e),
      o=(heads, call.e, D_MODEL),
      norm=(call.e,),
  )
  weights = {
      name: jax.ShapeDtypeStruct(shape, jnp.bfloat16)
      for name, shape in shapes.items()
  }
  x = jax.ShapeDtypeStruct((1, LENGTH, D_MODEL), jnp.bfloat16)
  of_maps = jax.ShapeDtypeStruct((1, 1, 1, c), jnp.float32)

  def layer(x, weights, of_maps):
    positions = jnp.arange(LENGTH)[None]
    q, k = (
        layers.rope(
            jnp.einsum("btd,dnch->btnch", x, weights[name]),
            positions,
            theta=10_000.0,
            style="interleaved",
        )
        for name in "qk"
    )
    v = jnp.einsum("btd,dne->btne", x, weights["v"])
    out = call(q, k, v, jnp.broadcast_to(of_maps, q.shape[:-1]))
    if c > 1:
      out = layers.rms_norm(out, weights["norm"], 1e-5)
    return jnp.einsum("btne,ned->btd", out, weights["o"])

  def both(x, weights, of_maps, gradient):
    out, pullback = jax.vjp(layer, x, weights, of_maps)
    return out, pullback(gradient)

  forward, _ = compile_for(layer, (x, weights, of_maps), mesh)
  whole, _ = compile_for(both, (x, weights, of_maps, x), mesh)
  traffic = [
      f.cost_analysis()["bytes accessed"] / 1e6 for f in (forward, whole)
  ]
  temporaries = whole.memory_analysis().temp_size_in_bytes
  return dict(
      forward_mb=traffic[0], both_mb=traffic[1], temp_mb=temporaries / 1e6
  )
