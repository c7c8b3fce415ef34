# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Every format, in pieces of any size, against what was written."""

import dataclasses
import gzip
import json
import pickle
import random

import pyarrow as pa
import pytest
import zstandard
from array_record.python import array_record_module
from pyarrow import parquet
from tensorboardX import record_writer

from diff_jax.data import stdlib
from diff_jax.data.documents import (
    Document,
    Format,
    find_pieces,
    read_piece,
)

SEPARATOR = "<|endoftext|>"
ALPHABET = 'ab \t\r{}"\\,\u00e9\u20ac\u2028\U0001f389\ufeff\0'


def make_texts(count, seed=0):
  """Texts of odd characters, without a line break, none of them empty."""
  rng = random.Random(seed)
  return [
      f"{i}" + "".join(rng.choices(ALPHABET, k=rng.randrange(30))) + "."
      for i in range(count)
  ]


def read(path, format=None, piece_bytes=2**30, skipped=None):
  """All documents at `path`, read from pieces that crossed a pickle."""
  pieces = find_pieces(str(path), piece_bytes)
  pieces = pickle.loads(pickle.dumps(pieces))
  return [
      document
      for piece in pieces
      for document in read_piece(piece, format or Format(), skipped)
  ]


def texts_of(documents):
  return [document.text for document in documents]


def varint(number):
  out = b""
  while number > 127:
    out, number = out + bytes([number % 128 + 128]), number // 128
  return out + bytes([number])


def message(field, data):
  """A length-delimited field of a protocol buffer."""
  return bytes([8 * field + 2]) + varint(len(data)) + data


def make_example(**features):
  """A serialised tf.train.Example, by the wire format's definition."""
  entries = b""
  for name, values in features.items():
    bytes_list = b"".join(message(1, value) for value in values)
    feature = message(1, bytes_list)
    entry = message(1, name.encode()) + message(2, feature)
    entries += message(1, entry)
  return message(1, entries)


def jsonl(texts, field="text"):
  lines = (json.dumps({"id": 1, field: t}) for t in texts)
  return "".join(line + "\n" for line in lines).encode()


def write_records(file, records):
  if "tfrecord" in file.name:
    writer = record_writer.RecordWriter(str(file))
  else:
    writer = array_record_module.ArrayRecordWriter(str(file), "group_size:1")
  for record in records:
    writer.write(record)
  writer.close()


def write_parquet(file, texts):
  table = pa.table({"id": range(len(texts)), "text": texts})
  parquet.write_table(table, file, row_group_size=1 + len(texts) // 15)


def several(compress, data):
  """Compressed as two members or frames."""
  return compress(data[: len(data) // 3]) + compress(data[len(data) // 3 :])


def write(file, texts):
  """Writes a file of the format that its suffix names."""
  examples = [make_example(text=[t.encode()], id=[b"1"]) for t in texts]
  separated = f"\n{SEPARATOR}\n".join(texts).encode()
  writers = {
      ".jsonl": lambda: file.write_bytes(jsonl(texts)),
      ".json.gz": lambda: file.write_bytes(
          several(gzip.compress, jsonl(texts))
      ),
      ".jsonl.zst": lambda: file.write_bytes(
          several(zstandard.compress, jsonl(texts))
      ),
      ".md": lambda: file.write_bytes(separated),
      ".txt.gz": lambda: file.write_bytes(several(gzip.compress, separated)),
      ".txt.zst": lambda: file.write_bytes(zstandard.compress(separated)),
      ".parquet": lambda: write_parquet(file, texts),
      ".array_record": lambda: write_records(file, [t.encode() for t in texts]),
      ".arrayrecord": lambda: write_records(file, examples),
      ".array_record-00000-of-00001": lambda: write_records(
          file, [json.dumps({"text": t}).encode() for t in texts]
      ),
      ".tfrecord": lambda: write_records(file, examples),
      ".tfrecord-00001-of-00002": lambda: write_records(file, examples),
  }
  writers[file.name.removeprefix("x")]()


SUFFIXES = (
    ".jsonl", ".json.gz", ".jsonl.zst", ".md", ".txt.gz", ".txt.zst",
    ".parquet", ".array_record", ".arrayrecord",
    ".array_record-00000-of-00001", ".tfrecord", ".tfrecord-00001-of-00002",
)  # fmt: skip


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_pieces_of_any_size_give_every_document_once_in_order(tmp_path, suffix):
  file = tmp_path / f"x{suffix}"
  format = Format(separator=SEPARATOR)
  for seed, count in enumerate((1, 2, 50)):
    texts = make_texts(count, seed)
    write(file, texts)
    whole = read(file, format)
    assert texts_of(whole) == texts
    assert len({document.name for document in whole}) == count
    size = file.stat().st_size
    for piece_bytes in (1, 2, 3, 17, 64, 1000, size - 1, size):
      if size // piece_bytes < 1000:
        assert read(file, format, piece_bytes) == whole


@pytest.mark.parametrize("suffix", [".jsonl", ".md", ".parquet", ".tfrecord"])
def test_a_file_is_shared_by_pieces_of_about_the_size_asked(tmp_path, suffix):
  file = tmp_path / f"x{suffix}"
  texts = make_texts(2000)
  write(file, texts)
  piece_bytes = file.stat().st_size // 4
  pieces = find_pieces(str(file), piece_bytes)
  format = Format(separator=SEPARATOR)
  counts = [len(list(read_piece(piece, format))) for piece in pieces]
  assert len(counts) in (4, 5)
  assert sum(counts) == 2000 and all(300 < n < 700 for n in counts[:4])


def test_names_say_where(tmp_path):
  (tmp_path / "a.txt").write_text("one\n")
  (tmp_path / "b.jsonl").write_bytes(b'{"text": "x"}\n\n{"text": "yy"}\n')
  write_parquet(tmp_path / "c.parquet", list("pq"))
  assert read(tmp_path) == [
      Document("one\n", f"{tmp_path}/a.txt"),
      Document("x", f"{tmp_path}/b.jsonl@0"),
      Document("yy", f"{tmp_path}/b.jsonl@15"),
      Document("p", f"{tmp_path}/c.parquet#0"),
      Document("q", f"{tmp_path}/c.parquet#1"),
  ]


def test_a_folder_of_mixed_formats(tmp_path):
  (tmp_path / "b" / ".hidden").mkdir(parents=True)
  (tmp_path / "b" / ".hidden" / "x.txt").write_text("no")
  (tmp_path / ".x.txt").write_text("no")
  (tmp_path / "empty.jsonl").touch()
  (tmp_path / "b.txt").write_text("2")
  (tmp_path / "b" / "Makefile").write_text("3")
  write_records(tmp_path / "a.tfrecord", [make_example(text=[b"1"])])
  write_parquet(tmp_path / "b" / "z.parquet", ["4", "", "5"])
  # As strings: "b.txt" comes before "b/Makefile".
  for piece_bytes in (1, 100, 2**30):
    assert texts_of(read(tmp_path, None, piece_bytes)) == list("12345")
  assert len(find_pieces(str(tmp_path), 2**30)) == 1
  assert len(find_pieces(str(tmp_path), 1)) > 5


def test_globs(tmp_path):
  for name in ("b.txt", "a.txt", "c.md", "d/e.txt", "[f].txt"):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text(name)
  assert texts_of(read(tmp_path / "?.txt")) == ["a.txt", "b.txt"]
  assert texts_of(read(tmp_path / "**/*.txt")) == [
      "[f].txt", "a.txt", "b.txt", "d/e.txt",
  ]  # fmt: skip
  assert texts_of(read(tmp_path / "[f].txt")) == ["[f].txt"]
  assert len(read(tmp_path / "**")) == 5


def test_links_are_followed_and_every_folder_read_once(tmp_path):
  (tmp_path / "real").mkdir()
  (tmp_path / "real" / "a.txt").write_text("a")
  corpus = tmp_path / "corpus"
  corpus.mkdir()
  (corpus / "link").symlink_to(tmp_path / "real")
  (corpus / "again").symlink_to(tmp_path / "real")
  (tmp_path / "real" / "loop").symlink_to(corpus)
  assert read(corpus) == [Document("a", f"{corpus}/again/a.txt")]


def test_stdlib_and_its_splits():
  everything = read("stdlib", None, 10_000)
  by_name = {d.name: d.text.encode() for d in everything}
  assert by_name == {f"stdlib:{m}": s for m, s in stdlib.read().items()}
  split = read("stdlib:train") + read("stdlib:eval")
  assert sorted(split) == sorted(everything)
  packages = {stdlib.package(d.name[7:]) for d in read("stdlib:eval")}
  assert packages == set(stdlib.EVAL_PACKAGES)


def test_pieces_are_plain_values(tmp_path):
  (tmp_path / "a.txt").write_text("abc")
  (piece,) = find_pieces(str(tmp_path), 100)
  file = str(tmp_path / "a.txt")
  assert json.loads(json.dumps(dataclasses.asdict(piece))) == {
      "spans": [{"path": file, "start": 0, "stop": 3}]
  }
  assert hash(piece) == hash(pickle.loads(pickle.dumps(piece)))


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("line_break", ["\n", "\r\n"])
def test_line_breaks_and_byte_order_marks(tmp_path, line_break, mark, end):
  text = line_break.join(["a", "", "---", "---", " \u20ac ", "--- ", "---"])
  file = tmp_path / "a.txt"
  file.write_bytes((mark + text + end).encode())
  assert texts_of(read(file)) == [text + end]
  for piece_bytes in (1, 5, 100):
    documents = read(file, Format(separator="---"), piece_bytes)
    assert texts_of(documents) == [
        "a" + line_break,
        f" \u20ac {line_break}--- ",
    ]
  lines = ['{"text": "a"}', "", " \t", '{"text": "b"}']
  file = tmp_path / "a.jsonl"
  file.write_bytes((mark + line_break.join(lines) + end).encode())
  for piece_bytes in (1, 5, 100):
    assert texts_of(read(file, None, piece_bytes)) == ["a", "b"]


def test_a_text_file_is_kept_to_the_byte_unless_it_is_cut(tmp_path):
  text = "".join(make_texts(100)) + "\r\n\n a\rb \n\n"
  for name, data in (
      ("a", text.encode()),
      ("a.gz", gzip.compress(text.encode())),
      ("a.zst", zstandard.compress(text.encode())),
  ):
    (tmp_path / name).write_bytes(data)
    assert texts_of(read(tmp_path / name, None, 10)) == [text]


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(), pa.large_string(), pa.string_view(), pa.binary(),
        pa.dictionary(pa.int32(), pa.string()),
    ],
)  # fmt: skip
def test_parquet_columns_that_hold_text(tmp_path, kind):
  texts = make_texts(20) * 2
  values = [t.encode() for t in texts] if kind == pa.binary() else texts
  array = pa.array(values, kind)
  parquet.write_table(
      pa.table({"text": array}), tmp_path / "a.parquet", row_group_size=6
  )
  assert texts_of(read(tmp_path / "a.parquet", None, 50)) == texts


def test_zstd_frames_of_all_kinds(tmp_path):
  data = jsonl(make_texts(3000))
  skippable = b"\x50\x2a\x4d\x18\x03\x00\x00\x00abc"
  stream = zstandard.ZstdCompressor().compressobj()  # Of unknown size.
  frames = stream.compress(data[:5000]) + stream.flush() + skippable
  frames += zstandard.compress(b"") + zstandard.compress(data[5000:])
  (tmp_path / "a.jsonl.zst").write_bytes(skippable + frames)
  (tmp_path / "b.jsonl").write_bytes(data)
  zst, plain = read(tmp_path / "a.jsonl.zst"), read(tmp_path / "b.jsonl")
  assert texts_of(zst) == texts_of(plain) and len(zst) == 3000
