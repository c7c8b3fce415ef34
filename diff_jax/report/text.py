# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Numbers and metric names as words, shared by the page and the terminal."""

import math
from collections.abc import Sequence

from diff_jax.report import statistics

_UNITS = {
    "accuracy": "share of targets",
    "loss": "nats per target",
    "bits_per_byte": "bits per byte",
    "entropy": "nats",
    "grad_norm": "global norm",
}


def title(name: str) -> str:
  """Returns "tiny_lm" as "Tiny LM": for headings."""
  words = [
      word if set(word) & set("aeiouy") else word.upper()  # LM, GPT
      for word in name.replace("_", " ").split()
  ]
  joined = " ".join(words)
  return joined[:1].upper() + joined[1:]


def phrase(metric: str) -> str:
  """Returns "train/bits_per_byte" as "train bits per byte".

  The evaluator of the loss is called "loss"; in words it is "eval".
  """
  evaluator, slash, name = metric.rpartition("/")
  evaluator = "eval" if evaluator == "loss" else evaluator
  return f"{evaluator}{slash}{name}".replace("/", " ").replace("_", " ")


def unit(metric: str) -> str:
  """Returns the unit of a metric; "" where its name does not tell."""
  name = metric.rpartition("/")[2]
  return next((u for key, u in _UNITS.items() if name.startswith(key)), "")


def label(metric: str) -> str:
  """Returns an axis label with the unit."""
  known, words = unit(metric), phrase(metric)
  return words if not known or words.endswith(known) else f"{words} ({known})"


def minus(arm: str, reference: str) -> str:
  """Returns "DIFF − (Transformer + norm)"."""
  arm, reference = (f"({x})" if " " in x else x for x in (arm, reference))
  return f"{arm} − {reference}"


def decimals(span: statistics.Interval | None) -> int:
  """Returns how many decimals show two digits of a half-width: 2 to 4."""
  if span is None or span.half_width <= 0:
    return 3
  return min(4, max(2, 1 - math.floor(math.log10(span.half_width))))


def number(value: float | None, places: int = 3) -> str:
  """Returns a fixed-point number with a true minus sign; – for None."""
  if value is None:
    return "–"
  if not math.isfinite(value):
    return "not finite"
  shown = f"{value:.{places}f}"
  if float(shown) == 0:
    shown = shown.lstrip("-")
  return shown.replace("-", "−")


def signed(value: float | None, places: int = 3) -> str:
  """Returns a number with its sign, + or −; – for None."""
  if value is None or not math.isfinite(value):
    return number(value, places)
  return ("+" if value >= 0 else "") + number(value, places)


def interval(span: statistics.Interval | None, places: int = 3) -> str:
  """Returns "−0.11 to +0.23"; – for None."""
  if span is None:
    return "–"
  return f"{signed(span.low, places)} to {signed(span.high, places)}"


def steps(reached: int | None, last_step: int) -> str:
  """Returns the step of a threshold; ">300" when it was not reached."""
  return f">{last_step:,}" if reached is None else f"{reached:,}"


def quantity(value: float | int | None) -> str:
  """Returns a count with thousands separators, large ones in M, G or T."""
  if value is None:
    return "–"
  for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M")):
    if abs(value) >= size:
      return f"{value / size:.3g} {letter}"
  return f"{value:,.0f}"


def p_value(value: float | None) -> str:
  """Returns a p value with three decimals; "<0.001" below that."""
  if value is None:
    return "–"
  return "<0.001" if value < 0.001 else f"{value:.3f}"


def listed(words: Sequence[str]) -> str:
  """Returns "a, b and c"."""
  if len(words) < 2:
    return "".join(words)
  return f"{', '.join(words[:-1])} and {words[-1]}"


def counted(count: int, noun: str) -> str:
  """Returns "one seed" or "3 seeds"."""
  return f"one {noun}" if count == 1 else f"{count:,} {noun}s"
