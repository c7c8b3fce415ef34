# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a file, a line or a record is said, by name."""

import gzip
import json
import re
import struct
import sys

import pyarrow as pa
import pytest
import zstandard
from array_record.python import array_record_module
from pyarrow import parquet
from tensorboardX import record_writer

from diff_jax.config import ConfigError
from diff_jax.data.documents import Format, Skipped, find_pieces, read_piece

SKIP = Format(on_bad_line="skip")


def read(path, format=None, piece_bytes=2**30, skipped=None):
  return [
      document.text
      for piece in find_pieces(str(path), piece_bytes)
      for document in read_piece(piece, format or Format(), skipped)
  ]


def assert_refused(path, reason, **how):
  """`reason` is a pattern of the whole message; PATH stands for the path."""
  with pytest.raises(ConfigError) as caught:
    read(path, **how)
  pattern = reason.replace("PATH", re.escape(str(path)))
  assert re.fullmatch(pattern, str(caught.value)), str(caught.value)


BAD_LINES = {
    b"{'text': 1}": r"broken JSON: Expecting property name .*\(column 2\)",
    b'{"text": "a': r"broken JSON: Unterminated string .*\(column 10\)",
    b'["text"]': "must be a JSON object, not list",
    b"7": "must be a JSON object, not int",
    b'{"text": 7}': "field 'text' must be a string, not int",
    b'{"text": null}': "field 'text' must be a string, not NoneType",
    b'{"b": "x", "a\\n": 1}': (r"has no field 'text'; its fields: 'a\\n', 'b'"),
    b"{}": "has no field 'text'; its fields: none",
    b'{"text": "\xc3\xa9\xff"}': (
        r"invalid UTF-8: byte 12 of the line is 0xff \(invalid start byte\)"
    ),
    b'{"text": "\\ud83c"}': (
        "field 'text' holds half a surrogate pair, character 0"
    ),
    b"[" * 20_000: "broken JSON: .*recursion.*",
    b'{"n": ' + b"9" * 5000 + b"}": "broken JSON: .*4300 digits.*",
}


@pytest.mark.parametrize("line", BAD_LINES, ids=lambda line: str(line[:20]))
@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.zst"])
def test_a_bad_line_is_refused_by_number_or_counted(tmp_path, suffix, line):
  file = tmp_path / f"a{suffix}"
  good = b'\n{"text": "\xe2\x82\xac"}\r\n'
  data = good + line + good + line
  pack = {".gz": gzip.compress, ".zst": zstandard.compress}
  file.write_bytes(pack.get(file.suffix, bytes)(data))
  reason = BAD_LINES[line]
  for piece_bytes in (50, 2**20):
    assert_refused(file, f"PATH:3: {reason}", piece_bytes=piece_bytes)
    skipped = Skipped()
    assert read(file, SKIP, piece_bytes, skipped) == ["\u20ac"] * 2
    assert skipped.documents == 2
    assert re.fullmatch(re.escape(f"{file}@{len(good)}: ") + reason,
                        skipped.first)  # fmt: skip


def test_a_long_list_of_fields_is_cut(tmp_path):
  (tmp_path / "a.jsonl").write_text(
      json.dumps({f"f{i:03}": 0 for i in range(99)})
  )
  assert_refused(
      tmp_path / "a.jsonl", r"PATH:1: .* 'f000', .*'f019' and 79 more"
  )


def test_text_must_be_utf8(tmp_path):
  file = tmp_path / "a.txt"
  file.write_bytes(b"\xef\xbb\xbfab\n---\ncd\n---\ne\xe2\x82")
  message = r"PATH: invalid UTF-8: byte 18 of the file is 0xe2 \(unexpected.*"
  assert_refused(file, message)
  for piece_bytes in (1, 5, 100):
    skipped = Skipped()
    format = Format(separator="---", on_bad_line="skip")
    assert read(file, format, piece_bytes, skipped) == ["ab", "cd"]
    assert skipped.documents == 1 and "byte 18 of" in skipped.first
    assert_refused(
        file, message, format=Format(separator="---"), piece_bytes=piece_bytes
    )
  skipped = Skipped()
  (tmp_path / "b.txt").write_text("b")
  assert read(tmp_path, SKIP, skipped=skipped) == ["b"]
  assert skipped.documents == 1


def example(text):
  """A tf.train.Example with the feature `text`, by the wire format."""

  def message(tag, data):
    return tag + bytes([len(data) % 128 + 128, len(data) // 128]) + data

  feature = message(b"\n", message(b"\n", text))
  return message(b"\n", message(b"\n", b"\n\4text" + message(b"\x12", feature)))


def write_damageable(file):
  """A file of its suffix's format with 40 documents; the suffix's reader."""
  texts = [f"{i} " * 50 for i in range(40)]
  lines = "".join(json.dumps({"text": t}) + "\n" for t in texts).encode()
  if file.suffix == ".gz":
    file.write_bytes(gzip.compress(lines[:2000]) + gzip.compress(lines[2000:]))
  elif file.suffix == ".zst":
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    file.write_bytes(compressor.compress(lines))
  elif file.suffix == ".parquet":
    table = pa.table({"text": texts})
    parquet.write_table(table, file, compression="none", use_dictionary=False)
  elif file.suffix == ".array_record":
    writer = array_record_module.ArrayRecordWriter(str(file), "group_size:1")
    for text in texts:
      writer.write(text.encode())
    writer.close()
  else:
    writer = record_writer.RecordWriter(str(file))
    for text in texts:
      writer.write(example(text.encode()))
    writer.close()
  return texts


@pytest.mark.parametrize(
    "name",
    ["a.jsonl.gz", "a.jsonl.zst", "a.parquet", "a.array_record", "a.tfrecord"],
)
def test_a_file_that_is_cut_short_is_refused_by_name(tmp_path, name):
  file = tmp_path / name
  texts = write_damageable(file)
  assert read(file) == texts
  data = file.read_bytes()
  whole_until = set()
  if name == "a.tfrecord":  # At a record's border nothing can be seen.
    offset = 0
    while offset < len(data):
      whole_until.add(offset)
      offset += 16 + struct.unpack("<Q", data[offset : offset + 8])[0]
  if name == "a.jsonl.gz":  # Nor between two members.
    whole_until.add(data.index(b"\x1f\x8b", 1))
  cuts = {1, 3, 9, 30, len(data) // 2, len(data) - 5, len(data) - 1}
  for cut in sorted((cuts | {len(data) // 3}) - whole_until):
    file.write_bytes(data[:cut])
    for format in (Format(), SKIP):
      for piece_bytes in (2**20, 100):
        assert_refused(
            file,
            "PATH: not a whole (gzip|zstd|parquet|ArrayRecord|TFRecord) file: "
            ".+",
            format=format,
            piece_bytes=piece_bytes,
        )


@pytest.mark.parametrize(
    "name", ["a.jsonl.gz", "a.jsonl.zst", "a.array_record", "a.tfrecord"]
)
def test_a_changed_byte_is_noticed(tmp_path, name):
  file = tmp_path / name
  write_damageable(file)
  data = bytearray(file.read_bytes())
  # An ArrayRecord file ends with much padding.
  data[400 if name == "a.array_record" else len(data) // 2] ^= 1
  file.write_bytes(data)
  assert_refused(file, "PATH: not a whole .*", format=SKIP)


@pytest.mark.parametrize(
    "name",
    ["a.jsonl.gz", "a.txt.zst", "a.parquet", "a.array_record", "a.tfrecord"],
)
def test_a_file_that_is_not_what_its_suffix_says(tmp_path, name):
  (tmp_path / name).write_bytes(b"something else " * 100)
  assert_refused(tmp_path / name, "PATH: not a whole .* file: .+")


def test_binary_formats_are_not_compressed_as_a_whole(tmp_path):
  (tmp_path / "a.parquet.gz").write_bytes(gzip.compress(b"x"))
  assert_refused(tmp_path / "a.parquet.gz", "PATH: must not be compressed .*")


def test_no_corpus(tmp_path):
  for path in (tmp_path / "no", tmp_path / "*.txt", ""):
    with pytest.raises(ConfigError, match=r"path=.* there is nothing at it$"):
      find_pieces(str(path), 1)
  (tmp_path / "empty").touch()
  for path in (tmp_path, tmp_path / "empty", tmp_path / "e*"):
    with pytest.raises(ConfigError, match="path=.* must hold text"):
      find_pieces(str(path), 1)
  with pytest.raises(ConfigError, match="one of stdlib, stdlib:train"):
    find_pieces("stdlib:test", 1)
  with pytest.raises(ConfigError, match="piece_bytes=0 must be at least 1"):
    find_pieces("stdlib", 0)


@pytest.mark.parametrize("name", ["a.jsonl.gz", "a.parquet", "a.tfrecord"])
def test_a_file_that_cannot_be_read(tmp_path, name):
  file = tmp_path / name
  write_damageable(file)
  pieces = find_pieces(str(file), 2**20)
  file.unlink()
  with pytest.raises(ConfigError, match=f"{name}: cannot be read: .*No such"):
    list(read_piece(pieces[0], Format()))
  (tmp_path / "link.txt").symlink_to(file)
  with pytest.raises(ConfigError, match="link.txt: cannot be read: No such"):
    find_pieces(str(tmp_path), 1)


@pytest.mark.parametrize(
    "name, module",
    [
        ("a.jsonl.zst", "zstandard"),
        ("a.parquet", "pyarrow"),
        ("a.tfrecord", "google_crc32c"),
    ],
)
def test_what_to_install(tmp_path, monkeypatch, name, module):
  write_damageable(tmp_path / name)
  monkeypatch.setitem(sys.modules, module, None)
  with pytest.raises(ConfigError, match=r"pip install 'diff_jax\[text\]'$"):
    read(tmp_path / name)


@pytest.mark.parametrize(
    "field, value, must",
    [
        ("text_field", "", "must name a field"),
        ("on_bad_line", "no", "must be stop or skip"),
        ("separator", "a\n", "must be one line"),
    ],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_formats_that_cannot_be(field, value, must):
  with pytest.raises(ConfigError, match=f"^{field}={value!r} {must}".replace(
      "\\", "\\\\")):  # fmt: skip
    Format(**{field: value})


def test_a_file_that_is_no_corpus_is_refused_unless_in_a_folder(tmp_path):
  for name in ("a.csv", "b.PDF", "c.html.gz"):
    (tmp_path / name).write_bytes(b"a,b\n")
    assert_refused(
        tmp_path / name,
        r"path='PATH' must be .txt, .jsonl\(.gz,.zst\), .parquet,"
        r" .array_record or .tfrecord: convert it first",
    )
  (tmp_path / "c.html.gz").unlink()
  assert read(tmp_path) == ["a,b\n"] * 2


def test_a_text_file_of_white_space_is_empty(tmp_path):
  (tmp_path / "a.txt").write_text(" \n\t\n")
  (tmp_path / "b.txt").write_text(" b\n---\n \n---\n")
  assert read(tmp_path, Format(separator="---")) == [" b"]
  assert read(tmp_path / "a.txt") == []
