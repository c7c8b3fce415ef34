# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""ArrayRecord and TFRecord files: one document a record."""

import functools
import struct
from collections.abc import Iterator
from typing import Any, BinaryIO

from diff_jax.config import ConfigError
from diff_jax.data.formats import base, lines

BATCH_RECORDS = 256


class ArrayRecord:
  """Records are JSON objects, tf.train.Examples or plain UTF-8 text.

  A record that parses as one of the first two must have the text field; what
  does not is text. The records of a file count as equally long: the span that
  holds a record's share of the bytes has the record.
  """

  def cuts(self, path: str, size: int, piece_bytes: int) -> list[int]:
    del path
    return base.regular_cuts(size, piece_bytes)

  def records(
      self, span: base.Span, format: base.Format
  ) -> Iterator[tuple[str, bytes]]:
    del format
    from array_record.python import array_record_module

    with open(span.path, "rb") as file:  # An OSError says more.
      size = file.seek(0, 2)
    reader = array_record_module.ArrayRecordReader(span.path)
    try:
      if not reader.ok():
        reader.close()  # This raises the reason.
      num_records = reader.num_records()
      first = -(-span.start * num_records // size)
      last = -(-span.stop * num_records // size)
      for start in range(first, last, BATCH_RECORDS):
        batch = reader.read(start, min(start + BATCH_RECORDS, last))
        for row, record in enumerate(batch, start):
          yield f"#{row}", record
      reader.close()
    except (RuntimeError, IndexError) as error:
      raise base.damaged(span.path, "ArrayRecord", error) from None

  def text(self, record: bytes, format: base.Format) -> str:
    if record.lstrip().startswith(b"{"):
      try:
        fields = lines.parse_object(base.decode(record, "the record"))
      except base.BadRecord:
        pass  # Text that begins with a brace.
      else:
        return base.field_text(fields, format.text_field)
    if record.startswith(b"\n"):
      example = parse_example(record)
      if example:
        return example_text(example, format.text_field)
    return base.decode(record, "the record")

  def locate(self, path: str, place: str) -> str:
    return f"{path}{place}"


class TFRecord:
  """Records are tf.train.Examples; spans begin and end at their borders."""

  def cuts(self, path: str, size: int, piece_bytes: int) -> list[int]:
    cuts, next_cut, offset = [], piece_bytes, 0
    with open(path, "rb") as file:
      while offset < size:
        if offset >= next_cut:
          cuts.append(offset)
          next_cut = offset + piece_bytes
        length = read_length(file, path, offset)
        offset += HEADER.size + length + CRC.size
        file.seek(offset)
    return cuts

  def records(
      self, span: base.Span, format: base.Format
  ) -> Iterator[tuple[str, bytes]]:
    del format
    offset = span.start
    with open(span.path, "rb", buffering=lines.CHUNK_BYTES) as file:
      file.seek(offset)
      while offset < span.stop:
        length = read_length(file, span.path, offset)
        data, crc = file.read(length), file.read(CRC.size)
        if len(data) < length or len(crc) < CRC.size:
          raise base.damaged(
              span.path, "TFRecord", f"it ends within record @{offset}"
          )
        if masked_crc(data) != CRC.unpack(crc)[0]:
          raise base.damaged(
              span.path, "TFRecord", f"wrong checksum of record @{offset}"
          )
        yield f"@{offset}", data
        offset += HEADER.size + length + CRC.size

  def text(self, record: bytes, format: base.Format) -> str:
    example = parse_example(record)
    if example is None:
      raise base.BadRecord("is no tf.train.Example")
    return example_text(example, format.text_field)

  def locate(self, path: str, place: str) -> str:
    return f"{path}{place}"


HEADER = struct.Struct("<QI")  # length, masked checksum of the length
CRC = struct.Struct("<I")


def read_length(file: BinaryIO, path: str, offset: int) -> int:
  """The length of the TFRecord record at which `file` stands.

  Raises:
    ConfigError: there is no whole, right header.
  """
  header = file.read(HEADER.size)
  if len(header) < HEADER.size:
    raise base.damaged(path, "TFRecord", f"it ends within record @{offset}")
  length, crc = HEADER.unpack(header)
  if masked_crc(header[:8]) != crc:
    raise base.damaged(
        path, "TFRecord", f"wrong checksum of the length of record @{offset}"
    )
  return length


def masked_crc(data: bytes) -> int:
  """The CRC-32C of `data`, rotated and shifted as TFRecord has it."""
  try:
    import google_crc32c
  except ImportError:
    raise ConfigError(
        f"TFRecord files need google-crc32c: {base.INSTALL}"
    ) from None
  crc = google_crc32c.value(data)
  return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def parse_example(record: bytes) -> dict[str, Any] | None:
  """The features of a tf.train.Example by name; None if it is none."""
  from google.protobuf import message

  try:
    example = _example_class().FromString(record)
  except message.DecodeError:
    return None
  return dict(example.features.feature)


def example_text(example: dict[str, Any], text_field: str) -> str:
  """The text in a bytes feature.

  Raises:
    BadRecord: there is no such feature, or no text in it.
  """
  if text_field not in example:
    raise base.BadRecord(base.no_field(text_field, example))
  values = example[text_field].bytes_list.value
  if len(values) != 1:
    raise base.BadRecord(
        f"field {text_field!r} must hold one bytes value, not {len(values)}"
    )
  return base.decode(values[0], "the field")


@functools.cache
def _example_class():
  """tf.train.Example without TensorFlow, in a pool of its own."""
  from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

  field = descriptor_pb2.FieldDescriptorProto
  file = descriptor_pb2.FileDescriptorProto(
      name="example.proto", package="diff_jax", syntax="proto3"
  )

  def add(parent, name: str, *fields):
    kind = parent.add(name=name)
    for number, (field_name, label, type_name) in enumerate(fields, 1):
      is_bytes = type_name == "bytes"
      kind.field.add(
          name=field_name,
          number=number,
          label=label,
          type=field.TYPE_BYTES if is_bytes else field.TYPE_MESSAGE,
          type_name=None if is_bytes else f".diff_jax.{type_name}",
      )
    return kind

  one, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
  add(file.message_type, "BytesList", ("value", many, "bytes"))
  add(file.message_type, "Feature", ("bytes_list", one, "BytesList"))
  features = add(
      file.message_type,
      "Features",
      ("feature", many, "Features.FeatureEntry"),
  )
  entry = add(
      features.nested_type,
      "FeatureEntry",
      ("key", one, "bytes"),
      ("value", one, "Feature"),
  )
  entry.field[0].type = field.TYPE_STRING
  entry.options.map_entry = True
  add(file.message_type, "Example", ("features", one, "Features"))
  pool = descriptor_pool.DescriptorPool()
  pool.Add(file)
  return message_factory.GetMessageClass(
      pool.FindMessageTypeByName("diff_jax.Example")
  )
