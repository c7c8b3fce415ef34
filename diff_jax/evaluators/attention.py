# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Where the queries look: the paper's Figure 1 from our own weights.

The paper's Figure 1 and Table 3 give "normalised attention scores" without
saying of what (arXiv 2410.05258, section 3.4; see `attention/stats.py`). We
report shares of |A| / sum |A| and, with the suffix `_signed`, of A / sum A.
Means are over layers, heads, examples and query rows.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from diff_jax.attention import stats
from diff_jax.evaluators.loss import held_out_batches
from diff_jax.sharding import gathered


class AttentionShares:
  """Shares of attention on the answer, the query, the first token, the rest.

  On data without answers there is no answer group. A key belongs to the first
  of the groups that holds it: an answer at position 0 is an answer.

  With answers, one query's row is given whole, for a picture: the last query of
  the first example, in that head of the last layer whose mean share on the
  answer is largest.
  """

  def __init__(self, source, mesh, *, batch_size: int = 16, num_rows: int = 8):
    self.source, self.mesh = source, mesh
    self.batch_size, self.num_rows = batch_size, num_rows

  def __call__(self, model) -> Iterator[tuple[str, Any]]:
    batch = next(held_out_batches(self.source, self.mesh, self.batch_size, 1))
    asked = np.flatnonzero(self.source.examples("eval", 0)[0]["loss_weights"])
    rows = asked[np.linspace(0, len(asked) - 1, self.num_rows).astype(int)]
    means, picture = _measure(model, batch, jnp.asarray(rows))
    yield from means.items()
    yield from picture.items()


@jax.jit
def _measure(model, batch, rows):
  """Means of the statistics, and one row's maps."""
  maps, weights = model.row_maps(
      batch["tokens"],
      rows,
      positions=batch.get("positions"),
      segment_ids=batch.get("segment_ids"),
  )
  answers = batch.get("answer_positions")
  return gathered(_statistics)(maps, weights, rows, answers)


def _statistics(maps, weights, rows, answers):
  """From maps [l,b,n,c,r,s] and weights [l,b,r,n,c]."""
  signed = stats.combine(maps, weights)
  named = stats.views(maps, weights)
  visible = (maps > 0).any((0, 2, 3))[None, :, None]
  visible = jnp.broadcast_to(visible, signed.shape)
  means = {}
  for name, group in _groups(rows, answers, signed).items():
    means[f"share_{name}"] = stats.share(named["absolute"], group).mean()
    means[f"share_{name}_signed"] = stats.share(named["signed"], group).mean()
  for name, p in named.items():
    if name == "signed":
      continue
    means[f"entropy_{name}"] = stats.entropy_nats(p).mean()
    relative = stats.relative_entropy(p, visible.sum(-1).astype(p.dtype))
    means[f"relative_entropy_{name}"] = relative.mean()
    means[f"gini_{name}"] = stats.gini(p, visible).mean()
  means["share_negative"] = stats.share_negative(signed).mean()
  if maps.shape[3] == 2:
    means["correlation_of_maps"] = stats.correlation(
        maps[:, :, :, 0], maps[:, :, :, 1], visible
    ).mean()
  return means, {} if answers is None else _picture(
      maps, weights, rows, answers
  )


def _picture(maps, weights, rows, answers):
  last_layer = stats.absolute(stats.combine(maps, weights)[-1])  # b n r s
  answer = _groups(rows, answers, last_layer[None])["answer"][0]
  on_answer = stats.share(last_layer, answer).mean((0, 2))
  head = jnp.argmax(on_answer)
  picture = {
      "row_head": head,
      "row_query": rows[-1],
      "row_answer": answers[0, rows[-1]],
      "row_weights": weights[-1, 0, -1, head],
  }
  for c in range(maps.shape[3]):
    picture[f"row_map_{c}"] = maps[-1, 0, head, c, -1]
  return picture


def _groups(rows, answers, like):
  """Masks [l,b,n,r,s] of the groups that exist, disjoint and complete."""
  keys = jnp.arange(like.shape[-1])[None, None, :]
  query = keys == rows[None, :, None]
  first = (keys == 0) & ~query
  if answers is None:
    groups = {"query": query, "first": first, "rest": ~query & ~first}
  else:
    answer = keys == answers[:, rows][:, :, None]
    groups = {
        "answer": answer,
        "query": query & ~answer,
        "first": first & ~answer,
        "rest": ~(answer | query | first),
    }
  return {
      name: jnp.broadcast_to(group[None, :, None], like.shape)
      for name, group in groups.items()
  }
