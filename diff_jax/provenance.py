# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What a number needs beside it: command, commit, versions, device."""

import functools
import importlib.metadata
import os
import pathlib
import shlex
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import jax

from diff_jax import flops, transformer
from diff_jax.attention import arm_label
from diff_jax.config import Config
from diff_jax.data.source import Source

PACKAGES = (
    "diff_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain",
)  # fmt: skip


@functools.cache
def provenance() -> dict[str, Any]:
  """What a number needs beside it: command, commit, versions, device.

  Looked up once: a process goes on with the code that it started with.
  """
  root = pathlib.Path(__file__).parent
  git = ["git", "-C", str(root)]

  def ask(*words):
    try:
      return subprocess.run(
          [*git, *words], capture_output=True, text=True, timeout=10, check=True
      ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
      return ""

  commit = ask("rev-parse", "HEAD") or "unknown"
  if commit != "unknown" and ask("status", "--porcelain", "--", str(root)):
    commit += "+changes"
  device = jax.devices()[0]
  command = [pathlib.Path(sys.argv[0]).name, *sys.argv[1:]]
  return {
      "command": shlex.join(command),
      "commit": commit,
      "versions": {
          name: importlib.metadata.version(name) for name in PACKAGES
      } | {"python": sys.version.split()[0]},
      "device": f"{device.device_kind} x{jax.device_count()}",
      "cpu_count": os.cpu_count(),
  }  # fmt: skip


def describe(
    config: Mapping[str, Any], settings: Config, source: Source
) -> dict[str, Any]:
  """What run.json says before the first step."""
  cost = flops.train_flops_per_token(settings.model, source.seq_len)
  return provenance() | {
      "config": config,
      "last_step": settings.train.last_step,
      "arm": settings.train.arm or arm_label(settings.model),
      "parameters": transformer.num_parameters(settings.model),
      "flops_per_token": sum(cost.values()),
      "attention_flops_share": cost["maps"] / sum(cost.values()),
      "baselines": source.baselines(),
      "corpus": source.corpus() if hasattr(source, "corpus") else None,
  }


def print_corpus(corpus: Mapping[str, Any]) -> None:
  documents = corpus["documents"]
  print(
      f"data: {corpus['name']}, {documents:,} document{'s' * (documents != 1)},"
      f" {corpus['bytes']:,} bytes, sha256 {corpus['sha256'][:16]}...",
      file=sys.stderr,
  )
