# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""make check-tpu: the op and a layer compiled for every TPU, without one.

Forward and backward of the op at every tuned head size and length, inside
`shard_map` on a mesh of four chips, must compile to Pallas kernels; a scanned,
rematerialised layer that saves `attention` must not run the forward kernel in
its backward loop.
"""

import argparse
import sys
from collections.abc import Sequence

from diff_jax.bench import aot

LENGTHS = (2048, 8192, 65536)
SIZES = {  # h, e, maps, maps of the keys
    "(64,128)": (64, 128, 2, 2),
    "(96,192)": (96, 192, 2, 2),
    "(128,256)": (128, 256, 2, 2),
    "(128,128) shared keys": (128, 128, 2, 1),
    "(128,128) one map": (128, 128, 1, 1),
}


def main(argv: Sequence[str] | None = None) -> int:
  """Prints a line a child; status 1 if something does not compile."""
  parser = argparse.ArgumentParser(prog="check_tpu", description=__doc__)
  parser.add_argument(
      "--implementation", default="mosaic_tpu", help="default: %(default)s"
  )
  parser.add_argument(
      "--chips", default=",".join(aot.TOPOLOGIES), help="default: %(default)s"
  )
  arguments = parser.parse_args(argv)
  chips = arguments.chips.split(",")
  if unknown := set(chips) - aot.TOPOLOGIES.keys():
    parser.error(f"chips={sorted(unknown)} must be of {[*aot.TOPOLOGIES]}")
  if reason := aot.why_not():
    print(f"skipped: {reason}")
    return 0
  print(", ".join(f"{name} {x}" for name, x in aot.versions().items()))
  failures = 0
  for chip in chips:
    request = dict(
        topology=aot.TOPOLOGIES[chip], implementation=arguments.implementation
    )
    for name, size in SIZES.items():
      failures += _report(
          f"{chip} {name}", "compile_op", request | dict(size=size)
      )
    failures += _report(f"{chip} layer", "check_layer", request)
  print(f"{failures} failed" if failures else "all compile")
  return int(failures > 0)


def _report(label: str, function: str, request: dict) -> int:
  """Prints what a child found; 1 if it failed."""
  module = "diff_jax.bench.check_tpu_child"
  try:
    found = aot.call(f"{module}:{function}", request)
  except aot.ChildError as error:
    print(f"{label}: FAILED: {error}", flush=True)
    return 1
  print(f"{label}: {found}", flush=True)
  return 0


if __name__ == "__main__":
  sys.exit(main())
