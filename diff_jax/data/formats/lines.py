# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Text files and JSON lines, plain or compressed."""

import dataclasses
import gzip
import io
import json
import math
import zlib
from collections.abc import Iterator
from typing import Any

from diff_jax.config import ConfigError
from diff_jax.data.formats import base

BYTE_ORDER_MARK = b"\xef\xbb\xbf"
CHUNK_BYTES = 1 << 20
ZSTD_READ_BYTES = 1 << 17  # What they hold can be far more.


@dataclasses.dataclass(frozen=True)
class _Lines:
  """What files of lines share; a compressed one is a single span."""

  compression: str = ""  # "", "gz" or "zst"

  def cuts(self, path: str, size: int, piece_bytes: int) -> list[int]:
    del path
    if self.compression:
      return []
    # A byte-order mark stays with the first line.
    return base.regular_cuts(size, max(piece_bytes, len(BYTE_ORDER_MARK) + 1))

  def read_lines(
      self, span: base.Span, past_stop: bool = False
  ) -> Iterator[tuple[int, bytes]]:
    """The lines that begin in a span, or at its start and after it.

    Yields:
      offset in (decompressed) bytes, and the line with its line break; a
      byte-order mark at the file's start is left out.
    """
    past_stop = past_stop or bool(self.compression)
    with self.open(span.path) as file:
      offset = 0
      if span.start:
        # The line that the span's start cuts belongs to the span before.
        offset = file.seek(span.start - 1)
        offset += len(file.readline())
      elif file.peek(3).startswith(BYTE_ORDER_MARK):
        offset = len(file.read(len(BYTE_ORDER_MARK)))
      for line in file:
        if offset >= span.stop and not past_stop:
          return
        yield offset, line
        offset += len(line)

  def open(self, path: str) -> io.BufferedReader:
    """What a file holds, decompressed; reading a damaged one raises."""
    file = open(path, "rb", buffering=0)
    if self.compression == "gz":
      file = _Gzip(file)
    if self.compression == "zst":
      file = _Zstd(file)
    return io.BufferedReader(file, CHUNK_BYTES)


class JsonLines(_Lines):
  """One JSON object a line; lines of white space only are left out.

  A line belongs to the span that holds its first byte.
  """

  def records(
      self, span: base.Span, format: base.Format
  ) -> Iterator[tuple[str, bytes]]:
    del format
    for offset, line in self.read_lines(span):
      if not line.isspace():
        yield f"@{offset}", line

  def text(self, record: bytes, format: base.Format) -> str:
    fields = parse_object(base.decode(record.rstrip(b"\r\n"), "the line"))
    return base.field_text(fields, format.text_field)

  def locate(self, path: str, place: str) -> str:
    """PATH:LINE, counted from 1; the file is read up to that line."""
    line, rest = 1, int(place[1:])
    with self.open(path) as file:
      while rest and (chunk := file.read(min(rest, CHUNK_BYTES))):
        rest -= len(chunk)
        line += chunk.count(b"\n")
    return f"{path}:{line}"


class TextFile(_Lines):
  """UTF-8 text: one document, or those between the separator lines.

  A document of white space only is none.

  The line break before a separator line belongs to the separator. A document
  belongs to the span that holds the first byte of the separator before it, and
  the first one to the span that holds the file's first byte.
  """

  def records(
      self, span: base.Span, format: base.Format
  ) -> Iterator[tuple[str, tuple[int, bytes]]]:
    if format.separator:
      for start, data in self._between(span, format.separator.encode()):
        yield f"@{start}", (start, data)
    elif span.start == 0:
      with self.open(span.path) as file:
        data = file.read()
      mark = len(BYTE_ORDER_MARK) if data.startswith(BYTE_ORDER_MARK) else 0
      yield "", (mark, data[mark:])

  def _between(
      self, span: base.Span, separator: bytes
  ) -> Iterator[tuple[int, bytes]]:
    """Offset and bytes of the documents of a span."""
    stop = math.inf if self.compression else span.stop
    start, lines = 0, [] if span.start == 0 else None
    for offset, line in self.read_lines(span, past_stop=True):
      if line.rstrip(b"\r\n") == separator:
        if lines:
          lines[-1] = lines[-1].removesuffix(b"\n").removesuffix(b"\r")
          yield start, b"".join(lines)
        lines = []
        if offset >= stop:
          return
      elif lines is None:
        if offset >= stop:
          return
      else:
        if not lines:
          start = offset
        lines.append(line)
    if lines:
      yield start, b"".join(lines)

  def text(self, record: tuple[int, bytes], format: base.Format) -> str:
    del format
    first_byte, data = record
    text = base.decode(data, "the file", first_byte)
    return "" if text.isspace() else text

  def locate(self, path: str, place: str) -> str:
    del place  # The message has the byte.
    return path


def parse_object(text: str) -> dict[str, Any]:
  """A JSON object.

  Raises:
    BadRecord: the text is not one.
  """
  try:
    value = json.loads(text)
  except json.JSONDecodeError as error:
    raise base.BadRecord(
        f"broken JSON: {error.msg} (column {error.colno})"
    ) from None
  except (ValueError, RecursionError) as error:
    raise base.BadRecord(f"broken JSON: {error}") from None
  if not isinstance(value, dict):
    raise base.BadRecord(f"must be a JSON object, not {type(value).__name__}")
  return value


class _Decompressed(io.RawIOBase):
  """A stream over a compressed file, which it closes."""

  def __init__(self, file: io.FileIO):
    self._file = file

  def readable(self) -> bool:
    return True

  def close(self) -> None:
    self._file.close()
    super().close()


class _Gzip(_Decompressed):
  """All members of a gzip file; what is wrong with it is a ConfigError."""

  def __init__(self, file: io.FileIO):
    super().__init__(file)
    self._gzip = gzip.GzipFile(fileobj=file)

  def readinto(self, buffer) -> int:
    try:
      return self._gzip.readinto(buffer)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
      raise base.damaged(self._file.name, "gzip", error) from None


class _Zstd(_Decompressed):
  """All frames of a zstd file; what is wrong with it is a ConfigError.

  The library's own stream ends without a word where a file is cut short.
  """

  def __init__(self, file: io.FileIO):
    super().__init__(file)
    try:
      import zstandard
    except ImportError:
      raise ConfigError(
          f"{file.name}: zstd files need zstandard: {base.INSTALL}"
      ) from None
    self._error = zstandard.ZstdError
    # As much as zstd --long=31 asks for.
    self._zstd = zstandard.ZstdDecompressor(max_window_size=2**31)
    self._frame = None
    self._input, self._output = b"", memoryview(b"")

  def readinto(self, buffer) -> int:
    while not self._output:
      self._input = self._input or self._file.read(ZSTD_READ_BYTES)
      if not self._input:
        if self._frame is None:
          return 0
        raise base.damaged(self._file.name, "zstd", "it ends within a frame")
      self._decompress()
    size = min(len(buffer), len(self._output))
    buffer[:size] = self._output[:size]
    self._output = self._output[size:]
    return size

  def _decompress(self) -> None:
    self._frame = self._frame or self._zstd.decompressobj()
    try:
      self._output = memoryview(self._frame.decompress(self._input))
    except self._error as error:
      raise base.damaged(self._file.name, "zstd", error) from None
    self._input = b""
    if self._frame.eof:
      self._input, self._frame = self._frame.unused_data, None
