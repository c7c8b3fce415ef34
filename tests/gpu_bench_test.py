# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The `gpu` suite, rehearsed: its processes, its records and its report."""

import argparse
import functools
import json
import pathlib

import numpy as np
import pytest

from diff_jax import bench
from diff_jax.bench import (
    gpu,
    gpu_attention,
    gpu_cases,
    gpu_correctness,
    gpu_device,
    gpu_features,
    gpu_goals,
    gpu_models,
    gpu_peers,
    gpu_report,
    gpu_torch,
    gpu_worker,
)
from diff_jax.config import RunError

PTXAS = """
ptxas info    : (C7504) Potential Performance Loss: 'setmaxnreg' ignored
ptxas info    : Compiling entry function 'fwd_mosaic_gpu_kernel' for 'sm_90a'
ptxas         .     568 bytes stack frame, 2304 bytes spill stores
ptxas info    : Used 168 registers, used 16 barriers, 17 bytes smem


ptxas info    : Compiling entry function 'dq_mosaic_gpu_kernel' for 'sm_90a'
ptxas info    : Used 90 registers, used 1 barriers
"""


def double(x: int) -> int:
  """What a worker calls."""
  print(PTXAS)
  return 2 * x


@pytest.fixture
def worker(tmp_path):
  made = gpu_worker.Worker(tmp_path / "log", alone=False, rehearse=True)
  yield made
  made.close()


def test_a_worker_answers_and_reads_the_assembler(worker):
  for x in (2, 3):
    answer = worker.call("tests.gpu_bench_test:double", {"x": x}, 60.0)
    assert (answer["status"], answer["result"]) == ("done", 2 * x)
    message = "C7504: Potential Performance Loss: 'setmaxnreg' ignored"
    fields = ("name", "registers", "spill_stores_bytes", "messages")
    assert [tuple(x[y] for y in fields) for x in answer["ptxas"]] == [
        ("fwd", 168, 2304, [message]),
        ("dq", 90, None, []),
    ]
  answer = worker.call("json:loads", {"s": "{"}, 60.0)
  assert answer["status"] == "error"
  assert answer["error"].startswith("JSONDecodeError: Expecting property")
  assert not worker.is_alive


@pytest.mark.parametrize(
    ("function", "request_", "limit_s", "status"),
    [
        ("os:_exit", {"status": 3}, 60.0, "crash"),
        ("signal:pause", {}, 0.5, "timeout"),
    ],
)
def test_a_crash_or_a_hang_ends_the_worker_only(
    worker, function, request_, limit_s, status
):
  assert worker.call(function, request_, limit_s)["status"] == status
  assert not worker.is_alive


# Cases and records.


def test_cases_have_names_of_their_own_and_exist():
  cases = gpu_cases.all_cases()
  names = [case.name for case in cases]
  assert len(set(names)) == len(names)
  for case in cases:
    assert case.piece in gpu_cases.PIECES
    assert set(case.needs) <= set(names)
    assert not case.only_if or names.index(case.only_if) < names.index(
        case.name
    )
    module, name = case.function.split(":")
    modules = (gpu_correctness, gpu_attention, gpu_models)
    found = {m.__name__: m for m in modules}[module]
    assert callable(getattr(found, name))
    # A piece has at most 9 minutes.
    assert case.limit_s <= 60 * gpu.MINUTES


def record(name, rehearsal=False, **changes):
  machine = dict(
      device="a GPU", memory_gib=1.0, driver="1", commit="abc",
      sources_sha256="def", versions={"jax": "1"},
  )  # fmt: skip
  return dict(
      case=name, rehearsal=rehearsal, wall_s=1.0, status="done", ptxas=[],
      command="make gpu", machine=machine,
  ) | changes  # fmt: skip


def correct(name, passed=True):
  faults = [] if passed else ["dq: wrong"]
  result = dict(passed=passed, faults=faults, errors={"dq": [1e-3, 1e-3]})
  return record(f"correctness/{name}", result=result)


def test_records_survive_a_cut_and_the_later_one_counts(tmp_path):
  name = "correctness/(64,128) forward"
  gpu_cases.save(tmp_path, correct("(64,128) forward", passed=False))
  with (tmp_path / "correctness.jsonl").open("a") as file:
    file.write('{"case": "correctness/x", "sta')
  gpu_cases.save(tmp_path, correct("(64,128) forward"))
  records = gpu_cases.load(tmp_path, rehearse=False)
  assert list(records) == [name] and records[name]["result"]["passed"]
  assert gpu_cases.proven(records) == ["(64,128) forward"]
  assert gpu_cases.load(tmp_path, rehearse=True) == {}


def test_what_is_not_proven_is_not_timed():
  inputs = {"DIFF": [None]}
  size = "(64,128)"
  [ours] = [
      x
      for x in gpu_peers.candidates(size, rehearse=True)
      if (x.group, x.name) == ("DIFF", gpu_peers.OURS)
  ]
  found, reason = gpu_attention._prepare(inputs, ["x backward"], True, ours)
  assert found == {"results": []} and "forward has not passed" in reason
  assert gpu_models.implementations("830m", "DIFF", []) == ["two_call"]


def runner(tmp_path, results):
  """A runner whose worker answers from a table; what it ran, in order."""
  ran = []

  class Fake(gpu_worker.Worker):
    alone, is_alive = False, True

    def __init__(self):
      pass

    def call(self, function, request, limit_s):
      del function, limit_s
      ran.append(request)
      return results.pop(0)

    def close(self):
      pass

  made = object.__new__(gpu.Runner)
  made.out, made.rehearse, made.command = tmp_path, True, "x"
  made.records, made.end_s, made.machine = {}, np.inf, {}
  made._start = lambda index, alone: Fake()
  return made, ran


def test_a_search_ends_where_nothing_fits_and_timing_waits(tmp_path):
  def answer(fits):
    return {"status": "done", "result": {"fits": fits}, "ptxas": []}

  made, ran = runner(tmp_path, [answer(True), answer(False)])
  cases = [
      gpu_cases.Case(f"train/{i}", "", {"t": i}, 9.0, (), f"train/{i - 1}")
      for i in range(1, 5)
  ]
  made.records["train/0"] = record("train/0", True, result={"fits": True})
  assert made.run(cases) == []
  assert [x["t"] for x in ran] == [1, 2]
  waits = gpu_cases.Case("attention/x", "", {}, 9.0, ("correctness/y",))
  assert made.run([waits]) == [waits]
  made.end_s = 0.0
  late = gpu_cases.Case("decode/x", "", {}, 9.0)
  assert made.run([late]) == [late]


# Numbers.


def test_flops_are_those_of_the_issue():
  assert gpu_peers.flops_per_pair("(64,128)", "DIFF") == (12 * 64, 20 * 64)
  flops = functools.partial(gpu_peers.flops_per_pair, group="Transformer")
  assert flops("(64,128)") == (8 * 64, 20 * 64)  # Of two heads.
  assert flops("(128,128) shared keys") == (4 * 128, 10 * 128)  # Of one.
  assert gpu_peers.flops_per_pair("(64,128)", "wide") == (4 * 128, 10 * 128)
  for size in gpu_attention.PAIRS:
    assert gpu_torch.heads_of(size) == tuple(
        gpu_features.SIZES[size][i] for i in (0, 1, 3)
    )
  assert gpu_torch.MATMUL == gpu_device.MATMUL


def timed(times_s):
  sample = {
      label: {"times_s": [x] * 3, "calls": 1, "host_share": 0.1}
      for label, x in times_s.items()
  }
  flops = dict.fromkeys(sample, 1e12)
  return dict(samples=sample, flops=flops, left_out={}, errors={})


RESULT = timed(
    {
        gpu_device.MATMUL: 0.001,
        "DIFF/mosaic_gpu/forward": 0.002,
        "DIFF/mosaic_gpu/backward": 0.004,
        "DIFF/mosaic_gpu/both": 0.006,
        "DIFF/xla/both": 0.001,
        "DIFF/cuDNN, values split/both": 0.012,
        "Transformer/cuDNN/forward": 0.0025,
        "Transformer/cuDNN/both": 0.005,
        "wide/cuDNN/forward": 0.0015,
    }
)


def test_goals():
  goals = gpu_goals.attention_goals("(64,128) t=16384", RESULT)
  found = {x.name: (round(x.value.median, 3), x.is_met) for x in goals}
  assert found == {
      "must: both, time / best two calls": (0.5, True),
      "goal: both, time / best library's Transformer": (1.2, False),
      "stretch: both, time / best library's Transformer": (1.2, False),
      # Of 400 and 667 TFLOP/s: 500.
      "goal: forward, rate / harmonic mean of cuDNN at (h,h), (2h,2h)": (
          1.0,
          True,
      ),
      "stretch: forward, TFLOP/s": (500.0, False),
      "goal: backward, TFLOP/s": (250.0, False),
      "stretch: backward, TFLOP/s": (250.0, False),
  }


@pytest.mark.parametrize("rehearsal", [False, True])
def test_a_rehearsal_shows_no_time(rehearsal):
  name = "attention/(64,128) t=16384"
  records = {
      "correctness/a": correct("a"),
      name: record(name, rehearsal, result=RESULT),
  }
  text = gpu_report.report(records, rehearsal)
  assert ("500" in text) != rehearsal
  assert ("| rehearsal" in text) == rehearsal
  assert ("nothing was" in text) == rehearsal


# The command.


def test_a_rehearsal_from_end_to_end(tmp_path, capsys):
  flags = ["--rehearse", f"--out={tmp_path}", "--only=(64,64) one map forward"]
  assert gpu.main(flags) == 0
  [line] = filter(
      None, (tmp_path / "correctness.jsonl").read_text().splitlines()
  )
  found = json.loads(line)
  assert found["result"]["passed"] and found["rehearsal"]
  assert "(64,64) one map forward | yes" in (tmp_path / "report.md").read_text()
  capsys.readouterr()
  assert gpu.main([*flags, "--report"]) == 0
  assert "A rehearsal" in capsys.readouterr().out


def test_without_a_gpu_it_says_so(tmp_path, monkeypatch, capsys):
  assert gpu.main([f"--out={tmp_path}"]) == 1
  assert "needs an NVIDIA Hopper GPU" in capsys.readouterr().err
  assert gpu.main(["--piece=x", f"--out={tmp_path}"]) == 2
  assert "piece='x' must be one of" in capsys.readouterr().err
  monkeypatch.setenv("OUT", str(tmp_path))
  with pytest.raises(RunError, match="jax sees cpu"):
    gpu.run(bench.Options())


def test_the_default_folder(monkeypatch):
  monkeypatch.delenv("OUT", raising=False)
  arguments = argparse.Namespace(out=None, rehearse=False)
  assert gpu._folder(arguments) == pathlib.Path("runs/gpu")
