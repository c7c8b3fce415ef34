# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Which format a file has: its suffix says it."""

import os
import re

from diff_jax.config import ConfigError
from diff_jax.data.formats.base import Reader
from diff_jax.data.formats.lines import JsonLines, TextFile
from diff_jax.data.formats.parquet import Parquet
from diff_jax.data.formats.records import ArrayRecord, TFRecord

COMPRESSIONS = {".gz": "gz", ".zst": "zst"}

# Published corpora (C4, Dolma) call their JSON lines .json.
LINES = {name: JsonLines for name in (".jsonl", ".ndjson", ".json")}
BINARY = {
    ".parquet": Parquet(),
    ".array_record": ArrayRecord(),
    ".arrayrecord": ArrayRecord(),
    ".tfrecord": TFRecord(),
    ".tfrecords": TFRecord(),
}

# What people have as files of their own, and what must not be read as text.
NO_TEXT = (".csv", ".tsv", ".pdf", ".docx", ".xlsx", ".html", ".zip")


def check_suffix(path: str) -> None:
  """Raises a ConfigError if a file's suffix says that it is no corpus."""
  stem, suffix = os.path.splitext(path.lower())
  if suffix in COMPRESSIONS:
    suffix = os.path.splitext(stem)[1]
  if suffix in NO_TEXT:
    raise ConfigError(
        f"{path=} must be .txt, .jsonl(.gz,.zst), .parquet, .array_record or"
        " .tfrecord: convert it first"
    )


def reader_of(path: str) -> Reader:
  """The reader of a file; what has no known suffix is text.

  Raises:
    ConfigError: it is compressed in a way that is not read.
  """
  name = re.sub(r"-\d+-of-\d+$", "", os.path.basename(path).lower())
  stem, suffix = os.path.splitext(name)
  compression = COMPRESSIONS.get(suffix, "")
  if compression:
    suffix = os.path.splitext(stem)[1]
  if suffix not in BINARY:
    return LINES.get(suffix, TextFile)(compression)
  if compression:
    raise ConfigError(
        f"{path}: must not be compressed as a whole: decompress it first"
    )
  return BINARY[suffix]


def is_text(path: str) -> bool:
  """Whether a file is read as text, which a separator can cut."""
  return isinstance(reader_of(path), TextFile)
