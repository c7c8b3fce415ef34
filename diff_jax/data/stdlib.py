# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A text corpus that every machine has: modules of Python's standard library.

The list is fixed, the text is not: it is the source of the Python that runs,
so that `Text.corpus()` reports the version and a SHA-256 of it.
"""

import importlib.util
import pathlib

# Pure-Python modules of both CPython 3.12 and 3.13, 2.9 MB of source.
MODULES = (
    "argparse",
    "ast",
    "asyncio.base_events",
    "asyncio.events",
    "asyncio.selector_events",
    "asyncio.streams",
    "asyncio.tasks",
    "bdb",
    "calendar",
    "collections",
    "concurrent.futures.process",
    "configparser",
    "contextlib",
    "csv",
    "dataclasses",
    "difflib",
    "email.generator",
    "email.message",
    "enum",
    "fractions",
    "ftplib",
    "functools",
    "gettext",
    "heapq",
    "http.client",
    "http.cookiejar",
    "http.server",
    "ipaddress",
    "json.decoder",
    "json.encoder",
    "logging",
    "logging.config",
    "logging.handlers",
    "multiprocessing.connection",
    "multiprocessing.managers",
    "multiprocessing.pool",
    "optparse",
    "pickle",
    "platform",
    "plistlib",
    "random",
    "selectors",
    "shlex",
    "shutil",
    "smtplib",
    "socket",
    "statistics",
    "subprocess",
    "tarfile",
    "tempfile",
    "textwrap",
    "threading",
    "tokenize",
    "traceback",
    "unittest.case",
    "unittest.loader",
    "urllib.parse",
    "urllib.request",
    "xml.etree.ElementTree",
    "zipfile",
)

# The eval split: whole packages, so that no module of it has a sibling in the
# train split. 9 % of the bytes.
EVAL_PACKAGES = ("heapq", "json", "logging", "random")


def package(module: str) -> str:
  """The top-level package that a dotted module name belongs to."""
  return module.partition(".")[0]


def read() -> dict[str, bytes]:
  """The source of each module of `MODULES` that this Python has, by name."""
  paths = {module: _source_path(module) for module in MODULES}
  return {
      module: path.read_bytes()
      for module, path in paths.items()
      if path is not None
  }


def _source_path(module: str) -> pathlib.Path | None:
  """The module's file; finding it imports nothing, not even its package."""
  first, *rest = module.split(".")
  spec = importlib.util.find_spec(first)
  if spec is None or spec.origin is None:
    return None
  path = pathlib.Path(spec.origin)
  if rest:
    path = path.parent.joinpath(*rest).with_suffix(".py")
  return path if path.suffix == ".py" and path.is_file() else None
