# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Train steps of Hugging Face's Llama and DiffLlama: peers.py's child process.

Needs torch and transformers, and nothing of diff_jax. Reads a JSON object a
line, does what its "do" says, answers with one on standard output:

  hello   threads                                       -> versions
  make    name, model, attention, dtype, config,        -> loss, grad_norm of
          weights (an .npz by parameter's name), batch,    the first step,
          learning_rate, weight_decay, betas, eps          second_step_s,
                                                           parameters
  step    name                                          -> loss
"""

import contextlib
import json
import sys
import time

import numpy as np
import torch
import transformers

# How each compute dtype is had: parameters' dtype, and whether autocast is on.
DTYPES = {
    "float32": (torch.float32, False),
    "bfloat16 autocast": (torch.float32, True),
    "bfloat16 weights": (torch.bfloat16, False),
}


class Step:
  """A model with its optimizer; each call is one update on the same batch."""

  def __init__(self, request):
    dtype, self.autocast = DTYPES[request["dtype"]]
    kind = request["model"]
    config = getattr(transformers, f"{kind}Config")(**request["config"])
    config._attn_implementation = request["attention"]
    self.model = getattr(transformers, f"{kind}ForCausalLM")(config)
    weights = {
        name: torch.from_numpy(array)
        for name, array in np.load(request["weights"]).items()
    }
    self.model.load_state_dict(weights, strict=True)
    self.model.to(dtype).train()
    with np.load(request["batch"]) as batch:
      self.tokens, self.targets = (
          torch.from_numpy(batch[name]).long() for name in ("tokens", "targets")
      )
    parameters = list(self.model.parameters())
    # As in diff_jax: matrices decay, norms and lambda vectors do not.
    groups = [
        {
            "params": [p for p in parameters if p.ndim > 1],
            "weight_decay": request["weight_decay"],
        },
        {
            "params": [p for p in parameters if p.ndim == 1],
            "weight_decay": 0.0,
        },
    ]
    self.optimizer = torch.optim.AdamW(
        groups,
        lr=request["learning_rate"],
        betas=tuple(request["betas"]),
        eps=request["eps"],
        fused=True,
    )

  @property
  def num_parameters(self):
    return sum(p.numel() for p in self.model.parameters())

  def __call__(self):
    """Forward, backward, clip, AdamW."""
    self.optimizer.zero_grad(set_to_none=True)
    context = contextlib.nullcontext()
    if self.autocast:
      context = torch.autocast("cpu", dtype=torch.bfloat16)
    with context:
      logits = self.model(input_ids=self.tokens, use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1).float(), self.targets.flatten()
    )
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
    self.optimizer.step()
    return loss.item(), norm.item()


def main():
  steps = {}
  for line in sys.stdin:
    request = json.loads(line)
    if request["do"] == "hello":
      torch.set_num_threads(request["threads"])
      answer = {
          "torch": torch.__version__,
          "transformers": transformers.__version__,
          "python": sys.version.split()[0],
      }
    elif request["do"] == "make":
      step = steps[request["name"]] = Step(request)
      loss, norm = step()
      start_s = time.perf_counter()
      step()
      answer = {
          "second_step_s": time.perf_counter() - start_s,
          "loss": loss,
          "grad_norm": norm,
          "parameters": step.num_parameters,
      }
    else:
      answer = {"loss": steps[request["name"]]()[0]}
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
  main()
