# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Compiles for TPUs and GPUs that are not there, in child processes.

libtpu reads its environment once, as it loads, and two loads in one process
fail; so whatever needs it runs in a child: `python -m diff_jax.bench.aot
MODULE:FUNCTION`, JSON in, JSON out. So does what needs jax's CUDA plugin, which
looks for a GPU unless told not to.
"""

import importlib
import importlib.metadata
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from typing import Any

from diff_jax.config import RunError

TOPOLOGIES = {  # the smallest slice of four chips of each kind
    "v5e": "v5e:2x2",
    "v5p": "v5p:2x2x1",
    "v6e": "v6e:2x2",
    "tpu7x": "tpu7x:2x2x1",
}
ENVIRONMENT = {
    # Constants and keys stay on the CPU: no compile-only device can hold them.
    "JAX_PLATFORMS": "cpu",
    # No metadata server tells where this host is, so say it.
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-4",
    "TPU_WORKER_HOSTNAMES": "localhost",
    # Else a second process that compiles aborts on a lock file.
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
GPU_ENVIRONMENT = {
    "JAX_PLATFORMS": "cpu",
    "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",  # Of the driver's version.
    "CUDA_VISIBLE_DEVICES": "-1",
    "TF_CPP_MIN_LOG_LEVEL": "3",
}
GPU_PACKAGES = ("jax_cuda13_plugin", "jax_plugins.xla_cuda13", "nvidia.cu13")
DUMP_FLAGS = (
    "--xla_jf_dump_to={folder} --xla_jf_dump_llo_text=true"
    " --xla_jf_dump_llo_pass_label_regex=final_bundles"  # else 50 times as much
)


class ChildError(Exception):
  """A child process failed; the message is the last line that it wrote."""


def why_not() -> str | None:
  """Why nothing can be compiled for TPU here, or None."""
  if importlib.util.find_spec("libtpu") is None:
    return (
        "libtpu is not installed: compiling for TPU needs"
        " `pip install 'diff_jax[aot]'`"
    )
  return None


def why_not_gpu() -> str | None:
  """Why nothing can be compiled for Hopper here, or None."""
  for package in GPU_PACKAGES:
    if not _is_installed(package):
      return (
          f"{package} is not installed: compiling for a GPU needs"
          " `pip install 'diff_jax[aot-gpu]'`"
      )
  return None


def _is_installed(package: str) -> bool:
  try:
    return importlib.util.find_spec(package) is not None
  except ModuleNotFoundError:  # Of the package that it is in.
    return False


def versions() -> dict[str, str]:
  return {x: importlib.metadata.version(x) for x in ("jax", "libtpu")}


def call(
    function: str, request: dict[str, Any], dump: pathlib.Path | None = None
) -> Any:
  """Calls `MODULE:FUNCTION` in a child with libtpu's environment.

  Args:
    function: takes `request`'s items as keywords.
    request: and the result: what JSON can hold.
    dump: folder for the compiler's dumps; `bundles.py` reads them.

  Raises:
    RunError: where libtpu is missing.
    ChildError: if the child fails.
  """
  if reason := why_not():
    raise RunError(f"{reason}.")
  environment = dict(ENVIRONMENT)
  if dump:
    environment["LIBTPU_INIT_ARGS"] = DUMP_FLAGS.format(folder=dump)
  return _call(function, request, environment)


def call_gpu(function: str, request: dict[str, Any]) -> Any:
  """`call` for Hopper.

  Raises:
    RunError: where jax's CUDA plugin or the CUDA compiler is missing.
    ChildError: if the child fails.
  """
  if reason := why_not_gpu():
    raise RunError(f"{reason}.")
  return _call(function, request, GPU_ENVIRONMENT)


def _call(function, request, environment):
  child = subprocess.run(
      [sys.executable, "-m", "diff_jax.bench.aot", function],
      input=json.dumps(request),
      env=os.environ | environment,
      capture_output=True,
      text=True,
  )
  if child.returncode:
    lines = child.stderr.strip().splitlines() or [f"status {child.returncode}"]
    raise ChildError(lines[-1])
  return json.loads(child.stdout.splitlines()[-1])


def main() -> None:
  """The child's side."""
  module, _, name = sys.argv[1].partition(":")
  function = getattr(importlib.import_module(module), name)
  print(json.dumps(function(**json.load(sys.stdin))))


if __name__ == "__main__":
  main()
