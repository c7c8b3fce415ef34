# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What every file format shares: its interface and what can be wrong."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from diff_jax.config import ConfigError

INSTALL = "pip install 'diff_jax[text]'"


class Document(NamedTuple):
  """A text and where it is: PATH, PATH@BYTE or PATH#ROW (both from 0)."""

  text: str
  name: str


@dataclasses.dataclass(frozen=True)
class Format:
  """How documents are found in files.

  Raises:
    ConfigError: for a value that cannot be.
  """

  text_field: str = "text"  # of JSON lines, columns and records
  on_bad_line: Literal["stop", "skip"] = "stop"  # also of records and files
  separator: str = ""  # a text file is cut at lines equal to it; "": nowhere

  def __post_init__(self):
    if self.on_bad_line not in ("stop", "skip"):
      raise ConfigError(
          f"on_bad_line={self.on_bad_line!r} must be stop or skip"
      )
    if not self.text_field:
      raise ConfigError(f"text_field={self.text_field!r} must name a field")
    if "\n" in self.separator or "\r" in self.separator:
      raise ConfigError(f"separator={self.separator!r} must be one line")


@dataclasses.dataclass(frozen=True)
class Span:
  """The part of a file that begins in its bytes [start, stop)."""

  path: str
  start: int
  stop: int


class BadRecord(Exception):
  """A record that holds no document; the message says why."""


@runtime_checkable
class Reader(Protocol):
  """A file format. Spans that share a file share no record and lose none."""

  def cuts(self, path: str, size: int, piece_bytes: int) -> list[int]:
    """Where a file of `size` bytes can be cut, about every `piece_bytes`.

    Raises:
      ConfigError: the file is damaged.
    """

  def records(self, span: Span, format: Format) -> Iterator[tuple[str, Any]]:
    """The records of a span, each with its place: what follows the path.

    Raises:
      ConfigError: the file is damaged.
      OSError: it cannot be read.
    """

  def text(self, record: Any, format: Format) -> str:
    """The document of a record; "" where there is none.

    Raises:
      BadRecord: the record cannot be right.
    """

  def locate(self, path: str, place: str) -> str:
    """The record's address as a person wants it."""


def regular_cuts(size: int, piece_bytes: int) -> list[int]:
  """Every `piece_bytes` bytes, for a format that needs no border there."""
  return list(range(piece_bytes, size, piece_bytes))


def decode(data: bytes, of: str, first_byte: int = 0) -> str:
  """UTF-8 text.

  Args:
    data: the bytes.
    of: what they are, for the message.
    first_byte: where in it they begin.

  Raises:
    BadRecord: the bytes are not UTF-8.
  """
  try:
    return str(data, "utf-8")
  except UnicodeDecodeError as error:
    at = error.start
    raise BadRecord(
        f"invalid UTF-8: byte {first_byte + at} of {of} is 0x{data[at]:02x}"
        f" ({error.reason})"
    ) from None


def no_field(text_field: str, fields: Iterable[str]) -> str:
  """Says that there is no such field, and which there are."""
  names = sorted(fields)
  shown = ", ".join(map(repr, names[:20])) or "none"
  more = f" and {len(names) - 20} more" if len(names) > 20 else ""
  return f"has no field {text_field!r}; its fields: {shown}{more}"


def field_text(record: Mapping[str, Any], text_field: str) -> str:
  """The text in a field of a JSON object.

  Raises:
    BadRecord: there is no such field, or no text in it.
  """
  if text_field not in record:
    raise BadRecord(no_field(text_field, record))
  text = record[text_field]
  if not isinstance(text, str):
    raise BadRecord(
        f"field {text_field!r} must be a string, not {type(text).__name__}"
    )
  if not text.isascii():
    # JSON can spell half a surrogate pair, which no encoding can hold.
    try:
      text.encode()
    except UnicodeEncodeError as error:
      raise BadRecord(
          f"field {text_field!r} holds half a surrogate pair, character"
          f" {error.start}"
      ) from None
  return text


def damaged(path: str, kind: str, reason: object) -> ConfigError:
  """The error of a file that is cut short or not what its suffix says."""
  lines = str(reason).strip().splitlines() or ["no reason given"]
  return ConfigError(f"{path}: not a whole {kind} file: {lines[0]}")
