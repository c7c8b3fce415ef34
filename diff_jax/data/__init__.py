# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Data sources: synthetic tasks with a known answer, and text."""

import dataclasses
import typing
from collections.abc import Mapping
from typing import Any

from ml_collections import config_dict

from diff_jax.config import ConfigError
from diff_jax.data.noisy_recall import NoisyRecall
from diff_jax.data.recall import Recall
from diff_jax.data.source import Source
from diff_jax.data.text import Text

SOURCES = {cls.name: cls for cls in (Recall, NoisyRecall, Text)}


def make_source(settings: Mapping[str, Any]) -> Source:
  """The source that `settings["name"]` chooses, with the other settings.

  Raises:
    ConfigError: an unknown name or setting, or a value that cannot be.
  """
  settings = dict(settings)
  name = settings.pop("name", None)
  if name not in SOURCES:
    raise ConfigError(f"data {name=} must be one of {', '.join(SOURCES)}")
  fields = [field.name for field in dataclasses.fields(SOURCES[name])]
  for field, value in settings.items():
    if field not in fields:
      raise ConfigError(
          f"data {field}={value!r} is no setting of {name}: it must be one of"
          f" {', '.join(fields)}"
      )
  return SOURCES[name](**settings)


def default_settings(name: str) -> dict[str, Any]:
  """The settings of a source for a config file, so that flags reach them all.

  A setting whose default is None gets a typed empty place.
  """
  hints = typing.get_type_hints(SOURCES[name])
  settings = {"name": name}
  for field in dataclasses.fields(SOURCES[name]):
    settings[field.name] = field.default
    if field.default is None:
      kind = typing.get_args(hints[field.name])[0]
      settings[field.name] = config_dict.placeholder(kind)
  return settings
