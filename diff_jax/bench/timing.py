# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The one timer: candidates take turns, so that drift hits all alike."""

import os
import platform
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np
import tqdm

from diff_jax.provenance import provenance


def number(x: str | float | int) -> str:
  """Four significant digits, and thousands apart."""
  if isinstance(x, str):
    return x
  return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.4g}"


class Quartiles(NamedTuple):
  """Median and spread of a sample."""

  low: float  # first quartile
  median: float
  high: float  # third quartile

  def __str__(self):
    low, median, high = map(number, self)
    return f"{median} (quartiles {low} to {high})"


def quartiles(sample) -> Quartiles:
  return Quartiles(*np.quantile(sample, (0.25, 0.5, 0.75)).tolist())


def interleave(
    candidates: Mapping[str, Callable[[], Any]],
    rounds: int,
    pause_s: float = 0.0,
) -> dict[str, np.ndarray]:
  """Times every candidate once a round.

  A candidate is called once before the first round, which compiles it. Every
  other round runs backwards, so that nobody always follows the same one.

  Args:
    candidates: calls by name; the arrays that a call returns are waited for.
    rounds: timed calls of each.
    pause_s: sleep before each call, for candidates in other processes whose
      threads spin for a while after their work.

  Returns:
    seconds of each call [rounds], by name.
  """
  times_s = {name: np.zeros(rounds) for name in candidates}
  for call in candidates.values():
    jax.block_until_ready(call())
  for index in tqdm.trange(rounds, unit="round", leave=False, disable=None):
    for name in list(candidates)[:: -1 if index % 2 else 1]:
      time.sleep(pause_s)
      start_s = time.perf_counter()
      jax.block_until_ready(candidates[name]())
      times_s[name][index] = time.perf_counter() - start_s
  return times_s


def fastest(
    candidates: Mapping[str, Callable[[], Any]], rounds: int = 2
) -> tuple[str, dict[str, float]]:
  """A first look: the fastest candidate's name, and median seconds of all."""
  times_s = interleave(candidates, rounds)
  medians_s = {name: float(np.median(x)) for name, x in times_s.items()}
  return min(medians_s, key=medians_s.get), medians_s


def ratio(times_s: np.ndarray, baseline_s: np.ndarray) -> Quartiles:
  """How many times the baseline's time: the quotients of each round."""
  return quartiles(times_s / baseline_s)


def num_cores() -> int:
  """Cores that this process may use."""
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1


def machine() -> dict[str, Any]:
  """What a time needs beside it: CPU, cores, load, commit, versions, command."""
  try:
    with open("/proc/cpuinfo") as file:
      lines = [line for line in file if line.startswith("model name")]
    cpu = lines[0].split(":")[1].strip()
  except (OSError, IndexError):
    cpu = platform.processor() or platform.machine()
  return {
      "cpu": cpu,
      "cores": num_cores(),
      "load_average_1min": os.getloadavg()[0],
  } | provenance()
