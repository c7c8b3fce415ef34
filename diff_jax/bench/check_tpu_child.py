# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The child's side of `check_tpu.py`."""

import collections
import functools
import re

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from diff_jax.bench.check_tpu import LENGTHS
from diff_jax.kernels.attention import api
from diff_jax.transformer import REMAT_POLICIES

NUM_LAYERS, D_MODEL = 4, 512  # of the layer stack
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?(\S+) \(.*\{$")
_BODY = re.compile(r"\bbody=%?([\w.\-]+)")
_KERNEL = re.compile(
    r"^ +(?:ROOT )?%?(\S+) = .*custom_call_target=\"tpu_custom"
)


def kernels_by_computation(hlo: str) -> dict[str, list[str]]:
  """Names of the Pallas TPU kernels that each computation calls."""
  found, computation = {}, ""
  for line in hlo.splitlines():
    if head := _COMPUTATION.match(line):
      computation = head[1]
    elif kernel := _KERNEL.match(line):
      name = kernel[1].rsplit(".", 1)[0]
      found.setdefault(computation, []).append(name)
  return found


def _mesh(topology: str):
  """2 x 2 chips: batch and heads."""
  devices = topologies.get_topology_desc(
      platform="tpu", topology_name=topology
  ).devices
  return jax.make_mesh(
      (2, 2),
      ("batch", "heads"),
      devices=devices,
      axis_types=(AxisType.Explicit,) * 2,
  )


def _array(mesh, shape, dtype, *spec):
  sharding = jax.NamedSharding(mesh, P(*spec))
  return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)


def _hlo(mesh, function, *arguments) -> str:
  with jax.set_mesh(mesh):
    return jax.jit(function).lower(*arguments).compile().as_text()


def compile_op(topology: str, implementation: str | None, size) -> str:
  """Compiles value and gradients at every length; says how many kernels.

  Raises:
    RuntimeError: if no Pallas kernel is in the executable.
  """
  h, e, maps, key_maps = size
  mesh = _mesh(topology)

  def both(q, k, v, weights, gradient):
    op = functools.partial(api.attention, implementation=implementation)
    out, pullback = jax.vjp(op, q, k, v, weights)
    return out, pullback(gradient)

  weights = _array(mesh, (maps,), jnp.float32)
  found = {}
  for t in LENGTHS:
    q, k, v, gradient = (
        _array(mesh, (2, t, 4, *rest), jnp.bfloat16, "batch", None, "heads")
        for rest in ((maps, h), (key_maps, h), (e,), (e,))
    )
    hlo = _hlo(mesh, both, q, k, v, weights, gradient)
    found[t] = sum(map(len, kernels_by_computation(hlo).values()))
    if not found[t]:
      raise RuntimeError(f"{t=}: there is no Pallas kernel in the executable.")
  return ", ".join(f"t={t:,}: {x} kernels" for t, x in found.items())


def check_layer(topology: str, implementation: str | None) -> str:
  """Counts the kernels in the loops of a stack of layers, forward + backward.

  Raises:
    RuntimeError: if saving attention leaves more kernels in the loops than
      saving everything does.
  """
  mesh = _mesh(topology)
  found = {}
  for name, policy in (
      ("no remat", jax.checkpoint_policies.everything_saveable),
      ("save_attention", REMAT_POLICIES["save_attention"]),
      ("full remat", jax.checkpoint_policies.nothing_saveable),
  ):
    found[name] = _kernels_in_loops(mesh, implementation, policy)
  totals = {name: sum(x.values()) for name, x in found.items()}
  text = ", ".join(f"{name} {x}" for name, x in totals.items())
  text = f"kernels in the loops: {text}"
  if not 0 < totals["no remat"] == totals["save_attention"]:
    raise RuntimeError(
        f"{text}: the backward loop runs the forward kernel,"
        f" {dict(found['save_attention'])}."
    )
  return text


def _kernels_in_loops(mesh, implementation, policy) -> collections.Counter:
  """Calls of each kernel in the while bodies, by name."""
  n, h, t = 4, 64, 2048
  e = 2 * h
  weights = tuple(
      _array(mesh, (NUM_LAYERS, *shape), jnp.bfloat16, None, *spec)
      for shape, spec in (
          ((D_MODEL, n, 2, h), (None, "heads")),
          ((D_MODEL, n, 2, h), (None, "heads")),
          ((D_MODEL, n, e), (None, "heads")),
          ((n, e, D_MODEL), ("heads",)),
      )
  )
  lams = _array(mesh, (NUM_LAYERS,), jnp.float32)
  x = _array(mesh, (2, t, D_MODEL), jnp.bfloat16, "batch")

  @functools.partial(jax.checkpoint, policy=policy)
  def layer(x, of_layer):
    (w_q, w_k, w_v, w_o), lam = of_layer
    wide = P("batch", None, "heads")
    q = jnp.einsum("btd,dnch->btnch", x, w_q, out_sharding=wide)
    k = jnp.einsum("btd,dnch->btnch", x, w_k, out_sharding=wide)
    v = jnp.einsum("btd,dne->btne", x, w_v, out_sharding=wide)
    out = api.diff_attention(q, k, v, lam, implementation=implementation)
    out = jnp.einsum("btne,ned->btd", out, w_o, out_sharding=P("batch"))
    return x + out, None

  def loss(x, weights, lams):
    x, _ = jax.lax.scan(layer, x, (weights, lams))
    return jnp.sum(x.astype(jnp.float32) ** 2)

  hlo = _hlo(mesh, jax.grad(loss, (0, 1, 2)), x, weights, lams)
  bodies = set(_BODY.findall(hlo))
  found = collections.Counter()
  for computation, kernels in kernels_by_computation(hlo).items():
    if computation in bodies:
      found.update(kernels)
  return found
