# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The data pipeline on ArrayRecord shards, beside what trains on it.

The corpus, as bytes, is prepared into shards as `diff-jax prepare` does; the
pipeline is the training loop's, with its one reading thread, on files that the
page cache holds. What it must outrun are the train steps of configs/tiny_lm.py
and of the train suite's model, which share the cores with it.
"""

import functools
import pathlib
import tempfile

import numpy as np

from diff_jax.bench import Options
from diff_jax.bench import train as train_suite
from diff_jax.bench.table import (
    Disagreement,
    Table,
    Target,
)
from diff_jax.bench.timing import interleave, quartiles, ratio
from diff_jax.config import Config, parse
from diff_jax.data.documents import Format
from diff_jax.data.packing import PLANS
from diff_jax.data.pipeline import make_iterator
from diff_jax.data.prepare import prepare
from diff_jax.data.text import Text
from diff_jax.flags import load_config_file

TINY_LM = pathlib.Path(__file__).parents[2] / "configs" / "tiny_lm.py"
COMPARED_BATCHES = 3
TARGET = 20.0  # times the model's tokens/s


def write_corpus(folder: pathlib.Path, num_documents: int) -> None:
  """Documents of random words, 1 to 40 KB each."""
  folder.mkdir()
  generator = np.random.default_rng(0)
  words = ["".join(w) for w in generator.choice(list("etaoins"), (2000, 5))]
  for index in range(num_documents):
    count = int(np.exp(generator.uniform(np.log(200), np.log(7000))))
    text = " ".join(generator.choice(words, count))
    (folder / f"{index:05}.txt").write_text(text)


def tiny_lm(smoke: bool) -> tuple[Config, int]:
  """Settings and tokens in a row of configs/tiny_lm.py."""
  module, _ = load_config_file(TINY_LM)
  config = module.get_config("smoke" if smoke else "")
  return parse(config), config.data.seq_len


def check_same_batches(raw: Text, prepared: Text, batch_size: int) -> None:
  """
  Raises:
    Disagreement: if the shards do not give the batches that the files give.
  """
  ours, theirs = (
      make_iterator(source, "train", 0, batch_size)
      for source in (prepared, raw)
  )
  for index in range(COMPARED_BATCHES):
    x, y = next(ours), next(theirs)
    wrong = [name for name in y if not np.array_equal(x[name], y[name])]
    if wrong:
      raise Disagreement(
          f"batch {index} of the prepared corpus must be that of the files:"
          f" {', '.join(wrong)} differ."
      )


def read(iterator, num_batches: int) -> None:
  for _ in range(num_batches):
    next(iterator)


def run(options: Options) -> Table:
  with tempfile.TemporaryDirectory() as folder:
    source, shards = options.source, f"{folder}/prepared"
    if source is None:
      source = f"{folder}/generated"
      write_corpus(pathlib.Path(source), 20 if options.smoke else 1000)
    manifest = prepare(source, "bytes", shards, Format())
    settings, seq_len = tiny_lm(options.smoke)
    check_same_batches(
        Text(path=source, tokenizer="bytes", seq_len=seq_len),
        Text(path=shards, seq_len=seq_len),
        settings.batch_size,
    )
    totals = manifest["totals"]
    corpus = (
        f"{'generated' if options.source is None else source}:"
        f" {totals['documents']:,} documents, {totals['tokens']:,} tokens,"
        f" {len(manifest['shards'])} shards; first batches are those of the"
        " files"
    )
    return measure(shards, options, [corpus])


def measure(shards: str, options: Options, notes: list[str]) -> Table:
  """Times the feeds from prepared shards and the steps that they feed."""
  num_batches = 10 if options.smoke else 200
  calls, tokens, model_of = {}, {}, {}
  for model, (settings, seq_len) in {
      "tiny_lm": tiny_lm(options.smoke),
      "5 M": train_suite.sizes(options.smoke),
  }.items():
    step = f"train {model}"
    calls[step] = train_suite.Step(settings, seq_len)
    tokens[step] = settings.batch_size * seq_len
    model_of[step] = step
    for how in PLANS:
      source = Text(path=shards, seq_len=seq_len, packing=how)
      iterator = make_iterator(source, "train", 0, settings.batch_size)
      feed = f"feed {model}, {how}"
      calls[feed] = functools.partial(read, iterator, num_batches)
      tokens[feed] = num_batches * tokens[step]
      model_of[feed] = step
  times_s = interleave(calls, options.rounds)
  rows, targets = [], []
  for name, x in times_s.items():
    low, median, high = quartiles(tokens[name] / x)
    step = model_of[name]
    # Tokens per second, in those of the step.
    faster = ratio(times_s[step] / tokens[step], x / tokens[name])
    rows.append(
        {
            "what": name,
            "tokens_per_s": median,
            "quartile_1_tokens_per_s": low,
            "quartile_3_tokens_per_s": high,
            "times_model": faster.median,
        }
    )
    if name != step:
      target = Target(f"{name} / {step}", faster, TARGET, at_most=False)
      targets.append(target)
  title = "Data pipeline from ArrayRecord shards, one reading thread"
  return Table(title, rows, targets, notes)
