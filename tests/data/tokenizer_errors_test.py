# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What tokenizers refuse, and how fast a silent network is given up."""

import re
import socket
import sys

import pytest
import tiktoken
import tokenizers

from diff_jax.config import ConfigError
from diff_jax.data import tokenizers as tokenizers_lib
from diff_jax.data.tokenizers import load_tokenizer, train_bpe


def test_offline_and_not_cached(tmp_path, monkeypatch):
  monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
  monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
  monkeypatch.setattr(tokenizers_lib, "DOWNLOAD_TIMEOUT_S", 0.1)
  with socket.create_server(("127.0.0.1", 0)) as silent:
    port = silent.getsockname()[1]
    for name in ("HTTPS_PROXY", "https_proxy"):
      monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
    message = (
        "^tokenizer='cl100k_base' is not in"
        f" TIKTOKEN_CACHE_DIR='{tmp_path}' and cannot be downloaded: .*timed"
    )
    with pytest.raises(ConfigError, match=message):
      load_tokenizer("cl100k_base")


def test_what_train_bpe_refuses(tmp_path):
  with pytest.raises(ConfigError, match="train-bpe=256 must be at least 257"):
    train_bpe([], 256, tmp_path / "a.json")
  (tmp_path / "file").touch()
  with pytest.raises(ConfigError, match="out=.* cannot be written: "):
    train_bpe(["a b"], 300, tmp_path / "file" / "a.json")


def test_a_broken_corpus_is_said_while_training(tmp_path):
  def documents():
    yield "one"
    raise ConfigError("a.jsonl:2: broken JSON")

  with pytest.raises(ConfigError, match="^a.jsonl:2: broken JSON$"):
    train_bpe(documents(), 300, tmp_path / "a.json")
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name, reason",
    [
        ("gpt5", "must be bytes, the path .* encoding: cl100k_base, .*"),
        ("no/such.json", "cannot be read: No such file or directory"),
        ("FOLDER", "cannot be read: Is a directory"),
        ("FOLDER/broken.json", "must be a tokenizer.json: .*"),
        ("FOLDER/other.json", "must be a tokenizer.json: .*"),
        ("FOLDER/bare.json", "must have a token that ends a document, .*"),
        ("FOLDER/words.json", "must have a decoder .*, not WordPiece: .*"),
    ],
)
def test_tokenizers_that_cannot_be(tmp_path, name, reason):
  (tmp_path / "broken.json").write_bytes(b'{"version": "1.0", "tru\xff')
  (tmp_path / "other.json").write_text('{"text": "a"}')
  bare = tokenizers.Tokenizer(tokenizers.models.BPE())
  bare.add_tokens(["a"])
  bare.save(str(tmp_path / "bare.json"))
  words = tokenizers.BertWordPieceTokenizer(vocab={"[SEP]": 0, "[CLS]": 1})
  words.save(str(tmp_path / "words.json"))
  name = name.replace("FOLDER", str(tmp_path))
  with pytest.raises(ConfigError) as caught:
    load_tokenizer(name)
  pattern = re.escape(f"tokenizer={name!r} ") + reason
  assert re.fullmatch(pattern, str(caught.value)), str(caught.value)


def test_what_to_install(monkeypatch):
  for module, name in (("tiktoken", "r50k_base"), ("tokenizers", "a.json")):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=r"pip install 'diff_jax\[text\]'$"):
      load_tokenizer(name)
