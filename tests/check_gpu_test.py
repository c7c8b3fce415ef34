# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What `make check-gpu` reads of a compiled kernel, and what it refuses."""

from diff_jax.bench import aot, check_gpu, check_gpu_child
from diff_jax.kernels.attention import mosaic_gpu_config

# As ptxas and Mosaic write it, with the numbers made up.
PTXAS = """\
ptxas info    : (C7512) Potential Performance Loss: wgmma are serialized
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'x' for 'sm_90a'
    96 bytes stack frame, 20 bytes spill stores, 24 bytes spill loads
ptxas info    : Used 168 registers, used 16 barriers, 1 bytes smem
"""
RESOURCES = "Resources(smem_scratch_bytes={}, tmem_scratch_cols=0)"
MOST = mosaic_gpu_config.MAX_SMEM_BYTES


def test_describes_a_kernel():
  found = check_gpu_child.describe("x", PTXAS, RESOURCES.format(1024))
  assert found == dict(
      name="x",
      registers=168,
      spill_stores_bytes=20,
      spill_loads_bytes=24,
      smem_bytes=1024,
      messages=["C7512: Potential Performance Loss: wgmma are serialized"],
  )


def test_refuses_spills_serialised_products_and_too_much_memory():
  kernel = check_gpu_child.describe("x", PTXAS, RESOURCES.format(MOST + 1))
  assert len(check_gpu.faults(kernel, most_spilled_bytes=19)) == 3
  kernel |= dict(smem_bytes=MOST, messages=["C7599: of no importance"])
  assert check_gpu.faults(kernel, most_spilled_bytes=20) == []
  kernel |= dict(messages=["C7504: 'setmaxnreg' ignored"])
  assert check_gpu.faults(kernel, most_spilled_bytes=20) == kernel["messages"]


def test_spill_limits_are_of_checked_sizes():
  assert {size for _, size in check_gpu.SPILLS_BYTES} <= set(check_gpu.SIZES)


def test_says_what_is_missing(monkeypatch, capsys):
  monkeypatch.setattr(aot, "GPU_PACKAGES", ("no_such_package.inside",))
  assert check_gpu.main([]) == 0
  assert "pip install 'diff_jax[aot-gpu]'" in capsys.readouterr().out
