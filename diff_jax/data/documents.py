# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The documents of a corpus, in one order, in pieces that workers share.

The suffix of a file says what it holds; `diff_jax.data.formats` has the table.
A document without a character is left out, in every format.
"""

import dataclasses
import functools
import glob
import os
import sys
from collections.abc import Iterator, Sequence

from diff_jax.config import ConfigError
from diff_jax.data import formats, stdlib
from diff_jax.data.formats.base import BadRecord, Document, Format, Span

__all__ = [
    "Document", "Format", "Piece", "Skipped", "Span", "find_pieces",
    "read_piece", "warn_if_uncut",
]  # fmt: skip

STDLIB = ("stdlib", "stdlib:train", "stdlib:eval")


@dataclasses.dataclass(frozen=True)
class Piece:
  """Parts of files that one worker reads, in order."""

  spans: tuple[Span, ...]


@dataclasses.dataclass
class Skipped:
  """What was left out as broken."""

  documents: int = 0
  first: str = ""  # where and why the first one was

  def add(self, message: str) -> None:
    self.documents += 1
    self.first = self.first or message


def find_pieces(path: str, piece_bytes: int) -> list[Piece]:
  """The corpus at `path`, cut into pieces of about `piece_bytes` bytes.

  The documents and their order do not depend on `piece_bytes`. Compressed
  files and single documents are never cut; small files share a piece.

  Args:
    path: a file; a folder, of which every file counts that is neither hidden
      nor empty, in the order of their relative paths; a glob pattern; or
      stdlib, stdlib:train, stdlib:eval.
    piece_bytes: at least 1.

  Raises:
    ConfigError: there is nothing at `path`, it cannot be read, or it is a file
      that must be converted first.
  """
  if piece_bytes < 1:
    raise ConfigError(f"{piece_bytes=} must be at least 1")
  pieces, spans, spans_bytes = [], [], 0
  for file, size in _find_files(path).items():
    for span in _spans(file, size, piece_bytes):
      span_bytes = span.stop - span.start
      if spans and spans_bytes + span_bytes > piece_bytes:
        pieces.append(Piece(tuple(spans)))
        spans, spans_bytes = [], 0
      spans.append(span)
      spans_bytes += span_bytes
  return [*pieces, Piece(tuple(spans))]


def read_piece(
    piece: Piece, format: Format, skipped: Skipped | None = None
) -> Iterator[Document]:
  """The documents of a piece; with `on_bad_line` skip, `skipped` counts.

  Raises:
    ConfigError: a file is damaged or cannot be read, or, with `on_bad_line`
      stop, a line or record is broken.
  """
  skipped = Skipped() if skipped is None else skipped
  for span in piece.spans:
    try:
      yield from _read_span(span, format, skipped)
    except OSError as error:
      raise _unreadable(span.path, error) from None


def warn_if_uncut(
    path: str, format: Format, pieces: Sequence[Piece], num_documents: int
) -> None:
  """Says on stderr that a separator was given, and cuts no text file.

  Args:
    path: for the message.
    format: how the pieces were read.
    pieces: all of the corpus.
    num_documents: how many there were in them, broken ones too.
  """
  if not format.separator:
    return
  files = {span.path for piece in pieces for span in piece.spans}
  num_text_files = sum(
      not file.startswith("stdlib:") and formats.is_text(file) for file in files
  )
  if 0 < num_documents <= num_text_files:
    print(
        f"warning: separator={format.separator!r} cuts no text file of"
        f" {path=}: every file is one document",
        file=sys.stderr,
    )


def _read_span(
    span: Span, format: Format, skipped: Skipped
) -> Iterator[Document]:
  if span.path.startswith("stdlib:"):
    source = _stdlib_sources()[span.path.removeprefix("stdlib:")]
    yield Document(source.decode(), span.path)
    return
  reader = formats.reader_of(span.path)
  for place, record in reader.records(span, format):
    try:
      text = reader.text(record, format)
    except BadRecord as error:
      if format.on_bad_line == "stop":
        where = reader.locate(span.path, place)
        raise ConfigError(f"{where}: {error}") from None
      skipped.add(f"{span.path}{place}: {error}")
      continue
    if text:
      yield Document(text, f"{span.path}{place}")


def _spans(path: str, size: int, piece_bytes: int) -> list[Span]:
  if path.startswith("stdlib:") or size <= piece_bytes:
    return [Span(path, 0, size)]
  try:
    cuts = formats.reader_of(path).cuts(path, size, piece_bytes)
  except OSError as error:
    raise _unreadable(path, error) from None
  borders = [0, *cuts, size]
  return [
      Span(path, start, stop)
      for start, stop in zip(borders[:-1], borders[1:], strict=True)
  ]


def _find_files(path: str) -> dict[str, int]:
  """Sizes in bytes of the files of a corpus by path, in reading order."""
  if path in STDLIB:
    return _stdlib_files(path)
  if path.startswith("stdlib:"):
    raise ConfigError(f"{path=} must be one of {', '.join(STDLIB)}")
  where = os.path.expanduser(path)
  if os.path.lexists(where):
    if os.path.isfile(where):
      formats.check_suffix(path)
    files = _files_at(where)
  else:
    matches = sorted(glob.glob(where, recursive=True)) if where else []
    files = [file for match in matches for file in _files_at(match)]
  if not files and not os.path.isdir(where):
    raise ConfigError(
        f"{path=} must be a file, a folder, a glob pattern or the word stdlib:"
        " there is nothing at it"
    )
  sizes = {file: _size(file) for file in files}
  sizes = {file: size for file, size in sizes.items() if size}
  if not sizes:
    raise ConfigError(f"{path=} must hold text: there is not one byte in it")
  return sizes


def _files_at(where: str) -> list[str]:
  """A file itself, or the files of a folder that are not hidden."""
  if not os.path.isdir(where):
    return [where]

  def refuse(error: OSError):
    raise _unreadable(error.filename, error) from None

  files, seen = [], set()
  for folder, subfolders, names in os.walk(
      where, onerror=refuse, followlinks=True
  ):
    subfolders[:] = sorted(s for s in subfolders if not s.startswith("."))
    # A folder that several links lead to, itself perhaps, is read once.
    real = os.path.realpath(folder)
    if real in seen:
      subfolders.clear()
      continue
    seen.add(real)
    files += [
        os.path.relpath(os.path.join(folder, name), where).replace(os.sep, "/")
        for name in names
        if not name.startswith(".")
    ]
  return [os.path.join(where, file) for file in sorted(files)]


def _size(path: str) -> int:
  try:
    return os.stat(path).st_size
  except OSError as error:
    raise _unreadable(path, error) from None


def _unreadable(path: str, error: OSError) -> ConfigError:
  return ConfigError(f"{path}: cannot be read: {error.strerror or error}")


@functools.cache
def _stdlib_sources() -> dict[str, bytes]:
  return dict(sorted(stdlib.read().items()))


def _stdlib_files(path: str) -> dict[str, int]:
  """Sizes in bytes of the modules, by "stdlib:MODULE"."""
  wanted = {"stdlib:train": {False}, "stdlib:eval": {True}}.get(
      path, {False, True}
  )
  return {
      f"stdlib:{module}": len(source)
      for module, source in _stdlib_sources().items()
      if (stdlib.package(module) in stdlib.EVAL_PACKAGES) in wanted
  }
