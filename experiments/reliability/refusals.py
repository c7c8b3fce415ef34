# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Another config, another corpus, a second process, numbers that are none."""

import json
import pathlib
import re

from child import (
  ROOT,
  Child,
  Row,
  finish,
  last_line,
  last_step,
  losses,
  said,
  sessions,
)  # fmt: skip


def changed_config(out: pathlib.Path) -> list[Row]:
  workdir, change = out / "config", "--config.model.norm_eps=0.5"
  finish(workdir, "--config.stop_after_steps=20")
  status, words = finish(workdir, change)
  refused = status == 2 and said(words, "model.norm_eps=0.5 (was 1e-05)")
  rows = [
      Row(
          "changed config",
          change,
          f"exit {status}: {last_line(words)}",
          refused and len(words.splitlines()) == 1,
      )
  ]
  status, words = finish(workdir, change, "--accept-config-change")
  first = sessions(workdir)[-1]["first_step"]
  passed = status == 0 and first == 20 and said(words, "Accepted")
  happened = f"exit {status}, went on after step {first}"
  return [*rows, Row("changed config", "--accept-...", happened, passed)]


def changed_corpus(out: pathlib.Path) -> list[Row]:
  workdir, corpus = out / "corpus", out / "corpus.txt"
  out.mkdir(parents=True, exist_ok=True)
  lines = [f"line {i}: {i * i} is the square of {i}." for i in range(3000)]
  corpus.write_text("\n".join(lines))
  config = ROOT / "configs" / "tiny_lm.py:smoke"
  arguments = (f"--config.data.path={corpus}",)
  finish(workdir, *arguments, "--config.stop_after_steps=2", config=config)
  corpus.write_text("\n".join(lines).replace("square", "sphere"))
  status, words = finish(workdir, *arguments, config=config)
  rows = [
      Row(
          "changed corpus",
          "one word of a text file, as long as before",
          f"exit {status}: {last_line(words)}",
          status == 2 and said(words, "sha256=", "--accept-data-change"),
      )
  ]
  status, words = finish(
      workdir, *arguments, "--accept-data-change", config=config
  )
  first = sessions(workdir)[-1]["first_step"]
  passed = status == 0 and first == 2 and said(words, "Accepted")
  happened = f"exit {status}, went on after step {first}"
  return [*rows, Row("changed corpus", "--accept-...", happened, passed)]


def two_runs(out: pathlib.Path) -> list[Row]:
  workdir = out / "two"
  first = Child(workdir, "--config.num_steps=400")
  first.wait_for_step(2)
  second, words = finish(
      workdir, "--config.num_steps=400", log=out / "second.log"
  )
  status, _ = first.finish()
  complete = sorted(losses(workdir)) == list(range(1, 401))
  passed = second == 2 and said(words, "is being trained by process")
  happened = f"exit {second}: {last_line(words)} The first: exit {status}"
  return [
      Row(
          "two runs on one workdir",
          "the second begins while the first trains",
          happened,
          passed and status == 0 and complete,
      )
  ]


def non_finite(out: pathlib.Path) -> list[Row]:
  """With 8 examples a step: examples 40 to 55 are those of steps 6 and 7."""
  status, words = finish(out / "nan", inject="nan=40-55")
  rows = (out / "nan" / "metrics.jsonl").read_text().splitlines()
  skipped = json.loads(rows[-1])["train/skipped"]
  later = [x for step, x in losses(out / "nan").items() if step > 7]
  passed = status == 0 and skipped == 2 and all(x == x for x in later)
  happened = f"exit {status}, {skipped:g} updates skipped, then finite losses"
  done = "loss weights of steps 6 and 7 are NaN"
  table = [Row("NaN loss", done, happened, passed and len(later) == 53)]

  status, words = finish(out / "nan_on", inject="nan=40-9999")
  reached = last_step(out / "nan_on")
  ids = [list(range(8 * step, 8 * step + 8)) for step in range(5, 9)]
  named = said(words, *(str(x) for x in ids), "max_skipped_steps=4")
  done = "of step 6 and all later ones; max_skipped_steps=4"
  happened = f"exit {status} after step {reached + 1}: {last_line(words)}"
  table.append(Row("NaN loss", done, happened, status == 1 and named))

  rate = "--config.optimizer.peak_learning_rate=1e30"
  status, words = finish(out / "rate", rate, "--config.model.head_norm=False")
  passed = status == 1 and said(words, "max_skipped_steps=4", "example_id")
  happened = f"exit {status}: {_shorter(last_line(words))}"
  return [*table, Row("learning rate of 1e30", rate, happened, passed)]


def spikes(out: pathlib.Path) -> list[Row]:
  """Example 1120 to 1127 are those of step 141; the history is 128 steps."""
  arguments = ("--config.num_steps=150", "--config.skip_spikes=True")
  status, words = finish(out / "spike", *arguments, inject="spike=1120-1127")
  found = re.findall(r"step (\d+): update skipped", words)
  happened = f"exit {status}, updates skipped at steps {', '.join(found)}"
  done = "gradient a thousand times larger at step 141; skip_spikes"
  passed = status == 0 and found == ["141"]
  return [Row("spike", done, happened, passed)]


def _shorter(text: str) -> str:
  return text if len(text) < 300 else text[:150] + " ... " + text[-140:]
