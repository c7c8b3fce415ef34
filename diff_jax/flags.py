# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Config files, and overrides of their values from the command line."""

import contextlib
import importlib.util
import os
import pathlib
import re
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
  for argument in arguments:
    if not argument.startswith("--config."):
      raise ConfigError(
          f"argument {argument!r} is not understood; a setting is"
          " --config.x.y=value"
      )
  values = flags.FlagValues()
  argv = ["diff-jax", *arguments]
  try:
    # ml_collections prints what it is about to raise; once is enough.
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
      config_flags.DEFINE_config_dict(
          "config", config, flag_values=values, sys_argv=argv
      )
      values(argv)
  except (
      flags.Error,
      AttributeError,
      KeyError,
      TypeError,
      ValueError,
  ) as error:
    raise ConfigError(_message(error)) from error
  return values["config"].value


def _message(error: Exception) -> str:
  """One line of an error that may hold another."""
  while error.args and isinstance(error.args[0], Exception):
    error = error.args[0]
  text = str(error.args[0]) if isinstance(error, KeyError) else str(error)
  # absl wraps some errors as the tuple of their arguments.
  text = re.sub(r"\('([^']*)', '[^']*'\)", r"\1", text)
  if " " not in text:
    text = f"config.{text.strip(chr(39))} is no setting"
  return " ".join(text.split())
