# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Evaluators: one file each, model -> (name, value), listed in the config.

An evaluator is a class whose constructor takes the data source, the mesh and
its own settings, and whose call takes a model and yields (name, value); a value
is a number, a list of numbers or a string. The config's `evaluators` maps names
of `EVALUATORS` to settings; `every_steps` (beside the settings) says how often
it runs during training, None: after the last step only.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from diff_jax.config import ConfigError
from diff_jax.evaluators.attention import AttentionShares
from diff_jax.evaluators.loss import Loss
from diff_jax.evaluators.recall import RecallAccuracy
from diff_jax.evaluators.sample import Sample

EVALUATORS = {
    "loss": Loss,
    "recall": RecallAccuracy,
    "attention": AttentionShares,
    "sample": Sample,
}


@dataclasses.dataclass(frozen=True)
class Evaluation:
  """An evaluator and when it runs."""

  name: str
  evaluator: Callable[[Any], Iterable[tuple[str, Any]]]
  every_steps: int | None

  def due(self, step: int, last_step: int) -> bool:
    """Whether to run after `step`; a periodic one also before the first."""
    if self.every_steps is None:
      return step == last_step
    return step % self.every_steps == 0 or step == last_step

  def run(self, model) -> dict[str, Any]:
    """Values by `evaluator/name`."""
    return {f"{self.name}/{key}": x for key, x in self.evaluator(model)}


def all_settings(name: str) -> dict[str, Any]:
  """An evaluator's own settings with their defaults."""
  parameters = inspect.signature(EVALUATORS[name]).parameters
  return {key: parameters[key].default for key in list(parameters)[2:]}


def make_evaluators(
    settings: Mapping[str, Mapping[str, Any]], source, mesh
) -> list[Evaluation]:
  """The evaluators of a config.

  Raises:
    ConfigError: for an unknown evaluator or setting.
  """
  evaluations = []
  for name, options in settings.items():
    if name not in EVALUATORS:
      raise ConfigError(
          f"evaluators.{name} must be one of {sorted(EVALUATORS)}."
      )
    options = dict(options)
    every_steps = options.pop("every_steps", None)
    known = all_settings(name)
    for option, value in options.items():
      if option not in known:
        raise ConfigError(
            f"evaluators.{name}.{option}={value!r} must be one of"
            f" every_steps, {', '.join(known)}."
        )
    evaluator = EVALUATORS[name](source, mesh, **options)
    evaluations.append(Evaluation(name, evaluator, every_steps))
  return evaluations
