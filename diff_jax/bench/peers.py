# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Our train steps beside Hugging Face's Llama and DiffLlama in PyTorch.

The same sizes, weights, batch and optimizer on both sides, so that loss and
gradient norm must agree. PyTorch lives in an environment of its own (`make
bench-peers`) and in a child process that does one step when told to; steps of
both sides alternate in one run, each with all cores. Either side runs the way
that is the fastest for it here.
"""

import contextlib
import functools
import itertools
import json
import os
import pathlib
import subprocess
import tempfile

import numpy as np

from diff_jax import transformer
from diff_jax.bench import Options
from diff_jax.bench import train as train_suite
from diff_jax.bench.table import (
    Disagreement,
    Table,
    Target,
    check_agreement,
)
from diff_jax.bench.timing import fastest, interleave, num_cores, number, ratio
from diff_jax.config import Config, ConfigError

PEERS = {"Transformer": "Llama", "DIFF": "DiffLlama"}
ATTENTIONS = ("eager", "sdpa")
DTYPES = ("float32", "bfloat16 autocast", "bfloat16 weights")
# Ways whose second step takes so many times the fastest one's are dropped.
CLEARLY_SLOWER = 2.0
PAUSE_S = 0.3  # threads of OpenMP and XLA wait actively after their work


class Child:
  """The process that runs peers_torch.py."""

  def __init__(self, python: str):
    script = pathlib.Path(__file__).with_name("peers_torch.py")
    if not os.path.isfile(python):
      raise ConfigError(
          f"peers-python={python!r} must be a Python with torch and"
          " transformers: `make bench-peers` makes it."
      )
    self.process = subprocess.Popen(
        [python, str(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )

  def ask(self, do: str, **request):
    """Sends a request and waits for its answer."""
    line = ""
    with contextlib.suppress(BrokenPipeError):
      self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
      self.process.stdin.flush()
      line = self.process.stdout.readline()
    if not line:
      raise ConfigError(
          f"the PyTorch process stopped at {do!r} with exit status"
          f" {self.process.wait()}; its error is above."
      )
    return json.loads(line)

  def __enter__(self):
    return self

  def __exit__(self, *_):
    with contextlib.suppress(BrokenPipeError):
      self.process.stdin.close()
    self.process.stdout.close()
    self.process.wait()


def our_settings(settings: Config) -> Config:
  """The same model as Hugging Face's: its rotary pairs, no head norm weight."""
  return train_suite.with_model(settings, rope="half", head_norm_weight=False)


def hugging_face_weights(
    model: transformer.Transformer,
) -> dict[str, np.ndarray]:
  """Our weights under Hugging Face's names, as [out, in].

  DiffLlama's heads i and n + i are the two maps of our head i, and its value
  heads i and n + i the two halves of our value.
  """
  d = model.config.d_model
  attention, mlp = model.blocks.attention, model.blocks.mlp
  n, widths = attention.num_heads, attention.value_widths
  names = {
      "model.embed_tokens.weight": model.embedding,
      "lm_head.weight": model.w_head,
      "model.norm.weight": model.final_norm,
  }
  weights = {name: np.asarray(x[...]) for name, x in names.items()}
  norms = {
      "input_layernorm": model.blocks.attention_norm,
      "post_attention_layernorm": model.blocks.mlp_norm,
  }
  for layer in range(model.config.num_layers):

    def put(name, x, layer=layer):
      weights[f"model.layers.{layer}.{name}"] = np.ascontiguousarray(x)

    for name, norm in norms.items():
      put(f"{name}.weight", norm[...][layer])
    for name in ("gate", "up", "down"):
      put(f"mlp.{name}_proj.weight", getattr(mlp, f"w_{name}")[...][layer].T)
    for name in ("q", "k", "v"):
      x = np.asarray(getattr(attention, f"w_{name}")[...][layer])
      if name == "v":
        x = x.reshape(d, n, widths, -1)
      x = x.transpose(2, 1, 3, 0).reshape(-1, d)
      put(f"self_attn.{name}_proj.weight", x)
    put("self_attn.o_proj.weight", attention.w_o[...][layer].reshape(-1, d).T)
    if attention.num_maps == 2:
      for name in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
        put(f"self_attn.{name}", getattr(attention, name)[...][layer])
  return weights


def hugging_face_config(settings: Config, seq_len: int) -> dict[str, object]:
  model = settings.model
  heads = model.num_heads * (2 if model.attention == "diff" else 1)
  return {
      "vocab_size": model.vocab_size,
      "hidden_size": model.d_model,
      "intermediate_size": model.mlp_width,
      "num_hidden_layers": model.num_layers,
      "num_attention_heads": heads,
      "num_key_value_heads": heads,
      "max_position_embeddings": seq_len,
      "rms_norm_eps": model.norm_eps,
      "tie_word_embeddings": False,
  }


class Peer:
  """One model of Hugging Face's, in every way to run it here."""

  def __init__(self, child: Child, arm: str, settings: Config, seq_len: int):
    self.child, self.name, self.first = child, PEERS[arm], {}
    optimizer = settings.optimizer
    with tempfile.TemporaryDirectory() as folder:
      weights, batch = (f"{folder}/{x}.npz" for x in ("weights", "batch"))
      model = train_suite.initial_model(settings)
      np.savez(weights, **hugging_face_weights(model))
      np.savez(batch, **train_suite.random_batch(settings, seq_len))
      for attention, dtype in itertools.product(ATTENTIONS, DTYPES):
        self.first[f"{attention}, {dtype}"] = child.ask(
            "make",
            name=f"{self.name}, {attention}, {dtype}",
            model=self.name,
            attention=attention,
            dtype=dtype,
            config=hugging_face_config(settings, seq_len),
            weights=weights,
            batch=batch,
            learning_rate=optimizer.peak_learning_rate,
            weight_decay=optimizer.weight_decay,
            betas=[optimizer.beta1, optimizer.beta2],
            eps=optimizer.eps,
        )

  @property
  def expected(self) -> tuple[float, float]:
    """Loss and gradient norm of the first step of the plainest way."""
    return self._loss_and_norm("eager, float32")

  def _loss_and_norm(self, way: str) -> tuple[float, float]:
    return self.first[way]["loss"], self.first[way]["grad_norm"]

  def call(self, way: str):
    return functools.partial(self.child.ask, "step", name=f"{self.name}, {way}")

  def fastest(self) -> tuple[str, list[str]]:
    """The fastest way, and what was seen of all.

    Raises:
      Disagreement: if one does not give what is expected.
    """
    for way in self.first:
      tolerance = train_suite.TOLERANCES[way.split()[1]]
      label = f"{self.name}, {way}"
      ours = self._loss_and_norm(way)
      check_agreement(label, ours, self.expected, tolerance)
    seconds = {way: made["second_step_s"] for way, made in self.first.items()}
    near = [
        way
        for way, time_s in seconds.items()
        if time_s < CLEARLY_SLOWER * min(seconds.values())
    ]
    best, medians_s = fastest({way: self.call(way) for way in near})
    notes = [
        f"first look at {self.name}, {way}: {number(time_s * 1000)} ms"
        for way, time_s in (seconds | medians_s).items()
    ]
    return best, notes


def run(options: Options) -> Table:
  settings, seq_len = train_suite.sizes(options.smoke)
  arms = train_suite.arms(our_settings(settings))
  steps, calls, ways, notes = {}, {}, {}, []
  with Child(options.peers_python) as child:
    versions = child.ask("hello", threads=num_cores())
    notes.append(", ".join(f"{k} {v}" for k, v in versions.items()))
    notes.append(
        "loss and gradient norm of every first step agree with eager float32;"
        " 'bfloat16 weights' keeps no fp32 copy of them, unlike all others"
    )
    for arm, arm_settings in arms.items():
      peer = Peer(child, arm, arm_settings, seq_len)
      steps[arm], ours = train_suite.faster_dtype(
          arm, arm_settings, seq_len, peer.expected
      )
      ways[peer.name], theirs = peer.fastest()
      notes += [*ours, *theirs]
      calls |= {arm: steps[arm], peer.name: peer.call(ways[peer.name])}
      check_same_size(arm_settings, peer)
    times_s = interleave(calls, options.rounds, PAUSE_S)
  rows = []
  for arm, step in steps.items():
    row = train_suite.columns(step.settings, seq_len, times_s[arm])
    rows.append({"model": arm, "attention": "xla", **row})
    name = PEERS[arm]
    attention, dtype = ways[name].split(", ")
    row = train_suite.columns(step.settings, seq_len, times_s[name])
    row |= {"compute_dtype": dtype}
    rows.append({"model": name, "attention": attention, **row})
  llama = ratio(times_s["Transformer"], times_s["Llama"])
  notes.insert(0, f"time of our Transformer / Llama: {llama}")
  target = Target(
      "time of our DIFF / DiffLlama",
      ratio(times_s["DIFF"], times_s["DiffLlama"]),
      bound=1.25,
  )
  title = f"Train step beside PyTorch, batch {settings.batch_size} x {seq_len}"
  return Table(title, rows, [target], notes)


def check_same_size(settings: Config, peer: Peer) -> None:
  """
  Raises:
    Disagreement: if the two sides differ in the number of parameters.
  """
  ours = transformer.num_parameters(settings.model)
  theirs = {made["parameters"] for made in peer.first.values()}
  if theirs != {ours}:
    raise Disagreement(f"{peer.name} has {theirs} parameters, ours {ours}.")
