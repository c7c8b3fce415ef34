# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""One shard of a prepared corpus, and the names and files of its folder.

    prepare.json               the settings, written first
    tokenizer.json             if the tokenizer is a file, a copy of it
    shard-00000.arrayrecord    the stream of piece 0, BLOCK_TOKENS a record
    shard-00000.documents      a DOCUMENT for each document of piece 0
    shard-00000.json           what was read and its counts: the commit
    starts.npy                 where each document starts in the whole stream
    manifest.json              settings, shards, totals; written last

Every file gets its name when it is complete.
"""

import contextlib
import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
from array_record.python import array_record_module

from diff_jax.config import ConfigError
from diff_jax.data import tokenizers
from diff_jax.data.documents import Format, Piece, Skipped, read_piece
from diff_jax.data.encoding import encode, storage_dtype

FORMAT_VERSION = 1
BLOCK_TOKENS = 4096  # in a record; the last of a shard has fewer
DOCUMENT = np.dtype([("length", "<i8"), ("sha256", "V32")])  # length in tokens

MANIFEST = "manifest.json"
SETTINGS = "prepare.json"
STARTS = "starts.npy"
TOKENIZER = "tokenizer.json"
TEMPORARY = ".tmp"


@dataclasses.dataclass(frozen=True)
class Job:
  """One shard to write, by this process or another one."""

  folder: pathlib.Path
  index: int
  piece: Piece
  format: Format
  tokenizer: str  # for load_tokenizer
  fingerprint: str  # what that must have, on every machine

  @property
  def num_bytes(self) -> int:
    """What is to be read, as it is in the files."""
    return sum(span.stop - span.start for span in self.piece.spans)

  def path(self, suffix: str) -> pathlib.Path:
    return self.folder / f"shard-{self.index:05d}{suffix}"


def write(job: Job) -> int:
  """Reads, tokenises and commits a piece; returns the job's index.

  Raises:
    ConfigError: the piece cannot be read or changes meanwhile, or the tokenizer
      is another one here.
    OSError: the folder cannot be written.
  """
  tokenizer = _load_tokenizer(job.tokenizer, job.fingerprint)
  sources, skipped = _sources(job.piece), Skipped()
  documents = num_bytes = 0
  with (
      new_file(job.path(".arrayrecord")) as blocks_path,
      new_file(job.path(".documents")) as documents_path,
      documents_path.open("wb") as table,
  ):
    blocks = _BlockWriter(blocks_path, storage_dtype(tokenizer.vocab_size))
    for encoded in encode(
        read_piece(job.piece, job.format, skipped), tokenizer
    ):
      blocks.add(encoded.stream)
      row = np.array((len(encoded.stream), encoded.sha256), DOCUMENT)
      table.write(row.tobytes())
      documents += 1
      num_bytes += encoded.num_bytes
    blocks.close()
  _check_same(sources, _sources(job.piece), "it was being read")
  commit = {
      **describe_file(job.path(".arrayrecord")),
      "documents": documents,
      "tokens": blocks.num_tokens,
      "bytes": num_bytes,
      "skipped": skipped.documents,
      "sources": sources,
  }
  write_json(job.path(".json"), commit)
  return job.index


@functools.cache
def _load_tokenizer(name: str, fingerprint: str) -> tokenizers.Tokenizer:
  tokenizer = tokenizers.load_tokenizer(name)
  if tokenizer.fingerprint != fingerprint:
    raise ConfigError(
        f"tokenizer={name!r} must be the same on every machine: its fingerprint"
        f" is {tokenizer.fingerprint} here, expected {fingerprint}"
    )
  return tokenizer


class _BlockWriter:
  """Writes a stream as records of BLOCK_TOKENS tokens."""

  def __init__(self, path: pathlib.Path, dtype: np.dtype):
    self.num_tokens = 0
    self._path = path
    self._dtype = dtype
    self._rest = []  # less than a block
    self._num_rest = 0
    with self._os_errors():
      # A group is what one access decompresses.
      self._writer = array_record_module.ArrayRecordWriter(
          str(path), "group_size:1"
      )

  def add(self, tokens: np.ndarray) -> None:
    self.num_tokens += len(tokens)
    self._rest.append(tokens.astype(self._dtype))
    self._num_rest += len(tokens)
    if self._num_rest >= BLOCK_TOKENS:
      stream = np.concatenate(self._rest)
      whole = len(stream) // BLOCK_TOKENS * BLOCK_TOKENS
      with self._os_errors():
        for block in stream[:whole].reshape(-1, BLOCK_TOKENS):
          self._writer.write(block.tobytes())
      self._rest, self._num_rest = [stream[whole:]], len(stream) - whole

  def close(self) -> None:
    with self._os_errors():
      if self._num_rest:
        self._writer.write(np.concatenate(self._rest).tobytes())
      self._writer.close()

  @contextlib.contextmanager
  def _os_errors(self):
    try:
      yield
    except RuntimeError as error:  # What the library makes of every error.
      raise OSError(f"{self._path}: {error}") from error


def is_committed(job: Job) -> bool:
  """Whether an earlier run has written this shard.

  Raises:
    ConfigError: it did, but the source has changed since.
  """
  try:
    commit = read_json(job.path(".json"))
    sizes = [
        job.path(suffix).stat().st_size
        for suffix in (".arrayrecord", ".documents")
    ]
  except FileNotFoundError:
    return False
  when = f"{job.path('.arrayrecord')} was written"
  _check_same(commit["sources"], _sources(job.piece), when)
  expected = [commit["size_bytes"], commit["documents"] * DOCUMENT.itemsize]
  return sizes == expected


def _sources(piece: Piece) -> list[list]:
  """What tells whether a piece is what it was, a list a span."""
  sources = []
  for span in piece.spans:
    source = [span.path, span.start, span.stop]
    if not span.path.startswith("stdlib:"):
      try:
        status = os.stat(span.path)
      except OSError as error:
        raise ConfigError(
            f"{span.path}: cannot be read: {error.strerror}"
        ) from None
      source += [status.st_size, status.st_mtime_ns]
    sources.append(source)
  return sources


def _check_same(before: list[list], now: list[list], when: str) -> None:
  if before != now:
    path = next(old[0] for old in before if old not in now)
    raise ConfigError(
        f"source: {path} has changed since {when} (its size, its time of change"
        " or the files around it): restore it, or give another out"
    )


@contextlib.contextmanager
def new_file(path: pathlib.Path) -> Iterator[pathlib.Path]:
  """A temporary name to write; the file gets its own name at the end."""
  temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}{TEMPORARY}")
  try:
    yield temporary
    with temporary.open("rb") as file:
      os.fsync(file.fileno())
    temporary.replace(path)
  except BaseException:
    temporary.unlink(missing_ok=True)
    raise


def write_json(path: pathlib.Path, values: dict[str, Any]) -> None:
  with new_file(path) as temporary:
    temporary.write_text(json.dumps(values, indent=1) + "\n")


def read_json(path: pathlib.Path) -> dict[str, Any]:
  return json.loads(path.read_text())


def describe_file(path: pathlib.Path) -> dict[str, Any]:
  """What a manifest says of a file: its name, size in bytes and SHA-256."""
  with path.open("rb") as file:
    digest = hashlib.file_digest(file, "sha256").hexdigest()
  return {
      "file": path.name,
      "size_bytes": path.stat().st_size,
      "sha256": digest,
  }
