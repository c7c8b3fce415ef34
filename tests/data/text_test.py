# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Text from files to rows: splits, mixtures, tokenizers."""

import dataclasses
import math

import numpy as np
import pytest

from diff_jax.data import source, stdlib, text, tokenizers
from diff_jax.data.text import Text

SEPARATOR = 256
DOCUMENTS = {
    "a.txt": "one",
    "b.txt": "",
    "c/d.txt": "".join(map(chr, range(1, 128))),
    "c/e.md": "Gr\u00fc\u00dfe \u2603",
    "f.txt": "x",
    "g.txt": "\u00ff and the rest, and the rest, and the rest of it",
}


@pytest.fixture
def folder(tmp_path):
  for name, data in {**DOCUMENTS, ".hidden": "no", ".git/x": "no"}.items():
    file = tmp_path / "texts" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data.encode())
  return tmp_path / "texts"


@pytest.fixture(scope="module")
def bpe(tmp_path_factory):
  file = tmp_path_factory.mktemp("bpe") / "tokenizer.json"
  words = ["the rest, and the rest, and one of them is it"] * 3
  tokenizers.train_bpe(words, 280, file)
  return str(file)


def write(file, **lengths):
  """A file of documents of one letter each, of the given lengths in bytes."""
  file.write_text(
      "\n---\n".join(name * length for name, length in lengths.items())
  )
  return str(file)


def rows_of(settings, split):
  return list(settings.examples(split, 0))


def targets(rows):
  return np.concatenate(
      [row["targets"][row["loss_weights"] > 0] for row in rows]
  )


@pytest.mark.parametrize("seq_len", [1, 7, 64, 1000])
def test_every_byte_is_a_target_once(folder, seq_len):
  settings = Text(path=str(folder), seq_len=seq_len)
  found = []
  for split in source.SPLITS:
    for row in rows_of(settings, split):
      ids = row["segment_ids"]
      assert len(ids) == seq_len
      np.testing.assert_array_equal(row["loss_weights"], ids > 0)
      for segment in range(1, ids.max() + 1):
        tokens, nexts = (row[k][ids == segment] for k in ("tokens", "targets"))
        np.testing.assert_array_equal(tokens[1:], nexts[:-1])
        assert SEPARATOR not in tokens[1:], "one document a segment"
        if tokens[0] == SEPARATOR:
          found.append([])
        else:
          assert tokens[0] == found[-1][-1], "it continues in the next row"
        found[-1] += nexts.tolist()
  assert all(document[-1] == SEPARATOR for document in found)
  assert sorted(bytes(document[:-1]) for document in found) == sorted(
      document.encode() for document in DOCUMENTS.values() if document
  )


def test_rows_depend_on_nothing_but_the_settings(folder):
  first = Text(path=str(folder), seq_len=16).examples("train", 0)
  again = Text(path=str(folder), seq_len=16).examples("train", 1)
  for index in reversed(range(len(first))):
    for name, array in first[index].items():
      np.testing.assert_array_equal(again[index][name], array)


def test_a_file_gives_its_last_tenth_to_eval(tmp_path):
  (tmp_path / "book.txt").write_text("".join(map(chr, range(100))))
  settings = Text(path=str(tmp_path / "book.txt"), seq_len=8)
  train, held_out = (targets(rows_of(settings, s)) for s in source.SPLITS)
  np.testing.assert_array_equal(train, range(91))
  np.testing.assert_array_equal(held_out, [*range(91, 100), SEPARATOR])


def test_eval_path_is_the_whole_eval_split(folder, tmp_path):
  (tmp_path / "held_out.txt").write_text("held out")
  settings = Text(path=str(folder), eval_path=str(tmp_path / "held_out.txt"))
  held_out = targets(rows_of(settings, "eval"))
  np.testing.assert_array_equal(held_out, [*b"held out", SEPARATOR])
  assert targets(rows_of(settings, "train")).tolist().count(SEPARATOR) == 5
  described = settings.corpus()
  assert described["documents"] == 6
  assert described["bytes"] == 8 + sum(
      len(d.encode()) for d in DOCUMENTS.values()
  )


def test_corpus_describes_what_was_read(folder):
  described = Text(path=str(folder)).corpus()
  num_bytes = sum(len(d.encode()) for d in DOCUMENTS.values())
  assert len(bytes.fromhex(described.pop("sha256"))) == 32
  assert described == {
      "name": str(folder),
      "documents": 5,
      "tokens": num_bytes + 5,
      "bytes": num_bytes,
      "tokenizer": "bytes",
      "skipped_documents": 0,
      "left_out_tokens": 0,
  }


def test_sha256_changes_with_the_data_and_nothing_else(folder, tmp_path, bpe):
  other = tmp_path / "other.txt"
  other.write_text("another text")
  base = Text(path=f"{folder}@2,{other}@1")
  before = base.corpus()
  changes = {
      "tokenizer": {"tokenizer": bpe},
      "split": {"eval_share": 0.5},
      "eval_path": {"eval_path": str(other)},
      "path": {"path": str(folder)},
      "none": {},
      "rows": {"seq_len": 3, "packing": "best_fit", "cross_documents": True},
      "weights": {"path": f"{folder}@1,{other}@1"},
  }
  found = {
      name: dataclasses.replace(base, **change).corpus()["sha256"]
      for name, change in changes.items()
  }
  other.write_text("another_text")
  found["file"] = dataclasses.replace(base).corpus()["sha256"]
  assert found.pop("rows") == found.pop("weights") == found["none"]
  assert found["none"] == before["sha256"]
  assert base.corpus() == before, "opened once"
  assert len(set(found.values())) == 6


def test_a_corpus_is_opened_once(folder, monkeypatch):
  opened = []
  open_corpus = text.open_corpus
  monkeypatch.setattr(
      text, "open_corpus", lambda *x: opened.append(x) or open_corpus(*x)
  )
  settings = Text(path=str(folder))
  for _ in range(2):
    settings.corpus(), settings.baselines(), settings.vocab_size
    rows_of(settings, "train"), rows_of(settings, "eval")
  assert len(opened) == 1


def test_any_tokenizer_counts_bytes(folder, bpe):
  settings = Text(path=str(folder), tokenizer=bpe, seq_len=8)
  tokenizer = tokenizers.load_tokenizer(bpe)
  assert settings.vocab_size == settings.output_size == tokenizer.vocab_size
  assert settings.vocabulary == f"tokenizer {bpe!r}"
  num_bytes, decoded = 0, []
  for split in source.SPLITS:
    rows = rows_of(settings, split)
    for row in rows:
      num_bytes += settings.num_bytes({k: row[k][None] for k in row})
    decoded.append(tokenizer.decode(targets(rows).tolist()))
  described = settings.corpus()
  assert num_bytes == described["bytes"]
  assert described["tokens"] < 0.9 * described["bytes"]
  assert sorted("".join(decoded)) == sorted("".join(DOCUMENTS.values()))
  assert list(settings.baselines()) == ["unigram_loss_nats"]


def test_stdlib_is_complete_and_split_by_package():
  settings = Text(seq_len=2**20)
  described = settings.corpus()
  assert described["documents"] == len(stdlib.MODULES) == 60
  assert 1.5e6 < described["bytes"] < 3.5e6
  assert "CPython 3." in described["name"]
  held_out = targets(rows_of(settings, "eval"))
  packages = {stdlib.package(module) for module in stdlib.MODULES}
  assert packages > set(stdlib.EVAL_PACKAGES)
  wanted = [
      source
      for module, source in sorted(stdlib.read().items())
      if stdlib.package(module) in stdlib.EVAL_PACKAGES
  ]
  joined = b"".join(wanted)
  np.testing.assert_array_equal(
      held_out[held_out != SEPARATOR], np.frombuffer(joined, np.uint8)
  )
  assert 0.05 < len(joined) / described["bytes"] < 0.15
  levels = settings.baselines()
  assert (
      math.log(257)
      > levels["unigram_loss_nats"]
      > levels["bigram_loss_nats"]
      > levels["xz_bits_per_byte"] * math.log(2)
      > 0.7
  )


def test_a_mixture_splits_and_packs_each_corpus(folder, tmp_path):
  other = write(tmp_path / "other.txt", z=40)
  alone = [Text(path=path, seq_len=16) for path in (str(folder), other)]
  for path in (f"{folder},{other}", f"{folder}@3, {other}@1"):
    mixed = Text(path=path, seq_len=16)
    for split in source.SPLITS:
      wanted = [row for one in alone for row in rows_of(one, split)]
      found = rows_of(mixed, split)
      assert len(found) == len(wanted)
      for a, b in zip(found, wanted, strict=True):
        np.testing.assert_equal(a, b)
    train, held_out = (mixed.examples(split, 0) for split in source.SPLITS)
    assert held_out.parts == ()
    weights = [part.weight for part in train.parts]
    assert weights == ([3, 1] if "@" in path else [])
  assert mixed.corpus()["documents"] == 6


def test_long_documents_are_mixed_apart(tmp_path):
  a = write(tmp_path / "a.txt", a=5, b=30, c=9, d=10, e=11)
  b = write(tmp_path / "b.txt", f=3, g=50, h=2)
  settings = Text(
      path=f"{a}@2,{b}@6", separator="---", long_share=0.75, long_tokens=10,
      seq_len=8, eval_share=0.01, packing="whole_documents",
  )  # fmt: skip
  examples = settings.examples("train", 0)
  groups = []
  for part in examples.parts:
    rows = [examples[i] for i in range(part.start, part.stop)]
    letters = {chr(t) for t in targets(rows) if t < 256}
    groups.append(("".join(sorted(letters)), part.weight))
  # The shortest document is held out, "a" of the first and "h" of the second.
  assert groups == [("be", 1.5), ("cd", 0.5), ("g", 4.5), ("f", 1.5)]
  assert settings.examples("eval", 0).parts == ()
  # Of the first 8 tokens of a document one is the separator before it.
  left_out = [length + 1 - 8 for length in (30, 9, 10, 11, 50)]
  assert settings.corpus()["left_out_tokens"] == sum(left_out)
