# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the cases of the `gpu` suite share: the machine, and the timer.

These run in the processes of `gpu_worker.py`.
"""

import contextlib
import hashlib
import importlib.metadata
import math
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diff_jax.kernels.attention import mosaic_gpu_common, target

PACKAGE = pathlib.Path(__file__).parents[1]
PACKAGES = (
    "jax", "jaxlib", "jax-cuda13-plugin", "jax-cuda12-plugin",
    "nvidia-cudnn-cu13", "nvidia-cudnn-cu12", "tokamax", "torch",
)  # fmt: skip
# Bytes whose use twice in a row finds nothing of the first in the L2 cache.
FLUSH_BYTES = 256 * 2**20
SAMPLE_S = 0.04  # Of one sample, so that its end costs nothing.
MAX_CALLS = 200  # Of one sample.
MATMUL = "matmul 8192^3 bf16"


def describe() -> dict[str, Any]:
  """What a time needs beside it: device, memory, driver, commit, versions."""
  device = jax.devices()[0]
  versions = {"python": sys.version.split()[0]}
  for name in PACKAGES:
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
      versions[name] = importlib.metadata.version(name)
  memory = (device.memory_stats() or {}).get("bytes_limit", 0)
  return {
      "platform": target.platform(),
      "device": device.device_kind,
      "capability": str(getattr(device, "compute_capability", "none")),
      "memory_gib": memory / 2**30,
      "driver": _ask(
          "nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"
      ),
      "commit": _ask("git", "-C", str(PACKAGE), "rev-parse", "HEAD"),
      "sources_sha256": _sources(),
      "versions": versions,
  }


def _ask(*command: str) -> str:
  try:
    return subprocess.run(
        command, capture_output=True, text=True, timeout=10, check=True
    ).stdout.strip()
  except (OSError, subprocess.SubprocessError):
    return "unknown"


def _sources() -> str:
  """Of the package's Python files: a copy of the tree may have no commit."""
  digest = hashlib.sha256()
  for file in sorted(PACKAGE.rglob("*.py")):
    digest.update(str(file.relative_to(PACKAGE)).encode() + file.read_bytes())
  return digest.hexdigest()[:16]


def kernels(rehearse: bool):
  """The context in which our kernels are traced: on a CPU, interpreted."""
  if rehearse:
    return mosaic_gpu_common.interpreted()
  return contextlib.nullcontext()


# Timing.


def num_sets(*arrays) -> int:
  """How many sets of such inputs to rotate, so that none stays in the L2."""
  num_bytes = sum(x.nbytes for x in jax.tree.leaves(arrays))
  return 1 + math.ceil(FLUSH_BYTES / num_bytes)


def matmul_call(rehearse: bool) -> tuple[Callable[[int], Any], float]:
  """The product whose rate is called the peak: call(i), and its FLOPs."""
  width = 64 if rehearse else 8192
  x, y = (
      jax.random.normal(jax.random.key(i), (width, width), jnp.bfloat16)
      for i in range(2)
  )
  product = jax.jit(jnp.matmul)
  return lambda _: product(x, y), 2.0 * width**3


def measure(
    calls: Mapping[str, Callable[[int], Any]], rounds: int, rehearse: bool
) -> dict[str, dict[str, Any]]:
  """Times candidates in turns, many calls a sample.

  Calls are queued one after the other and waited for at the end of a sample.
  Every other round runs backwards, so that nobody always follows the same one.

  Args:
    calls: by name; call(i) starts the i-th call and returns arrays.
    rounds: samples of each.
    rehearse: one call a sample, two rounds.

  Returns:
    by name: `times_s`, seconds a call of each round; `calls` of a sample; and
    `host_share`, the largest part of a sample that went by before all its
    calls were queued: near 1, it is the host that was timed.
  """
  found = {}
  for name, call in calls.items():
    jax.block_until_ready(call(0))
    num_calls, sample_s = 1, _sample(call, 1)[0]
    if not rehearse:
      num_calls = max(1, min(MAX_CALLS, math.ceil(SAMPLE_S / sample_s)))
    found[name] = {"times_s": [], "calls": num_calls, "host_share": 0.0}
  for index in range(2 if rehearse else rounds):
    for name in list(calls)[:: -1 if index % 2 else 1]:
      row = found[name]
      sample_s, queued_s = _sample(calls[name], row["calls"])
      row["times_s"].append(sample_s / row["calls"])
      row["host_share"] = max(row["host_share"], queued_s / sample_s)
  return found


def _sample(call: Callable[[int], Any], num_calls: int) -> tuple[float, float]:
  """Seconds until all calls are done, and until all are queued."""
  start_s = time.perf_counter()
  for index in range(num_calls):
    out = call(index)
  queued_s = time.perf_counter() - start_s
  jax.block_until_ready(out)  # One stream: the last call is done last.
  return time.perf_counter() - start_s, queued_s


def relative_error(x, y) -> float:
  """Of Frobenius norms, in fp32 on the device; y is the truth."""
  x, y = (jnp.asarray(z, jnp.float32) for z in (x, y))
  return float(np.asarray(jnp.linalg.norm(x - y) / jnp.linalg.norm(y)))
