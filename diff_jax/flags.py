# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Config files, and overrides of their values from the command line."""

import contextlib
import importlib.util
import os
import pathlib
import types
from collections.abc import Sequence

from absl import flags
from ml_collections import config_dict, config_flags

from diff_jax.config import ConfigError


def load_config_file(spec: str | os.PathLike) -> tuple[types.ModuleType, str]:
  """The module of `path/to/file.py[:arg]`, and arg ("" if absent).

  Raises:
    ConfigError: if there is no such file, or it has no `get_config`.
  """
  path, argument = str(spec), ""
  if ".py:" in path:
    path, _, argument = path.rpartition(":")
  file = pathlib.Path(path)
  if file.suffix != ".py" or not file.is_file():
    raise ConfigError(
        f"config={str(spec)!r} must be path/to/file.py[:arg]: there is no such"
        " Python file."
    )
  module_spec = importlib.util.spec_from_file_location(file.stem, file)
  module = importlib.util.module_from_spec(module_spec)
  module_spec.loader.exec_module(module)
  if not hasattr(module, "get_config"):
    raise ConfigError(
        f"config={str(spec)!r}: {path} must define get_config(arg)."
    )
  return module, argument


def override(
    config: config_dict.ConfigDict, arguments: Sequence[str]
) -> config_dict.ConfigDict:
  """Applies `--config.x.y=value` arguments, checked against the config.

  Raises:
    ConfigError: for an unknown setting, a value of another type, or any other
      argument.
  """
  values = flags.FlagValues()
  argv = ["diff-jax", *arguments]
  try:
    # ml_collections prints what it is about to raise; once is enough.
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
      config_flags.DEFINE_config_dict(
          "config", config, flag_values=values, sys_argv=argv
      )
      rest = values(argv)[1:]
  except (
      flags.Error,
      AttributeError,
      KeyError,
      TypeError,
      ValueError,
  ) as error:
    raise ConfigError(_message(error)) from error
  if rest:
    raise ConfigError(f"arguments {rest} are not understood.")
  return values["config"].value


def _message(error: Exception) -> str:
  """One line of an error that may hold another."""
  while error.args and isinstance(error.args[0], Exception):
    error = error.args[0]
  text = error.args[0] if isinstance(error, KeyError) else str(error)
  return " ".join(str(text).split())
