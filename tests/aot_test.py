# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Ahead-of-time compilation, as far as it goes without libtpu."""

import importlib.util
import json
import subprocess
import sys
import types

import pytest

from diff_jax.bench import (
    aot,
    bundles,
    check_tpu,
    check_tpu_child,
    static,
    static_child,
)
from diff_jax.config import ConfigError, RunError

# As libtpu writes it, with the numbers made up: a grid loop with a tile that
# is computed with a mask (5 bundles) or without (4), and a last part.
DUMP = """\
= control target key start
LB: loop body
PF: predicated region fallthrough
= control target key end

     0   :  { %s9_s24 = sld [smem:[#allocation0]] } /* entry bundle: %my_fwd.1 = custom-call(%a, %b) */
   0x1   :  { %19 = shalt.err (!%p2) /* BoundsCheck 0 [deref of opnd#0]
hlo: my_fwd.1, not a vmatmul.bf16.gmra.mxu0
 */ }
   0x2 LB: > { %s11 = sadd.s32 1, %s10  ;;  %s10 = sphi %s11193, %s46 }
   0x3   : > { %887 = sbr.rel (%p9171) target = $region64 }
   0x4   : > { %v1 = vld [vmem:[%s1] sm:$0xff]  ;;  %2 = vmatmul.bf16.vlgmr.msra.gmra.mxu0 %v1 }
   0x5   : > { %2 = vmatmul.mubr.msk.bf16.gmra.mrb[4].mxu1 %v1  ;;  %4 = vmatmul.f32.gmra.mxu0 %v2 }
   0x6   : > { %3 = vpow2.f32 %v1  ;;  %vm0 = vcmp.ge.s32.totalorder %v1, %v2 }
   0x7   : > { %3 = vexp2.f32 %v1 }
   0x8   : > { %5 = vst [vmem:[#allocation30_spill] sm:$0xff] %v1  ;;  %v2 = vld [vmem:[#allocation30_spill] sm:$0xff] }
   0x9 PF: > { %888 = sbr.rel (%p9172) target = $region66 }
   0xa   : > { %2 = vmatmul.bf16.gmra.mxu0 %v1  ;;  %4 = vmatmul.bf16.gmra.mxu1 %v1 }
   0xb   : > { %4 = vmatmul.f32.gmra.mxu0 %v1 }
   0xc   : > { %3 = vpow2.f32 %v1 }
   0xd   : > { %3 = vpow2.f32 %v1 }
   0xe PF: > { %45 = sbr.rel (!%p1) target = $region152 }
   0xf   :  { %6 = vst [vmem:[#allocation4] sm:$0xff] %v1 } /* exit bundle: %my_fwd.1 = custom-call(%a) */
"""  # noqa: E501

HLO = """\
%body.1 (p: (s32[], f32[2])) -> (s32[], f32[2]) {
  %my_fwd.2 = bf16[2] custom-call(%p), custom_call_target="tpu_custom_call", frontend_attributes={kernel_metadata={
"block":"{512}"
}}, metadata={op_name="a"}
  ROOT %my_fwd.3 = bf16[2] custom-call(%p), custom_call_target="tpu_custom_call"
}

ENTRY %main (x: f32[2]) -> f32[2] {
  %other.1 = f32[2] custom-call(%x), custom_call_target="Sharding"
  %w = (s32[], f32[2]) while(%t), condition=%cond, body=%body.1
  %my_bwd.1 = bf16[2] custom-call(%w), custom_call_target="tpu_custom_call"
}
"""  # noqa: E501


@pytest.fixture
def no_libtpu(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def test_a_program_is_cut_where_control_may_enter_or_leave():
  head, loop, masked, plain_branch, plain, *_ = bundles.regions(DUMP)
  assert (head.start, head.bundles, head.depth, head.computes) == (
      0, 2, 0, False,
  )  # fmt: skip
  assert (loop.start, loop.bundles, loop.depth) == (2, 2, 1)
  assert masked == bundles.Region(
      4, 5, depth=1, rows=24, exps=2, compares=1, spills=1
  )
  assert plain_branch.bundles == 1
  assert plain == bundles.Region(10, 4, depth=1, rows=24, exps=2)
  assert sum(x.bundles for x in bundles.regions(DUMP)) == 16


def test_a_region_takes_its_bundles_or_its_rows():
  region = bundles.Region(0, bundles=100, rows=192)
  assert [region.cycles(x) for x in (1, 2)] == [192, 100]


def test_a_tile_with_and_without_the_mask():
  program = bundles.regions(DUMP)
  plain, masked = bundles.ways(program)
  assert ([x.start for x in plain], [x.start for x in masked]) == ([10], [4])
  always = bundles.regions(
      DUMP.replace("0xd   : > { %3", "0xd : > { vcmp.lt.s32")
  )
  assert [[x.start for x in way] for way in bundles.ways(always)] == [
      [4, 10]
  ] * 2
  with pytest.raises(bundles.ParseError, match="16 rows without.* 24 with"):
    bundles.ways(
        bundles.regions(DUMP.replace("%2 = vmatmul.bf16.gmra", "%2 ="))
    )


def test_only_kernels_are_read(tmp_path):
  for name, text in (
      ("1-my_fwd.1-72-final_bundles.txt", DUMP),
      ("1-my_fwd.1-71-schedule-analysis_final_bundles.txt", "Schedule"),
      ("2-fusion.3-72-final_bundles.txt", DUMP.replace("custom-call", "f")),
  ):
    (tmp_path / name).write_text(text)
  assert bundles.kernels(tmp_path) == {"my_fwd.1": bundles.regions(DUMP)}


@pytest.mark.parametrize(
    ("dump", "message"),
    [
        ("Schedule analysis:", "no bundles"),
        (DUMP.replace("f32.g", "q7.g"), "q7"),
    ],
)
def test_a_dump_that_is_not_understood_is_refused(dump, message):
  with pytest.raises(bundles.ParseError, match=message):
    bundles.regions(dump)


def test_kernels_are_counted_where_they_are_called():
  assert check_tpu_child.kernels_by_computation(HLO) == {
      "body.1": ["my_fwd", "my_fwd"],
      "main": ["my_bwd"],
  }


def test_floors_are_those_of_the_notes():
  """kernels.md 8.1: rows of the busiest MXU, 512 x 512 pairs, (128, 256)."""
  fused, softmax, two = (
      static_child.Call(static_child.ROWS[name], 128, ((512,) * 3,) * 2)
      for name in ("fused diff", "splash softmax", "splash two calls")
  )
  v5p, v6e = static_child.CHIPS["v5p"], static_child.CHIPS["v6e"]
  pairs = static_child.PAIRS
  assert fused.floor_rows(v5p, pairs) == dict(forward=3072, backward=5120)
  assert softmax.floor_rows(v5p, pairs) == dict(forward=1024, backward=2560)
  assert two.floor_rows(v5p, pairs)["forward"] == 3072
  assert fused.floor_rows(v6e, pairs)["forward"] == 2048


def test_ratios_name_their_targets():
  def result(forward, backward):
    return dict(forward=dict(cycles=forward), backward=dict(cycles=backward))

  results = {
      "fused diff": result(3000.0, 5000.0),
      "splash softmax": result(2000.0, 5000.0),
  }
  assert static._ratios("v5p", "(128,256)", results) == [
      "fused diff / splash softmax, forward+backward: 1.143,"
      " target <= 1.15: met"
  ]
  assert static._ratios("v5e", "(128,256)", results)[0].endswith(": 1.143")


def test_a_row_that_fails_is_a_note_of_the_table(monkeypatch):
  half = dict(tile=[512, 1024, 256], cycles=2000.0, masked=2100.0, floor=1e3)
  result = dict(forward=half, backward=half, failed=["tile (1, 1, 1): no"])
  result |= dict(forward_mb=1.0, both_mb=2.0, temp_mb=3.0)

  def call(function, request, dump):
    assert (request["topology"], request["h"]) == ("v6e:2x2", 64)
    assert dump.is_dir()
    if request["name"] == "splash two calls":
      raise aot.ChildError("out of VMEM")
    return result

  monkeypatch.setattr(aot, "call", call)
  monkeypatch.setattr(aot, "why_not", lambda: None)
  monkeypatch.setattr(aot, "versions", lambda: {"jax": "1", "libtpu": "2"})
  monkeypatch.setattr(
      static_child, "rows", lambda: ["splash softmax", "splash two calls"]
  )
  text = str(static.run("v6e:2x2", "(64,128)"))
  assert "v6e:2x2 (jax 1, libtpu 2)" in text
  assert "| splash softmax | 512x1024,256 " in text
  assert "- splash two calls: out of VMEM" in text
  assert "- splash softmax: tile (1, 1, 1): no" in text


def test_without_libtpu_nothing_compiles(no_libtpu, capsys):
  with pytest.raises(RunError, match=r"libtpu is not installed.*\[aot\]"):
    static.run("v5p:2x2x1", "(64,128)")
  with pytest.raises(ConfigError, match="static='h100:8' must be a topology"):
    static.run("h100:8", "(64,128)")
  assert check_tpu.main([]) == 0
  assert capsys.readouterr().out.startswith("skipped: libtpu is not installed")


def test_a_child_gets_its_environment_and_its_failure_is_one_line(
    monkeypatch, tmp_path
):
  ran = []

  def run(command, *, env, **keywords):
    ran.append((command, env, json.loads(keywords["input"])))
    return types.SimpleNamespace(
        returncode=len(ran) - 1, stdout='noise\n{"x": 1}\n', stderr="a\nb\n"
    )

  monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
  monkeypatch.setattr(subprocess, "run", run)
  assert aot.call("m:f", {"a": 2}, dump=tmp_path) == {"x": 1}
  command, env, request = ran[0]
  assert command == [sys.executable, "-m", "diff_jax.bench.aot", "m:f"]
  assert request == {"a": 2}
  assert env["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"
  assert env["LIBTPU_INIT_ARGS"].startswith(f"--xla_jf_dump_to={tmp_path} ")
  with pytest.raises(aot.ChildError, match="^b$"):
    aot.call("m:f", {})
  assert "LIBTPU_INIT_ARGS" not in ran[1][1]
