# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Next-token prediction on text: corpora, their splits, packing and mixing."""

import dataclasses
import functools
import hashlib
import platform
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from diff_jax.config import ConfigError
from diff_jax.data import source, splits
from diff_jax.data.baselines import counting_losses
from diff_jax.data.corpus import Corpus, open_corpus
from diff_jax.data.documents import Format
from diff_jax.data.packing import PLANS, PackedRows, Spans
from diff_jax.data.splits import Portion
from diff_jax.data.tokenizers import Tokenizer, load_tokenizer


@dataclasses.dataclass(frozen=True)
class Text:
  """Text of any size, as rows of tokens.

  The training split is mixed as `path` and `long_share` say; the eval split is
  not: it has every held-out row once an epoch, in proportion to size, so that
  mixtures of the same corpora are evaluated on the same rows.

  Without `eval_path`, whole documents of each corpus are held out, chosen by a
  hash of their number (`splits.hold_out`); of "stdlib", four packages.
  """

  name: ClassVar[str] = "text"
  endless: ClassVar[bool] = False

  # A folder of `diff-jax prepare`, a file, folder or glob, "stdlib"; or several
  # of them: "PATH@WEIGHT,PATH@WEIGHT", in shares of the rows, or "PATH,PATH",
  # by size. A folder of the name stdlib is "./stdlib".
  path: str = "stdlib"
  # bytes, a tiktoken name or a tokenizer.json; None: as prepared, or bytes.
  tokenizer: str | None = None
  seq_len: int = 256  # tokens in a row
  packing: str = "concat_then_split"  # or best_fit, whole_documents
  cross_documents: bool = False  # whether attention and positions cross borders
  # Length up-sampling per corpus (Fu et al. 2024, arXiv 2402.10171): the share
  # of each corpus's rows with documents longer than long_tokens, so that every
  # corpus must have longer and shorter ones; None: as it is.
  long_share: float | None = None
  long_tokens: int = 4096
  eval_path: str | None = None  # all of it is the eval split
  eval_share: float = 0.1  # of the tokens, 2**24 at most
  text_field: str = "text"  # of a record
  on_bad_line: str = "stop"  # skip: leave out broken records, and count them
  separator: str = ""  # a line that parts the documents of a text file

  def __post_init__(self):
    source.check_at_least_one(
        seq_len=self.seq_len, long_tokens=self.long_tokens
    )
    if not self.path:
      raise ConfigError(
          f"data.path={self.path} must be given: --config.data.path=PATH, a"
          " file or folder of text, one of diff-jax prepare, or the word stdlib"
      )
    splits.parse_mixture(self.path)
    for name, value, choices in (
        ("packing", self.packing, PLANS),
        ("on_bad_line", self.on_bad_line, ("stop", "skip")),
    ):
      if value not in choices:
        raise ConfigError(
            f"data.{name}={value!r} must be one of {', '.join(choices)}"
        )
    for name in ("long_share", "eval_share"):
      value = getattr(self, name)
      if value is not None and not 0 < value < 1:
        raise ConfigError(f"data.{name}={value} must be above 0 and below 1")

  @property
  def vocab_size(self) -> int:
    return self.open_tokenizer().vocab_size

  @property
  def output_size(self) -> int:
    return self.vocab_size

  @property
  def vocabulary(self) -> str:
    """What `vocab_size` is of, for messages."""
    return f"tokenizer {self.open_tokenizer().name!r}"

  def open_tokenizer(self) -> Tokenizer:
    """The tokenizer itself.

    Raises:
      ConfigError: it cannot be loaded.
    """
    return self._tokenizer

  def examples(self, split: str, seed: int) -> source.Concatenation:
    """The rows of one epoch, the same for every seed.

    Raises:
      ConfigError: there is no text at `path`, too little for both splits, or no
        document on one side of `long_tokens`.
    """
    del seed  # Only the order of the rows depends on it: see pipeline.py.
    return self._eval_rows if source.split_index(split) else self._train_rows

  def num_bytes(self, batch: Mapping[str, Any]) -> int:
    """Bytes of text that a batch's targets are; bits per byte divide by it."""
    targets, weights = map(
        np.asarray, (batch["targets"], batch["loss_weights"])
    )
    return int(self.open_tokenizer().num_bytes[targets[weights > 0]].sum())

  def baselines(self) -> dict[str, float]:
    """What counting and compression reach; see `baselines.py`.

    Raises:
      ConfigError: as `examples`.
    """
    return counting_losses(self._splits["train"], self._splits["eval"])

  def corpus(self) -> dict[str, Any]:
    """What was read, both splits together; `sha256` also says how it was split.

    Raises:
      ConfigError: as `examples`.
    """
    digest, corpora = hashlib.sha256(), {}
    for split, portions in self._splits.items():
      for corpus, spans, _ in portions:
        described = corpora.setdefault(id(corpus), corpus.describe())
        digest.update(f"{split} {described['sha256']} ".encode())
        digest.update(corpus.tokenizer.fingerprint.encode())
        for array in spans:
          digest.update(array.astype("<i8").tobytes())
    described = list(corpora.values())
    return {
        "name": ", ".join(_full_name(corpus["name"]) for corpus in described),
        "documents": sum(corpus["documents"] for corpus in described),
        "tokens": sum(corpus["tokens"] for corpus in described),
        "bytes": sum(corpus["bytes"] for corpus in described),
        "sha256": digest.hexdigest(),
        "tokenizer": self.open_tokenizer().name,
        "skipped_documents": sum(c["skipped_documents"] for c in described),
        "left_out_tokens": sum(
            rows.left_out_tokens for rows in self._train_rows.sequences
        ),
    }

  @functools.cached_property
  def _tokenizer(self) -> Tokenizer:
    if self.tokenizer is not None:
      return load_tokenizer(self.tokenizer)
    return self._splits["train"][0].corpus.tokenizer

  @functools.cached_property
  def _splits(self) -> dict[str, list[Portion]]:
    train, held_out = [], []
    for path, weight in splits.parse_mixture(self.path):
      if self.eval_path is None and path == "stdlib":
        corpus, eval_corpus = map(self._open, ("stdlib:train", "stdlib:eval"))
        spans, eval_spans = map(splits.all_documents, (corpus, eval_corpus))
      else:
        corpus = eval_corpus = self._open(path)
        spans = splits.all_documents(corpus)
        if self.eval_path is None:
          spans, eval_spans = splits.hold_out(spans, self.eval_share, path)
      train.append(Portion(corpus, spans, weight))
      if self.eval_path is None:
        held_out.append(Portion(eval_corpus, eval_spans))
    if self.eval_path is not None:
      corpus = self._open(self.eval_path)
      held_out = [Portion(corpus, splits.all_documents(corpus))]
    self._check_one_tokenizer([*train, *held_out])
    return {"train": train, "eval": held_out}

  def _open(self, path: str) -> Corpus:
    format = Format(
        text_field=self.text_field,
        on_bad_line=self.on_bad_line,
        separator=self.separator,
    )
    return open_corpus(path, self.tokenizer, format)

  def _check_one_tokenizer(self, portions: list[Portion]) -> None:
    names = {}
    for portion in portions:
      tokenizer = portion.corpus.tokenizer
      names.setdefault(tokenizer.fingerprint, tokenizer.name)
    if len(names) > 1:
      raise ConfigError(
          f"data.path={self.path} and data.eval_path={self.eval_path} must be"
          f" corpora of one tokenizer, not of {', '.join(names.values())}: give"
          " data.tokenizer, or prepare them with the same one"
      )

  @functools.cached_property
  def _train_rows(self) -> source.Concatenation:
    parts = []
    for corpus, spans, weight in self._splits["train"]:
      weight = weight or float(spans.lengths.sum())
      if self.long_share is None:
        parts.append((corpus, spans, weight))
        continue
      groups = splits.by_length(spans, self.long_tokens)
      for group, share, which in zip(
          groups,
          (self.long_share, 1 - self.long_share),
          ("longer than", "of at most"),
          strict=True,
      ):
        if not len(group.starts):
          raise ConfigError(
              f"data.long_share={self.long_share} is per corpus:"
              f" {corpus.describe()['name']} has no document {which}"
              f" data.long_tokens={self.long_tokens} in the train split; give"
              " another data.long_tokens: its documents have"
              f" {spans.lengths.min() - 1:,} to {spans.lengths.max() - 1:,}"
              " tokens"
          )
        parts.append((corpus, group, weight * share))
    by_size = (
        self.long_share is None and self._splits["train"][0].weight is None
    )
    return source.Concatenation(
        [self._pack(corpus, spans) for corpus, spans, _ in parts],
        None if by_size else [weight for _, _, weight in parts],
    )

  @functools.cached_property
  def _eval_rows(self) -> source.Concatenation:
    return source.Concatenation(
        [self._pack(corpus, spans) for corpus, spans, _ in self._splits["eval"]]
    )

  def _pack(self, corpus: Corpus, spans: Spans) -> PackedRows:
    return PackedRows(
        corpus, spans, self.seq_len, self.packing, self.cross_documents
    )


def _full_name(name: str) -> str:
  if name.partition(":")[0] == "stdlib":
    return f"{name} of CPython {platform.python_version()}"
  return name
