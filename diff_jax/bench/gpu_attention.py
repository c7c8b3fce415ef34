# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Times of the attention op on the GPU, beside what libraries offer.

Causal, bf16, 16K tokens in all. One case is one size at one length: all
candidates in turns in one run, with a matrix product, whose rate is the peak.
"""

import concurrent.futures
import functools
import json
import pathlib
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from diff_jax.bench import gpu_device
from diff_jax.bench.gpu_peers import (
    OURS,
    Candidate,
    candidates,
    flops_per_pair,
    make_inputs,
)

TOKENS = 16_384  # Of all sequences.
LENGTHS = (16_384, 8192, 4096)
PAIRS = {  # Of maps: 2,048 channels; 1,536 at h = 96, as the 830M model has
    "(64,128)": 16,
    "(128,256)": 8,
    "(96,192)": 8,
    "(128,128) shared keys": 16,
}
PASSES = ("forward", "train forward", "backward", "both")
ROUNDS = 9
# Relative, of outputs and of gradients in 16 bits.
TOLERANCE = 3e-2
COMPILING_THREADS = 4
TORCH_LIMIT_S = 240


def shape(size: str, t: int, rehearse: bool) -> tuple[int, int, int]:
  """b, t, n of a case."""
  if rehearse:
    return 1, t // 256, 1
  return TOKENS // t, t, PAIRS[size]


def time_size(
    size: str, t: int, proven: Sequence[str], rehearse: bool
) -> dict[str, Any]:
  """Times all candidates of a size at a length.

  Args:
    size: a name in PAIRS.
    t: tokens of a sequence.
    proven: the cases of correctness that passed; `SIZE forward`, `SIZE
      backward`.
    rehearse: a small call, with interpreted kernels.

  Returns:
    samples: `gpu_device.measure` of the calls `GROUP/NAME/PASS`.
    flops: of each, useful ones.
    errors: of each candidate against its group's first.
    left_out: why a candidate was not timed.
  """
  b, t, n = shape(size, t, rehearse)
  pairs = b * n * t * (t + 1) / 2
  product, product_flops = gpu_device.matmul_call(rehearse)
  calls = {gpu_device.MATMUL: product}
  flops = {gpu_device.MATMUL: product_flops}
  errors, left_out, inputs, expected = {}, {}, {}, {}
  found = candidates(size, rehearse)
  for group in dict.fromkeys(x.group for x in found):
    inputs[group] = _input_sets(size, group, b, t, n)
  prepare = functools.partial(_prepare, inputs, proven, rehearse)
  with concurrent.futures.ThreadPoolExecutor(
      1 if rehearse else COMPILING_THREADS
  ) as pool:
    prepared = list(pool.map(prepare, found))
  for candidate, (of_pass, reason) in zip(found, prepared, strict=True):
    label = f"{candidate.group}/{candidate.name}"
    if reason:
      left_out[label] = reason
    results = of_pass.pop("results")
    if not results:
      continue
    truth = expected.setdefault(candidate.group, results)
    errors[label] = worst = _worst_error(results, truth)
    if not worst <= TOLERANCE:
      left_out[label] = f"differs from the first of its group: {worst:.1e}"
      continue
    forward, backward = flops_per_pair(size, candidate.group)
    of_passes = (forward, forward, backward, forward + backward)
    for what, cost in zip(PASSES, of_passes, strict=True):
      if what in of_pass:
        calls[f"{label}/{what}"] = of_pass[what]
        flops[f"{label}/{what}"] = cost * pairs
  del expected, prepared
  samples = gpu_device.measure(calls, ROUNDS, rehearse)
  return {
      "samples": samples,
      "flops": flops,
      "errors": errors,
      "left_out": left_out,
      "shape": {"b": b, "t": t, "n": n},
  }


def _worst_error(results, truth) -> float:
  compared = zip(results, truth, strict=False)  # Maybe no gradients.
  # Of numpy, since Python's max loses a NaN.
  return float(np.max([gpu_device.relative_error(*x) for x in compared]))


def _input_sets(size, group, b, t, n):
  first = make_inputs(size, group, b, t, n, seed=0)
  rest = range(1, gpu_device.num_sets(first[:3]) if t > 256 else 1)
  return [first, *(make_inputs(size, group, b, t, n, seed=i) for i in rest)]


def _prepare(
    inputs, proven, rehearse, candidate: Candidate
) -> tuple[dict[str, Any], str | None]:
  """Compiles a candidate's passes.

  Returns:
    by pass, call(i); `results`, the output and the gradients; and why a pass
    is missing.
  """
  sets, found = inputs[candidate.group], {"results": []}
  for what, build in (("forward", _forward), ("backward", _backward)):
    kernel = candidate.kernel_size
    if kernel and f"{kernel} {what}" not in proven:
      return found, f"{what} has not passed as correct"
    try:
      with gpu_device.kernels(rehearse):
        calls, results = build(candidate.op, sets)
    except Exception as error:
      if candidate.name == OURS:
        raise
      line = (str(error).strip().splitlines() or [""])[0]
      return found, f"{what}: {type(error).__name__}: {line[:200]}"
    found |= calls
    found["results"] += jax.block_until_ready(results)
  return found, None


def _ahead(function, *arguments):
  """Compiled here, in the context that interprets kernels."""
  return jax.jit(function).lower(*arguments).compile()


def _forward(op, sets):
  run = _ahead(op, *sets[0][:4])
  calls = {"forward": lambda i: run(*sets[i % len(sets)][:4])}
  return calls, [run(*sets[0][:4])]


def _backward(op, sets):
  start = _ahead(functools.partial(jax.vjp, op), *sets[0][:4])
  # A set's residuals are kept, to time the backward pass by itself.
  kept = [start(*x[:4])[1] for x in sets]
  end = _ahead(lambda pullback, dout: pullback(dout), kept[0], sets[0][4])

  def both(i):
    x = sets[i % len(sets)]
    return end(start(*x[:4])[1], x[4])

  calls = {
      "train forward": lambda i: start(*sets[i % len(sets)][:4]),
      "backward": lambda i: end(kept[i % len(sets)], sets[i % len(sets)][4]),
      "both": both,
  }
  return calls, [*end(kept[0], sets[0][4])[:3]]


def time_torch(
    size: str, t: int, python: str, rehearse: bool
) -> dict[str, Any]:
  """FlexAttention and SDPA, in a process of PyTorch's.

  Returns:
    `missing`, why there is nothing; or samples, flops, versions and left_out.
  """
  b, t, n = shape(size, t, rehearse)
  script = pathlib.Path(__file__).with_name("gpu_torch.py")
  request = dict(size=size, b=b, t=t, n=n, rounds=ROUNDS, rehearse=rehearse)
  child = subprocess.run(
      [python or sys.executable, str(script)],
      input=json.dumps(request),
      stdout=subprocess.PIPE,
      text=True,
      timeout=TORCH_LIMIT_S,
      check=True,
  )
  found = json.loads(child.stdout.splitlines()[-1])
  if "missing" in found:
    return found
  pairs, flops = b * n * t * (t + 1) / 2, {}
  for label in found["samples"]:
    group, _, what = label.rpartition("/")
    if not group:
      continue
    forward, backward = flops_per_pair(size, group.split("/")[0])
    flops[label] = pairs * (forward + (backward if what == "both" else 0))
  flops[gpu_device.MATMUL] = 2.0 * (64 if rehearse else 8192) ** 3
  return found | {"flops": flops, "shape": {"b": b, "t": t, "n": n}}
