# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""diff-jax prepare: tokenise a corpus of any size, or train a tokenizer on it.

  diff-jax prepare --source=PATH --tokenizer=NAME --out=DIR
  diff-jax prepare --source=PATH --train-bpe=8192 --out=FILE.json
  diff-jax prepare --verify --out=DIR

Give the same command again after an interruption: it continues. DIR is what a
config's data.path takes, FILE.json what --tokenizer takes.
"""

import argparse
import pathlib
import sys
from collections.abc import Sequence

from diff_jax.config import ConfigError
from diff_jax.data import documents, prepare, shard, tokenizers
from diff_jax.data.prepared import PreparedCorpus


def main(argv: Sequence[str]) -> None:
  arguments = _parser().parse_args(argv)
  if arguments.verify:
    corpus = PreparedCorpus(arguments.out)
    corpus.verify()
    print(f"{arguments.out}: every file is what the manifest says")
    print(summary(corpus.manifest))
    return
  if arguments.source is None:
    raise ConfigError("source must be given: --source=PATH")
  if (pathlib.Path(arguments.source).expanduser() / shard.SETTINGS).is_file():
    raise ConfigError(
        f"source={arguments.source!r} is prepared already: give it as data.path"
    )
  if arguments.tokenizer is not None and arguments.train_bpe is not None:
    raise ConfigError(
        f"only one of --tokenizer={arguments.tokenizer} and"
        f" --train-bpe={arguments.train_bpe} must be given: train first, then"
        " give the file as --tokenizer"
    )
  if arguments.tokenizer is None and arguments.train_bpe is None:
    raise ConfigError(
        "one of tokenizer (--tokenizer=bytes|NAME|FILE) and train_bpe"
        " (--train-bpe=8192) must be given"
    )
  format = documents.Format(
      arguments.text_field, arguments.on_bad_line, arguments.separator
  )
  if arguments.train_bpe is not None:
    train_bpe(arguments.source, format, arguments.train_bpe, arguments.out)
    return
  manifest = prepare.prepare(
      arguments.source,
      arguments.tokenizer,
      arguments.out,
      format,
      piece_bytes=arguments.piece_bytes,
      workers=arguments.workers,
      engine=arguments.engine,
  )
  print(summary(manifest))


def _parser() -> argparse.ArgumentParser:
  parser = argparse.ArgumentParser(
      prog="diff-jax prepare",
      description=__doc__,
      formatter_class=argparse.RawDescriptionHelpFormatter,
      allow_abbrev=False,
  )
  add = parser.add_argument
  add("--source", metavar="PATH", help="a file, folder, glob or stdlib")
  add("--out", metavar="DIR|FILE", required=True)
  add(
      "--tokenizer",
      metavar="bytes|NAME|FILE",
      help="bytes, a tiktoken encoding, or the path of a tokenizer.json",
  )
  add(
      "--train-bpe",
      type=int,
      metavar="N",
      help="train a byte-level BPE of N ids, and do nothing else",
  )
  add(
      "--verify",
      action="store_true",
      help="read DIR whole and compare with its manifest, nothing else",
  )
  add("--text-field", default="text", metavar="NAME", help="default: text")
  add(
      "--on-bad-line",
      default="stop",
      metavar="stop|skip",
      help="what a broken line or record does (default: stop)",
  )
  add(
      "--separator",
      default="",
      metavar="LINE",
      help="the line between the documents of a text file (default: none)",
  )
  add("--workers", type=int, metavar="N", help="processes (default: the cores)")
  add(
      "--piece-bytes",
      type=int,
      default=prepare.PIECE_BYTES,
      metavar="N",
      help="of the source in a shard (default: %(default)s)",
  )
  add("--engine", choices=["ray"], help="run on a Ray cluster")
  return parser


def summary(manifest) -> str:
  """One line: what a prepared corpus holds."""
  totals = manifest["totals"]
  return (
      f"documents {totals['documents']:,}, tokens {totals['tokens']:,}, bytes"
      f" {totals['bytes']:,}, shards {len(manifest['shards']):,}, skipped"
      f" {totals['skipped']:,}, sha256 {totals['sha256']}"
  )


def train_bpe(
    source: str, format: documents.Format, vocab_size: int, out: str
) -> None:
  """Writes the tokenizer.json of a corpus to `out`."""
  skipped = documents.Skipped()
  texts = (
      document.text
      for piece in documents.find_pieces(source, prepare.PIECE_BYTES)
      for document in documents.read_piece(piece, format, skipped)
  )
  tokenizers.train_bpe(texts, vocab_size, out)
  if skipped.documents:
    print(
        f"skipped {skipped.documents:,}, the first: {skipped.first}",
        file=sys.stderr,
    )
  size = tokenizers.load_tokenizer(out).vocab_size
  if size < vocab_size:
    print(
        f"warning: {size:,} ids, fewer than the {vocab_size:,} asked for: the"
        " text has no more pairs",
        file=sys.stderr,
    )
  print(f"{out}: {size:,} ids")
