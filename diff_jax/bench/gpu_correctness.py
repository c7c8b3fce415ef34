# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Correctness of the Hopper kernels on the GPU, a feature at a time.

The truth is fp32 at the highest precision, of the same rounded operands. A
16-bit kernel may be twice as far from it as unfused attention with 16-bit
operands and outputs is. Every case also runs twice, which must agree in every
bit, over memory that held NaN.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from diff_jax.bench import gpu_device
from diff_jax.bench.gpu_features import Feature, find, make_inputs
from diff_jax.kernels.attention import api, mosaic_gpu, weighted_gradient
from diff_jax.kernels.attention import masking as masking_lib

# Of a number of size 1, where the truth is 0 or nearly so.
FLOOR = 1e-4
# Of lse, in nats: the kernels round the scaled queries to 16 bits.
LSE_ERROR = {"bfloat16": 2**-6, "float16": 2**-9}
POISON_BYTES = 2**30
HIDDEN = -1e30  # A finite -inf: its gradient is no NaN.


def check(
    feature: str, size: str, passes: Sequence[str], rehearse: bool
) -> dict[str, Any]:
  """Runs one feature at one size.

  Args:
    feature: `causal`, or a name of `gpu_features.FEATURES`.
    size: a name of `gpu_features.SIZES`.
    passes: `forward`, `backward` or both.
    rehearse: a small call, with interpreted kernels.

  Returns:
    passed; faults, in words; and errors, by array: the kernel's and unfused
    attention's.
  """
  case = find(feature, rehearse)
  inputs = make_inputs(case, size)
  reason = mosaic_gpu.unsupported(*(inputs[x] for x in "qkv"))
  if reason is not None:
    raise ValueError(f"{feature} at {size}: {reason}.")
  with gpu_device.kernels(rehearse):
    run = jax.jit(functools.partial(_run, case, "mosaic_gpu", tuple(passes)))
    found = _twice(run, _placed(case, inputs), rehearse)
  exact, rounded = (
      jax.jit(functools.partial(_run, case, name, tuple(passes)))(x)
      for name, x in (("reference", _wide(inputs)), ("unfused", inputs))
  )
  faults = [] if found["same"] else ["two runs differ"]
  errors = {}
  for name, x in found["arrays"].items():
    if name == "lse":
      fault, errors[name] = _compare_lse(x, exact[name], case.dtype)
    else:
      fault, errors[name] = _compare(x, exact[name], rounded[name], case.factor)
    faults += [f"{name}: {fault}"] if fault else []
  return {"passed": not faults, "faults": faults, "errors": errors}


def _wide(inputs):
  return inputs | {x: inputs[x].astype(jnp.float32) for x in "qkv"}


def _placed(case: Feature, inputs):
  """On a mesh of one device, if the feature wants that."""
  if case.how != "shard_map":
    return inputs
  mesh = _mesh()
  return inputs | {
      x: jax.device_put(inputs[x], jax.NamedSharding(mesh, P("x")))
      for x in ("q", "k", "v", "weights", "dout", "dlse")
  }


def _mesh():
  return jax.make_mesh(
      (1,), ("x",), axis_types=(AxisType.Explicit,), devices=jax.devices()[:1]
  )


def _twice(run, inputs, rehearse: bool) -> dict[str, Any]:
  """The arrays of a run, and whether a second one gives the same bits."""
  runs = []
  for _ in range(2):
    if not rehearse:
      # What the run writes nothing to should be NaN.
      poison = jnp.full(POISON_BYTES // 4, jnp.nan).block_until_ready()
      del poison
    runs.append({name: np.asarray(x) for name, x in run(inputs).items()})
  first, second = runs
  same = all(first[x].tobytes() == second[x].tobytes() for x in first)
  return {"arrays": first, "same": same}


def _run(case: Feature, name: str, passes: Sequence[str], inputs):
  """Outputs and gradients, by name, of an implementation."""
  op = functools.partial(_call, case, name, inputs["arrays"])
  primals = [inputs[x] for x in ("q", "k", "v", "weights")]
  (out, lse), pullback = jax.vjp(op, *primals)
  found = {}
  if "forward" in passes:
    found |= {"out": out, "lse": lse}
  if "backward" in passes:
    gradients = pullback(
        (
            inputs["dout"].astype(out.dtype),
            inputs["dlse"].astype(lse.dtype),
        )
    )
    found |= dict(zip(("dq", "dk", "dv", "dw"), gradients, strict=True))
    if case.how == "parts":
      del found["dw"]
    elif case.weights == "lambda":
      found["dw"] = found["dw"][..., 1:]  # The first one is the number 1.
      if not found["dw"].size:
        del found["dw"]
  return found


def _call(case: Feature, name: str, arrays, q, k, v, weights):
  """(out, lse) of an implementation, called as the feature says."""
  masks = dict(causal=case.causal, window=case.window)
  if name == "unfused":
    o, lse = _unfused_parts(q, k, v, **masks, **arrays)
    if case.how == "parts":
      return o, lse
    o = o.astype(q.dtype).astype(jnp.float32)  # As two library calls give it.
    return jnp.einsum("btnce,btnc->btne", o, weights).astype(q.dtype), lse

  def op(q, k, v, weights):
    masked = functools.partial(
        api.parts if case.how == "parts" else api.attention,
        q, k, v, implementation=name, **masks, **arrays,
    )  # fmt: skip
    if case.how == "parts":
      return masked()
    if case.weights == "lambda":
      rest = (weights[..., i] for i in range(1, weights.shape[-1]))
      weights = (1, *rest)
    return masked(weights=weights, return_lse=True)

  if case.how == "vmap":
    out, lse = jax.vmap(op)(*(x[:, None] for x in (q, k, v, weights)))
    return out[:, 0], lse[:, 0]
  if case.how == "shard_map" and name == "mosaic_gpu":
    return jax.shard_map(
        op, mesh=_mesh(), in_specs=P("x"), out_specs=P("x")
    )(q, k, v, weights)  # fmt: skip
  return op(q, k, v, weights)


def _unfused_parts(
    q, k, v, *, causal, window, segment_ids=None, q_offset=0, kv_offset=0
):
  """(o [b,t,n,c,e], lse) by whole maps.

  Products have 16-bit operands; so have scaled queries, in units of log 2.
  """
  t, n, c, h = q.shape[1:]
  k, v = (jnp.repeat(x, n // x.shape[2], axis=2) for x in (k, v))
  k = jnp.broadcast_to(k, (*k.shape[:3], c, h))
  scale = h**-0.5 / weighted_gradient.LN_2
  q = (q.astype(jnp.float32) * scale).astype(q.dtype)
  scores = jnp.einsum(
      "btnch,bsnch->bncts", q, k, preferred_element_type=jnp.float32
  )
  masking = masking_lib.make_masking(
      t, k.shape[1], segment_ids, q_offset, kv_offset
  )
  mask = masking_lib.visible(masking, causal=causal, window=window)
  mask = jnp.ones((1, 1, 1)) > 0 if mask is None else mask
  mask = mask[:, None, None]
  scores = jnp.where(mask, scores * weighted_gradient.LN_2, HIDDEN)
  lse = jax.nn.logsumexp(scores, axis=-1, keepdims=True)
  maps = jnp.where(mask, jnp.exp(scores - lse), 0).astype(v.dtype)
  o = jnp.einsum(
      "bncts,bsne->btnce", maps, v, preferred_element_type=jnp.float32
  )
  return o, jnp.moveaxis(lse[..., 0], 3, 1)


def _compare(
    x, exact, rounded, factor: float
) -> tuple[str | None, list[float]]:
  """What is wrong, and the errors of x and of unfused attention."""
  x, exact, rounded = (np.asarray(z, np.float64) for z in (x, exact, rounded))
  if not np.isfinite(x).all():
    return "not finite", [float("nan")] * 2
  norm = np.linalg.norm
  size = max(norm(exact), FLOOR * x.size**0.5)
  error, yardstick = norm(x - exact) / size, norm(rounded - exact) / size
  errors = [float(error), float(yardstick)]
  if error <= factor * yardstick + FLOOR * x.size**0.5 / size:
    return None, errors
  return f"error {error:.1e}, of unfused attention {yardstick:.1e}", errors


def _compare_lse(x, exact, dtype: str) -> tuple[str | None, list[float]]:
  x, exact = (np.asarray(z, np.float64) for z in (x, exact))
  blind = np.isneginf(exact)
  if (np.isneginf(x) != blind).any():
    return "-inf elsewhere than in the rows that see nothing", []
  error = float(np.abs(x[~blind] - exact[~blind]).max(initial=0))
  if error <= LSE_ERROR[dtype]:
    return None, [error]
  return f"off by {error:.1e} nats, more than {LSE_ERROR[dtype]:.1e}", [error]
