# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The whole train step, of DIFF and of the Transformer that it replaces.

Forward, backward, clipping and AdamW, as `diff_jax.train` runs them. Each arm
runs at the compute dtype that is the faster one for it on this machine.
"""

import dataclasses
import functools

import jax
import numpy as np

from diff_jax import flops, transformer
from diff_jax.bench import Options
from diff_jax.bench.table import (
    Row,
    Table,
    Target,
    check_agreement,
    milliseconds,
)
from diff_jax.bench.timing import fastest, interleave, number, ratio
from diff_jax.config import Config, MeshConfig, default, parse
from diff_jax.optimizer import make_optimizer
from diff_jax.sharding import make_mesh, put_batch
from diff_jax.step import init_state, make_step
from diff_jax.train import memory_bytes

# By compute dtype: of the loss and the gradient's norm, against fp32.
TOLERANCES = {"float32": 1e-4, "bfloat16": 3e-2}


def sizes(smoke: bool = False) -> tuple[Config, int]:
  """Settings of a DIFF model of 5 M parameters, and its length in tokens."""
  config = default()
  config.model.vocab_size = 512
  config.model.d_model = 256
  config.model.num_layers = 6
  config.model.num_heads = 4  # pairs of maps of width 32
  config.model.mlp_dim = 688
  config.data.batch_size = 8
  seq_len = 512
  if smoke:
    config.model.vocab_size = 32
    config.model.d_model = 32
    config.model.num_layers = 2
    config.model.mlp_dim = 64
    config.data.batch_size = 2
    seq_len = 16
  return parse(config), seq_len


def with_model(settings: Config, **changes) -> Config:
  model = dataclasses.replace(settings.model, **changes)
  return dataclasses.replace(settings, model=model)


def arms(settings: Config) -> dict[str, Config]:
  """DIFF and the Transformer of the same size, by name."""
  matched = flops.baseline(settings.model)
  return {
      "Transformer": dataclasses.replace(settings, model=matched),
      "DIFF": settings,
  }


def random_batch(settings: Config, seq_len: int) -> dict[str, np.ndarray]:
  """Tokens [b, t] without any structure, every one a target."""
  tokens = np.random.default_rng(0).integers(
      settings.model.vocab_size,
      size=(settings.batch_size, seq_len + 1),
      dtype=np.int32,
  )
  return {
      "tokens": tokens[:, :-1],
      "targets": tokens[:, 1:],
      "loss_weights": np.ones((settings.batch_size, seq_len), np.float32),
  }


def initial_model(settings: Config) -> transformer.Transformer:
  """The model that every `Step` of these settings starts from."""
  optimizer = make_optimizer(settings.optimizer, settings.train.num_steps)
  with jax.set_mesh(make_mesh(MeshConfig(), jax.devices()[:1])):
    return jax.jit(lambda: init_state(settings, optimizer, 0).model)()


class Step:
  """A compiled train step with its state; each call is one update."""

  def __init__(self, settings: Config, seq_len: int):
    self.settings, self.seq_len = settings, seq_len
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    optimizer = make_optimizer(settings.optimizer, settings.train.num_steps)
    with jax.set_mesh(mesh):
      init = jax.jit(functools.partial(init_state, settings, optimizer))
      self.state = init(0)
      self.batch = put_batch(random_batch(settings, seq_len), mesh)
      step = make_step(settings, optimizer)
      self.compiled = step.lower(self.state, self.batch).compile()

  def __call__(self):
    self.state, self.metrics = self.compiled(self.state, self.batch)
    return self.state

  def loss_and_norm(self) -> tuple[float, float]:
    """Of the latest step: the loss in nats, the gradient's norm."""
    names = ("train/loss", "train/grad_norm")
    return tuple(float(self.metrics[name]) for name in names)


def faster_dtype(
    name: str, settings: Config, seq_len: int, expected: tuple[float, float]
) -> tuple[Step, list[str]]:
  """The arm's step at the compute dtype that is faster for it here.

  Args:
    name: of the arm.
    settings: of the arm.
    seq_len: tokens.
    expected: loss and gradient norm of the first step, by somebody else.

  Returns:
    the step, and what was seen.

  Raises:
    Disagreement: if a step does not give what is expected.
  """
  steps, errors = {}, {}
  for dtype, tolerance in TOLERANCES.items():
    step = Step(with_model(settings, compute_dtype=dtype), seq_len)
    step()
    label = f"{name} in {dtype}"
    errors[dtype] = check_agreement(
        label, step.loss_and_norm(), expected, tolerance
    )
    steps[dtype] = step
  best, medians_s = fastest(steps)
  notes = [
      f"first look at {name} in {dtype}: {number(time_s * 1000)} ms; loss and"
      f" gradient norm agree to {errors[dtype]:.0e}"
      for dtype, time_s in medians_s.items()
  ]
  return steps[best], notes


def columns(settings: Config, seq_len: int, times_s: np.ndarray) -> Row:
  """What a row says of a train step: sizes, times and rates.

  FLOPs are those of `diff_jax.flops`: nothing is counted twice that is computed
  twice.
  """
  median_s = float(np.median(times_s))
  tokens = settings.batch_size * seq_len
  cost = sum(flops.train_flops_per_token(settings.model, seq_len).values())
  return {
      "compute_dtype": settings.model.compute_dtype,
      "parameters": transformer.num_parameters(settings.model),
      **milliseconds(times_s),
      "tokens_per_s": tokens / median_s,
      "gflop_per_s": tokens * cost / median_s / 1e9,
  }


def run(options: Options) -> Table:
  settings, seq_len = sizes(options.smoke)
  steps, notes = {}, []
  for name, arm in arms(settings).items():
    reference = Step(with_model(arm, implementation="reference"), seq_len)
    reference()
    expected = reference.loss_and_norm()
    del reference
    steps[name], lines = faster_dtype(name, arm, seq_len, expected)
    notes += lines
  times_s = interleave(steps, options.rounds)
  rows = [
      {
          "arm": name,
          **columns(step.settings, seq_len, times_s[name]),
          "memory_mib": memory_bytes(step.compiled) / 2**20,
      }
      for name, step in steps.items()
  ]
  target = Target(
      "time of DIFF / Transformer",
      ratio(times_s["DIFF"], times_s["Transformer"]),
      bound=1.15,
  )
  title = f"Train step, batch {settings.batch_size} x {seq_len} tokens"
  notes.append(
      "agreement is with the step whose attention is the fp32 reference"
  )
  return Table(title, rows, [target], notes)
