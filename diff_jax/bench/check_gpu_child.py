# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The child's side of `check_gpu.py`."""

import functools
import os
import pathlib
import re
import tempfile

import jax
import jax.numpy as jnp
from jax.experimental import topologies
from jax.sharding import PartitionSpec as P

from diff_jax.kernels.attention import mosaic_gpu

LENGTH = 4096  # Of the sequences, in tokens: the kernels do not depend on it.
# What XLA wants to know of an H100 or H200.
TARGET = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 4800000000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 150000000000
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
runtime_version { major: 13 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


def compile_op(size) -> list[dict]:
  """Compiles value and gradients; describes the kernels, see `describe`.

  The assembler's messages are those that jax got, by the way it takes with a
  GPU too. jax 0.12.0.1 has libnvJitLink compile kernels whenever that library
  can be loaded, whatever XLA_FLAGS say (0.11.2 ran ptxas). It compiles for
  linking, as `ptxas -c` does, and then ignores `setmaxnreg`
  (C7504): kernels of three warpgroups had 168 registers a thread instead of
  240, 2,304 bytes spilled at (64,128), and products in series (C7512). No
  directive (.reqntid, .maxnreg) and no limit of registers changed that. So the
  kernels have two warpgroups, which get 255 registers a thread without asking.

  Raises:
    RuntimeError: if there is no kernel.
  """
  h, e, maps, key_maps = size
  mesh = topologies.make_mesh(
      topologies.get_topology_desc(
          platform="cuda", target_config=TARGET, topology="1x1x1"
      ),
      (1,),
      ("x",),
  )
  array = functools.partial(
      jax.ShapeDtypeStruct, sharding=jax.NamedSharding(mesh, P())
  )

  def both(q, k, v, weights, gradient):
    op = functools.partial(mosaic_gpu.attention, first_weight_is_one=True)
    out, pullback = jax.vjp(op, q, k, v, weights)
    return out, pullback(gradient)

  arguments = [
      array((1, LENGTH, 2, *rest), dtype)
      for rest, dtype in (
          ((maps, h), jnp.bfloat16),
          ((key_maps, h), jnp.bfloat16),
          ((e,), jnp.bfloat16),
          ((maps,), jnp.float32),
          ((e,), jnp.bfloat16),
      )
  ]
  with tempfile.TemporaryDirectory() as folder:
    os.environ["MOSAIC_GPU_DUMP_TO"] = folder
    traced = jax.jit(both).trace(*arguments)
    traced.lower(lowering_platforms=("cuda",)).compile()
    found = [
        _read(path) for path in sorted(pathlib.Path(folder).glob("*.ptxas"))
    ]
  if not found:
    raise RuntimeError(f"{size=}: there is no kernel in the executable.")
  return found


def _read(ptxas: pathlib.Path) -> dict:
  """Describes a kernel by its dumps, which two compilers number, each anew."""
  name = ptxas.stem.rsplit("_", 1)[0]
  (resources,) = ptxas.parent.glob(f"{name}_*.resources.txt")
  return describe(name, ptxas.read_text(), resources.read_text())


def describe(name: str, ptxas: str, resources: str) -> dict:
  """A kernel by what was written about it.

  Args:
    name: of the kernel.
    ptxas: the assembler's messages.
    resources: Mosaic's.

  Returns:
    name, registers, spill_stores_bytes, spill_loads_bytes, smem_bytes and
    messages, those with a number: "C7512: why".
  """

  def number(pattern, text):
    return int(re.search(pattern, text)[1])

  return dict(
      name=name,
      registers=number(r"Used (\d+) registers", ptxas),
      spill_stores_bytes=number(r"(\d+) bytes spill stores", ptxas),
      spill_loads_bytes=number(r"(\d+) bytes spill loads", ptxas),
      smem_bytes=number(r"smem_scratch_bytes=(\d+)", resources),
      messages=[
          f"{code}: {text}"
          for code, text in re.findall(r"\((C\d+)\) *([^\n]*)", ptxas)
      ],
  )
