# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Attention mechanisms: one small class each, chosen by name or file path."""

import functools
import importlib.util
import pathlib

from diff_jax.attention.base import Attention
from diff_jax.attention.diff import DiffAttention
from diff_jax.attention.softmax import SoftmaxAttention
from diff_jax.config import ConfigError, ModelConfig

MECHANISMS = {"softmax": SoftmaxAttention, "diff": DiffAttention}


def find_mechanism(name: str) -> type[Attention]:
  """The class of `softmax`, `diff`, or `path/to/file.py:Class`.

  A path runs the file, as importing it would: give only files you trust.

  Raises:
    ConfigError: if there is no such mechanism.
  """
  if name in MECHANISMS:
    return MECHANISMS[name]
  path, _, class_name = name.rpartition(":")
  if not path.endswith(".py"):
    raise ConfigError(
        f"model.attention={name!r} must be one of {sorted(MECHANISMS)} or"
        " path/to/file.py:Class."
    )
  if not pathlib.Path(path).is_file():
    raise ConfigError(f"model.attention={name!r}: there is no file {path}.")
  mechanism = getattr(_load(pathlib.Path(path).resolve()), class_name, None)
  if not (isinstance(mechanism, type) and issubclass(mechanism, Attention)):
    raise ConfigError(
        f"model.attention={name!r}: {path} must define the class"
        f" {class_name}, a subclass of diff_jax.Attention."
    )
  return mechanism


@functools.cache
def _load(path: pathlib.Path):
  """Runs a file once: two models of one config must share their classes."""
  spec = importlib.util.spec_from_file_location(path.stem, path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


def arm_label(config: ModelConfig) -> str:
  """What reports call a model: its mechanism, and its norm if unusual."""
  mechanism = find_mechanism(config.attention)
  label = mechanism.label or mechanism.__name__
  if config.head_norm in (None, mechanism.default_head_norm):
    return label
  return f"{label} + norm" if config.head_norm else f"{label} - norm"
