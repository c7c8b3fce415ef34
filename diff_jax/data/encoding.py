# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Documents to their parts of the stream; corpus.py says what that is."""

import hashlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from diff_jax.data.documents import Document
from diff_jax.data.tokenizers import Tokenizer

BATCH_CHARACTERS = 2**20  # of text that a tokenizer gets at a time


class Encoded(NamedTuple):
  """One document's part of the stream."""

  stream: np.ndarray  # int32, the separator and the tokens
  num_bytes: int  # of its text
  sha256: bytes


def encode(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
) -> Iterator[Encoded]:
  """Tokenises documents, a batch of about a megabyte at a time."""
  separator = np.array([tokenizer.separator], np.int32)
  for texts in _batches(documents):
    for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
      stream = np.concatenate([separator, ids], dtype=np.int32)
      digest = hashlib.sha256(stream.astype("<i4", copy=False)).digest()
      yield Encoded(stream, len(text.encode()), digest)


def _batches(documents: Iterable[Document]):
  texts, characters = [], 0
  for document in documents:
    texts.append(document.text)
    characters += len(document.text)
    if characters >= BATCH_CHARACTERS:
      yield texts
      texts, characters = [], 0
  if texts:
    yield texts


def storage_dtype(vocab_size: int) -> np.dtype:
  """The little-endian type that a stream is kept in."""
  return np.dtype("<u2" if vocab_size <= 2**16 else "<u4")


def check_range(start: int, stop: int, length: int) -> None:
  """Raises an IndexError unless [start, stop) lies in [0, length)."""
  if not 0 <= start <= stop <= length:
    raise IndexError(f"{start=}, {stop=} must be within the {length} tokens")
