# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Which implementation a call gets, and what each is told."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import diff_jax
from diff_jax.kernels.attention import api, target, two_call
from tests.kernels.attention import cases

SHAPES = dict(q=(1, 256, 2, 2, 64), k=(1, 256, 1, 2, 64), v=(1, 256, 1, 128))


def mesh_of(platform, kind, devices=1, axis_type=AxisType.Explicit):
  """Devices that are not there, as ahead-of-time compilation has."""
  return jax.sharding.AbstractMesh(
      (devices,),
      ("x",),
      axis_types=(axis_type,),
      abstract_device=jax.sharding.AbstractDevice(
          device_kind=kind, num_cores=1, platform=platform
      ),
  )


def traced(mesh, **keywords):
  """The program of a gradient, traced for the devices of a mesh."""

  def loss(q, k, v):
    out = api.attention(q, k, v, (1, -0.5), **keywords)
    return out.astype(jnp.float32).sum()

  arguments = (
      jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in SHAPES.values()
  )
  with jax.sharding.use_abstract_mesh(mesh):
    return str(jax.make_jaxpr(jax.grad(loss, (0, 1, 2)))(*arguments))


@pytest.mark.usefixtures("no_shape_checks")
def test_a_tpu_runs_our_kernels():
  program = traced(mesh_of("tpu", "TPU v6 lite"))
  assert "diff_attention_forward" in program
  assert "diff_attention_backward" in program


@pytest.mark.usefixtures("no_shape_checks")
def test_a_gpu_runs_the_librarys_kernels(monkeypatch):
  called = []

  def of_equal_width(q, k, v, *, implementation, **masks):
    called.append((implementation, q.shape, v.shape))
    return xla(q, k, v, **masks)

  xla = jax.nn.dot_product_attention
  monkeypatch.setattr(jax.nn, "dot_product_attention", of_equal_width)
  monkeypatch.setattr(two_call, "gpu_library", lambda: "cudnn")
  traced(mesh_of("gpu", "NVIDIA H200"))
  # Two maps, each with the two halves of the values.
  assert called == [("cudnn", (1, 256, 2, 64), (1, 256, 1, 64))] * 4


@pytest.mark.parametrize(
    ("mesh", "keywords", "reason"),
    [
        (("tpu", "TPU v5"), dict(bias_slopes=jnp.ones(2)), "bias_slopes"),
        (("gpu", "NVIDIA H200"), dict(q_offset=np.int32(0)), "q_offset"),
    ],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_what_a_kernel_cannot_take_runs_as_xla_and_says_so(
    caplog, mesh, keywords, reason
):
  api._log_once.cache_clear()
  for _ in range(2):
    program = traced(mesh_of(*mesh), **keywords)
    assert "pallas_call" not in program and "cudnn" not in program
  assert caplog.text.count(reason) == 1


@pytest.mark.usefixtures("no_shape_checks")
def test_an_automatic_mesh_gets_xla_and_is_told_what_would_help(caplog):
  api._log_once.cache_clear()
  mesh = mesh_of("tpu", "TPU v5", devices=4, axis_type=AxisType.Auto)
  assert "pallas_call" not in traced(mesh)
  assert "the automatic mesh axes ['x']: make them explicit" in caplog.text
  one_device = mesh_of("tpu", "TPU v5", axis_type=AxisType.Auto)
  assert "diff_attention_forward" in traced(one_device)


def test_a_kernel_asked_for_elsewhere_says_where_it_runs(caplog):
  api._log_once.cache_clear()
  q, k, v = (jnp.ones(shape, jnp.bfloat16) for shape in SHAPES.values())
  with pytest.raises(ValueError, match="interpret"):
    api.attention(q, k, v, (1, -0.5), implementation="mosaic_tpu")
  assert "'mosaic_tpu' is for tpu; on cpu it runs only in" in caplog.text


def test_without_a_mesh_the_process_decides(monkeypatch):
  assert target.platform() == jax.default_backend() == "cpu"
  monkeypatch.setattr(jax, "default_backend", lambda: "tpu")
  assert target.platform() == "tpu"


def test_library_calls_on_a_mesh():
  """Of one sequence a device: lambda's gradient is the whole one."""
  mesh = jax.make_mesh(
      (4, 2), ("fsdp", "tensor"), axis_types=(AxisType.Explicit,) * 2
  )
  case = cases.Case(b=4, t=128, s=128, n=2, h=8, e=16)
  inputs, cotangents = cases.make_inputs("library_mesh", case)
  inputs = {name: inputs[name] for name in "qkv"} | dict(lam=np.float32(0.8))
  rows = NamedSharding(mesh, P("fsdp", None, "tensor"))
  whole = NamedSharding(mesh, P())
  placed = {
      name: jax.device_put(x, whole if name == "lam" else rows)
      for name, x in inputs.items()
  }

  def run(implementation, inputs, cotangent):
    op = functools.partial(
        diff_jax.diff_attention, implementation=implementation
    )

    @jax.jit
    def both(inputs, cotangent):
      out, pullback = jax.vjp(lambda x: op(**x), inputs)
      return dict(pullback(cotangent)[0], out=out)

    return jax.tree.map(np.asarray, both(inputs, cotangent))

  wanted = run("reference", inputs, cotangents["out"])
  with jax.set_mesh(mesh), pltpu.force_tpu_interpret_mode():
    found = run("two_call", placed, jax.device_put(cotangents["out"], rows))
  # fp32 sums; lambda's has b t n e terms of both signs.
  eps, terms = np.finfo(np.float32).eps, cotangents["out"].size
  for name, x in wanted.items():
    assert cases.relative_error(found[name], x) <= 4 * eps * terms**0.5, name


# Weights.


@pytest.mark.parametrize("implementation", ["reference", "xla"])
def test_one_weight_a_map_is_one_array(implementation):
  inputs, _ = cases.make_inputs("weights", cases.Case(t=9, s=9))
  q, k, v = (jnp.asarray(inputs[name]) for name in "qkv")
  rows = jnp.linspace(0, 1, 9)[None, :, None]
  op = functools.partial(api.attention, q, k, v, implementation=implementation)
  one_array = jnp.stack([jnp.ones_like(rows), -rows], axis=-1)
  np.testing.assert_array_equal(op((1, -rows)), op(one_array))


def test_a_first_weight_of_the_number_1_keeps_one_output_less():
  inputs, _ = cases.make_inputs("kept", cases.Case(t=9, s=9, h=64, e=128))
  q, k, v = (jnp.asarray(inputs[name]) for name in "qkv")

  def outputs_of_the_forward_kernel(weights):
    with jax.sharding.use_abstract_mesh(mesh_of("tpu", "TPU v5")):
      _, pullback = jax.eval_shape(
          lambda *x: jax.vjp(lambda *y: api.attention(*y, weights), *x), q, k, v
      )
    return sum(x.shape == (1, 2, 9, 128) for x in jax.tree.leaves(pullback))

  assert outputs_of_the_forward_kernel((1, -0.5)) == 2  # O and O_2
  assert outputs_of_the_forward_kernel(jnp.array([1, -0.5])) == 3
