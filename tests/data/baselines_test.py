# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Baselines against counting by hand."""

import lzma
import math

import pytest

from diff_jax.data import baselines, source
from diff_jax.data.text import Text


def counted_by_hand(train, held_out, size):
  """Mean losses of add-one counts over (token, target) pairs."""
  unigram = bigram = 0.0
  for pair in held_out:
    same = sum(target == pair[1] for _, target in train)
    after = [target for token, target in train if token == pair[0]]
    unigram -= math.log((same + 1) / (len(train) + size))
    bigram -= math.log((after.count(pair[1]) + 1) / (len(after) + size))
  return unigram / len(held_out), bigram / len(held_out)


@pytest.mark.parametrize("limits", [(2**22, 2**20), (64, 16)])
def test_baselines_against_counting_by_hand(tmp_path, monkeypatch, limits):
  monkeypatch.setattr(baselines, "MAX_TRAIN_TOKENS", limits[0])
  monkeypatch.setattr(baselines, "MAX_EVAL_TOKENS", limits[1])
  (tmp_path / "text.txt").write_text(
      "and the rest, \u00fc, " * 9 + "of the end"
  )
  settings = Text(
      path=str(tmp_path / "text.txt"), seq_len=10**4, eval_share=0.3
  )
  train, held_out = (
      [
          (int(token), int(target))
          for token, target, weight in zip(
              *(row[0][k] for k in ("tokens", "targets", "loss_weights")),
              strict=True,
          )
          if weight
      ][:limit]
      for row, limit in zip(
          (list(settings.examples(split, 0)) for split in source.SPLITS),
          limits,
          strict=True,
      )
  )
  unigram, bigram = counted_by_hand(train, held_out, 257)
  content = bytes(target for _, target in held_out if target < 256)
  assert settings.baselines() == pytest.approx(
      {
          "unigram_loss_nats": unigram,
          "bigram_loss_nats": bigram,
          "xz_bits_per_byte": 8 * len(lzma.compress(content)) / len(content),
      }
  )
