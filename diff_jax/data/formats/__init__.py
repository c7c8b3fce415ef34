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
