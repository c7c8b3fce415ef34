# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Every setting, once: frozen dataclasses, one commented line a field.

A config file starts from `default()`, an `ml_collections.ConfigDict` made of
these dataclasses, and changes values; `parse` turns it back into dataclasses.
Nothing below `train.py` sees a ConfigDict.
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ml_collections import config_dict


class ConfigError(ValueError):
  """A setting that cannot be right; the message names it and what it must be."""


class RunError(RuntimeError):
  """A run that cannot go on; the message says why, and what can be done."""


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """A decoder-only Transformer; the attention mechanism is one of its fields."""

  vocab_size: int = 257  # rows of the embedding table
  output_size: int | None = None  # rows of an untied head; None: vocab_size
  d_model: int = 256  # width of the residual stream
  num_layers: int = 4
  num_heads: int = 4  # value heads: pairs of maps for diff
  num_kv_heads: int | None = None  # divides num_heads; None: num_heads
  head_dim: int | None = None  # width of one map; None: d_model split evenly
  mlp_dim: int | None = None  # None: 8/3 d_model, up to a multiple of 128
  attention: str = "diff"  # softmax, diff, or path/to/file.py:Class
  head_norm: bool | None = None  # RMSNorm of each head; None: the mechanism's
  head_norm_weight: bool = True  # whether that norm has a learned weight
  head_norm_scale: bool | None = None  # times (1 - lambda_init); None: likewise
  lambda_init: float | None = None  # a constant; None: by depth
  lambda_depth_offset: int = 0  # added to the depth that lambda_init sees
  rope: Literal["interleaved", "half", "none"] = "interleaved"
  rope_theta: float = 10_000.0
  window: int | None = None  # tokens that a query sees; None: all
  causal: bool = True
  attention_bias: bool = False  # biases on q, k, v and output projections
  tie_embeddings: bool = False  # the head is the embedding table
  norm_eps: float = 1e-5
  init: Literal["fan_in", "normal_0.02", "kaiming_uniform"] = "fan_in"
  embedding_std: float = 0.02
  scale_residual_init: bool = False  # residual outputs / sqrt(2 num_layers)
  compute_dtype: Literal["float32", "bfloat16"] = "float32"
  # What a layer keeps for the backward pass.
  remat: Literal["none", "dots", "save_attention", "full"] = "dots"
  # Of the op; None: the platform's best.
  implementation: (
      Literal["mosaic_tpu", "mosaic_gpu", "two_call", "xla", "reference"] | None
  ) = None

  def __post_init__(self):
    check_fields(self, "model")
    if self.d_model % self.num_heads and self.head_dim is None:
      raise ConfigError(
          f"model.d_model={self.d_model} must be a multiple of"
          f" model.num_heads={self.num_heads}, unless model.head_dim is set."
      )
    if self.num_heads % self.kv_heads:
      raise ConfigError(
          f"model.num_kv_heads={self.num_kv_heads} must divide"
          f" model.num_heads={self.num_heads}."
      )
    if self.tie_embeddings and self.output_size is not None:
      raise ConfigError(
          f"model.output_size={self.output_size} must be None with"
          " model.tie_embeddings: a tied head has vocab_size rows."
      )

  @property
  def kv_heads(self) -> int:
    return self.num_kv_heads or self.num_heads

  @property
  def num_outputs(self) -> int:
    return self.output_size or self.vocab_size

  @property
  def mlp_width(self) -> int:
    return self.mlp_dim or -(-8 * self.d_model // (3 * 128)) * 128


@dataclasses.dataclass(frozen=True)
class OptimizerConfig:
  """AdamW with a warmup and a decay."""

  peak_learning_rate: float = 3e-4
  warmup_steps: int = 100
  schedule: Literal["linear", "cosine", "constant"] = "cosine"
  end_learning_rate_ratio: float = 0.05  # of the peak, at the last step
  beta1: float = 0.9
  beta2: float = 0.95
  eps: float = 1e-8
  weight_decay: float = 0.1  # of matrices and the embedding only
  clip_norm: float = 1.0  # of the whole gradient; 0: no clipping

  def __post_init__(self):
    check_fields(self, "optimizer")


@dataclasses.dataclass(frozen=True)
class MeshConfig:
  """Devices along each axis; one of them may be -1: all that remain."""

  replica: int = 1  # whole copies, over slices
  fsdp: int = -1  # batch and parameters
  tensor: int = 1  # heads, MLP width, vocabulary
  context: int = 1  # sequence

  def __post_init__(self):
    check_fields(self, "mesh")


@dataclasses.dataclass(frozen=True)
class ReportConfig:
  """What the headline of a report compares."""

  metric: str = "train/loss"
  first_step: int | None = None  # mean over these steps; None: the last 20
  last_step: int | None = None
  threshold: float | None = None  # also report the steps until it is reached
  reference: str = "Transformer"  # the arm that the others are compared with
  higher_is_better: bool = False
  note: str = ""  # what a reader must know beside the number

  def __post_init__(self):
    check_fields(self, "report")


@dataclasses.dataclass(frozen=True)
class TrainConfig:
  """One run: everything but the model, the optimizer and the data."""

  experiment: str = ""  # runs of one name are compared with each other
  arm: str = ""  # the run's name in that comparison; empty: the mechanism's
  seeds: tuple[int, ...] = (0,)  # trained one after another
  init_key: int = 0  # other draws of the initialisation on the same data
  num_steps: int = 1000
  stop_after_steps: int | None = None  # stop early, on the same schedule
  accumulation_steps: int = 1  # microbatches of one update
  z_loss: float = 0.0  # weight of logsumexp(logits) ** 2
  loss_chunk: int = 256  # positions whose logits exist at one time
  max_skipped_steps: int = 10  # non-finite updates in a row that end the run
  skip_spikes: bool = False  # of loss or gradient norm: mean + 6 sd of 128
  log_every_steps: int = 10
  checkpoint_every_steps: int = 1000
  keep_checkpoints: int = 2  # more than 1: a damaged one has one before it
  data_timeout_s: float = 600.0  # no batch for so long ends the run
  wandb_project: str = ""  # also log to Weights & Biases

  def __post_init__(self):
    check_fields(self, "")
    if not self.seeds:
      raise ConfigError(f"seeds={self.seeds} must name at least one seed.")

  @property
  def last_step(self) -> int:
    if self.stop_after_steps is None:
      return self.num_steps
    return min(self.num_steps, self.stop_after_steps)


@dataclasses.dataclass(frozen=True)
class Config:
  """A parsed config; `data` and `evaluators` are read by their own packages."""

  train: TrainConfig
  model: ModelConfig
  optimizer: OptimizerConfig
  mesh: MeshConfig
  report: ReportConfig
  batch_size: int  # sequences in an update, over all devices
  data: Mapping[str, Any]  # the source and its settings
  evaluators: Mapping[str, Mapping[str, Any]]


SECTIONS = {
    "model": ModelConfig,
    "optimizer": OptimizerConfig,
    "mesh": MeshConfig,
    "report": ReportConfig,
}


def default() -> config_dict.ConfigDict:
  """All settings at their defaults; config files start from here.

  `data` names a source (`diff_jax.data.SOURCES`) beside the batch size in
  sequences; a config file adds that source's own fields. `evaluators` maps an
  evaluator's name to its settings.
  """
  config = config_dict.ConfigDict(_fields(TrainConfig))
  for name, section in SECTIONS.items():
    config[name] = config_dict.ConfigDict(_fields(section))
  config.data = config_dict.ConfigDict({"name": "", "batch_size": 32})
  config.evaluators = config_dict.ConfigDict()
  return config


def argument_words(
    argument: str, *groups: Sequence[str]
) -> tuple[str | None, ...]:
  """Reads a config argument: comma-separated words in any order.

  Args:
    argument: of `get_config(arg)`, e.g. `830m,softmax,smoke`.
    *groups: words of which at most one may be given.

  Returns:
    for each group the word given, or None.

  Raises:
    ConfigError: for an unknown word, or two of one group.
  """
  chosen = [None] * len(groups)
  for word in filter(None, (argument or "").split(",")):
    places = [i for i, group in enumerate(groups) if word in group]
    if not places:
      known = " | ".join(", ".join(group) for group in groups)
      raise ConfigError(f"config argument {word!r} must be one of {known}.")
    if chosen[places[0]] is not None:
      raise ConfigError(
          f"config argument {argument!r} gives both {chosen[places[0]]!r} and"
          f" {word!r}; one of {', '.join(groups[places[0]])} at most."
      )
    chosen[places[0]] = word
  return tuple(chosen)


def _fields(section) -> dict[str, Any]:
  """Defaults by field; an optional field gets a typed empty place."""
  values = {}
  for name, hint in typing.get_type_hints(section).items():
    value = getattr(section, name)
    if value is None:
      value = config_dict.placeholder(_types(hint)[0])
    values[name] = value
  return values


def parse(config: config_dict.ConfigDict) -> Config:
  """Dataclasses from a ConfigDict.

  Raises:
    ConfigError: for a value that cannot be right.
  """
  values = _plain(config.to_dict())
  sections = {
      name: _section(section, f"{name}.", values.pop(name))
      for name, section in SECTIONS.items()
  }
  data, evaluators = values.pop("data"), values.pop("evaluators")
  batch_size = data.pop("batch_size")
  train = _section(TrainConfig, "", values)
  if batch_size < 1:
    raise ConfigError(f"data.{batch_size=} must be at least 1 sequence.")
  if batch_size % train.accumulation_steps:
    raise ConfigError(
        f"{batch_size=} of data must be a multiple of"
        f" accumulation_steps={train.accumulation_steps}."
    )
  return Config(
      train,
      **sections,
      batch_size=batch_size,
      data=data,
      evaluators=evaluators,
  )


def restore(values: Mapping[str, Any]) -> config_dict.ConfigDict:
  """The ConfigDict of a run.json, with the types that JSON does not keep.

  Raises:
    ConfigError: if it is not one that `diff-jax train` wrote.
  """
  config = default()
  try:
    config.update(_plain(values))
  except (AttributeError, KeyError, TypeError, ValueError) as error:
    raise ConfigError(
        f"the config of run.json must be one that diff-jax train wrote: {error}"
    ) from error
  return config


def _section(section, prefix: str, values):
  """A dataclass from its values, whose names must be its fields."""
  known = [field.name for field in dataclasses.fields(section)]
  for name, value in values.items():
    if name not in known:
      close = difflib.get_close_matches(name, known, n=1)
      hint = f"; did you mean {prefix}{close[0]}?" if close else "."
      raise ConfigError(f"{prefix}{name}={value!r} is no setting{hint}")
  return section(**values)


def _plain(values):
  """Lists, as JSON has them, become tuples again."""
  if isinstance(values, dict):
    return {name: _plain(value) for name, value in values.items()}
  return tuple(values) if isinstance(values, list) else values


def _types(hint) -> tuple[type, ...]:
  """The run-time types that an annotation admits."""
  if typing.get_origin(hint) in (typing.Union, types.UnionType):
    return tuple(t for arg in typing.get_args(hint) for t in _types(arg))
  if typing.get_origin(hint) is Literal:
    return (type(typing.get_args(hint)[0]),)
  return (typing.get_origin(hint) or hint,)


def _choices(hint) -> tuple[str, ...]:
  """The values that an annotation lists, if it does."""
  if typing.get_origin(hint) is Literal:
    return typing.get_args(hint)
  return tuple(x for arg in typing.get_args(hint) for x in _choices(arg))


def check_fields(section, prefix: str) -> None:
  """Checks values against annotations, and sizes against 1."""
  for name, hint in typing.get_type_hints(type(section)).items():
    value = getattr(section, name)
    label = f"{prefix}.{name}" if prefix else name
    admitted = _types(hint)
    if float in admitted:
      admitted += (int,)
    wrong = not isinstance(value, admitted)
    if wrong or (isinstance(value, bool) and bool not in admitted):
      names = " or ".join(t.__name__ for t in _types(hint))
      raise ConfigError(f"{label}={value!r} must be of type {names}.")
    choices = _choices(hint)
    if choices and value is not None and value not in choices:
      raise ConfigError(f"{label}={value!r} must be one of {choices}.")
    if isinstance(value, tuple):
      element = typing.get_args(hint)[0]
      if not all(type(x) is element for x in value):
        raise ConfigError(
            f"{label}={value!r} must hold values of type {element.__name__}."
        )
    if value is not None and name in _AT_LEAST_ONE and value < 1:
      raise ConfigError(f"{label}={value!r} must be at least 1.")


_AT_LEAST_ONE = frozenset({
    "vocab_size", "output_size", "d_model", "num_layers", "num_heads",
    "num_kv_heads", "head_dim", "mlp_dim", "window", "num_steps",
    "stop_after_steps", "accumulation_steps", "loss_chunk", "log_every_steps",
    "checkpoint_every_steps", "keep_checkpoints", "max_skipped_steps",
})  # fmt: skip
