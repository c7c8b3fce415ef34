# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of one seed: state, data position and config, by Orbax."""

from typing import Any

import grain
import jax
import orbax.checkpoint as ocp
from etils import epath
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P


class Checkpoints:
  """The checkpoints in one folder, saved in the background.

  A context manager: leaving it waits until what was saved is committed.
  """

  def __init__(self, folder, *, keep: int):
    options = ocp.CheckpointManagerOptions(
        max_to_keep=keep, enable_async_checkpointing=True
    )
    self._manager = ocp.CheckpointManager(
        epath.Path(folder).absolute(), options=options
    )

  def __enter__(self):
    return self

  def __exit__(self, *_):
    self._manager.close()

  def latest_step(self) -> int | None:
    """The newest committed step, or None."""
    return self._manager.latest_step()

  def save(self, step: int, state, iterator, config: dict[str, Any]) -> None:
    """Starts saving; the arrays may be donated as soon as this returns."""
    self._manager.save(
        step,
        args=ocp.args.Composite(
            state=ocp.args.StandardSave(state),
            data=grain.checkpoint.CheckpointSave(iterator),
            config=ocp.args.JsonSave(config),
        ),
    )

  def restore(self, abstract_state, iterator=None):
    """The newest state; moves `iterator` to where it stood.

    Args:
      abstract_state: shapes, dtypes and shardings, of `on_mesh`; the mesh may
        differ from the one that the state was saved on.
      iterator: the data iterator to move; None: leave the data alone.
    """
    args = {"state": ocp.args.StandardRestore(abstract_state)}
    if iterator is not None:
      args["data"] = grain.checkpoint.CheckpointRestore(iterator)
    return self._manager.restore(
        self.latest_step(), args=ocp.args.Composite(**args)
    ).state


def on_mesh(abstract_state, mesh):
  """What `jax.eval_shape` returned, with shardings on the devices of `mesh`."""

  def place(x):
    spec = x.sharding.spec if x.sharding is not None else P()
    return jax.ShapeDtypeStruct(
        x.shape, x.dtype, sharding=NamedSharding(mesh, spec)
    )

  return jax.tree.map(place, abstract_state)
