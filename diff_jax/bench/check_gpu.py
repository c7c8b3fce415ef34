# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""make check-gpu: the op's kernels compiled for Hopper, without a GPU.

Forward and backward of the op at every tuned head size must become kernels that
keep their sums in registers (no spilled bytes beyond `SPILLS_BYTES`, no wgmma
that waits for the one before it) and fit shared memory.
"""

import argparse
import sys
from collections.abc import Sequence

from diff_jax.bench import aot
from diff_jax.kernels.attention.mosaic_gpu_config import MAX_SMEM_BYTES

SIZES = {  # h, e, maps, maps of the keys
    "(64,128)": (64, 128, 2, 2),
    "(96,192)": (96, 192, 2, 2),
    "(128,256)": (128, 256, 2, 2),
    "(128,128) shared keys": (128, 128, 2, 1),
    "(128,128) one map": (128, 128, 1, 1),
    "(64,64) one map": (64, 64, 1, 1),
}
# Stored to local memory and not more, by (kernel, size), 0 where none is named:
# the most of jax 0.11.2 and 0.12.0.1. A number changes only beside a measurement
# on a GPU.
SPILLS_BYTES = {
    ("diff_attention_forward", "(64,128)"): 16,
    ("diff_attention_dkv", "(128,256)"): 64,
}
# Registers are not handed over, or each product waits for the one before it.
SLOW = ("C7504", "C7508", "C7510", "C7512", "C7514")


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a line a kernel; status 1 if one fails."""
  parser = argparse.ArgumentParser(prog="check_gpu", description=__doc__)
  parser.add_argument(
      "--sizes", default=";".join(SIZES), help="default: %(default)s"
  )
  arguments = parser.parse_args(argv)
  if reason := aot.why_not_gpu():
    print(f"skipped: {reason}")
    return 0
  failures = 0
  for name in arguments.sizes.split(";"):
    failures += _check(name)
  print(f"{failures} failed" if failures else "all compile")
  return int(failures > 0)


def _check(name: str) -> int:
  """Prints what became of one size; the number of kernels that fail."""
  try:
    kernels = aot.call_gpu(
        "diff_jax.bench.check_gpu_child:compile_op", dict(size=SIZES[name])
    )
  except aot.ChildError as error:
    print(f"{name}: FAILED: {error}", flush=True)
    return 1
  failures = 0
  for kernel in kernels:
    wrong = faults(kernel, SPILLS_BYTES.get((kernel["name"], name), 0))
    failures += bool(wrong)
    print(
        f"{name} {kernel['name']}: {kernel['registers']} registers at launch,"
        f" {kernel['spill_stores_bytes']}/{kernel['spill_loads_bytes']} bytes"
        f" spilled/read back, {kernel['smem_bytes']:,} bytes shared"
        + "".join(f"; FAILED: {fault}" for fault in wrong),
        flush=True,
    )
  return failures


def faults(kernel: dict, most_spilled_bytes: int) -> list[str]:
  """What is wrong with a kernel that `check_gpu_child` describes."""
  found = [x for x in kernel["messages"] if x.startswith(SLOW)]
  spilled = kernel["spill_stores_bytes"]
  if spilled > most_spilled_bytes:
    found.append(f"{spilled} bytes spilled, more than {most_spilled_bytes}")
  if kernel["smem_bytes"] > MAX_SMEM_BYTES:
    found.append(f"more than {MAX_SMEM_BYTES:,} bytes of shared memory")
  return found


if __name__ == "__main__":
  sys.exit(main())
