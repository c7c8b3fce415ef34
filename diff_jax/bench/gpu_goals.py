# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What the project wants of the kernels on an H200, from the rounds of a case.

A ratio is of times or rates of the same round, so that a change of the clock
changes both sides.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from diff_jax.bench.gpu_peers import OURS
from diff_jax.bench.table import Target
from diff_jax.bench.timing import quartiles

CUDNN_MEAN = {"(64,128)": 0.90, "(128,256)": 0.93}  # Of cuDNN's forward.
FORWARD_16K = {"(64,128)": 550.0, "(128,256)": 600.0}  # TFLOP/s, a stretch.
BACKWARD = {
    "(64,128)": (330.0, 400.0),
    "(128,256)": (250.0, 400.0),
}  # And stretch.
WHOLE = {"(64,128)": (1.15, 1.1), "(128,256)": (1.4, 1.2)}  # And stretch.
TOKAMAX_BACKWARD = 2.0  # Times as fast, at (128,256).
LENGTH_16K = "t=16384"


def attention_goals(what: str, result: Mapping[str, Any]) -> list[Target]:
  """Goals that apply to a case `SIZE t=LENGTH`, where both sides were timed."""
  size, _, length = what.rpartition(" ")
  return [*_against_libraries(size, result), *_rates(size, length, result)]


def _times(result, label) -> np.ndarray | None:
  sample = result["samples"].get(label)
  return np.array(sample["times_s"]) if sample else None


def _rate(result, label) -> np.ndarray | None:
  """TFLOP/s of each round."""
  times_s = _times(result, label)
  return None if times_s is None else result["flops"][label] / times_s / 1e12


def _best(result, group: str, what: str) -> np.ndarray | None:
  """The fastest library's times of a pass: `xla` is no library."""
  found = [
      _times(result, label)
      for label in result["samples"]
      if label.startswith(f"{group}/")
      and label.endswith(f"/{what}")
      and label.split("/")[1] not in (OURS, "xla")
  ]
  return min(found, key=np.median, default=None)


def _against_libraries(size, result) -> Iterator[Target]:
  for what in ("forward", "both"):
    ours = _times(result, f"DIFF/{OURS}/{what}")
    theirs = _best(result, "DIFF", what)
    if ours is not None and theirs is not None:
      name = f"must: {what}, time / best two calls"
      yield Target(name, quartiles(ours / theirs), 1.0)
  ours = _times(result, f"DIFF/{OURS}/both")
  theirs = _best(result, "Transformer", "both")
  if ours is not None and theirs is not None and size in WHOLE:
    for kind, bound in zip(("goal", "stretch"), WHOLE[size], strict=True):
      name = f"{kind}: both, time / best library's Transformer"
      yield Target(name, quartiles(ours / theirs), bound)
  ours = _times(result, f"DIFF/{OURS}/backward")
  theirs = _times(result, "DIFF/tokamax, two calls/backward")
  if ours is not None and theirs is not None and size == "(128,256)":
    name = "must: backward, speed / two tokamax calls"
    yield Target(name, quartiles(theirs / ours), TOKAMAX_BACKWARD, False)


def _rates(size, length, result) -> Iterator[Target]:
  forward = _rate(result, f"DIFF/{OURS}/forward")
  narrow, wide = (
      _rate(result, f"{group}/cuDNN/forward")
      for group in ("Transformer", "wide")
  )
  if not any(x is None for x in (forward, narrow, wide)) and size in CUDNN_MEAN:
    mean = 2 / (1 / narrow + 1 / wide)
    name = "goal: forward, rate / harmonic mean of cuDNN at (h,h), (2h,2h)"
    yield Target(name, quartiles(forward / mean), CUDNN_MEAN[size], False)
  if forward is not None and size in FORWARD_16K and length == LENGTH_16K:
    name = "stretch: forward, TFLOP/s"
    yield Target(name, quartiles(forward), FORWARD_16K[size], False)
  backward = _rate(result, f"DIFF/{OURS}/backward")
  if backward is not None and size in BACKWARD:
    for kind, bound in zip(("goal", "stretch"), BACKWARD[size], strict=True):
      name = f"{kind}: backward, TFLOP/s"
      yield Target(name, quartiles(backward), bound, False)


def decode_goals(result: Mapping[str, Any]) -> list[Target]:
  """Against a copy, which reads and writes, and the Transformer."""
  ours, copy, transformer = (
      _times(result, x) for x in ("DIFF", "copy", "Transformer")
  )
  num_bytes = result["bytes"]
  bandwidth = quartiles(num_bytes["DIFF"] / ours * copy / num_bytes["copy"])
  slower = quartiles(ours / transformer)
  return [
      Target("goal: bytes a second / copy's", bandwidth, 0.75, False),
      Target("stretch: bytes a second / copy's", bandwidth, 0.85, False),
      Target("goal: time / Transformer", slower, 1.08),
      Target("stretch: time / Transformer", slower, 1.03),
  ]
