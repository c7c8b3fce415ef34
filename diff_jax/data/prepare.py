# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Tokenises a corpus of any size into a folder that `PreparedCorpus` opens.

A piece of the source is a shard, whose bytes depend on the piece, the tokenizer
and the format only: the folder is the same for any number of workers and after
any interruption. shard.py says what is in it.
"""

import contextlib
import dataclasses
import fcntl
import hashlib
import os
import pathlib
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tqdm

from diff_jax.config import ConfigError
from diff_jax.data import engines, shard, tokenizers
from diff_jax.data.documents import Format, find_pieces, warn_if_uncut

PIECE_BYTES = 2**26  # of the source's files, by default


def prepare(
    source: str,
    tokenizer: str,
    out: str | os.PathLike,
    format: Format,
    *,
    piece_bytes: int = PIECE_BYTES,
    workers: int | None = None,
    engine: str | None = None,
) -> dict[str, Any]:
  """Writes the folder `out`, or what is still missing in it.

  Args:
    source: a path for `find_pieces`.
    tokenizer: a name for `load_tokenizer`.
    out: a folder, new or of an earlier run with the same settings.
    format: how the files are read.
    piece_bytes: of a source file that one shard gets.
    workers: processes; None: one a core.
    engine: None: this machine; "ray": a Ray cluster, whose machines must all
      see `source` and `out`; then `workers` None is all its cores.

  Returns:
    the manifest.

  Raises:
    ConfigError: the source or the tokenizer cannot be read, `out` cannot be
      written, or was made with other settings or from other data.
    RunError: a worker died. What is committed stays, here as there.
  """
  if workers is not None and workers < 1:
    raise ConfigError(f"{workers=} must be at least 1")
  if not source.startswith("stdlib"):
    source = os.path.abspath(os.path.expanduser(source))
  loaded = tokenizers.load_tokenizer(tokenizer)
  pieces = find_pieces(source, piece_bytes)
  settings = {
      "source": source,
      "tokenizer": loaded.name,
      "tokenizer_fingerprint": loaded.fingerprint,
      "vocab_size": loaded.vocab_size,
      "separator_id": loaded.separator,
      "piece_bytes": piece_bytes,
      **dataclasses.asdict(format),
  }
  folder = pathlib.Path(out).expanduser().absolute()
  with _out_errors(folder), _locked(folder):
    _write_settings(folder, settings)
    tokenizer = _keep_tokenizer(folder, loaded)
    jobs = [
        shard.Job(folder, i, piece, format, tokenizer, loaded.fingerprint)
        for i, piece in enumerate(pieces)
    ]
    _check_no_more_shards(folder, jobs)
    todo = [job for job in jobs if not shard.is_committed(job)]
    _run(jobs, todo, workers, engine)
    manifest = _finish(folder, settings, jobs)
  totals = manifest["totals"]
  warn_if_uncut(source, format, pieces, totals["documents"] + totals["skipped"])
  return manifest


def _run(
    jobs: Sequence[shard.Job],
    todo: Sequence[shard.Job],
    workers: int | None,
    engine: str | None,
) -> None:
  """Writes the shards `todo`, with a progress bar over all `jobs`."""
  run = engines.on_ray if engine == "ray" else engines.on_processes
  if len(todo) < len(jobs):
    print(
        f"{len(jobs) - len(todo):,} of {len(jobs):,} shards were done before",
        file=sys.stderr,
    )
  total = sum(job.num_bytes for job in jobs)
  done = total - sum(job.num_bytes for job in todo)
  with tqdm.tqdm(
      total=total, initial=done, unit="B", unit_scale=True
  ) as progress:
    for index in run(todo, workers) if todo else ():
      progress.update(jobs[index].num_bytes)


@contextlib.contextmanager
def _out_errors(folder: pathlib.Path):
  """What the file system refuses, as a ConfigError."""
  try:
    yield
  except OSError as error:
    raise ConfigError(
        f"out={str(folder)!r} cannot be written: {error}"
    ) from error


@contextlib.contextmanager
def _locked(folder: pathlib.Path):
  """Makes the folder, and keeps a second run out of it.

  Raises:
    ConfigError: another process is writing it.
  """
  folder.mkdir(parents=True, exist_ok=True)
  with (folder / ".lock").open("a") as lock:
    try:
      fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      raise ConfigError(
          f"out={str(folder)!r}: another diff-jax prepare is writing it"
      ) from None
    except OSError as error:  # Some network file systems have no locks.
      print(
          f"{folder}: nothing keeps a second prepare out: {error}",
          file=sys.stderr,
      )
    yield


def _write_settings(folder: pathlib.Path, settings: dict[str, Any]) -> None:
  """Writes the settings, or compares with those of shards already there.

  Raises:
    ConfigError: the folder is of something else, or of other settings.
  """
  for path in folder.glob(f".*{shard.TEMPORARY}"):
    path.unlink()  # of a run that was killed
  file = folder / shard.SETTINGS
  if not file.exists():
    if any(not path.name.startswith(".") for path in folder.iterdir()):
      raise ConfigError(
          f"out={str(folder)!r} must be empty, new, or a folder of diff-jax"
          f" prepare: it has files, but no {shard.SETTINGS}"
      )
    shard.write_json(file, settings)
  before = shard.read_json(file)
  # A tokenizer is known by its fingerprint: its file may have moved.
  changed = [
      name
      for name, value in settings.items()
      if name != "tokenizer" and before.get(name) != value
  ]
  if not changed:
    return
  if not (folder / shard.MANIFEST).exists() and not any(
      folder.glob("shard-*.json")
  ):
    for path in folder.glob("shard-*"):
      path.unlink()  # of a shard that was not committed
    shard.write_json(file, settings)
    return
  name = changed[0]
  renamed = settings["tokenizer"] != before.get("tokenizer")
  if name == "tokenizer_fingerprint" and renamed:
    name = "tokenizer"  # It says more.
  raise ConfigError(
      f"{name}={settings[name]!r} must be {before.get(name)!r}, with which"
      f" out={str(folder)!r} was begun: give the same settings, another --out,"
      f" or delete {folder}"
  )


def _keep_tokenizer(
    folder: pathlib.Path, tokenizer: tokenizers.Tokenizer
) -> str:
  """Copies a tokenizer that is a file; returns the name that workers load."""
  file = folder / shard.TOKENIZER
  if not isinstance(tokenizer, tokenizers.JsonTokenizer):
    # One may be left of other settings, of which no shard was written.
    file.unlink(missing_ok=True)
    return tokenizer.name
  with shard.new_file(file) as temporary:
    shutil.copyfile(tokenizer.name, temporary)
  return str(file)


def _check_no_more_shards(
    folder: pathlib.Path, jobs: Sequence[shard.Job]
) -> None:
  """Raises a ConfigError if the source was larger when the folder was begun."""
  known = {job.path(".json") for job in jobs}
  for path in sorted(folder.glob("shard-*.json")):
    if path not in known:
      raise ConfigError(
          f"source has shrunk to {len(jobs)} pieces since {path} was written;"
          " restore it or give another out"
      )


def _finish(
    folder: pathlib.Path, settings: dict[str, Any], jobs: Sequence[shard.Job]
) -> dict[str, Any]:
  """Joins the shards' document lengths and writes the manifest.

  Raises:
    ConfigError: there is no document.
  """
  shards = [shard.read_json(job.path(".json")) for job in jobs]
  shards = [{k: v for k, v in s.items() if k != "sources"} for s in shards]
  totals = {
      name: sum(s[name] for s in shards)
      for name in ("documents", "tokens", "bytes", "skipped", "size_bytes")
  }
  if not totals["documents"]:
    raise ConfigError(
        f"source={settings['source']!r} must hold text: it has no document"
        f" ({totals['skipped']} skipped)"
    )
  digest = hashlib.sha256()
  with shard.new_file(folder / shard.STARTS) as temporary:
    with temporary.open("wb") as file:
      shape = (totals["documents"] + 1,)
      np.lib.format.write_array_header_1_0(
          file, {"descr": "<i8", "fortran_order": False, "shape": shape}
      )
      file.write(np.zeros(1, "<i8").tobytes())
      start = 0
      for documents in _document_tables(jobs):
        ends = start + np.cumsum(documents["length"])
        file.write(ends.astype("<i8").tobytes())
        digest.update(documents["sha256"].tobytes())
        start = int(ends[-1])
  files = [folder / shard.STARTS]
  if (folder / shard.TOKENIZER).exists():
    files.append(folder / shard.TOKENIZER)
  manifest = {
      "format_version": shard.FORMAT_VERSION,
      "settings": settings,
      "totals": {**totals, "sha256": digest.hexdigest()},
      "files": [shard.describe_file(file) for file in files],
      "shards": shards,
  }
  shard.write_json(folder / shard.MANIFEST, manifest)
  return manifest


def _document_tables(jobs: Iterable[shard.Job]) -> Iterator[np.ndarray]:
  """Parts of the shards' tables of documents, in order, never empty."""
  for job in jobs:
    with job.path(".documents").open("rb") as file:
      while len(table := np.fromfile(file, shard.DOCUMENT, 2**16)):
        yield table
