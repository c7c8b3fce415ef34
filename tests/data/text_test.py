# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Packing against the documents themselves, splits, baselines, errors."""

import hashlib
import lzma
import math

import numpy as np
import pytest

from diff_jax.config import ConfigError
from diff_jax.data import stdlib, text
from diff_jax.data.text import Text

DOCUMENTS = {
    "a.txt": b"one",
    "b.txt": b"",
    "c/d.txt": bytes(range(256)),
    "c/e.md": "Gr\u00fc\u00dfe \u2603".encode(),
    "f.txt": b"x",
    "g.txt": b"\xff\xfe not UTF-8",
}


@pytest.fixture
def folder(tmp_path):
  for name, data in {**DOCUMENTS, ".hidden": b"no", ".git/x": b"no"}.items():
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(data)
  return tmp_path


def segments(rows, seq_len):
  """(tokens, targets) of every segment of every row, padding left out."""
  for row in rows:
    ids = row["segment_ids"]
    assert len(ids) == seq_len
    np.testing.assert_array_equal(row["loss_weights"], ids > 0)
    for segment in range(1, ids.max() + 1):
      at = np.flatnonzero(ids == segment)
      assert at[-1] - at[0] + 1 == len(at)
      np.testing.assert_array_equal(row["positions"][at], np.arange(len(at)))
      yield row["tokens"][at].tolist(), row["targets"][at].tolist()


@pytest.mark.parametrize("seq_len", [1, 7, 64, 1000])
def test_every_byte_is_a_target_once(folder, seq_len):
  source = Text(path=str(folder), seq_len=seq_len)
  documents = []
  for split in text.source.SPLITS:
    rows = source.examples(split, 0)
    stream = []
    for tokens, targets in segments(list(rows), seq_len):
      assert tokens[1:] == targets[:-1], "targets are the next tokens"
      assert text.SEPARATOR not in tokens[1:], "one document a segment"
      if stream:
        assert tokens[0] == stream[-1], "no byte is lost between segments"
      stream += targets
    assert stream[-1] == text.SEPARATOR
    full_rows, rest = divmod(len(stream), seq_len)
    assert len(rows) == full_rows + (rest > 0), "only the last row is padded"
    while stream:
      end = stream.index(text.SEPARATOR)
      documents.append(bytes(stream[:end]))
      stream = stream[end + 1 :]
  assert sorted(documents) == sorted(d for d in DOCUMENTS.values() if d)


def test_rows_do_not_depend_on_the_order_of_reading(folder):
  rows = Text(path=str(folder), seq_len=16).examples("train", 0)
  again = Text(path=str(folder), seq_len=16).examples("train", 1)
  for index in reversed(range(len(rows))):
    for name, array in rows[index].items():
      np.testing.assert_array_equal(again[index][name], array)


def test_splits_are_whole_documents(folder):
  corpus = text.read_corpus(str(folder))
  train, held_out = corpus.split("train"), corpus.split("eval")
  assert len(held_out) == 1
  assert {**train, **held_out} == {n: d for n, d in DOCUMENTS.items() if d}
  assert not train.keys() & held_out.keys()


def test_a_file_gives_its_last_tenth_to_eval(tmp_path):
  file = tmp_path / "book.txt"
  file.write_bytes(bytes(range(100)))
  corpus = text.read_corpus(str(file))
  assert list(corpus.split("train").values()) == [bytes(range(90))]
  assert list(corpus.split("eval").values()) == [bytes(range(90, 100))]


def test_corpus_describes_what_was_read(folder):
  want = {
      "name": folder.name,
      "documents": 5,
      "bytes": sum(map(len, DOCUMENTS.values())),
      "missing": [],
  }
  corpus = Text(path=str(folder)).corpus()
  digest = corpus.pop("sha256")
  assert corpus == want
  (folder / "f.txt").write_bytes(b"y")
  assert Text(path=str(folder)).corpus()["sha256"] != digest
  assert len(digest) == len(hashlib.sha256().hexdigest())


def test_baselines_against_counting_by_hand(folder):
  corpus = text.read_corpus(str(folder))

  def stream(split):
    tokens = [256]
    for _, data in sorted(corpus.split(split).items()):
      tokens += [*data, 256]
    return tokens

  train, held_out = stream("train"), stream("eval")
  targets = held_out[1:]
  unigram = bigram = 0.0
  for before, after in zip(held_out, targets, strict=False):
    share = (train[1:].count(after) + 1) / (len(train) - 1 + 257)
    pairs = list(zip(train, train[1:], strict=False))
    pair_share = (pairs.count((before, after)) + 1) / (
        train[:-1].count(before) + 257
    )
    unigram -= math.log(share) / len(targets)
    bigram -= math.log(pair_share) / len(targets)
  compressed = lzma.compress(b"".join(corpus.split("eval").values()))
  num_bytes = sum(map(len, corpus.split("eval").values()))
  assert Text(path=str(folder)).baselines() == pytest.approx(
      {
          "unigram_loss_nats": unigram,
          "bigram_loss_nats": bigram,
          "xz_bits_per_byte": 8 * len(compressed) / num_bytes,
      }
  )


def test_stdlib_is_complete_and_split_by_package():
  corpus = text.read_corpus("stdlib")
  packages = {
      split: {stdlib.package(module) for module in corpus.split(split)}
      for split in text.source.SPLITS
  }
  assert packages["eval"] == set(stdlib.EVAL_PACKAGES)
  assert not packages["train"] & packages["eval"]
  described = Text().corpus()
  assert described["documents"] == len(stdlib.MODULES) == 60
  assert described["missing"] == []
  assert 1.5e6 < described["bytes"] < 3.5e6
  held_out = sum(map(len, corpus.split("eval").values()))
  assert 0.05 < held_out / described["bytes"] < 0.15


def test_stdlib_baselines_are_ordered():
  baselines = Text().baselines()
  assert (
      math.log(257)
      > baselines["unigram_loss_nats"]
      > baselines["bigram_loss_nats"]
      > baselines["xz_bits_per_byte"] * math.log(2)
      > 0.7
  )


def test_a_missing_module_is_reported(monkeypatch):
  monkeypatch.setattr(
      stdlib, "MODULES", ("json.decoder", "json.gone", "gone.too", "shlex")
  )
  corpus = Text().corpus()
  assert corpus["documents"] == 2
  assert corpus["missing"] == ["json.gone", "gone.too"]


@pytest.mark.parametrize(
    "files, message",
    [
        (None, "there is no such file or folder"),
        ({}, "there is not one byte in it"),
        ({"a": b"", "b": b""}, "there is not one byte in it"),
        ({"a": b"only"}, r"the train split is empty \(documents: a\)"),
    ],
)
def test_a_folder_without_enough_text_is_named(tmp_path, files, message):
  path = tmp_path / "texts"
  if files is not None:
    path.mkdir()
    for name, data in files.items():
      (path / name).write_bytes(data)
  source = Text(path=str(path))
  for use in (
      source.corpus,
      source.baselines,
      lambda: source.examples("eval", 0),
  ):
    with pytest.raises(ConfigError, match="path='.*texts' must .*" + message):
      use()


def test_an_eval_split_without_a_document_is_named(monkeypatch):
  monkeypatch.setattr(stdlib, "MODULES", ("shlex", "textwrap"))
  with pytest.raises(ConfigError, match="path='stdlib'.*eval split is empty"):
    Text().examples("train", 0)


def test_a_row_without_tokens_is_named():
  with pytest.raises(ConfigError, match="seq_len=0 must be at least 1"):
    Text(seq_len=0)
