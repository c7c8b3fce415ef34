# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back: bytes, tiktoken, tokenizer.json files."""

import abc
import functools
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Iterable, Sequence
from typing import SupportsIndex
from unittest import mock

import numpy as np

from diff_jax.config import ConfigError

INSTALL = "pip install 'diff_jax[text]'"
END_OF_TEXT = "<|endoftext|>"
DOWNLOAD_TIMEOUT_S = 10  # to connect, and between two parts of the answer

# What published vocabularies put between documents, best first.
SEPARATORS = (
    END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[SEP]",
)  # fmt: skip


class Tokenizer(abc.ABC):
  """Text to ids and back; special tokens that a text spells stay text.

  Attributes:
    name: what `load_tokenizer` takes.
    vocab_size: every id is below it.
    separator: the id between documents; no text encodes to it.
    fingerprint: a SHA-256 in hex of what defines the tokenizer.
    num_bytes: int32 [v], bytes of text that an id stands for; 0 for the
      separator and all other special tokens.
  """

  name: str
  vocab_size: int
  separator: int
  fingerprint: str
  num_bytes: np.ndarray

  def __reduce__(self):
    # The library's pickle forgets that specials in a text are text.
    return load_tokenizer, (self.name,)

  @abc.abstractmethod
  def encode(self, text: str) -> np.ndarray:
    """The ids of a text, int32 [t], without a separator."""

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    """The ids of each text."""
    return [self.encode(text) for text in texts]

  def decode(self, ids: Iterable[SupportsIndex]) -> str:
    """The text of any ids; never fails.

    Special and unknown ids are no text; what is no UTF-8 becomes U+FFFD.
    """
    counts = self.num_bytes
    known = [i for i in map(int, ids) if 0 <= i < len(counts) and counts[i]]
    return self._decode(known)

  @abc.abstractmethod
  def _decode(self, ids: list[int]) -> str:
    """The text of ids that stand for text."""


class BytesTokenizer(Tokenizer):
  """The 256 bytes of UTF-8, and a separator after them."""

  name = "bytes"
  vocab_size = 257
  separator = 256
  fingerprint = hashlib.sha256(b"bytes").hexdigest()

  def __init__(self):
    self.num_bytes = np.ones(self.vocab_size, np.int32)
    self.num_bytes[self.separator] = 0

  def encode(self, text: str) -> np.ndarray:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)

  def _decode(self, ids: list[int]) -> str:
    return bytes(ids).decode(errors="replace")


class TiktokenTokenizer(Tokenizer):
  """An encoding of the tiktoken library."""

  def __init__(self, name: str, encoding):
    self.name = name
    self._encoding = encoding
    self.vocab_size = encoding.n_vocab
    self.separator = encoding.eot_token
    self.num_bytes = np.zeros(self.vocab_size, np.int32)
    # How tiktoken's own README takes an encoding apart.
    ranks, specials = encoding._mergeable_ranks, encoding._special_tokens
    for token, i in ranks.items():
      self.num_bytes[i] = len(token)
    parts = (encoding._pat_str, sorted(ranks.items()), sorted(specials.items()))
    self.fingerprint = hashlib.sha256(repr(parts).encode()).hexdigest()

  def encode(self, text: str) -> np.ndarray:
    ids = self._encoding.encode_to_numpy(text, disallowed_special=())
    return ids.astype(np.int32)

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    ids = self._encoding.encode_ordinary_batch(list(texts))
    return [np.array(i, np.int32) for i in ids]

  def _decode(self, ids: list[int]) -> str:
    return self._encoding.decode(ids, errors="replace")


class JsonTokenizer(Tokenizer):
  """A Hugging Face tokenizer.json that keeps the text, or nearly.

  Exact for a byte-level vocabulary. A normalizer can change a text before it
  is encoded, and SentencePiece-like vocabularies count the space that they put
  before it. Truncation, padding and templates of the file are not used.
  """

  def __init__(self, path: str):
    tokenizers = _import_tokenizers(f"tokenizer={path!r}")
    try:
      data = pathlib.Path(path).read_bytes()
    except OSError as error:
      raise ConfigError(
          f"tokenizer={path!r} cannot be read: {error.strerror}"
      ) from None
    try:
      self._tokenizer = tokenizers.Tokenizer.from_str(data.decode())
    except Exception as error:  # The library raises nothing more precise.
      raise ConfigError(
          f"tokenizer={path!r} must be a tokenizer.json: {error}"
      ) from None
    self.name = path
    self.fingerprint = hashlib.sha256(data).hexdigest()
    vocabulary = self._tokenizer.get_vocab()
    separator = next((s for s in SEPARATORS if s in vocabulary), None)
    if separator is None:
      raise ConfigError(
          f"tokenizer={path!r} must have a token that ends a document, one of"
          f" {', '.join(SEPARATORS)}"
      )
    self.separator = vocabulary[separator]
    # Not every file marks it as special; what is special is not seen in text.
    self._tokenizer.add_special_tokens(
        [tokenizers.AddedToken(separator, special=True, normalized=False)]
    )
    self._tokenizer.encode_special_tokens = True
    self._tokenizer.no_truncation()
    self._tokenizer.no_padding()
    self.vocab_size = 1 + max(vocabulary.values())
    self.num_bytes = np.zeros(self.vocab_size, np.int32)
    count = _byte_counter(path, json.loads(data).get("decoder"))
    for token, i in vocabulary.items():
      self.num_bytes[i] = count(token)
    for i, token in self._tokenizer.get_added_tokens_decoder().items():
      self.num_bytes[i] = 0 if token.special else len(token.content.encode())

  def encode(self, text: str) -> np.ndarray:
    return self.encode_batch([text])[0]

  def encode_batch(self, texts: Sequence[str]) -> list[np.ndarray]:
    encodings = self._tokenizer.encode_batch_fast(
        list(texts), add_special_tokens=False
    )
    return [np.array(encoding.ids, np.int32) for encoding in encodings]

  def _decode(self, ids: list[int]) -> str:
    return self._tokenizer.decode(ids, skip_special_tokens=False)


def _byte_counter(path: str, decoder: dict | None) -> Callable[[str], int]:
  """What counts the bytes of text that a token of a vocabulary stands for."""
  parts = [] if decoder is None else decoder.get("decoders", [decoder])
  kinds = [part["type"] for part in parts]
  if "ByteLevel" in kinds:
    return len  # A character of the token is a byte of the text.
  if "Metaspace" in kinds or "ByteFallback" in kinds:
    return _sentencepiece_bytes
  raise ConfigError(
      f"tokenizer={path!r} must have a decoder with ByteLevel, Metaspace or"
      f" ByteFallback, not {', '.join(kinds) or 'none'}: nothing else says how"
      " many bytes a token stands for"
  )


def _sentencepiece_bytes(token: str) -> int:
  if re.fullmatch("<0x[0-9A-F]{2}>", token):
    return 1
  return len(token.replace("\u2581", " ").encode())


def load_tokenizer(name: str) -> Tokenizer:
  """The tokenizer of a name.

  Args:
    name: "bytes", a tiktoken encoding, or the path of a tokenizer.json.

  Raises:
    ConfigError: there is no such tokenizer, or it cannot be loaded.
  """
  if name == "bytes":
    return BytesTokenizer()
  if name.endswith(".json") or os.path.basename(name) != name:
    return JsonTokenizer(name)
  return _load_tiktoken(name)


def _load_tiktoken(name: str) -> TiktokenTokenizer:
  try:
    import tiktoken
  except ImportError:
    raise ConfigError(
        f"tokenizer={name!r} must be bytes or the path of a tokenizer.json; for"
        f" a tiktoken encoding install it: {INSTALL}"
    ) from None
  names = tiktoken.list_encoding_names()
  if name not in names:
    raise ConfigError(
        f"tokenizer={name!r} must be bytes, the path of a tokenizer.json, or a"
        f" tiktoken encoding: {', '.join(sorted(names))}"
    )
  import requests

  # tiktoken would wait for ever for a network that does not answer.
  impatient = functools.partial(requests.get, timeout=DOWNLOAD_TIMEOUT_S)
  try:
    with mock.patch.object(requests, "get", impatient):
      encoding = tiktoken.get_encoding(name)
  except (OSError, ValueError) as error:
    reason = str(error).splitlines()[0][:200]
    raise ConfigError(
        f"tokenizer={name!r} is not in TIKTOKEN_CACHE_DIR="
        f"{os.environ.get('TIKTOKEN_CACHE_DIR', '')!r} and cannot be"
        f" downloaded: {reason}"
    ) from None
  return TiktokenTokenizer(name, encoding)


def train_bpe(
    documents: Iterable[str], vocab_size: int, out: str | os.PathLike
) -> None:
  """Trains a byte-level BPE and writes its tokenizer.json.

  The same documents give the same file. A vocabulary is smaller than asked
  for where the text has no more pairs to merge.

  Args:
    documents: the text to learn from.
    vocab_size: at least 257: the bytes and the separator <|endoftext|>.
    out: the file.

  Raises:
    ConfigError: `vocab_size` is too small, or `out` cannot be written.
  """
  if vocab_size < 257:
    raise ConfigError(
        f"--train-bpe={vocab_size} must be at least 257: the bytes and a"
        " separator"
    )
  tokenizers = _import_tokenizers(f"training a BPE of {vocab_size=}")
  byte_level = tokenizers.pre_tokenizers.ByteLevel
  tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
  tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
  tokenizer.decoder = tokenizers.decoders.ByteLevel()
  trainer = tokenizers.trainers.BpeTrainer(
      vocab_size=vocab_size,
      special_tokens=[END_OF_TEXT],
      initial_alphabet=byte_level.alphabet(),
      show_progress=False,
  )
  tokenizer.train_from_iterator(documents, trainer)
  file = pathlib.Path(out)
  partial = file.with_name(f".{file.name}.{os.getpid()}.partial")
  try:
    file.parent.mkdir(parents=True, exist_ok=True)
    partial.write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    partial.replace(file)
  except OSError as error:
    raise ConfigError(
        f"out={str(out)!r} cannot be written: {error.strerror}"
    ) from None


def _import_tokenizers(what: str):
  try:
    import tokenizers
  except ImportError:
    raise ConfigError(f"{what} needs tokenizers: {INSTALL}") from None
  return tokenizers
