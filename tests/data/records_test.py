# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Rows and records without the text, and what counts as text."""

import re

import pyarrow as pa
import pytest
from array_record.python import array_record_module
from pyarrow import parquet
from tensorboardX import record_writer

from diff_jax.config import ConfigError
from diff_jax.data.documents import Format, Skipped, find_pieces, read_piece
from diff_jax.data.formats import records

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


def test_parquet_without_the_text(tmp_path):
  file = tmp_path / "a.parquet"
  table = pa.table(
      {
          "n": [1, 2, 3],
          "text": ["a", None, "c"],
          "raw": [b"a", b"\xffb", b"c"],
          "list": [["a"], ["b"], ["c"]],
      }
  )
  parquet.write_table(table, file)
  for name, reason in {
      "story": "PATH: has no field 'story'; its fields: 'list', 'n', .*",
      "n": "PATH: field 'n' must be a string, not int64",
      "list": "PATH: field 'list' must be a string, not list<.*>",
  }.items():
    for on_bad_line in ("stop", "skip"):
      assert_refused(file, reason, format=Format(name, on_bad_line))
  assert_refused(file, "PATH#1: field 'text' is null")
  assert_refused(
      file,
      "PATH#1: invalid UTF-8: byte 0 of the field is 0xff .*",
      format=Format("raw"),
  )
  for name in ("text", "raw"):
    skipped = Skipped()
    assert read(file, Format(name, "skip"), skipped=skipped) == ["a", "c"]
    assert skipped.documents == 1 and "a.parquet#1: " in skipped.first


def example(**features):
  """tf.train.Example: all its messages have one field, of number 1..."""

  def message(field, data):
    size = bytes([len(data) % 128 + 128, len(data) // 128])
    return bytes([8 * field + 2]) + size + data

  entries = b""
  for name, values in features.items():
    values = b"".join(message(1, value) for value in values)
    # ... but for the entries of the map from names to features.
    entry = message(1, name.encode()) + message(2, message(1, values))
    entries += message(1, entry)
  return message(1, entries)


BAD_EXAMPLES = {
    example(a=[b"x"], b=[]): "has no field 'text'; its fields: 'a', 'b'",
    example(text=[b"x", b"y"]): (
        "field 'text' must hold one bytes value, not 2"
    ),
    example(text=[]): "field 'text' must hold one bytes value, not 0",
    example(text=[b"a\xff"]): "invalid UTF-8: byte 1 of the field is 0xff .*",
}


@pytest.mark.parametrize("suffix", [".tfrecord", ".array_record"])
@pytest.mark.parametrize("record", BAD_EXAMPLES)
def test_examples_without_the_text(tmp_path, suffix, record):
  good = example(text=[b"good"], id=[b"7"])
  file = tmp_path / f"a{suffix}"
  if suffix == ".tfrecord":
    writer = record_writer.RecordWriter(str(file))
  else:
    writer = array_record_module.ArrayRecordWriter(str(file), "group_size:1")
  for data in (good, record, good):
    writer.write(data)
  writer.close()
  place = f"@{len(good) + 16}" if suffix == ".tfrecord" else "#1"
  assert_refused(file, f"PATH{place}: {BAD_EXAMPLES[record]}")
  skipped = Skipped()
  assert read(file, SKIP, skipped=skipped) == ["good"] * 2
  assert skipped.documents == 1


def test_array_records_of_every_kind(tmp_path):
  file = tmp_path / "a.array_record"
  text = [b"plain", b"\n\nlines\n", b"{ brace", b"[1]", b" {}}", b"\n"]
  fields = [b' {"text": "json"}', example(text=[b"example"])]
  writer = array_record_module.ArrayRecordWriter(str(file), "group_size:1")
  for record in [*text, b"", *fields, b'{"story": "x"}', b"\xff"]:
    writer.write(record)
  writer.close()
  assert_refused(file, "PATH#9: has no field 'text'; its fields: 'story'")
  skipped = Skipped()
  want = [*(t.decode() for t in text), "json", "example"]
  assert read(file, SKIP, skipped=skipped) == want
  assert skipped.documents == 2


def test_the_checksum_of_tfrecord():
  # CRC-32C of nine digits is 0xE3069283; the mask is TFRecord's.
  crc = 0xE3069283
  rotated = (crc >> 15 | crc << 17) & 0xFFFFFFFF
  want = (rotated + 0xA282EAD8) & 0xFFFFFFFF
  assert records.masked_crc(b"123456789") == want
