# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What counting and compression reach on held-out text."""

import lzma
import math
from collections.abc import Sequence

import numpy as np

from diff_jax.data.packing import PackedRows
from diff_jax.data.splits import Portion

# Counting stops here, so that a corpus of any size costs seconds.
MAX_TRAIN_TOKENS = 2**22
MAX_EVAL_TOKENS = 2**20


def counting_losses(
    train: Sequence[Portion], held_out: Sequence[Portion]
) -> dict[str, float]:
  """Losses of add-one counts, nats per target, and what xz needs.

  Tokens with another meaning than a byte get the unigram loss only. xz sees the
  text of the eval split only, without separators.
  """
  tokenizer = train[0].corpus.tokenizer
  inputs, targets = first_tokens(train, MAX_TRAIN_TOKENS)
  eval_inputs, eval_targets = first_tokens(held_out, MAX_EVAL_TOKENS)

  size = tokenizer.vocab_size
  unigrams = np.bincount(targets, minlength=size) + 1
  log_unigram = np.log(unigrams / unigrams.sum())
  losses = {"unigram_loss_nats": -float(log_unigram[eval_targets].mean())}
  if tokenizer.name != "bytes":
    return losses

  bigrams = np.bincount(size * inputs + targets, minlength=size**2) + 1
  bigrams = bigrams.reshape(size, size)
  log_bigram = np.log(bigrams / bigrams.sum(axis=1, keepdims=True))
  text = eval_targets[eval_targets != tokenizer.separator]
  compressed = lzma.compress(text.astype(np.uint8).tobytes())
  return losses | {
      "bigram_loss_nats": -float(log_bigram[eval_inputs, eval_targets].mean()),
      "xz_bits_per_byte": 8 * len(compressed) / len(text),
  }


def first_tokens(
    portions: Sequence[Portion], limit: int
) -> tuple[np.ndarray, np.ndarray]:
  """Inputs and targets, int64 [i], i about `limit` at most.

  Each portion gives its first tokens, in proportion to its weight.
  """
  sizes = [int(portion.spans.lengths.sum()) for portion in portions]
  weights = [
      size if portion.weight is None else portion.weight
      for portion, size in zip(portions, sizes, strict=True)
  ]
  rows = []
  for portion, size, weight in zip(portions, sizes, weights, strict=True):
    count = min(math.ceil(limit * weight / sum(weights)), size)
    packed = PackedRows(
        portion.corpus, portion.spans, count, "concat_then_split"
    )
    rows.append(packed[0])
  return tuple(
      np.concatenate([row[name] for row in rows]).astype(np.int64)
      for name in ("tokens", "targets")
  )
