# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Decoding, and whole train steps of the paper's models, on one GPU."""

import dataclasses
import functools
import gc
import pathlib
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from diff_jax.bench import decode as decode_suite
from diff_jax.bench import gpu_device
from diff_jax.bench import train as train_suite
from diff_jax.config import Config, parse
from diff_jax.flags import load_config_file
from diff_jax.transformer import num_parameters

SCALING = pathlib.Path(__file__).parents[2] / "configs" / "scaling.py"
# b, s, pairs of maps, h; of 12 pairs (128, 256), 32K tokens are 12.9 GB
DECODE_SHAPE, DECODE_REHEARSED = (32, 32_768, 12, 128), (1, 64, 2, 8)
DECODE_TOLERANCE = 2e-2
SEQ_LEN, BATCH_SIZES = 2048, (32, 16, 8, 4)
MODELS = {"830m": "(96,192)", "1.4b": "(128,256)"}
ARMS = ("DIFF", "Transformer")
ROUNDS = 7
NO_MEMORY = "RESOURCE_EXHAUSTED"
# Of loss and gradient norm, between implementations in bf16.
LOSS_TOLERANCE = 3e-2


def time_decoding(rehearse: bool) -> dict[str, Any]:
  """DIFF, the Transformer, two calls and a copy: samples, and bytes read."""
  b, s, n, h = DECODE_REHEARSED if rehearse else DECODE_SHAPE
  steps = decode_suite.candidates(b, s, n, h)
  errors = {
      name: gpu_device.relative_error(step()[:1], step.reference())
      for name, step in steps.items()
  }
  wrong = {x: y for x, y in errors.items() if not y <= DECODE_TOLERANCE}
  if wrong:
    raise ValueError(f"{wrong} must be at most {DECODE_TOLERANCE}.")
  buffer = jnp.copy(steps["DIFF"].caches[0])
  copy = jax.jit(jnp.copy)
  calls = {
      name: functools.partial(lambda step, _: step(), step)
      for name, step in steps.items()
  }
  calls["copy"] = lambda _: copy(buffer)
  num_bytes = {name: step.num_bytes for name, step in steps.items()}
  num_bytes["copy"] = 2 * buffer.nbytes  # Read and written.
  return {
      "samples": gpu_device.measure(calls, ROUNDS, rehearse),
      "bytes": num_bytes,
      "errors": errors,
      "shape": dict(b=b, s=s, n=n, h=h),
  }


# Training.


def settings(
    model: str, arm: str, implementation: str, rehearse: bool
) -> Config:
  """Of configs/scaling.py, for one GPU."""
  module, _ = load_config_file(SCALING)
  words = [model, *(["softmax"] if arm == "Transformer" else [])]
  config = module.get_config(",".join([*words, "smoke"] if rehearse else words))
  config.model.implementation = implementation
  config.data.path = "stdlib"  # It is not read: tokens are random.
  return parse(config)


def _with_batch(config: Config, batch_size: int, remat: str) -> Config:
  model = dataclasses.replace(config.model, remat=remat)
  return dataclasses.replace(config, batch_size=batch_size, model=model)


def time_training(
    model: str, proven: Sequence[str], rehearse: bool
) -> dict[str, Any]:
  """Steps of both arms, by our kernels and by a library's, in turns.

  Every layer keeps its attention's outputs and recomputes the rest. The batch
  is the largest of BATCH_SIZES at which all of them fit the GPU together.

  Returns:
    samples of `ARM/IMPLEMENTATION`; tokens of a step; losses; parameters.
  """
  for batch_size in (2,) if rehearse else BATCH_SIZES:
    try:
      steps = _make_steps(model, proven, batch_size, rehearse)
      break
    except Exception as error:
      if NO_MEMORY not in str(error):
        raise
    gc.collect()
  else:
    raise ValueError(f"{model}: batches of {BATCH_SIZES} do not fit.")
  losses = {name: step.loss_and_norm() for name, step in steps.items()}
  calls = {
      name: functools.partial(lambda step, _: step(), step)
      for name, step in steps.items()
  }
  first = next(iter(steps.values()))
  return {
      "samples": gpu_device.measure(calls, ROUNDS, rehearse),
      "losses": losses,
      "left_out": _disagreeing(losses),
      "tokens": batch_size * first.seq_len,
      "batch_size": batch_size,
      "seq_len": first.seq_len,
      "parameters": {
          name: num_parameters(step.settings.model)
          for name, step in steps.items()
      },
  }


def implementations(model: str, arm: str, proven: Sequence[str]) -> list[str]:
  """A library's, and ours where it is correct; ours is never the only one."""
  h = MODELS[model].strip("()").split(",")[0]
  size = MODELS[model] if arm == "DIFF" else f"({h},{h}) one map"
  correct = {f"{size} forward", f"{size} backward"} <= {*proven}
  return ["two_call", *(["mosaic_gpu"] if correct else [])]


def _make_steps(model, proven, batch_size, rehearse):
  """Steps by name, each of which has run once."""
  steps = {}
  for arm in ARMS:
    for name in implementations(model, arm, proven):
      # XLA in place of what needs a GPU; kernels would take minutes a layer.
      config = settings(model, arm, "xla" if rehearse else name, rehearse)
      config = _with_batch(config, batch_size, "save_attention")
      step = train_suite.Step(config, 32 if rehearse else SEQ_LEN)
      jax.block_until_ready(step())
      steps[f"{arm}/{name}"] = step
  return steps


def _disagreeing(losses) -> dict[str, str]:
  """Ways whose first loss or gradient norm is not that of the arm's library."""
  found = {}
  for name, (loss, norm) in losses.items():
    library = losses[f"{name.split('/')[0]}/two_call"]
    for ours, theirs in zip((loss, norm), library, strict=True):
      if not abs(ours / theirs - 1) <= LOSS_TOLERANCE:
        found[name] = f"{ours:.4g} where the library's step has {theirs:.4g}"
  return found


def try_context(
    model: str, arm: str, t: int, proven: Sequence[str], rehearse: bool
) -> dict[str, Any]:
  """Whether a step of one sequence of t tokens fits; every layer recomputed.

  Returns:
    fits, and the implementation.
  """
  name = implementations(model, arm, proven)[-1]
  config = settings(model, arm, "xla" if rehearse else name, rehearse)
  config = _with_batch(config, 1, "full")
  try:
    step = train_suite.Step(config, 32 if rehearse else t)
    jax.block_until_ready(step())
  except Exception as error:
    if NO_MEMORY not in str(error):
      raise
    return {"fits": False, "implementation": name}
  # A rehearsal's search has an end too.
  return {"fits": not rehearse or t <= 65_536, "implementation": name}
