# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""`diff-jax prepare` on the command line: what it does and what it says."""

import gzip
import json

import pytest

from diff_jax import cli
from diff_jax.data import corpus, tokenizers
from diff_jax.data.documents import Format


def test_the_command_prepares_verifies_and_says_what(tmp_path, serial, capsys):
  source, out = tmp_path / "corpus.jsonl", tmp_path / "out"
  source.write_text('{"t": "abc"}\n{"t": 1}\n{"t": "de"}\n')
  line = [f"--source={source}", f"--out={out}", "--tokenizer=bytes"]
  line.append("--text-field=t")
  assert cli.main(["prepare", *line]) == 2
  assert "corpus.jsonl:2: field 't' must be" in capsys.readouterr().err
  line[1] += "2"
  assert cli.main(["prepare", *line, "--on-bad-line=skip"]) == 0
  said = capsys.readouterr()
  start = "documents 2, tokens 7, bytes 5, shards 1, skipped 1, sha256 "
  assert said.out.splitlines()[-1].startswith(start)
  assert "100%" in said.err
  assert cli.main(["prepare", "--verify", f"--out={out}2"]) == 0
  assert start in capsys.readouterr().out
  for path, message in (
      (out, "out is not prepared to the end: run the same diff-jax prepare"),
      (tmp_path, "must be a folder of diff-jax prepare: it has no manifest"),
      (tmp_path / "no", "no must be a folder of diff-jax prepare: there is no"),
  ):
    assert cli.main(["prepare", "--verify", f"--out={path}"]) == 2
    assert message in capsys.readouterr().err
  line[0] = f"--source={out}2"
  assert cli.main(["prepare", *line]) == 2
  assert "out2' is prepared already" in capsys.readouterr().err


def test_the_command_trains_a_tokenizer_that_it_takes(tmp_path, serial, capsys):
  source = tmp_path / "corpus.jsonl"
  texts = [f"{i} {'word ' * (i % 9)}" for i in range(60)]
  source.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
  file, out = tmp_path / "own.json", tmp_path / "out"
  line = ["prepare", f"--source={source}"]
  assert cli.main([*line, "--train-bpe=270", f"--out={file}"]) == 0
  assert "270 ids" in capsys.readouterr().out
  assert cli.main([*line, f"--tokenizer={file}", f"--out={out}"]) == 0
  tokens = json.loads((out / "manifest.json").read_text())["totals"]["tokens"]
  assert 0 < tokens < source.stat().st_size
  capsys.readouterr()
  for extra, message in (
      ([f"--out={out}"], "one of tokenizer"),
      ([f"--out={out}", "--tokenizer=bytes", "--train-bpe=300"], "only one"),
      ([f"--out={out}", "--train-bpe=100"], "--train-bpe=100 must be at least"),
      ([f"--out={out}", "--tokenizer=no_such_name"], "tokenizer='no_such_nam"),
  ):
    assert cli.main([*line, *extra]) == 2
    assert message in capsys.readouterr().err
  assert cli.main(["prepare", "--tokenizer=bytes", f"--out={out}"]) == 2
  assert "--source=PATH" in capsys.readouterr().err


def test_a_vocabulary_smaller_than_asked_for_is_said(tmp_path, capsys):
  (tmp_path / "a.txt").write_text("abab")
  line = [f"--source={tmp_path / 'a.txt'}", f"--out={tmp_path / 'own.json'}"]
  assert cli.main(["prepare", *line, "--train-bpe=100000"]) == 0
  said = capsys.readouterr()
  size = tokenizers.load_tokenizer(str(tmp_path / "own.json")).vocab_size
  assert f"own.json: {size} ids" in said.out
  assert (
      f"warning: {size} ids, fewer than the 100,000 asked for: the text has no"
      " more pairs"
  ) in said.err


def test_settings_are_free_until_a_shard_is_committed(tmp_path, serial, capsys):
  texts = ["abab"] * 9
  tokenizers.train_bpe(texts, 258, tmp_path / "own.json")
  source, out = tmp_path / "a.jsonl", tmp_path / "out"
  source.write_text('{"text": "abab"}\n{"text": 1}\n')
  line = ["prepare", f"--source={source}", f"--out={out}"]
  assert cli.main([*line, f"--tokenizer={tmp_path / 'own.json'}"]) == 2
  (out / "shard-00009.documents").touch()  # As a kill leaves it.
  skip = [*line, "--tokenizer=bytes", "--on-bad-line=skip"]
  assert cli.main(skip) == 0
  fresh = [word.replace(str(out), f"{out}2") for word in skip]
  assert cli.main(fresh) == 0
  names, fresh_names = (
      sorted(path.name for path in folder.iterdir())
      for folder in (out, tmp_path / "out2")
  )
  assert names == fresh_names
  assert cli.main(["prepare", "--verify", f"--out={out}"]) == 0
  capsys.readouterr()
  assert cli.main([*line, "--tokenizer=bytes"]) == 2
  said = capsys.readouterr().err
  assert "on_bad_line='stop' must be 'skip', with which" in said
  assert f"the same settings, another --out, or delete {out}" in said


def test_what_was_done_before_is_said(tmp_path, serial, capsys):
  source, out = tmp_path / "source", tmp_path / "out"
  source.mkdir()
  for i in range(4):
    (source / f"{i}.txt").write_text("word " * 9)
  line = ["prepare", f"--source={source}", f"--out={out}", "--tokenizer=bytes"]
  line.append("--piece-bytes=50")
  assert cli.main(line) == 0
  assert "done before" not in capsys.readouterr().err
  (out / "shard-00002.json").unlink()
  assert cli.main(line) == 0
  said = capsys.readouterr().err
  assert "3 of 4 shards were done before" in said
  assert "75%" in said and "  0%" not in said


@pytest.mark.parametrize("suffix", [".txt", ".txt.gz"])
def test_a_separator_that_cuts_nothing_is_said(
    tmp_path, serial, capsys, suffix
):
  file, out = tmp_path / f"a{suffix}", tmp_path / "out"
  pack = gzip.compress if suffix.endswith(".gz") else bytes
  file.write_bytes(pack(b"one\n---\ntwo\n"))
  for separator, is_said in (("", 0), ("---", 0), ("***", 1)):
    corpus.open_corpus(str(file), None, Format(separator=separator))
    line = [f"--source={file}", f"--separator={separator}", "--tokenizer=bytes"]
    line.append(f"--out={out}{separator[:1]}")
    assert cli.main(["prepare", *line]) == 0
    said = capsys.readouterr().err
    warning = f"warning: separator='***' cuts no text file of path='{file}'"
    assert said.count("warning") == said.count(warning) == 2 * is_said
