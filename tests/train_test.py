# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The trainer: the same losses on any mesh, and after being killed."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from diff_jax import config as config_lib
from diff_jax import losses, optimizer, run, sharding, train, transformer
from diff_jax.flags import load_config_file
from diff_jax.metrics import read_metrics
from diff_jax.step import init_state, make_step

ROOT = pathlib.Path(__file__).parents[1]


def recall_config(**changes):
  module, _ = load_config_file(f"{ROOT}/configs/recall.py")
  config = module.get_config("smoke")
  config.seeds = (0,)
  config.evaluators = {}
  config.model.num_layers = 2
  config.model.vocab_size = 546  # even, for two devices on the tensor axis
  config.update_from_flattened_dict(changes)
  return config


def losses_of(workdir, seed=0):
  rows = read_metrics(pathlib.Path(workdir) / "metrics.jsonl")
  return {
      row["step"]: row["train/loss"]
      for row in rows
      if row["seed"] == seed and "train/loss" in row
  }


@pytest.mark.parametrize("attention", ["diff", "softmax"])
def test_losses_are_the_same_on_every_mesh(tmp_path, attention):
  meshes = {
      "one": ({}, jax.devices()[:1]),
      "fsdp": ({"mesh.fsdp": 8}, None),
      "fsdp_tensor": ({"mesh.fsdp": 4, "mesh.tensor": 2}, None),
  }
  found = {}
  for name, (mesh, devices) in meshes.items():
    config = recall_config(**{"model.attention": attention} | mesh)
    train.train(config, tmp_path / name, devices)
    found[name] = losses_of(tmp_path / name)
  assert sorted(found["one"]) == [1, 2, 3, 4, 5, 6]
  for name in ("fsdp", "fsdp_tensor"):
    np.testing.assert_allclose(
        list(found[name].values()),
        list(found["one"].values()),
        # fp32 sums over at most 512 terms in another order, for six updates.
        rtol=6 * 512**0.5 * np.finfo(np.float32).eps,
    )


def test_killed_run_resumes_bitwise(tmp_path):
  command = [
      sys.executable,
      "-m",
      "diff_jax.cli",
      "train",
      f"--config={ROOT}/configs/recall.py:smoke",
      "--config.num_steps=60",
      "--config.checkpoint_every_steps=5",
      "--config.seeds=(0,1)",
  ]
  environment = os.environ | {
      "JAX_PLATFORMS": "cpu",
      "JAX_NUM_CPU_DEVICES": "1",
  }

  def finish(folder):
    return subprocess.run(
        [*command, f"--workdir={tmp_path / folder}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    ).stderr

  finish("whole")
  with subprocess.Popen(
      [*command, f"--workdir={tmp_path / 'killed'}"],
      env=environment,
      stderr=subprocess.DEVNULL,
  ) as killed:
    saved = tmp_path / "killed" / "checkpoints" / "seed_0"
    deadline = time.monotonic() + 300
    while not (
        saved.is_dir() and any(p.name.isdigit() for p in saved.iterdir())
    ):
      assert time.monotonic() < deadline and killed.poll() is None
      time.sleep(0.01)
    killed.send_signal(signal.SIGKILL)
  assert run.read_description(tmp_path / "killed")["finished_seeds"] == []

  assert "seed 0 continues after step" in finish("killed")
  for seed in (0, 1):
    whole = losses_of(tmp_path / "whole", seed)
    assert sorted(whole) == list(range(1, 61))
    assert losses_of(tmp_path / "killed", seed) == whole
  assert "nothing to do" in finish("killed")


def test_accumulation_weighs_microbatches_by_their_targets(tmp_path):
  """With unequal numbers of targets, a mean of means would differ."""
  settings = config_lib.parse(recall_config(**{"data.batch_size": 4}))
  tokens = np.random.default_rng(0).integers(0, 64, (4, 20, 2), dtype=np.int32)
  weights = np.zeros((4, 20), np.float32)
  weights[0, :3], weights[1, :1], weights[3, :16] = 1, 1, 1
  batch = {
      "tokens": tokens,
      "targets": tokens[..., 0] % 32,
      "loss_weights": weights,
  }
  optim = optimizer.make_optimizer(settings.optimizer, 10)
  mesh = sharding.make_mesh(settings.mesh, jax.devices()[:1])
  results = []
  with jax.set_mesh(mesh):
    for microbatches in (1, 2):
      changed = config_lib.parse(
          recall_config(
              accumulation_steps=microbatches, **{"data.batch_size": 4}
          )
      )
      state = jax.jit(lambda: init_state(settings, optim, 0))()
      placed = sharding.put_batch(batch, mesh, microbatches)
      state, metrics = make_step(changed, optim)(state, placed)
      # Adam's moments hold the gradient and its square; its first update would
      # only hold the sign.
      found = metrics["train/loss"], metrics["train/grad_norm"], state.opt_state
      results.append(found)
  for one, two in zip(*results, strict=True):
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
        jax.device_get(one),
        jax.device_get(two),
    )


def test_chunked_loss_equals_optax_and_never_holds_all_logits():
  keys = jax.random.split(jax.random.key(0), 3)
  hidden = jax.random.normal(keys[0], (2, 24, 8))
  head = jax.random.normal(keys[1], (50, 8))
  targets = jax.random.randint(keys[2], (2, 24), 0, 50)
  weights = (jnp.arange(48).reshape(2, 24) % 3).astype(jnp.float32)

  def whole(hidden, head):
    logits = jnp.einsum("btd,vd->btv", hidden, head)
    nats = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return (nats * weights).sum()

  def chunked(hidden, head, chunk):
    return losses.loss_totals(hidden, head, targets, weights, chunk=chunk)

  expected = jax.jit(jax.value_and_grad(whole, argnums=(0, 1)))(hidden, head)
  for chunk in (24, 9, 5):  # 9 and 5 are rounded down to divisors of 24
    found = jax.jit(
        jax.value_and_grad(
            lambda *x, chunk=chunk: chunked(*x, chunk).nats, argnums=(0, 1)
        )
    )
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
        found(hidden, head),
        expected,
    )
    whole_logits = (
        "f32[2,24,50]" in found.lower(hidden, head).compile().as_text()
    )
    assert whole_logits == (chunk == 24)
  totals = chunked(hidden, head, 24)
  logits = jnp.einsum("btd,vd->btv", hidden, head)
  right = (logits.argmax(-1) == targets) * weights
  np.testing.assert_allclose(totals.correct, right.sum(), rtol=1e-6)
  lse = jax.nn.logsumexp(logits, axis=-1)
  np.testing.assert_allclose(totals.z, (lse**2 * weights).sum(), rtol=1e-5)
  assert totals.targets == weights.sum()


@pytest.mark.parametrize("schedule", ["linear", "cosine", "constant"])
def test_schedule_has_the_named_rates(schedule):
  config = config_lib.OptimizerConfig(
      peak_learning_rate=1.0,
      warmup_steps=10,
      schedule=schedule,
      end_learning_rate_ratio=0.25,
  )
  rate = optimizer.make_schedule(config, 100)
  assert 0 < rate(0) < 0.1
  np.testing.assert_allclose(rate(10), 1.0, rtol=1e-6)
  middle = {"linear": 0.625, "cosine": 0.625, "constant": 1.0}[schedule]
  end = 1.0 if schedule == "constant" else 0.25
  np.testing.assert_allclose(rate(55), middle, rtol=1e-5)
  np.testing.assert_allclose(rate(100), end, rtol=1e-5)


def test_weight_decay_takes_matrices_and_embedding_only():
  model = transformer.abstract(
      config_lib.ModelConfig(d_model=16, num_layers=2, attention_bias=True)
  )
  decayed = {
      jax.tree_util.keystr(path).removesuffix(".value").split(".")[-1]: flag
      for path, flag in jax.tree_util.tree_leaves_with_path(
          optimizer.decays(model)
      )
  }
  assert {name for name, flag in decayed.items() if flag} == {
      "embedding", "w_q", "w_k", "w_v", "w_o", "w_gate", "w_up", "w_down",
      "w_head",
  }  # fmt: skip
  assert {"lambda_q1", "head_norm_weight", "b_q", "final_norm"} <= {
      name for name, flag in decayed.items() if not flag
  }


def test_seeds_and_init_key_choose_the_draws(tmp_path):
  changes = {"num_steps": 1, "seeds": (0, 1)}
  train.train(recall_config(**changes), tmp_path / "0")
  train.train(recall_config(**changes, init_key=1), tmp_path / "1")
  found = [
      losses_of(tmp_path / key, seed)[1] for key in "01" for seed in (0, 1)
  ]
  assert len(set(found)) == 4
  described = run.read_description(tmp_path / "0")
  assert described["arm"] == "DIFF" and described["finished_seeds"] == [0, 1]
  assert described["parameters"] > 0 and described["flops_per_token"] > 0


def test_a_finished_run_continues_to_a_later_last_step(tmp_path):
  train.train(recall_config(stop_after_steps=2), tmp_path / "run")
  assert sorted(losses_of(tmp_path / "run")) == [1, 2]
  train.train(recall_config(stop_after_steps=4), tmp_path / "run")
  train.train(recall_config(stop_after_steps=4), tmp_path / "whole")
  assert losses_of(tmp_path / "run") == losses_of(tmp_path / "whole")
  assert sorted(losses_of(tmp_path / "run")) == [1, 2, 3, 4]


def test_a_run_is_not_continued_with_other_settings(tmp_path):
  train.train(recall_config(num_steps=1), tmp_path)
  changed = recall_config(num_steps=1, **{"model.norm_eps": 0.5})
  with pytest.raises(config_lib.ConfigError) as error:
    train.train(changed, tmp_path)
  assert "model.norm_eps=0.5 (was 1e-05)" in str(error.value)
  described = run.read_description(tmp_path)
  assert described["config"]["model"]["norm_eps"] == 1e-5
