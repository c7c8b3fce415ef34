# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Meshes of eight devices, and what is refused on them."""

import pathlib

import jax
import pytest

from diff_jax import flags, sharding, train
from diff_jax.config import ConfigError, MeshConfig, ModelConfig

ROOT = pathlib.Path(__file__).parents[1]

pytestmark = pytest.mark.usefixtures("no_shape_checks")


def refusal(function, *arguments):
  """The message of the ConfigError that a call raises."""
  with pytest.raises(ConfigError) as error:
    function(*arguments)
  return str(error.value)


def test_make_mesh():
  assert dict(sharding.make_mesh(MeshConfig()).shape) == {
      "replica": 1, "fsdp": 8, "tensor": 1, "context": 1,
  }  # fmt: skip
  mesh = sharding.make_mesh(MeshConfig(replica=2, tensor=2))
  assert dict(mesh.shape) == {
      "replica": 2, "fsdp": 2, "tensor": 2, "context": 1,
  }  # fmt: skip
  assert sharding.make_mesh(MeshConfig(), jax.devices()[:3]).size == 3


@pytest.mark.parametrize(
    "axes",
    [
        dict(fsdp=3),
        dict(fsdp=4),
        dict(tensor=3),
        dict(tensor=-1),
        dict(fsdp=-2),
        dict(tensor=0),
        dict(fsdp=0),
    ],
    ids=str,
)
def test_impossible_meshes_are_refused_by_name(axes):
  message = refusal(sharding.make_mesh, MeshConfig(**axes))
  for axis, size in axes.items():
    assert axis in message and str(size) in message
  assert "8 devices" in message or "at least 1" in message


def test_a_sharded_sequence_is_refused():
  message = refusal(sharding.make_mesh, MeshConfig(context=2))
  assert "mesh.context=2" in message and "must be 1" in message


FITTING = dict(
    d_model=32, num_heads=4, num_kv_heads=2, mlp_dim=64, vocab_size=30,
    output_size=6,
)  # fmt: skip


@pytest.mark.parametrize(
    "changes,words",
    [
        (dict(batch_size=6), ["data.batch_size", "=6", "4", "replica x fsdp"]),
        (dict(d_model=18, head_dim=4), ["model.d_model=18", "4", "fsdp"]),
        (dict(num_heads=3, num_kv_heads=3, d_model=24), ["num_heads=3"]),
        (dict(num_kv_heads=1), ["model.num_kv_heads=1", "2", "tensor"]),
        (dict(mlp_dim=63), ["model.mlp_dim=63", "2", "tensor"]),
        (dict(vocab_size=31), ["model.vocab_size=31", "2", "tensor"]),
        (dict(output_size=5), ["model.output_size=5", "2", "tensor"]),
    ],
    ids=str,
)
def test_what_the_mesh_does_not_divide_is_refused_by_name(changes, words):
  mesh = sharding.make_mesh(MeshConfig(fsdp=4, tensor=2))
  changes = dict(changes)
  batch_size = changes.pop("batch_size", 8)
  model = ModelConfig(**FITTING | changes)
  message = refusal(sharding.check_fits, model, batch_size, mesh)
  for word in words:
    assert word in message


def test_microbatches_that_the_mesh_does_not_divide_are_refused(tmp_path):
  """8 sequences in 2 microbatches are 4 for 8 devices."""
  module, _ = flags.load_config_file(f"{ROOT}/configs/recall.py")
  config = module.get_config("smoke")
  config.evaluators = {}
  config.data.batch_size = 8
  config.accumulation_steps = 2
  message = refusal(train.train, config, tmp_path)
  assert "batch_size" in message and "accumulation_steps" in message


def test_a_model_that_fits():
  mesh = sharding.make_mesh(MeshConfig(fsdp=4, tensor=2))
  sharding.check_fits(ModelConfig(**FITTING), 8, mesh)
