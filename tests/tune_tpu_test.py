# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The tuning command, as far as it goes without libtpu."""

import pytest

from diff_jax.bench import aot, static_child, tune_tpu


def test_candidates_are_what_the_kernels_take():
  tiles = list(tune_tpu.candidates((512, 1024, 2048), (256, 1024)))
  assert (512, 2048, 256) in tiles and (1024, 2048, 1024) in tiles
  assert (512, 2048, 1024) not in tiles  # A piece does not divide 512.
  assert (2048, 2048, 256) not in tiles  # Minutes of compilation.


def test_a_sequence_is_weighed_by_the_tiles_that_it_visits():
  cost = dict(cycles=3.0 * static_child.PAIRS, masked=5.0 * static_child.PAIRS)
  # Of 8 x 8 tiles, 8 lie on the diagonal and 28 below it.
  length, block = 8192, 1024
  cycles = (28 * 3 + 8 * 5) * block**2 + 36 * tune_tpu.STEP_CYCLES
  seen = length * (length + 1) // 2
  found = tune_tpu.cycles_a_pair(cost, (block, block, 512), length)
  assert found == pytest.approx(cycles / seen)
  # Tiles of 1024 x 512: two of a row's touch the diagonal.
  cycles = (2 * 28 * 3 + 16 * 5) * block * 512 + 72 * tune_tpu.STEP_CYCLES
  found = tune_tpu.cycles_a_pair(cost, (block, 512, 512), length)
  assert found == pytest.approx(cycles / seen)


@pytest.fixture
def compiled(monkeypatch):
  """A compiler: small pieces cost more, and some tiles do not fit."""

  def call(function, request, dump):
    assert function == "diff_jax.bench.static_child:measure_tile"
    assert request["h"] == 64 and dump.is_dir()
    q, kv, piece = request["tile"]
    if kv == 2048 or piece == 128:
      raise aot.ChildError("out of VMEM")
    cost = dict(cycles=1e6 / piece, masked=2e6 / piece, spills=0.0)
    return dict(forward=cost, backward=cost, device_kind="TPU v6 lite")

  monkeypatch.setattr(aot, "call", call)
  monkeypatch.setattr(aot, "why_not", lambda: None)
  monkeypatch.setattr(aot, "versions", lambda: {"jax": "1", "libtpu": "2"})


def test_the_table_is_best_first_and_says_what_to_write(compiled, capsys):
  words = "--topology v6e:2x2 --sizes (64,128) --blocks 512 2048 --pieces"
  assert tune_tpu.main([*words.split(), "256", "512"]) == 0
  text = capsys.readouterr().out
  assert "v6e:2x2 (jax 1, libtpu 2)" in text and "8,192 tokens" in text
  forward = [x for x in text.splitlines() if x.startswith("| forward")]
  tiles = [x.split("|")[3].strip() for x in forward]
  assert tiles == ["512x512,512", "2048x512,512", "512x512,256", "2048x512,256"]
  assert (
      "- backward: for block_sizes.CHIPS['TPU v6 lite'], BlockSizes(512, 512,"
      " 512, 512): at most 0.0% over the best of each head size."
  ) in text
  assert "- (64,128) 512x2048,256: out of VMEM" in text


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        ("--topology h100:8", 2, "topology='h100:8' must be a topology of"),
        ("--length 3000", 2, "length=3000 must be a positive multiple of"),
        ("--blocks 100", 2, "blocks=[100] must be multiples of 128"),
        ("--blocks 512 --pieces 128", 1, "(64,128) 512x512,128: out of VMEM"),
        ("--pieces 768", 2, "pieces=[768] must divide"),
    ],
)
def test_a_wrong_argument_is_one_line(words, status, message, compiled, capsys):
  words = ["--sizes", "(64,128)", *words.split()]
  assert tune_tpu.main(words) == status
  assert message in capsys.readouterr().err
