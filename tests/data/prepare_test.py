# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""`diff-jax prepare` writes the same folder whatever happens on the way."""

import gzip
import importlib.util
import json
import multiprocessing
import os
import pathlib
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from diff_jax.config import ConfigError, RunError
from diff_jax.data import encoding, engines, prepare, shard, tokenizers
from diff_jax.data.documents import Document, Format, find_pieces

FORMAT = Format()
PIECE_BYTES = 400


def write_corpus(folder: pathlib.Path, documents: int = 300) -> str:
  """Two files of JSON lines."""
  folder.mkdir()
  for name in ("a.jsonl", "b.jsonl"):
    rng = np.random.default_rng(len(name))
    texts = [
        f"{name} {i} {'word ' * rng.integers(9)}" for i in range(documents)
    ]
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / name).write_text(lines)
  return str(folder)


def contents(folder) -> dict[str, bytes]:
  return {path.name: path.read_bytes() for path in folder.iterdir()}


def prepare_serially(source, out, **changes):
  settings = {
      "tokenizer": "bytes",
      "format": FORMAT,
      "piece_bytes": PIECE_BYTES,
      **changes,
  }
  return prepare.prepare(source, out=out, **settings)


def command(source, out, *arguments) -> list[str]:
  return [
      sys.executable,
      "-m",
      "diff_jax.cli",
      "prepare",
      f"--source={source}",
      "--tokenizer=bytes",
      f"--out={out}",
      f"--piece-bytes={PIECE_BYTES}",
      *arguments,
  ]


def test_killed_and_continued_by_more_workers_is_the_same(tmp_path):
  source, killed = write_corpus(tmp_path / "source"), tmp_path / "killed"
  process = subprocess.Popen(
      command(source, killed, "--workers=1"),
      stdout=subprocess.PIPE,
      stderr=subprocess.PIPE,
  )
  while not list(killed.glob("shard-*.json")) and process.poll() is None:
    time.sleep(0.001)
  process.kill()
  # Its worker inherited the pipes: they end when that has ended, too.
  process.communicate(timeout=60)
  assert process.returncode == -signal.SIGKILL
  committed = {
      path: path.stat().st_mtime_ns
      for path in killed.glob("shard-*.json")
      if path.with_suffix(".arrayrecord").exists()
  }
  assert committed and not (killed / "manifest.json").exists()
  manifest = prepare_serially(source, killed, workers=2)
  assert len(committed) < len(manifest["shards"])
  assert committed == {path: path.stat().st_mtime_ns for path in committed}

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(
        engines, "on_processes", lambda jobs, _: map(shard.write, jobs)
    )
    prepare_serially(source, tmp_path / "whole")
  assert contents(killed) == contents(tmp_path / "whole")


def test_a_killed_worker_is_an_error_and_not_a_hang(tmp_path):
  source, out = write_corpus(tmp_path / "source"), tmp_path / "out"
  out.mkdir()
  tokenizer = tokenizers.BytesTokenizer()
  jobs = [
      shard.Job(out, i, piece, FORMAT, "bytes", tokenizer.fingerprint)
      for i, piece in enumerate(find_pieces(source, PIECE_BYTES))
  ]
  run = engines.on_processes(jobs, workers=1)
  done = [next(run)]
  (worker,) = multiprocessing.active_children()
  os.kill(worker.pid, signal.SIGKILL)
  with pytest.raises(RunError, match="worker process died.*continues"):
    done.extend(run)
  assert 0 < len(done) < len(jobs)
  assert all(shard.is_committed(jobs[index]) for index in done)


@pytest.mark.skipif(
    importlib.util.find_spec("ray") is None,
    reason="needs pip install 'diff_jax[ray]'",
)
def test_ray_writes_the_same_folder(tmp_path, serial):
  source = write_corpus(tmp_path / "source", documents=20)
  prepare_serially(source, tmp_path / "here")
  subprocess.run(
      command(source, tmp_path / "there", "--engine=ray", "--workers=1"),
      check=True,
      timeout=300,
  )
  assert contents(tmp_path / "here") == contents(tmp_path / "there")
  (tmp_path / "source" / "a.jsonl").write_text("{}\n")
  failed = subprocess.run(
      command(source, tmp_path / "bad", "--engine=ray"),
      capture_output=True,
      text=True,
      timeout=300,
  )
  assert failed.returncode == 2
  assert "a.jsonl:1: has no field 'text'" in failed.stderr.splitlines()[-1]


def test_ray_is_asked_for_by_name(tmp_path, monkeypatch):
  monkeypatch.setitem(sys.modules, "ray", None)
  source = write_corpus(tmp_path / "source", documents=2)
  with pytest.raises(ConfigError, match=r"diff_jax\[ray\]"):
    prepare_serially(source, tmp_path / "out", engine="ray")


def test_another_setting_is_refused_by_name(tmp_path, serial):
  source, out = write_corpus(tmp_path / "source", 9), tmp_path / "out"
  tokenizers.train_bpe(["abc"], 257, tmp_path / "other.json")
  prepare_serially(source, out)
  before = contents(out)
  for changes, message in (
      ({"piece_bytes": 500}, "piece_bytes=500 must be 400"),
      (
          {"tokenizer": str(tmp_path / "other.json")},
          "other.json' must be 'bytes'",
      ),
      ({"format": Format("t")}, "text_field='t' must be 'text'"),
      ({"format": Format(on_bad_line="skip")}, "on_bad_line='skip'"),
      ({"format": Format(separator="-")}, "separator='-' must be ''"),
      ({"workers": 0}, "workers=0 must be at least 1"),
      ({"piece_bytes": 0}, "piece_bytes=0 must be at least 1"),
  ):
    with pytest.raises(ConfigError, match=message):
      prepare_serially(source, out, **changes)
  with pytest.raises(ConfigError, match="source=.*a.jsonl' must be '"):
    prepare_serially(source + "/a.jsonl", out)
  prepare_serially(source, out)
  assert contents(out) == before


def test_a_source_that_changed_is_refused_by_name(tmp_path, serial):
  source, out = write_corpus(tmp_path / "source", 9), tmp_path / "out"
  prepare_serially(source, out)
  file = tmp_path / "source" / "b.jsonl"
  data, status = file.read_bytes(), file.stat()
  os.utime(file, ns=(0, 0))
  with pytest.raises(ConfigError, match="b.jsonl has changed since .*shard-"):
    prepare_serially(source, out)
  file.unlink()
  with pytest.raises(ConfigError, match="changed since|shrunk to"):
    prepare_serially(source, out)
  file.write_bytes(data)
  os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
  (tmp_path / "source" / "c.txt").write_text("more " * PIECE_BYTES)
  prepare_serially(source, out)
  prepare_serially(source, tmp_path / "fresh")
  assert contents(out) == contents(tmp_path / "fresh")
  (tmp_path / "source" / "c.txt").unlink()
  with pytest.raises(ConfigError, match="shrunk to"):
    prepare_serially(source, out)


def test_a_source_that_changes_meanwhile_is_refused(
    tmp_path, serial, monkeypatch
):
  source, out = write_corpus(tmp_path / "source", 9), tmp_path / "out"

  def encode_and_touch(documents, tokenizer):
    yield from encoding.encode(documents, tokenizer)
    os.utime(tmp_path / "source" / "a.jsonl", ns=(0, 0))

  monkeypatch.setattr(shard, "encode", encode_and_touch)
  with pytest.raises(ConfigError, match="a.jsonl has changed since it was"):
    prepare_serially(source, out)
  assert not list(out.glob("shard-*.json"))


def test_a_lost_or_truncated_shard_is_written_again(tmp_path, serial):
  source, out = write_corpus(tmp_path / "source", 9), tmp_path / "out"
  prepare_serially(source, out)
  before = contents(out)
  (out / "shard-00000.arrayrecord").unlink()
  (out / "shard-00001.arrayrecord").write_bytes(b"short")
  (out / "shard-00002.documents").write_bytes(b"short")
  prepare_serially(source, out)
  assert contents(out) == before


def test_an_out_that_cannot_be_written_is_refused(tmp_path, serial):
  source = write_corpus(tmp_path / "source", 9)
  file = tmp_path / "file"
  file.write_text("")
  for out in (file, file / "below"):
    with pytest.raises(ConfigError, match="out='.*file.* cannot be written"):
      prepare_serially(source, out)
  with pytest.raises(ConfigError, match="must be empty, new, or a folder of"):
    prepare_serially(source, source)
  with prepare._locked(tmp_path / "out"):
    with pytest.raises(ConfigError, match="another diff-jax prepare is writ"):
      prepare_serially(source, tmp_path / "out")


def test_a_write_that_fails_loses_nothing(tmp_path, serial):
  source = write_corpus(tmp_path / "source", 20)
  out, limit = tmp_path / "out", resource.getrlimit(resource.RLIMIT_FSIZE)
  rng = np.random.default_rng(0)
  text = "".join(map(chr, rng.integers(0x4E00, 0x9FFF, 2**17)))
  large = tmp_path / "source" / "z.txt.gz"  # More than the limit, and not cut.
  large.write_bytes(gzip.compress(text.encode()))
  try:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, limit[1]))
    with pytest.raises(ConfigError, match="out=.*cannot be written.*too large"):
      prepare_serially(source, out)
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
  committed = {p: p.stat().st_mtime_ns for p in out.glob("shard-*.json")}
  assert committed and not list(out.glob(f".*{shard.TEMPORARY}"))
  prepare_serially(source, out)
  assert committed == {path: path.stat().st_mtime_ns for path in committed}
  prepare_serially(source, tmp_path / "fresh")
  assert contents(out) == contents(tmp_path / "fresh")


def test_documents_are_read_as_they_are_needed(monkeypatch):
  monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 30)
  read = []

  def documents():
    for index in range(100):
      read.append(index)
      yield Document("x" * 10, "")

  encoded = encoding.encode(documents(), tokenizers.BytesTokenizer())
  next(encoded)
  assert len(read) == 3
