# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Every case of the `gpu` suite, in the order of its worth, and its records.

A record is a line of JSON in PIECE.jsonl, written the moment its case is done;
of two records of a case the later one counts.
"""

import dataclasses
import json
import pathlib
from collections.abc import Mapping
from typing import Any

from diff_jax.bench import gpu_attention, gpu_models
from diff_jax.bench.gpu_features import FEATURE_SIZES, FEATURES, SIZES

PIECES = ("correctness", "attention", "decode", "train")
PASSES = ("forward", "backward")
CONTEXTS = tuple(2**i for i in range(15, 21))  # Tokens: 32K to 1M.

type Records = dict[str, dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Case:
  """A call of MODULE:FUNCTION in a process on the GPU."""

  name: str  # PIECE/WHAT
  function: str
  request: Mapping[str, Any]
  limit_s: float
  needs: tuple[str, ...] = ()  # Cases that must have been tried before.
  only_if: str = ""  # A case whose result must say that it `fits`.
  alone: bool = False  # Whether it wants the memory in one piece.

  @property
  def piece(self) -> str:
    return self.name.split("/")[0]


def all_cases(torch_python: str = "") -> list[Case]:
  """torch_python: a Python with PyTorch; "": the one that runs this."""
  return [*_correctness(), *_attention(torch_python), *_models()]


def _correctness():
  function = "diff_jax.bench.gpu_correctness:check"
  for size in SIZES:
    for what in PASSES:
      request = dict(feature="causal", size=size, passes=[what])
      yield Case(f"correctness/{size} {what}", function, request, 120.0)
  for feature in FEATURES:
    for size in FEATURE_SIZES:
      request = dict(feature=feature, size=size, passes=PASSES)
      yield Case(f"correctness/{feature} {size}", function, request, 150.0)


def _needs(*sizes):
  return tuple(f"correctness/{size} {x}" for size in sizes for x in PASSES)


def _one_map(size):
  """The size of the Transformer's heads."""
  h = SIZES[size][0]
  return f"({h},{h}) one map"


def _attention(torch_python):
  module = "diff_jax.bench.gpu_attention"
  for t in gpu_attention.LENGTHS:
    for size in gpu_attention.PAIRS:
      name = f"attention/{size} t={t}"
      needs = _needs(size, _one_map(size))
      request = dict(size=size, t=t)
      yield Case(name, f"{module}:time_size", request, 240.0, needs)
    if t != gpu_attention.LENGTHS[0]:
      continue
    for size in gpu_attention.PAIRS:
      request = dict(size=size, t=t, python=torch_python)
      name = f"attention/{size} t={t} PyTorch"
      yield Case(name, f"{module}:time_torch", request, 250.0)


def _models():
  module = "diff_jax.bench.gpu_models"
  yield Case(
      "decode/12 pairs (128,256)", f"{module}:time_decoding", {}, 200.0,
      alone=True,
  )  # fmt: skip
  needs = {
      model: _needs(size, _one_map(size))
      for model, size in gpu_models.MODELS.items()
  }
  for model in gpu_models.MODELS:
    yield Case(
        f"train/{model}", f"{module}:time_training", dict(model=model), 500.0,
        needs[model], alone=True,
    )  # fmt: skip
  for model in gpu_models.MODELS:
    for arm in gpu_models.ARMS:
      before = ""
      for t in CONTEXTS:
        name = f"train/{model} {arm} context {t}"
        yield Case(
            name, f"{module}:try_context", dict(model=model, arm=arm, t=t), 300.0,
            needs[model], only_if=before, alone=True,
        )  # fmt: skip
        before = name


def proven(records: Records) -> list[str]:
  """The correctness cases that passed, without the name of their piece."""
  return [
      name.removeprefix("correctness/")
      for name, record in records.items()
      if name.startswith("correctness/")
      and record["status"] == "done"
      and record["result"]["passed"]
  ]


def fails(record: dict[str, Any]) -> str | None:
  """What went wrong in a case, in words."""
  if record["status"] != "done":
    return f"{record['status']}: {record['error']}"
  return "; ".join(record["result"].get("faults", ())) or None


def load(out: pathlib.Path, rehearse: bool) -> Records:
  """Records by case; those of a rehearsal count in a rehearsal only."""
  found = {}
  for piece in PIECES:
    file = out / f"{piece}.jsonl"
    lines = file.read_text().splitlines() if file.is_file() else []
    for line in lines:
      try:
        record = json.loads(line)
      except json.JSONDecodeError:
        continue  # It was cut off while it was written.
      if record["rehearsal"] == rehearse:
        found[record["case"]] = record
  return found


def save(out: pathlib.Path, record: dict[str, Any]) -> None:
  piece = record["case"].split("/")[0]
  with (out / f"{piece}.jsonl").open("a") as file:
    # The line before may have been cut off.
    file.write(f"\n{json.dumps(record)}\n")
