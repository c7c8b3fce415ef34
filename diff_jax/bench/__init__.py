# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Benchmarks: one module a suite, each with `run(options) -> Table`.

A suite first checks that what it compares computes the same, then times the
candidates interleaved (`timing.py`), then says what was found (`table.py`).
A new suite is a module and a line in `SUITES`.
"""

import dataclasses

SUITES = {
    "train": "train step of DIFF and of the matched Transformer",
    "op": "the XLA attention op against the reference",
    "decode": "a step over a long cache: DIFF, the Transformer, two calls",
    "loss": "memory of the loss over 100,352 words against plain optax",
    "data": "the pipeline on ArrayRecord shards against what trains on it",
    "peers": "train steps beside Hugging Face's Llama and DiffLlama",
    "gpu": "the Hopper kernels: right, then how fast; needs an H100 or H200",
}
DEFAULT_SUITES = (
    "train",
    "op",
    "decode",
    "loss",
    "data",
)  # all that need no other packages


@dataclasses.dataclass(frozen=True)
class Options:
  """What the command line says to every suite."""

  rounds: int = 9  # timed runs of each candidate
  smoke: bool = False  # sizes that take seconds and prove nothing
  source: str | None = None  # the data suite's corpus; None: a generated one
  peers_python: str = ".venv-peers/bin/python"  # has torch and transformers
