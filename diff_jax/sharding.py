# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The mesh, and where every array lies on it: the whole plan on one screen.

Axes of the mesh, any of which may have size 1:

  replica   whole copies of the model (over slices)
  fsdp      batch; parameters and optimizer state along their model width
  tensor    heads, MLP width, vocabulary
  context   sequence
"""

import dataclasses
import math
from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import PartitionSpec as P

from diff_jax.config import ConfigError, MeshConfig, ModelConfig

AXES = ("replica", "fsdp", "tensor", "context")
BATCH = ("replica", "fsdp")


@dataclasses.dataclass(frozen=True)
class Shardings:
  """PartitionSpecs, each named by the axes of its array; None: unsharded.

  The letters are those of `diff_jax.notation`. `Shardings()` is for code
  without a mesh, `ON_MESH` for arrays on a mesh of `make_mesh`.
  """

  act_bt: P | None = None
  act_btd: P | None = None
  act_btf: P | None = None
  act_btv: P | None = None
  act_btnch: P | None = None
  act_bskch: P | None = None
  act_bske: P | None = None
  embedding_vd: P | None = None
  w_vd: P | None = None
  w_dnch: P | None = None
  w_dkch: P | None = None
  w_dke: P | None = None
  w_ned: P | None = None
  w_df: P | None = None
  w_fd: P | None = None


ON_MESH = Shardings(
    act_bt=P(BATCH, "context"),
    act_btd=P(BATCH, "context", None),
    act_btf=P(BATCH, "context", "tensor"),
    act_btv=P(BATCH, "context", "tensor"),
    act_btnch=P(BATCH, "context", "tensor", None, None),
    act_bskch=P(BATCH, "context", "tensor", None, None),
    act_bske=P(BATCH, "context", "tensor", None),
    embedding_vd=P("tensor", "fsdp"),
    w_vd=P("tensor", "fsdp"),
    w_dnch=P("fsdp", "tensor", None, None),
    w_dkch=P("fsdp", "tensor", None, None),
    w_dke=P("fsdp", "tensor", None),
    w_ned=P("tensor", None, "fsdp"),
    w_df=P("fsdp", "tensor"),
    w_fd=P("tensor", "fsdp"),
)


def make_mesh(
    config: MeshConfig, devices: Sequence[jax.Device] | None = None
) -> jax.sharding.Mesh:
  """The explicit mesh of a config over `devices` (None: all).

  Raises:
    ConfigError: if the sizes do not multiply to the number of devices.
  """
  sizes = {axis: getattr(config, axis) for axis in AXES}
  devices = jax.devices() if devices is None else list(devices)
  free = [axis for axis, size in sizes.items() if size == -1]
  known = math.prod(size for size in sizes.values() if size != -1)
  if len(free) == 1 and known > 0 and len(devices) % known == 0:
    sizes[free[0]] = len(devices) // known
  if math.prod(sizes.values()) != len(devices) or min(sizes.values()) < 1:
    raise ConfigError(
        f"mesh={sizes} must multiply to the {len(devices)} devices present; one"
        " axis may be -1."
    )
  if sizes["context"] != 1:
    raise ConfigError(
        f"mesh.context={sizes['context']} must be 1: attention over a sharded"
        " sequence does not exist yet."
    )
  return jax.make_mesh(
      tuple(sizes.values()),
      AXES,
      axis_types=(jax.sharding.AxisType.Explicit,) * len(AXES),
      devices=devices,
  )


def check_fits(
    model: ModelConfig, microbatch: int, mesh: jax.sharding.Mesh
) -> None:
  """Refuses a model and a mesh that cannot exist together, by name.

  Args:
    model: the model's settings.
    microbatch: sequences at a time: data.batch_size / accumulation_steps.
    mesh: of `make_mesh`.

  Raises:
    ConfigError: naming the setting that the mesh does not divide.
  """
  batch_shards = mesh.shape["replica"] * mesh.shape["fsdp"]
  for name, size, axis, shards in (
      (
          "data.batch_size / accumulation_steps",
          microbatch,
          "replica x fsdp",
          batch_shards,
      ),
      ("model.d_model", model.d_model, "fsdp", mesh.shape["fsdp"]),
      ("model.num_heads", model.num_heads, "tensor", mesh.shape["tensor"]),
      ("model.num_kv_heads", model.kv_heads, "tensor", mesh.shape["tensor"]),
      ("model.mlp_dim", model.mlp_width, "tensor", mesh.shape["tensor"]),
      ("model.vocab_size", model.vocab_size, "tensor", mesh.shape["tensor"]),
      ("model.output_size", model.num_outputs, "tensor", mesh.shape["tensor"]),
  ):
    if size % shards:
      raise ConfigError(
          f"{name}={size} must be a multiple of the {shards} devices of mesh"
          f" axis {axis}."
      )


def gathered(function):
  """A function whose arrays XLA lays out, with results on every device.

  For analysis code, where annotations would be noise and results are small.
  """

  def call(*args):
    mesh = jax.sharding.get_abstract_mesh()
    if jax.sharding.AxisType.Explicit not in mesh.axis_types:
      return function(*args)
    return jax.sharding.auto_axes(function, out_sharding=P())(*args)

  return call


def put_batch(
    batch: dict[str, np.ndarray],
    mesh: jax.sharding.Mesh,
    microbatches: int = 1,
) -> dict[str, jax.Array]:
  """Puts this process's part of a batch on the mesh.

  Args:
    batch: arrays [b, t, ...], b over this process's devices only.
    mesh: of `make_mesh`.
    microbatches: if more than 1, the arrays become [m, b / m, t, ...].
  """

  def put(x):
    spec = ON_MESH.act_bt
    if microbatches > 1:
      x = x.reshape(microbatches, -1, *x.shape[1:])
      spec = P(None, *spec)
    return jax.make_array_from_process_local_data(
        jax.sharding.NamedSharding(mesh, spec), x
    )

  return {name: put(x) for name, x in batch.items()}
