# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""A corpus is one stream, in memory and prepared, and says what is wrong."""

import concurrent.futures
import json
import shutil

import numpy as np
import pytest

from diff_jax.config import ConfigError
from diff_jax.data import corpus, prepare, tokenizers
from diff_jax.data.documents import Document, Format, Skipped
from diff_jax.data.prepared import PreparedCorpus

FORMAT = Format()


def make_texts(count: int = 60) -> list[str]:
  """Some are longer than a block, most are short."""
  rng = np.random.default_rng(0)
  sizes = np.where(
      np.arange(count) % 20 == 7, 9000, rng.integers(1, 300, count)
  )
  return ["".join(rng.choice(list("ab cé\n"), size)) for size in sizes]


def write_jsonl(path, texts) -> str:
  path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
  return str(path)


def stream_of(texts) -> np.ndarray:
  """The definition, with bytes: a separator before each text and at the end."""
  ids = [i for text in texts for i in (256, *text.encode())]
  return np.array([*ids, 256], np.int32)


@pytest.fixture
def folder(tmp_path, serial):
  source = write_jsonl(tmp_path / "corpus.jsonl", make_texts())
  prepare.prepare(source, "bytes", tmp_path / "out", FORMAT, piece_bytes=10_000)
  return tmp_path / "out"


def test_memory_corpus_is_the_stream_that_the_design_defines():
  texts = ["ab", "é", "c" * 5]
  documents = (Document(text, "") for text in texts)
  skipped = Skipped(documents=3)
  made = corpus.MemoryCorpus(
      "x", documents, tokenizers.BytesTokenizer(), skipped
  )
  assert isinstance(made, corpus.Corpus)
  np.testing.assert_array_equal(made.starts, [0, 3, 6, 12])
  np.testing.assert_array_equal(made.read(0, 13), stream_of(texts))
  assert made.read(2, 4).dtype == np.int32
  sha256 = made.describe().pop("sha256")
  assert made.describe() == {
      "name": "x",
      "documents": 3,
      "tokens": 12,
      "bytes": 9,
      "sha256": sha256,
      "tokenizer": "bytes",
      "skipped_documents": 3,
  }


@pytest.mark.parametrize("piece_bytes", [700, 10_000, 10**9])
def test_prepared_corpus_equals_the_one_in_memory(
    tmp_path, serial, piece_bytes
):
  texts = make_texts()
  source = write_jsonl(tmp_path / "corpus.jsonl", texts)
  out = tmp_path / "out"
  prepare.prepare(source, "bytes", out, FORMAT, piece_bytes=piece_bytes)
  prepared = corpus.open_corpus(str(out), None, FORMAT)
  memory = corpus.open_corpus(source, None, FORMAT)
  assert isinstance(prepared, PreparedCorpus)
  assert isinstance(prepared, corpus.Corpus)
  assert {**prepared.describe(), "name": source} == memory.describe()
  np.testing.assert_array_equal(prepared.starts, memory.starts)
  assert prepared.starts.dtype == np.int64
  stream = stream_of(texts)
  np.testing.assert_array_equal(prepared.read(0, len(stream)), stream)
  rng = np.random.default_rng(1)
  for start in rng.integers(0, len(stream), 50):
    stop = min(len(stream), start + rng.integers(0, 10_000))
    read = prepared.read(int(start), int(stop))
    assert read.dtype == np.int32
    np.testing.assert_array_equal(read, stream[start:stop])
  prepared.verify()


def test_read_refuses_what_is_outside(folder):
  source = folder.parent / "corpus.jsonl"
  for path in (folder, source):
    opened = corpus.open_corpus(str(path), None, FORMAT)
    end = int(opened.starts[-1]) + 1
    for start, stop in ((-1, 2), (0, end + 1), (5, 4)):
      with pytest.raises(IndexError, match="must be within"):
        opened.read(start, stop)


def test_threads_read_what_one_thread_reads(folder):
  stream = stream_of(make_texts())
  opened = PreparedCorpus(folder)

  def is_right(start):
    read = opened.read(start, start + 500)
    return np.array_equal(read, stream[start : start + 500])

  places = np.random.default_rng(0).integers(0, len(stream) - 500, 400)
  with concurrent.futures.ThreadPoolExecutor(8) as pool:
    assert all(pool.map(is_right, places.tolist()))


def test_large_vocabularies_keep_their_ids(tmp_path, serial, monkeypatch):
  class Wide(tokenizers.BytesTokenizer):
    vocab_size = 70_257
    separator = 70_256
    fingerprint = "wide"
    num_bytes = np.ones(vocab_size, np.int32)

    def __init__(self):
      pass

    def encode(self, text):
      return super().encode(text) + np.int32(70_000)

  monkeypatch.setattr(tokenizers, "load_tokenizer", lambda name: Wide())
  texts = make_texts(10)
  source = write_jsonl(tmp_path / "corpus.jsonl", texts)
  out = tmp_path / "out"
  prepare.prepare(source, "bytes", out, FORMAT)
  expected = stream_of(texts) + 70_000
  for path in (source, str(out)):
    opened = corpus.open_corpus(path, None, FORMAT)
    np.testing.assert_array_equal(opened.read(0, len(expected)), expected)


def test_sha256_depends_on_text_order_borders_and_tokenizer(tmp_path):
  tokenizers.train_bpe(["abab"] * 9, 259, tmp_path / "tokenizer.json")
  bpe = tokenizers.load_tokenizer(str(tmp_path / "tokenizer.json"))
  raw = tokenizers.BytesTokenizer()
  digests = [
      corpus.MemoryCorpus(
          "x", [Document(text, "") for text in texts], tokenizer
      ).describe()["sha256"]
      for texts, tokenizer in (
          (["ab", "abc"], raw),
          (["abc", "ab"], raw),
          (["abab", "c"], raw),
          (["ab", "abd"], raw),
          (["ab", "abc"], bpe),
      )
  ]
  assert len(set(digests)) == len(digests)


def test_a_prepared_folder_needs_no_other_file(tmp_path, serial):
  tokenizer = tmp_path / "own.json"
  tokenizers.train_bpe(make_texts(), 300, tokenizer)
  source = write_jsonl(tmp_path / "corpus.jsonl", make_texts())
  prepare.prepare(source, str(tokenizer), tmp_path / "out", FORMAT)
  other = corpus.open_corpus(source, str(tokenizer), FORMAT)
  same = corpus.open_corpus(str(tmp_path / "out"), str(tokenizer), FORMAT)
  assert same.describe()["sha256"] == other.describe()["sha256"]
  with pytest.raises(ConfigError, match="tokenizer='bytes' must be the one"):
    corpus.open_corpus(str(tmp_path / "out"), "bytes", FORMAT)
  tokenizer.unlink()
  (tmp_path / "corpus.jsonl").unlink()
  (tmp_path / "out").rename(tmp_path / "moved")
  moved = corpus.open_corpus(str(tmp_path / "moved"), None, FORMAT)
  start, stop = moved.starts[3:5].tolist()
  assert moved.tokenizer.decode(moved.read(start, stop)) == make_texts()[3]
  copy = tmp_path / "moved" / "tokenizer.json"
  copy.write_text(copy.read_text().replace("byte_fallback", "byte_fallbuck"))
  with pytest.raises(ConfigError):
    PreparedCorpus(tmp_path / "moved")


def test_what_a_damaged_folder_says(folder):
  def refused(change, message):
    damaged = folder.parent / "damaged"
    shutil.rmtree(damaged, ignore_errors=True)
    shutil.copytree(folder, damaged)
    change(damaged)
    with pytest.raises(ConfigError, match=message):
      corpus.open_corpus(str(damaged), None, FORMAT)

  def truncate(path):
    path.write_bytes(path.read_bytes()[:-9])

  def set_version(path):
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["format_version"] = 99
    (path / "manifest.json").write_text(json.dumps(manifest))

  name = "shard-00001.arrayrecord"
  restore = "is missing .*: restore it, or give the diff-jax prepare command"
  refused(lambda d: (d / name).unlink(), f"{name} {restore} again$")
  refused(lambda d: truncate(d / name), f"{name} has .* bytes, the manifest")
  refused(lambda d: truncate(d / "starts.npy"), "starts.npy has .* bytes")
  refused(lambda d: (d / "starts.npy").unlink(), "starts.npy is missing")
  refused(set_version, "format_version=99")
  refused(lambda d: truncate(d / "manifest.json"), "must be the manifest")
  refused(lambda d: (d / "manifest.json").unlink(), "not prepared to the end")


def test_damage_inside_a_shard_is_found_when_it_is_read(folder):
  file = folder / "shard-00001.arrayrecord"
  data = bytearray(file.read_bytes())
  for place in range(100, len(data), 10):
    data[place] ^= 1
  file.write_bytes(data)
  opened = PreparedCorpus(folder)  # It reads no token.
  with pytest.raises(ConfigError, match="shard-00001.arrayrecord is damaged"):
    opened.verify()
  with pytest.raises(ConfigError, match="shard-00001.arrayrecord cannot be"):
    opened.read(0, int(opened.starts[-1]))


def test_memory_limit_names_the_command(tmp_path, monkeypatch):
  source = write_jsonl(tmp_path / "corpus.jsonl", make_texts())
  monkeypatch.setattr(corpus, "MAX_MEMORY_TOKENS", 1000)
  with pytest.raises(ConfigError, match="more than 1,000 tokens.*diff-jax pre"):
    corpus.open_corpus(source, None, FORMAT)


def test_a_corpus_without_documents_is_refused(tmp_path, serial):
  (tmp_path / "bad.jsonl").write_text("no JSON\n")
  source, format = str(tmp_path / "bad.jsonl"), Format(on_bad_line="skip")
  with pytest.raises(ConfigError, match="bad.jsonl.*no document"):
    corpus.open_corpus(source, None, format)
  with pytest.raises(ConfigError, match=r"no document \(1 skipped\)"):
    prepare.prepare(source, "bytes", tmp_path / "out", format)
