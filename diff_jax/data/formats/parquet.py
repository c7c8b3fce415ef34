# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Parquet files: one document a row."""

from collections.abc import Iterator

from diff_jax.config import ConfigError
from diff_jax.data.formats import base

BATCH_ROWS = 1024


class Parquet:
  """A row group belongs to the span that holds its first byte."""

  def cuts(self, path: str, size: int, piece_bytes: int) -> list[int]:
    del path
    return base.regular_cuts(size, piece_bytes)

  def records(
      self, span: base.Span, format: base.Format
  ) -> Iterator[tuple[str, bytes | None]]:
    try:
      import pyarrow as pa
      from pyarrow import parquet
    except ImportError:
      raise ConfigError(
          f"{span.path}: parquet files need pyarrow: {base.INSTALL}"
      ) from None
    try:
      with parquet.ParquetFile(span.path) as file:
        _check_column(span.path, file.schema_arrow, format.text_field)
        row = 0
        for group in range(file.metadata.num_row_groups):
          metadata = file.metadata.row_group(group)
          if not span.start <= _first_byte(metadata) < span.stop:
            row += metadata.num_rows
            continue
          for batch in file.iter_batches(
              BATCH_ROWS, [group], [format.text_field], use_threads=False
          ):
            for value in _as_bytes(batch.column(0)).to_pylist():
              yield f"#{row}", value
              row += 1
    except (pa.ArrowException, OSError) as error:
      if getattr(error, "errno", None):
        raise  # It is the file system that says no.
      raise base.damaged(span.path, "parquet", error) from None

  def text(self, record: bytes | None, format: base.Format) -> str:
    if record is None:
      raise base.BadRecord(f"field {format.text_field!r} is null")
    return base.decode(record, "the field")

  def locate(self, path: str, place: str) -> str:
    return f"{path}{place}"


def _first_byte(row_group) -> int:
  column = row_group.column(0)
  starts = [column.data_page_offset]
  if column.has_dictionary_page:
    starts.append(column.dictionary_page_offset)
  return min(starts)


def _check_column(path: str, schema, text_field: str) -> None:
  """Refuses a file without a text column of that name."""
  import pyarrow as pa

  if text_field not in schema.names:
    raise ConfigError(f"{path}: {base.no_field(text_field, schema.names)}")
  kind = schema.field(text_field).type
  if pa.types.is_dictionary(kind):
    kind = kind.value_type
  texts = (
      pa.string(), pa.large_string(), pa.string_view(),
      pa.binary(), pa.large_binary(), pa.binary_view(),
  )  # fmt: skip
  if kind not in texts:
    raise ConfigError(
        f"{path}: field {text_field!r} must be a string, not {kind}"
    )


def _as_bytes(column):
  """A text column as bytes: pyarrow checks no UTF-8, base.decode does."""
  import pyarrow as pa

  if pa.types.is_dictionary(column.type):
    column = column.dictionary_decode()
  return column.cast(pa.large_binary())
