# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Round trips, bytes, specials, and agreement of the two libraries."""

import base64
import json
import pathlib
import pickle
import random
import re

import numpy as np
import pytest
import tiktoken
import tokenizers

from diff_jax.data import stdlib
from diff_jax.data.tokenizers import load_tokenizer, train_bpe

TEXT = "".join(
    stdlib.read()[name].decode() for name in ("heapq", "random", "shlex")
)
# The words between which GPT-2, and a ByteLevel pre-tokenizer, merge nothing.
PATTERN = (
    r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
)
SPECIALS = "<|endoftext|> </s> <s> <pad>"


@pytest.fixture(scope="module")
def bpe_file(tmp_path_factory):
  file = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
  train_bpe([TEXT], 600, file)
  return str(file)


@pytest.fixture(scope="module")
def encoding(bpe_file):
  """The same vocabulary as an encoding of tiktoken."""
  model = json.loads(pathlib.Path(bpe_file).read_text())["model"]
  to_byte = {c: b for b, c in byte_alphabet().items()}
  ranks = {
      bytes(to_byte[c] for c in token): i
      for token, i in model["vocab"].items()
      if token != "<|endoftext|>"
  }
  return tiktoken.Encoding(
      "small",
      pat_str=PATTERN,
      mergeable_ranks=ranks,
      special_tokens={"<|endoftext|>": 0},
  )


def byte_alphabet():
  """GPT-2's visible character for each byte."""
  visible = [b for b in range(256) if chr(b).isprintable() and b != 32]
  hidden = [b for b in range(256) if b not in visible]
  characters = {b: chr(b) for b in visible}
  return characters | {b: chr(256 + n) for n, b in enumerate(hidden)}


@pytest.fixture(params=["bytes", "json", "tiktoken"])
def tokenizer(request, bpe_file, encoding, monkeypatch):
  if request.param == "tiktoken":
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: encoding)
    monkeypatch.setattr(tiktoken, "list_encoding_names", lambda: ["small"])
    return load_tokenizer("small")
  return load_tokenizer({"bytes": "bytes", "json": bpe_file}[request.param])


def unicode_texts():
  """Texts of any code points but surrogates, and some of one kind."""
  rng = random.Random(0)
  for stop in (128, 0x800, 0xD800, 0x110000):
    for _ in range(25):
      points = rng.choices(range(stop), k=rng.randrange(60))
      yield "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000)
  yield from ("", " ", "\n", "\r\n\r\n", "\0", "\ufeffx", "e\u0301 \u00e9")
  yield from (SPECIALS, f"a{SPECIALS}b", "<|endoftext|>" * 3, TEXT)


def test_round_trip_of_any_text(tokenizer):
  texts = list(unicode_texts())
  for text, ids in zip(texts, tokenizer.encode_batch(texts), strict=True):
    assert ids.dtype == np.int32 and ids.ndim == 1
    np.testing.assert_array_equal(ids, tokenizer.encode(text))
    assert tokenizer.decode(ids) == text
    assert tokenizer.num_bytes[ids].sum() == len(text.encode())
    assert tokenizer.separator not in ids
    assert not len(ids) or 0 <= ids.min() <= ids.max() < tokenizer.vocab_size
  assert tokenizer.encode_batch([]) == []


def test_bytes_of_every_id(tokenizer):
  num_bytes = tokenizer.num_bytes
  assert num_bytes.dtype == np.int32
  assert num_bytes.shape == (tokenizer.vocab_size,)
  assert np.flatnonzero(num_bytes == 0).tolist() == [tokenizer.separator]
  ids = np.random.default_rng(0).permutation(tokenizer.vocab_size)
  for i in ids[:300].tolist():
    text = tokenizer.decode([i])
    assert "\ufffd" in text or len(text.encode()) == num_bytes[i]


def test_decode_never_fails(tokenizer):
  ids = tokenizer.encode("\u20ac")
  separator = tokenizer.separator
  assert tokenizer.decode([separator, *ids, separator]) == "\u20ac"
  assert tokenizer.decode([-1, 10**9, *ids, tokenizer.vocab_size]) == "\u20ac"
  assert tokenizer.decode([]) == ""
  assert "\ufffd" in tokenizer.decode(ids[:1])
  anything = np.random.default_rng(0).integers(-5, 2000, 3000)
  assert isinstance(tokenizer.decode(anything), str)


def test_a_copy_is_the_same(tokenizer):
  copy = pickle.loads(pickle.dumps(tokenizer))
  assert copy.fingerprint == tokenizer.fingerprint
  assert re.fullmatch("[0-9a-f]{64}", copy.fingerprint)
  np.testing.assert_array_equal(
      copy.encode(SPECIALS), tokenizer.encode(SPECIALS)
  )


def test_bytes_are_bytes():
  tokenizer = load_tokenizer("bytes")
  assert (tokenizer.vocab_size, tokenizer.separator) == (257, 256)
  for text in unicode_texts():
    assert tokenizer.encode(text).tolist() == list(text.encode())


def test_the_libraries_agree(bpe_file, encoding):
  ours = load_tokenizer(bpe_file)
  for text in unicode_texts():
    assert ours.encode(text).tolist() == encoding.encode_ordinary(text)


def test_tiktoken_from_its_cache(tmp_path, monkeypatch):
  """An offline cache of two encodings, as tiktoken would have filled it."""
  lines = [base64.b64encode(bytes([b])) + b" %d\n" % b for b in range(256)]
  (tmp_path / "ranks.tiktoken").write_bytes(b"".join(lines))

  def constructor():
    ranks = tiktoken.load.load_tiktoken_bpe(str(tmp_path / "ranks.tiktoken"))
    specials = {"<|endoftext|>": 258, "<|other|>": 256}
    return {
        "name": "tiny",
        "pat_str": PATTERN,
        "mergeable_ranks": ranks,
        "special_tokens": specials,
    }

  tiktoken.list_encoding_names()  # Fills the table of constructors.
  monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "cache"))
  monkeypatch.setitem(
      tiktoken.registry.ENCODING_CONSTRUCTORS, "tiny", constructor
  )
  monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
  tokenizer = load_tokenizer("tiny")
  # 257 is the id of nothing at all.
  assert (tokenizer.vocab_size, tokenizer.separator) == (259, 258)
  assert tokenizer.num_bytes.tolist() == [1] * 256 + [0] * 3
  text = "<|endoftext|><|other|>"
  assert tokenizer.encode(text).tolist() == list(text.encode())
  assert tokenizer.decode([65, 256, 257, 258, 66]) == "AB"


def edited(file, tmp_path, edit):
  """The path of a tokenizer.json with changed settings."""
  settings = json.loads(pathlib.Path(file).read_text())
  edit(settings)
  out = tmp_path / "edited.json"
  out.write_text(json.dumps(settings))
  return str(out)


def test_settings_of_the_file_that_are_not_used(bpe_file, tmp_path):
  def edit(settings):
    settings["added_tokens"][0]["special"] = False
    settings["truncation"] = {
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst",
        "stride": 0,
    }  # fmt: skip
    settings["padding"] = {
        "strategy": {"Fixed": 8}, "direction": "Right", "pad_id": 0,
        "pad_to_multiple_of": None, "pad_type_id": 0, "pad_token": "x",
    }  # fmt: skip
    settings["post_processor"] = {
        "type": "BertProcessing", "sep": ["a", 1], "cls": ["b", 2],
    }  # fmt: skip

  tokenizer = load_tokenizer(edited(bpe_file, tmp_path, edit))
  plain = load_tokenizer(bpe_file)
  assert tokenizer.fingerprint != plain.fingerprint
  for text in unicode_texts():
    np.testing.assert_array_equal(tokenizer.encode(text), plain.encode(text))
  np.testing.assert_array_equal(tokenizer.num_bytes, plain.num_bytes)


def test_added_tokens_that_are_text(bpe_file, tmp_path):
  def edit(settings):
    token = {**settings["added_tokens"][0], "special": False}
    settings["added_tokens"] += [
        {**token, "id": 600, "content": "\u20ac\u20ac"},
        {**token, "id": 601, "content": "<pad>", "special": True},
    ]

  tokenizer = load_tokenizer(edited(bpe_file, tmp_path, edit))
  assert tokenizer.vocab_size == 602
  assert tokenizer.num_bytes[600:].tolist() == [6, 0]
  assert tokenizer.encode("\u20ac\u20ac").tolist() == [600]
  assert 601 not in tokenizer.encode(SPECIALS)
  assert tokenizer.decode([600, 601]) == "\u20ac\u20ac"


@pytest.mark.parametrize("kind", ["unigram", "byte_fallback"])
def test_sentencepiece_like(tmp_path, kind):
  if kind == "unigram":
    library = tokenizers.SentencePieceUnigramTokenizer()
    library.train_from_iterator(
        TEXT.splitlines(), 300, show_progress=False,
        special_tokens=["<unk>", "</s>"], unk_token="<unk>",
    )  # fmt: skip
  else:
    library = tokenizers.SentencePieceBPETokenizer()
    library.train_from_iterator(
        [TEXT], 300, show_progress=False,
        special_tokens=["<unk>", "</s>", *(f"<0x{b:02X}>" for b in range(256))],
    )  # fmt: skip
  file = tmp_path / "tokenizer.json"
  library.save(str(file))
  if kind == "byte_fallback":

    def edit(settings):
      del settings["added_tokens"][2:]
      settings["model"]["byte_fallback"] = True
      settings["decoder"] = {
          "type": "Sequence",
          "decoders": [{"type": "ByteFallback"}, settings["decoder"]],
      }

    file = edited(file, tmp_path, edit)
  tokenizer = load_tokenizer(str(file))
  text = "def heappush(heap, item):" + "\u20ac" * (kind == "byte_fallback")
  ids = tokenizer.encode(text)
  assert tokenizer.num_bytes[ids].sum() == 1 + len(text.encode())
  assert tokenizer.decode(ids).lstrip() == text
  assert not tokenizer.num_bytes[:2].any()


def test_training_is_deterministic_and_atomic(bpe_file, tmp_path):
  out = tmp_path / "new" / "b.json"
  train_bpe(iter([TEXT]), 600, out)
  assert out.read_bytes() == pathlib.Path(bpe_file).read_bytes()
  assert [file.name for file in out.parent.iterdir()] == ["b.json"]
  tokenizer = load_tokenizer(str(out))
  assert tokenizer.vocab_size == 600
  assert len(tokenizer.encode(TEXT)) < 0.5 * len(TEXT.encode())
  train_bpe(["ab ab"], 600, out)
  assert 257 < load_tokenizer(str(out)).vocab_size < 270
