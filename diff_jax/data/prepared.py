# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A corpus in a folder of `diff-jax prepare`; shard.py lists its files."""

import dataclasses
import hashlib
import os
import pathlib
import resource
from typing import Any

import numpy as np
from array_record.python import array_record_data_source

from diff_jax.config import ConfigError
from diff_jax.data import shard as shards
from diff_jax.data import tokenizers
from diff_jax.data.encoding import check_range, storage_dtype

_REPAIR = "delete it and run the same diff-jax prepare command again"


@dataclasses.dataclass(frozen=True)
class _Shard:
  """What ArrayRecordDataSource must know to leave a file closed until read."""

  filename: str
  take: int  # records
  examples_in_shard: int
  skip: int = 0


class PreparedCorpus:
  """A corpus in a folder of `diff-jax prepare`; opening costs O(shards).

  Args:
    folder: with a manifest.

  Raises:
    ConfigError: the folder is unfinished, or a file is missing, of another
      size than the manifest says, or of another version.
  """

  def __init__(self, folder: str | os.PathLike):
    self._folder = pathlib.Path(folder).expanduser()
    self.manifest = _read_manifest(self._folder)
    for file in self.manifest["shards"] + self.manifest["files"]:
      _check_size(self._folder, file)
    self.tokenizer = _load_tokenizer(self._folder, self.manifest)
    self._dtype = storage_dtype(self.tokenizer.vocab_size)
    self.starts = np.load(self._folder / shards.STARTS, mmap_mode="r")
    tokens = [shard["tokens"] for shard in self.manifest["shards"]]
    blocks = [-(-count // shards.BLOCK_TOKENS) for count in tokens]
    self._shard_starts = np.cumsum([0, *tokens])
    self._first_blocks = np.cumsum([0, *blocks])
    _allow_open_files(len(tokens))
    self._blocks = array_record_data_source.ArrayRecordDataSource(
        [
            _Shard(str(self._folder / shard["file"]), count, count)
            for shard, count in zip(
                self.manifest["shards"], blocks, strict=True
            )
        ]
    )

  def read(self, start: int, stop: int) -> np.ndarray:
    num_tokens = int(self._shard_starts[-1])
    check_range(start, stop, num_tokens + 1)
    tokens = np.empty(stop - start, np.int32)
    position = start
    while position < min(stop, num_tokens):
      shard = np.searchsorted(self._shard_starts, position, side="right") - 1
      block, offset = divmod(
          position - int(self._shard_starts[shard]), shards.BLOCK_TOKENS
      )
      part = self._read_block(int(shard), block)[offset:][: stop - position]
      tokens[position - start :][: len(part)] = part
      position += len(part)
    if stop > num_tokens:
      tokens[num_tokens - start :] = self.tokenizer.separator
    return tokens

  def _read_block(self, shard: int, block: int) -> np.ndarray:
    try:
      record = self._blocks[int(self._first_blocks[shard]) + block]
    except RuntimeError as error:
      file = self._folder / self.manifest["shards"][shard]["file"]
      raise ConfigError(f"shard {file} cannot be read: {error}") from error
    return np.frombuffer(record, self._dtype)

  def describe(self) -> dict[str, Any]:
    totals = self.manifest["totals"]
    return {
        "name": self._folder.resolve().name,
        "documents": totals["documents"],
        "tokens": totals["tokens"],
        "bytes": totals["bytes"],
        "sha256": totals["sha256"],
        "tokenizer": self.tokenizer.name,
        "skipped_documents": totals["skipped"],
    }

  def verify(self) -> None:
    """Reads every file of the folder.

    Raises:
      ConfigError: the SHA-256 of one is not what the manifest says.
    """
    for file in self.manifest["shards"] + self.manifest["files"]:
      path = self._folder / file["file"]
      with path.open("rb") as data:
        found = hashlib.file_digest(data, "sha256").hexdigest()
      if found != file["sha256"]:
        raise ConfigError(
            f"{path} is damaged: its sha256 is {found}, the manifest says"
            f" {file['sha256']}; {_REPAIR}"
        )


def _read_manifest(folder: pathlib.Path) -> dict[str, Any]:
  if not folder.is_dir():
    raise ConfigError(
        f"{folder} must be a folder of diff-jax prepare: there is none"
    )
  if not (folder / shards.MANIFEST).exists():
    if (folder / shards.SETTINGS).is_file():
      raise ConfigError(
          f"{folder} is not prepared to the end: run the same diff-jax prepare"
          " command again, it continues"
      )
    raise ConfigError(
        f"{folder} must be a folder of diff-jax prepare: it has no"
        f" {shards.MANIFEST}"
    )
  try:
    manifest = shards.read_json(folder / shards.MANIFEST)
    version = manifest["format_version"]
  except (OSError, ValueError, KeyError, TypeError) as error:
    raise ConfigError(
        f"{folder / shards.MANIFEST} must be the manifest of a prepared corpus:"
        f" {error}"
    ) from error
  if version != shards.FORMAT_VERSION:
    raise ConfigError(
        f"{folder} has format_version={version}, this diff_jax reads"
        f" {shards.FORMAT_VERSION}: prepare the corpus again"
    )
  return manifest


def _check_size(folder: pathlib.Path, file: dict[str, Any]) -> None:
  path = folder / file["file"]
  try:
    size_bytes = path.stat().st_size
  except OSError as error:
    raise ConfigError(
        f"{path} is missing ({error.strerror}): restore it, or give the"
        " diff-jax prepare command again"
    ) from error
  if size_bytes != file["size_bytes"]:
    raise ConfigError(
        f"{path} has {size_bytes:,} bytes, the manifest says"
        f" {file['size_bytes']:,}: it is truncated or changed; {_REPAIR}"
    )


def _load_tokenizer(
    folder: pathlib.Path, manifest: dict[str, Any]
) -> tokenizers.Tokenizer:
  """The tokenizer of the folder, whose fingerprint must be the manifest's."""
  file = folder / shards.TOKENIZER
  name = manifest["settings"]["tokenizer"]
  tokenizer = tokenizers.load_tokenizer(str(file) if file.exists() else name)
  fingerprint = manifest["settings"]["tokenizer_fingerprint"]
  if tokenizer.fingerprint != fingerprint:
    raise ConfigError(
        f"the tokenizer {name!r} of {folder} has changed: its fingerprint is"
        f" {tokenizer.fingerprint}, the manifest says {fingerprint}"
    )
  return tokenizer


def _allow_open_files(count: int) -> None:
  """Raises the limit of open files: one stays open a shard."""
  soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
  wanted = count + 1024  # whatever else the process has open
  if hard != resource.RLIM_INFINITY:
    wanted = min(wanted, hard)
  if soft != resource.RLIM_INFINITY and soft < wanted:
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
