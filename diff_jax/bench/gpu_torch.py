# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's side of the `gpu` suite: FlexAttention and SDPA.

Run as a script by a Python that may have PyTorch and need not have diff_jax;
JSON in, JSON out. Names are those of `gpu_attention.py`; here values may be
wider than keys, so that a map is one call.
"""

import importlib.util
import json
import math
import re
import statistics
import sys
import time

MATMUL = "matmul 8192^3 bf16"
SAMPLE_S, MAX_CALLS = 0.04, 200


def heads_of(size: str) -> tuple[int, int, int]:
  """h, e, maps of the keys."""
  h, e = map(int, re.match(r"\((\d+),(\d+)\)", size).groups())
  return h, e, 1 if "shared" in size else 2


def make_inputs(torch, size, b, t, n, device):
  """Of both groups: arrays [b, heads, t, width] that want gradients."""
  h, e, key_maps = heads_of(size)
  heads = n * (2 if e > h else 1)  # Of the Transformer.

  def normal(count, width):
    x = torch.randn(b, count, t, width, device=device, dtype=torch.bfloat16)
    return x.requires_grad_()

  diff = [normal(n, h) for _ in range(2)]
  diff += [normal(n, h) for _ in range(key_maps)] + [normal(n, e)]
  return {"DIFF": diff, "Transformer": [normal(heads, h) for _ in range(3)]}


def make_ops(torch, t, device):
  """By library, attention(q, k, v), causal."""
  from torch.nn.attention import flex_attention as flex

  def causal(b, n, i, j):
    del b, n
    return i >= j

  mask = flex.create_block_mask(causal, None, None, t, t, device=device)
  call = flex.flex_attention
  if device == "cuda":
    call = torch.compile(call)

  def sdpa(q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True
    )

  return {
      "FlexAttention": lambda q, k, v: call(q, k, v, block_mask=mask),
      "SDPA": sdpa,
  }


def diff(attend, q1, q2, *rest):
  """Two calls of a library; lambda is 0.8."""
  *keys, v = rest
  return attend(q1, keys[0], v) - 0.8 * attend(q2, keys[-1], v)


def make_calls(torch, attend, group, arrays):
  """Forward alone, and with the backward pass."""

  def compute():
    return diff(attend, *arrays) if group == "DIFF" else attend(*arrays)

  dout = torch.randn_like(compute())

  def both():
    return torch.autograd.grad(compute(), arrays, dout)

  def forward():
    with torch.no_grad():
      return compute()

  return {"forward": forward, "both": both}


def sample_s(call, num_calls, wait):
  wait()
  start_s = time.perf_counter()
  for _ in range(num_calls):
    call()
  wait()
  return time.perf_counter() - start_s


def main():
  request = json.load(sys.stdin)
  if importlib.util.find_spec("torch") is None:
    print(json.dumps({"missing": "torch is not installed"}))
    return
  import torch

  device = "cuda" if torch.cuda.is_available() else "cpu"
  if device == "cpu" and not request["rehearse"]:
    print(json.dumps({"missing": "torch sees no GPU"}))
    return
  wait = torch.cuda.synchronize if device == "cuda" else lambda: None
  torch.manual_seed(0)
  size, t = request["size"], request["t"]
  arrays = make_inputs(torch, size, request["b"], t, request["n"], device)
  width = 64 if request["rehearse"] else 8192
  x, y = torch.randn(2, width, width, device=device, dtype=torch.bfloat16)
  calls, left_out = {MATMUL: lambda: x @ y}, {}
  for name, attend in make_ops(torch, t, device).items():
    for group in arrays:
      try:
        made = make_calls(torch, attend, group, arrays[group])
        for what, call in made.items():
          call()
          calls[f"{group}/{name}/{what}"] = call
      except Exception as error:  # What a library cannot do is left out.
        left_out[f"{group}/{name}"] = str(error).splitlines()[0][:200]
  rows = {}
  for name, call in calls.items():
    once_s = statistics.median(sample_s(call, 1, wait) for _ in range(3))
    num_calls = max(1, min(MAX_CALLS, math.ceil(SAMPLE_S / once_s)))
    num_calls = 1 if request["rehearse"] else num_calls
    rows[name] = {"times_s": [], "calls": num_calls, "host_share": 0.0}
  for index in range(2 if request["rehearse"] else request["rounds"]):
    for name in list(calls)[:: -1 if index % 2 else 1]:
      count = rows[name]["calls"]
      rows[name]["times_s"].append(sample_s(calls[name], count, wait) / count)
  answer = {
      "samples": rows,
      "left_out": left_out,
      "versions": {"torch": torch.__version__},
  }
  print(json.dumps(answer))


if __name__ == "__main__":
  main()
