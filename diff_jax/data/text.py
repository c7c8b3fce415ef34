# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Text as bytes, packed into rows of one length.

The documents of a split make one stream, a separator before each document and
one at the end. The tokens of row r are the stream's [r * seq_len, (r + 1) *
seq_len), its targets lie one further: every byte is a target exactly once an
epoch, and only the last row is padded. A document, with the separator before
it, is a segment; its last target is the separator after it, hence no target
lies across a border. What continues in the next row does not see what came
before, and its positions start at 0 again.
"""

import dataclasses
import hashlib
import lzma
import pathlib
import platform
from collections.abc import Mapping, Sequence, Set
from typing import Any, ClassVar, NamedTuple

import numpy as np

from diff_jax.config import ConfigError
from diff_jax.data import source, stdlib

SEPARATOR = 256  # the token after the 256 bytes
VOCAB_SIZE = 257


@dataclasses.dataclass(frozen=True)
class Text:
  """Next-byte prediction on a text file, a folder of them, or "stdlib".

  Whole documents go to the eval split: of "stdlib" four packages, of a folder
  a tenth of its files, chosen by a hash of their relative paths. A single file
  is cut into two documents, of which the eval split gets the last tenth.
  Hidden and empty files are left out. All text is kept in memory.
  """

  name: ClassVar[str] = "text"
  endless: ClassVar[bool] = False

  path: str = "stdlib"  # a folder of that name is "./stdlib"
  seq_len: int = 256  # tokens in a row

  def __post_init__(self):
    source.check_at_least_one(seq_len=self.seq_len)
    if not self.path:
      raise ConfigError(
          f"data.path={self.path} must be given: --config.data.path=PATH, a text"
          " file, a folder of them, or the word stdlib"
      )

  @property
  def vocab_size(self) -> int:
    return VOCAB_SIZE

  @property
  def output_size(self) -> int:
    return VOCAB_SIZE

  def examples(self, split: str, seed: int) -> "PackedRows":
    """The rows of one epoch, the same for every seed.

    Raises:
      ConfigError: there is no text at `path`, or too little for both splits.
    """
    del seed  # Only the order of the rows depends on it: see pipeline.py.
    return PackedRows(pack(read_corpus(self.path).split(split)), self.seq_len)

  def num_bytes(self, batch: Mapping[str, Any]) -> int:
    """How many targets of a batch are bytes: bits per byte divide by it."""
    targets, weights = map(
        np.asarray, (batch["targets"], batch["loss_weights"])
    )
    return int(np.sum((targets != SEPARATOR) & (weights > 0)))

  def corpus(self) -> dict[str, Any]:
    """What was read: name, documents, bytes, SHA-256, missing modules.

    Raises:
      ConfigError: there is no text at `path`, or too little for both splits.
    """
    corpus = read_corpus(self.path)
    digest = hashlib.sha256()
    for name, data in sorted(corpus.documents.items()):
      digest.update(f"{name}\0{len(data)}\0".encode())
      digest.update(data)
    return {
        "name": corpus.name,
        "documents": len(corpus.documents),
        "bytes": sum(map(len, corpus.documents.values())),
        "sha256": digest.hexdigest(),
        "missing": list(corpus.missing),
    }

  def baselines(self) -> dict[str, float]:
    """What counting and compression reach on the eval split.

    The losses are means over its targets, bytes and separators alike, of
    add-one counts in the train split. xz sees the eval split only.

    Raises:
      ConfigError: there is no text at `path`, or too little for both splits.
    """
    corpus = read_corpus(self.path)
    train, held_out = pack(corpus.split("train")), pack(corpus.split("eval"))
    eval_bytes = b"".join(corpus.split("eval").values())
    xz_bits = 8 * len(lzma.compress(eval_bytes))

    unigrams = np.bincount(train[1:], minlength=VOCAB_SIZE) + 1
    pairs = VOCAB_SIZE * train[:-1].astype(np.int64) + train[1:]
    bigrams = np.bincount(pairs, minlength=VOCAB_SIZE**2) + 1
    bigrams = bigrams.reshape(VOCAB_SIZE, VOCAB_SIZE)
    log_unigram = np.log(unigrams / unigrams.sum())
    log_bigram = np.log(bigrams / bigrams.sum(axis=1, keepdims=True))
    return {
        "unigram_loss_nats": -float(log_unigram[held_out[1:]].mean()),
        "bigram_loss_nats": -float(
            log_bigram[held_out[:-1], held_out[1:]].mean()
        ),
        "xz_bits_per_byte": xz_bits / len(eval_bytes),
    }


class PackedRows(Sequence):
  """The rows of a packed stream; the module's docstring says how."""

  def __init__(self, stream: np.ndarray, seq_len: int):
    self._seq_len = seq_len
    self._num_targets = len(stream) - 1
    self._num_rows = -(-self._num_targets // seq_len)
    padding = self._num_rows * seq_len - self._num_targets
    self._stream = np.pad(stream, (0, padding), constant_values=SEPARATOR)

  def __len__(self) -> int:
    return self._num_rows

  def __getitem__(self, index: int) -> source.Example:
    if not 0 <= index < len(self):
      raise IndexError(f"{index=} must be at least 0 and below {len(self)}")
    first = index * self._seq_len
    stream = self._stream[first : first + self._seq_len + 1].astype(np.int32)
    tokens, targets = stream[:-1], stream[1:]
    place = np.arange(self._seq_len, dtype=np.int32)
    is_text = first + place < self._num_targets
    starts = tokens == SEPARATOR
    starts[0] = True
    start_place = np.maximum.accumulate(np.where(starts, place, 0))
    return {
        "tokens": tokens,
        "targets": targets,
        "loss_weights": is_text.astype(np.float32),
        "segment_ids": np.cumsum(starts, dtype=np.int32) * is_text,
        "positions": place - start_place,
    }


def pack(documents: Mapping[str, bytes]) -> np.ndarray:
  """The uint16 stream of the documents, in the order of their names."""
  separator = np.array([SEPARATOR], np.uint16)
  pieces = [separator]
  for _, data in sorted(documents.items()):
    pieces += [np.frombuffer(data, np.uint8), separator]
  return np.concatenate(pieces)


class Corpus(NamedTuple):
  """Documents by name, and which of them the eval split gets."""

  name: str
  documents: Mapping[str, bytes]
  held_out: Set[str]
  missing: Sequence[str] = ()  # modules that this Python lacks

  def split(self, split: str) -> dict[str, bytes]:
    is_eval = bool(source.split_index(split))
    return {
        name: data
        for name, data in self.documents.items()
        if (name in self.held_out) == is_eval
    }


def read_corpus(path: str) -> Corpus:
  """Reads the documents at `path`.

  Raises:
    ConfigError: there is no text at `path`, or too little for both splits.
  """
  where = pathlib.Path(path).expanduser()
  if path == "stdlib":
    corpus = _stdlib_corpus()
  elif where.is_dir():
    corpus = _folder_corpus(where)
  elif where.is_file():
    corpus = _file_corpus(where)
  else:
    raise ConfigError(
        f"{path=} must be a text file, a folder of them, or the word stdlib:"
        " there is no such file or folder"
    )
  if not corpus.documents:
    raise ConfigError(f"{path=} must hold text: there is not one byte in it")
  for split in source.SPLITS:
    if not corpus.split(split):
      raise ConfigError(
          f"{path=} must hold text for both splits: the {split} split is empty"
          f" (documents: {', '.join(corpus.documents)})"
      )
  return corpus


def _stdlib_corpus() -> Corpus:
  documents = stdlib.read()
  return Corpus(
      name=f"standard library of CPython {platform.python_version()}",
      documents=documents,
      held_out={
          module
          for module in documents
          if stdlib.package(module) in stdlib.EVAL_PACKAGES
      },
      missing=[m for m in stdlib.MODULES if m not in documents],
  )


def _folder_corpus(folder: pathlib.Path) -> Corpus:
  documents = {}
  for file in folder.rglob("*"):
    relative = file.relative_to(folder)
    hidden = any(part.startswith(".") for part in relative.parts)
    if file.is_file() and not hidden:
      documents[relative.as_posix()] = file.read_bytes()
  documents = {name: data for name, data in documents.items() if data}
  by_hash = sorted(
      documents, key=lambda name: hashlib.sha256(name.encode()).digest()
  )
  tenth = -(-len(by_hash) // 10)
  return Corpus(folder.resolve().name, documents, set(by_hash[:tenth]))


def _file_corpus(file: pathlib.Path) -> Corpus:
  data = file.read_bytes()
  cut = len(data) * 9 // 10
  parts = {"first nine tenths": data[:cut], "last tenth": data[cut:]}
  documents = {name: data for name, data in parts.items() if data}
  return Corpus(file.name, documents, {"last tenth"})
