# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Text that cannot be read, and settings that cannot be right, by name."""

import pytest

from diff_jax.config import ConfigError
from diff_jax.data import tokenizers
from diff_jax.data.text import Text


def test_corpora_of_two_tokenizers_are_refused():
  class Other(tokenizers.BytesTokenizer):
    name, fingerprint = "other", "0"

  settings = Text(path="stdlib:eval,stdlib:train")
  portion = settings._splits["train"][0]
  portion.corpus.tokenizer = Other()
  with pytest.raises(ConfigError, match="of one tokenizer, not of other, byte"):
    settings._check_one_tokenizer(settings._splits["train"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"seq_len": 0}, "seq_len=0 must be at least 1"),
        ({"long_tokens": 0}, "long_tokens=0 must be at least 1"),
        ({"path": ""}, "data.path= must be given"),
        ({"path": None}, "data.path=None must be given"),
        ({"packing": "fit"}, "data.packing='fit' must be one of concat_then"),
        (
            {"on_bad_line": "go"},
            "data.on_bad_line='go' must be one of stop, skip",
        ),
        (
            {"long_share": 1.0},
            "data.long_share=1.0 must be above 0 and below 1",
        ),
        ({"eval_share": 0}, "data.eval_share=0 must be above 0 and below 1"),
        ({"path": "a@0,b@1"}, "path='a@0,b@1' must have weights above 0"),
        ({"path": "a@inf"}, "path='a@inf' must have weights above 0"),
        ({"path": "a@nan"}, "path='a@nan' must have weights above 0"),
        ({"path": "a@1,b"}, "must give a weight to every path or to none"),
        ({"path": "a@1,a@2"}, "must name every path once"),
        ({"path": "a,"}, "must name every path once"),
        ({"path": "@1"}, "must name every path once"),
    ],
)
def test_impossible_settings_are_named(settings, message, no_shape_checks):
  with pytest.raises(ConfigError, match=message):
    Text(**settings)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"path": "nowhere"}, "path='nowhere' must be a file, a folder"),
        ({"path": "stdlib,no@where"}, "path='no@where' must be a file"),
        ({"eval_path": "nowhere"}, "path='nowhere' must be a file"),
        ({"tokenizer": "nothing"}, "tokenizer='nothing' must be bytes"),
        (
            {"long_share": 0.5, "long_tokens": 2**20},
            "long_share=0.5 is per corpus: stdlib:train has no document longer"
            " than data.long_tokens=1048576 .*give another data.long_tokens: its"
            " documents have [0-9,]+ to [0-9,]+ tokens",
        ),
        (
            {"long_share": 0.5, "long_tokens": 2},
            "has no document of at most data.long_tokens=2",
        ),
    ],
)
def test_impossible_corpora_are_named(settings, message):
  with pytest.raises(ConfigError, match=message):
    Text(**settings).examples("train", 0)


def test_a_document_too_short_for_two_splits_is_named(tmp_path):
  (tmp_path / "short.txt").write_text("x")
  settings = Text(path=str(tmp_path / "short.txt"))
  for use in (
      settings.corpus,
      settings.baselines,
      lambda: settings.examples("eval", 0),
  ):
    with pytest.raises(ConfigError, match="short.txt must hold text for two"):
      use()
  (tmp_path / "short.txt").write_text("xy")
  (row,) = Text(path=str(tmp_path / "short.txt")).examples("eval", 0)
  assert row["targets"][:2].tolist() == [ord("y"), 256]
  assert row["loss_weights"].sum() == 2
