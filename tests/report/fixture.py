# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Writes synthetic run folders: the report's input without any training.

`python -m tests.report.fixture FOLDER` writes the demo's size: twelve curves
of 300 rows (four arms, three seeds) and one small language model.
"""

import json
import sys
from pathlib import Path

import numpy as np

REPORT = {
    "metric": "train/accuracy",
    "first_step": 101,
    "last_step": 120,
    "threshold": 0.9,
    "reference": "Transformer",
    "higher_is_better": True,
    "note": "",
}
# Steps at which half of the answers are right, by seed; the learning curve is
# a logistic function of the step.
HALF_WAY = {
    "Transformer": (117, 124, 133),
    "Transformer + norm": (78, 85, 88),
    "DIFF - norm": (111, 98, 113),
    "DIFF": (79, 66, 71),
}
BASELINES = {
    "chance_accuracy": 1 / 32,
    "chance_loss_nats": float(np.log(32)),
    "no_binding_accuracy": 0.08,
    "no_binding_loss_nats": 3.35,
}


def run_json(arm: str, seeds=(0, 1, 2), **changes) -> dict:
  """The contents of a recall run's run.json."""
  two_maps = not arm.startswith("Transformer")
  config = {
      "experiment": "recall",
      "seeds": list(seeds),
      "num_steps": 300,
      "model": {
          "attention": "diff" if two_maps else "softmax",
          "head_norm": not arm.endswith("- norm") and arm != "Transformer",
          "num_heads": 2 if two_maps else 4,
          "d_model": 64,
      },
      "optimizer": {"peak_learning_rate": 4e-3},
      "data": {"name": "recall", "context": 128},
      "report": dict(REPORT),
  }
  info = {
      "config": config,
      "arm": arm,
      "command": f"diff-jax train --config=configs/recall.py:{arm}",
      "commit": "0123456789abcdef",
      "versions": {"jax": "0.12.0", "flax": "0.12.12"},
      "device": "cpu x1",
      "parameters": 121_000 + 200 * two_maps,
      "flops_per_token": 7.4e5 + 2e4 * two_maps,
      "attention_flops_share": 0.21,
      "step_memory_bytes": 410_000_000,
      "baselines": BASELINES,
      "corpus": None,
      "finished_seeds": list(seeds),
  }
  return info | changes


def recall_rows(arm: str, seed: int, steps: int = 300, half_way=None):
  """Rows of a made-up recall run, one a step, evaluated every 50 steps."""
  rng = np.random.default_rng([seed, len(arm)])
  two_maps = not arm.startswith("Transformer")
  half = half_way or HALF_WAY[arm][seed % 3]
  for step in range(1, steps + 1):
    learnt = 1 / (1 + np.exp(-(step - half) / 7))
    accuracy = np.clip(0.03 + 0.97 * learnt + rng.normal(0, 0.008), 0, 1)
    yield {
        "seed": seed,
        "step": step,
        "train/loss": float(3.4 * (1 - learnt) + 0.01 + rng.exponential(0.01)),
        "train/accuracy": float(accuracy),
        "perf/step_time_s": float(
            0.07 + 0.02 * two_maps + rng.exponential(0.004)
        ),
        "perf/tokens_per_s": 5120 / 0.08,
    } | ({"mechanism/lambda": [0.2 + 0.3 * float(learnt)]} if two_maps else {})
    if step % 50 == 0 or step == 1:
      yield {"seed": seed, "step": step} | _attention(learnt, two_maps)
  yield {"seed": seed, "step": steps} | {
      "recall/accuracy_1x": float(accuracy),
      "recall/accuracy_2x": float(accuracy * (1 - 0.01 * rng.random())),
      "recall/accuracy_4x": float(accuracy * (1 - 0.05 * rng.random())),
      "recall/num_answers": 2048,
  }
  yield {"seed": seed, "step": steps} | _row(rng, two_maps)


def _attention(learnt, two_maps):
  answer = (0.55 if two_maps else 0.4) * float(learnt) + 0.006
  return {
      "attention/share_answer": answer,
      "attention/share_first": 0.006,
      "attention/share_query": 0.012,
      "attention/share_rest": 0.982 - answer,
      "attention/share_answer_signed": answer,
      "attention/share_negative": 0.2 * two_maps,
      "attention/entropy_absolute": 4.9 - 3 * float(learnt),
      "attention/entropy_map_0": 4.9 - 2 * float(learnt),
  } | ({"attention/correlation_of_maps": 0.4} if two_maps else {})


def _row(rng, two_maps, answer=37, query=140, length=160):
  noise = rng.dirichlet(np.full(query + 1, 0.4), size=3)
  maps = 0.5 * noise[0] + 0.3 * noise[1:]
  maps[0, answer] += 0.2
  maps[1, query] += 0.2
  maps = np.pad(maps, ((0, 0), (0, length - query - 1)))
  row = {
      "attention/row_map_0": maps[0].tolist(),
      "attention/row_weights": [1.0],
      "attention/row_answer": answer,
      "attention/row_query": query,
  }
  if two_maps:
    row |= {
        "attention/row_map_1": maps[1].tolist(),
        "attention/row_weights": [1.0, -0.5],
    }
  return row


def text_json() -> dict:
  """The contents of a small language model's run.json."""
  info = run_json("DIFF", (0,))
  info["config"]["experiment"] = "tiny_lm"
  info["config"]["data"] = {"name": "text", "path": "stdlib"}
  info["config"]["report"] = {
      "metric": "loss/bits_per_byte",
      "note": "Too small to compare: it shows that the trainer trains.",
  }
  info["command"] = "diff-jax train --config=configs/tiny_lm.py"
  info["baselines"] = {
      "unigram_loss_nats": 3.2,
      "bigram_loss_nats": 2.45,
      "xz_bits_per_byte": 1.9,
  }
  return info


def text_rows(steps: int = 300):
  """Rows of a made-up language model with four layers."""
  rng = np.random.default_rng(0)
  for step in range(10, steps + 1, 10):
    loss = 2.0 + 3.5 * float(np.exp(-step / 60)) + rng.normal(0, 0.03)
    yield {
        "seed": 0,
        "step": step,
        "train/loss": loss,
        "perf/step_time_s": 0.31 + rng.exponential(0.01),
        "mechanism/lambda": [0.2, 0.36, 0.47, 0.55 + step * 1e-4],
    }
    if step % 50 == 0:
      bits = (loss + 0.05) / float(np.log(2))
      yield {
          "seed": 0,
          "step": step,
          "loss/bits_per_byte": bits,
          "attention/share_first": 0.3,
          "attention/share_query": 0.1,
          "attention/share_rest": 0.6,
      }
  row = _row(rng, two_maps=True)
  del row["attention/row_answer"]  # Text has no answers.
  yield {"seed": 0, "step": steps} | row
  sample = "def __init__(self, name=None):\n    if x < 0 & y > 1:\n        re"
  yield {"seed": 0, "step": steps, "sample/text": sample}


def write_run(folder: Path, info: dict, rows) -> Path:
  """Writes one run folder and returns it."""
  folder.mkdir(parents=True)
  (folder / "run.json").write_text(json.dumps(info))
  lines = "".join(json.dumps(row) + "\n" for row in rows)
  (folder / "metrics.jsonl").write_text(lines)
  return folder


def write_recall(folder: Path, arm: str, seeds=(0, 1, 2), **keywords) -> Path:
  """Writes the run folder of one arm, all seeds in it."""
  rows = [row for s in seeds for row in recall_rows(arm, s, **keywords)]
  return write_run(folder, run_json(arm, seeds), rows)


def main(argv):
  root = Path(argv[1])
  for arm in HALF_WAY:
    print(write_recall(root / arm.replace(" ", ""), arm))
  print(write_run(root / "tiny_lm", text_json(), text_rows()))


if __name__ == "__main__":
  main(sys.argv)
