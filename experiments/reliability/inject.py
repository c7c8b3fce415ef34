# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""`python inject.py FAULT train ...`: diff-jax with one fault inside.

hang=N      the data source never returns example N and those after it
nan=A-B     the loss weights of examples A to B are NaN
spike=A-B   those of examples A to B make the gradient a thousand times larger
clock       time.time jumps by days twice a second, forwards or backwards
compile     the training step takes minutes to compile
"""

import random
import sys
import threading
import time


def change_examples(change) -> None:
  """Passes each training example through `change(index, example)`."""
  from diff_jax.data import source

  get = source.EndlessExamples.__getitem__

  def changed(self, index):
    example = get(self, index)
    return change(index, example) if self._key[1] == 0 else example

  source.EndlessExamples.__getitem__ = changed


def hang(first: str) -> None:
  def change(index, example):
    if index >= int(first):
      threading.Event().wait()
    return example

  change_examples(change)


def nan(span: str) -> None:
  first, last = map(int, span.split("-"))

  def change(index, example):
    if first <= index <= last:
      example["loss_weights"] = example["loss_weights"] * float("nan")
    return example

  change_examples(change)


def spike(span: str) -> None:
  first, last = map(int, span.split("-"))

  def change(index, example):
    if first <= index <= last:
      asked = example["loss_weights"] > 0
      # They add up to zero, so that the mean does not divide them away.
      example["loss_weights"][asked] = [1e3, -1e3] * (asked.sum() // 2)
    return example

  change_examples(change)


def clock(_: str) -> None:
  true_time = time.time

  def jumping():
    days = random.Random(time.monotonic() // 0.5).randint(-9, 9)
    return true_time() + 86_400 * days

  time.time = jumping
  time.time_ns = lambda: int(1e9 * jumping())


def compile_slowly(_: str) -> None:
  import jax
  import jax.numpy as jnp

  from diff_jax import train

  make_step = train.make_step

  def make_slow_step(settings, optimizer):
    step = make_step(settings, optimizer)

    @jax.jit
    def slow(state, batch):
      state, metrics = step(state, batch)
      x = jnp.full((8, 8), metrics["train/loss"])
      for i in range(6_000):
        x = jnp.sin(x @ x + i)
      return state, metrics | {"x": x.sum()}

    return slow

  train.make_step = make_slow_step


if __name__ == "__main__":
  name, _, argument = sys.argv.pop(1).partition("=")
  faults = {
      "hang": hang, "nan": nan, "spike": spike, "clock": clock,
      "compile": compile_slowly,
  }  # fmt: skip
  faults[name](argument)
  from diff_jax import cli

  cli.run()
