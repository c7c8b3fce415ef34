# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A corpus: one long stream of tokens, and where each document starts in it.

A document in the stream is a separator and its tokens; one more separator
stands behind the last. So the targets of any slice [a, b) are the slice
[a + 1, b + 1), and the last target of a document is the separator after it.

The stream is in memory, tokenised at start, or in a folder that `diff-jax
prepare` wrote. The SHA-256 of a corpus is that of its documents' SHA-256
digests, each over the document's part of the stream as little-endian int32:
pieces can compute it apart, however they are cut.
"""

import hashlib
import itertools
import pathlib
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

import numpy as np

from diff_jax.config import ConfigError
from diff_jax.data import documents as documents_lib
from diff_jax.data import shard, tokenizers
from diff_jax.data.encoding import check_range, encode, storage_dtype
from diff_jax.data.prepared import PreparedCorpus

# A corpus of more is prepared once instead of tokenised at every start.
MAX_MEMORY_TOKENS = 2**27


@runtime_checkable
class Corpus(Protocol):
  """What packing and the evaluators read."""

  starts: np.ndarray  # int64 [documents + 1], the last is the number of tokens
  tokenizer: tokenizers.Tokenizer

  def read(self, start: int, stop: int) -> np.ndarray:
    """The stream's tokens [start, stop), int32; thread safe.

    Position starts[-1] holds the last separator; `stop` is at most one more.
    """

  def describe(self) -> dict[str, Any]:
    """What it is, for the run's records.

    name, documents, tokens (with a separator each), bytes (of UTF-8 text),
    sha256, tokenizer and skipped_documents.
    """


class MemoryCorpus:
  """A corpus in memory, 2 or 4 bytes a token.

  Args:
    name: of the corpus, for `describe` and messages.
    documents: read once.
    tokenizer: of the text.
    skipped: counts what `documents` leaves out while it is read.

  Raises:
    ConfigError: there is no document, or more than MAX_MEMORY_TOKENS tokens.
  """

  def __init__(
      self,
      name: str,
      documents: Iterable[documents_lib.Document],
      tokenizer: tokenizers.Tokenizer,
      skipped: documents_lib.Skipped | None = None,
  ):
    self.tokenizer = tokenizer
    dtype = storage_dtype(tokenizer.vocab_size)
    streams, ends, num_bytes, digest = [], [0], 0, hashlib.sha256()
    for encoded in encode(documents, tokenizer):
      streams.append(encoded.stream.astype(dtype))
      ends.append(ends[-1] + len(encoded.stream))
      num_bytes += encoded.num_bytes
      digest.update(encoded.sha256)
      if ends[-1] > MAX_MEMORY_TOKENS:
        raise ConfigError(
            f"path={name!r} has more than {MAX_MEMORY_TOKENS:,} tokens, too"
            " many to tokenise at every start: run diff-jax prepare"
            f" --source={name} --tokenizer={tokenizer.name} --out=DIR once, and"
            " give DIR as path"
        )
    if not streams:
      raise ConfigError(f"path={name!r} must hold text: it has no document")
    streams.append(np.array([tokenizer.separator], dtype))
    self._stream = np.concatenate(streams)
    self.starts = np.array(ends, np.int64)
    self._description = {
        "name": name,
        "documents": len(ends) - 1,
        "tokens": ends[-1],
        "bytes": num_bytes,
        "sha256": digest.hexdigest(),
        "tokenizer": tokenizer.name,
        "skipped_documents": skipped.documents if skipped else 0,
    }

  def read(self, start: int, stop: int) -> np.ndarray:
    check_range(start, stop, len(self._stream))
    return self._stream[start:stop].astype(np.int32)

  def describe(self) -> dict[str, Any]:
    return dict(self._description)


def open_corpus(
    path: str, tokenizer: str | None, format: documents_lib.Format
) -> Corpus:
  """The corpus at `path`, prepared or raw.

  Args:
    path: a folder of `diff-jax prepare`, or what `find_pieces` takes.
    tokenizer: a name for `load_tokenizer`; None: a prepared corpus' own, or
      "bytes" of a raw one.
    format: how raw files are read.

  Raises:
    ConfigError: the corpus cannot be read, is too large for memory, or was
      prepared with another tokenizer.
  """
  folder = pathlib.Path(path).expanduser()
  if any((folder / n).is_file() for n in (shard.MANIFEST, shard.SETTINGS)):
    corpus = PreparedCorpus(folder)
    if tokenizer is not None:
      given = tokenizers.load_tokenizer(tokenizer)
      if given.fingerprint != corpus.tokenizer.fingerprint:
        raise ConfigError(
            f"{tokenizer=} must be the one that {path} was prepared with:"
            f" {corpus.manifest['settings']['tokenizer']}"
        )
    return corpus
  skipped = documents_lib.Skipped()
  pieces = documents_lib.find_pieces(path, piece_bytes=2**26)
  documents = itertools.chain.from_iterable(
      documents_lib.read_piece(piece, format, skipped) for piece in pieces
  )
  corpus = MemoryCorpus(
      path, documents, tokenizers.load_tokenizer(tokenizer or "bytes"), skipped
  )
  num_documents = len(corpus.starts) - 1 + skipped.documents
  documents_lib.warn_if_uncut(path, format, pieces, num_documents)
  return corpus
