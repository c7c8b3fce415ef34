# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of attention rows, by their definitions in numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from diff_jax import sharding, transformer
from diff_jax.attention import stats
from diff_jax.config import MeshConfig, ModelConfig
from diff_jax.data import make_source
from diff_jax.evaluators import attention as evaluator
from diff_jax.evaluators import make_evaluators
from tests.attention import numpy_layer

S = 12


def random_rows(count=5, seed=0):
  """Nonnegative rows that sum to 1 over their first 2, 4, ... visible keys."""
  rng = np.random.default_rng(seed)
  visible = np.arange(S) < 2 * np.arange(1, count + 1)[:, None]
  rows = rng.exponential(size=(count, S)) * visible
  return rows / rows.sum(axis=-1, keepdims=True), visible


ROWS, VISIBLE = random_rows()
OTHER, _ = random_rows(seed=1)
EVERY = np.ones((1, S), bool)
UNIFORM = np.full((1, S), 1 / S)
ONE_HOT = np.eye(S)[4:5]
ZEROS = np.zeros((1, S))
SIGNED = np.array([[3.0, -1, 0, 0, -2, 0, 0, 0, 0, 0, 0, 2]])


def on_device(function, *arrays):
  """The statistic of fp32 rows, compiled once a shape."""

  def cast(x):
    return jnp.asarray(x, None if np.asarray(x).dtype == bool else jnp.float32)

  return np.asarray(jax.jit(function)(*map(cast, arrays)))


def assert_close(actual, wanted, atol=1e-6):
  np.testing.assert_allclose(actual, wanted, rtol=1e-5, atol=atol)


def test_absolute():
  signed = ROWS - 0.8 * OTHER
  size = np.abs(signed)
  assert_close(on_device(stats.absolute, signed), size / size.sum(-1)[:, None])
  assert_close(on_device(stats.absolute, SIGNED), np.abs(SIGNED) / 8)
  assert_close(on_device(stats.absolute, UNIFORM), UNIFORM)
  assert_close(on_device(stats.absolute, ZEROS), ZEROS)


def test_entropy():
  wanted = [-(p[p > 0] * np.log(p[p > 0])).sum() for p in ROWS]
  assert_close(on_device(stats.entropy_nats, ROWS), wanted)
  assert_close(on_device(stats.entropy_nats, UNIFORM), [np.log(S)])
  assert_close(on_device(stats.entropy_nats, ONE_HOT), [0])
  assert_close(on_device(stats.entropy_nats, ZEROS), [0])


def test_relative_entropy():
  counts = VISIBLE.sum(axis=-1)
  wanted = [
      -(p[p > 0] * np.log(p[p > 0])).sum() / np.log(n)
      for p, n in zip(ROWS, counts, strict=True)
  ]
  assert_close(on_device(stats.relative_entropy, ROWS, counts), wanted)
  uniform = VISIBLE / counts[:, None]
  assert_close(on_device(stats.relative_entropy, uniform, counts), np.ones(5))
  # One visible key, and none.
  assert_close(on_device(stats.relative_entropy, ONE_HOT, np.ones(1)), [0])
  assert_close(on_device(stats.relative_entropy, ZEROS, np.zeros(1)), [0])


def gini(p):
  """Mean absolute difference of all pairs, over twice the mean."""
  return np.abs(p[:, None] - p[None]).mean() / (2 * p.mean())


def test_gini():
  wanted = [gini(p[seen]) for p, seen in zip(ROWS, VISIBLE, strict=True)]
  assert_close(on_device(stats.gini, ROWS, VISIBLE), wanted)
  uniform = VISIBLE / VISIBLE.sum(axis=-1, keepdims=True)
  assert_close(on_device(stats.gini, uniform, VISIBLE), np.zeros(5))
  assert_close(on_device(stats.gini, ONE_HOT, EVERY), [1 - 1 / S])
  assert_close(on_device(stats.gini, ONE_HOT, ONE_HOT > 0), [0])


@pytest.mark.parametrize("visible", [EVERY, ~EVERY], ids=["every", "none"])
def test_gini_of_a_row_of_zeros_is_zero(visible):
  """No key has more than another: as for a uniform row."""
  assert_close(on_device(stats.gini, ZEROS, visible), [0])


def test_gini_looks_at_visible_keys_only():
  """What invisible keys hold does not count."""
  row = np.where(VISIBLE, ROWS, 7.0)
  wanted = [gini(p[seen]) for p, seen in zip(ROWS, VISIBLE, strict=True)]
  assert_close(on_device(stats.gini, row, VISIBLE), wanted)


def test_share():
  group = np.random.default_rng(2).random(ROWS.shape) < 0.4
  assert_close(on_device(stats.share, ROWS, group), (ROWS * group).sum(-1))
  assert_close(on_device(stats.share, SIGNED, SIGNED > 0), [5])
  assert_close(on_device(stats.share, ZEROS, EVERY), [0])


def test_share_negative():
  signed = ROWS - 0.8 * OTHER
  negative = np.where(signed < 0, -signed, 0).sum(-1)
  wanted = negative / np.abs(signed).sum(-1)
  assert_close(on_device(stats.share_negative, signed), wanted)
  assert_close(on_device(stats.share_negative, SIGNED), [3 / 8])
  assert_close(on_device(stats.share_negative, UNIFORM), [0])
  assert_close(on_device(stats.share_negative, -UNIFORM), [1])
  assert_close(on_device(stats.share_negative, ZEROS), [0])


def test_correlation():
  wanted = [
      np.corrcoef(x[seen], y[seen])[0, 1]
      for x, y, seen in zip(ROWS, OTHER, VISIBLE, strict=True)
  ]
  found = on_device(stats.correlation, ROWS, OTHER, VISIBLE)
  assert_close(found, wanted, atol=1e-5)
  found = on_device(stats.correlation, ROWS, ROWS, VISIBLE)
  assert_close(found, np.ones(5), atol=1e-5)
  hidden = np.where(VISIBLE, OTHER, 9.0)  # on invisible keys
  found = on_device(stats.correlation, ROWS, hidden, VISIBLE)
  assert_close(found, wanted, atol=1e-5)


def test_correlation_with_a_constant_row_is_zero():
  """For every number of visible keys, although 1/n is no binary fraction."""
  visible = np.tri(200, dtype=bool)
  uniform = visible / visible.sum(axis=-1, keepdims=True)
  ramp = np.broadcast_to(np.linspace(0, 1, 200), uniform.shape)
  for x, y in (uniform, ramp), (0 * uniform, ramp), (uniform, uniform):
    found = on_device(stats.correlation, x, y, visible)
    np.testing.assert_allclose(found, np.zeros(200), atol=1e-3)


# Views of a head.


def random_maps(lead=(3, 2), n=4, c=2, r=5):
  rng = np.random.default_rng(3)
  maps = rng.exponential(size=(*lead, n, c, r, S))
  maps /= maps.sum(axis=-1, keepdims=True)
  return maps, rng.standard_normal((*lead, r, n, c))


def test_combine():
  maps, weights = random_maps()
  wanted = np.zeros((3, 2, 4, 5, S))
  for head in range(4):
    for c in range(2):
      wanted[:, :, head] += (
          weights[:, :, :, head, c, None] * maps[:, :, head, c]
      )
  assert_close(on_device(stats.combine, maps, weights), wanted)


@pytest.mark.parametrize("c", [1, 2, 3])
def test_views(c):
  maps, weights = random_maps(c=c)
  weights[..., 0] += 5  # far from maps that cancel
  views = jax.jit(stats.views)(
      jnp.asarray(maps, jnp.float32), jnp.asarray(weights, jnp.float32)
  )
  assert set(views) == {f"map_{i}" for i in range(c)} | {"absolute", "signed"}
  for name, rows in views.items():
    assert rows.shape == (3, 2, 4, 5, S), name
    assert_close(rows.sum(-1), np.ones((3, 2, 4, 5)))
    if name != "signed":
      assert np.all(rows >= 0)
  if c == 1:
    assert_close(views["absolute"], views["map_0"])
    assert_close(views["signed"], views["map_0"])


def test_views_of_maps_that_cancel():
  """A row of zeros stays one in every view of the sum."""
  maps, _ = random_maps(lead=(), n=1, r=1)
  maps[:, 1] = maps[:, 0]
  views = stats.views(
      jnp.asarray(maps, jnp.float32), jnp.array([[[1.0, -1.0]]])
  )
  assert not np.any(views["absolute"]) and not np.any(views["signed"])


# The attention evaluator.

# Rows 2, 5 and 7 of two examples: an answer at position 0, at the query itself,
# elsewhere, none.
GROUP_ROWS = np.array([2, 5, 7])
ANSWERS = np.full((2, S), -1)
ANSWERS[0, GROUP_ROWS] = [0, 5, 3]
ANSWERS[1, GROUP_ROWS] = [1, 0, -1]


@pytest.mark.parametrize("answers", [None, ANSWERS], ids=["text", "answers"])
def test_groups_are_disjoint_and_complete(answers):
  groups = evaluator._groups(
      jnp.asarray(GROUP_ROWS),
      None if answers is None else jnp.asarray(answers),
      jnp.zeros((3, 2, 4, len(GROUP_ROWS), S)),  # l b n r s
  )
  names = {"query", "first", "rest"}
  assert set(groups) == names | (set() if answers is None else {"answer"})
  assert {group.shape for group in groups.values()} == {(3, 2, 4, 3, S)}
  np.testing.assert_array_equal(sum(x.astype(int) for x in groups.values()), 1)
  if answers is not None:
    found = np.argwhere(np.asarray(groups["answer"])[0, :, 0]).tolist()
    assert found == [[0, 0, 0], [0, 1, 5], [0, 2, 3], [1, 0, 1], [1, 1, 0]]


@pytest.mark.parametrize("attention", ["softmax", "diff"])
def test_evaluator_on_the_recall_task(attention):
  source = make_source(
      dict(name="recall", keys=16, values=4, context=8, queries=4)
  )
  mesh = sharding.make_mesh(MeshConfig(), jax.devices()[:1])
  config = ModelConfig(
      vocab_size=source.vocab_size, d_model=16, num_layers=2, num_heads=2,
      mlp_dim=16, attention=attention, implementation="reference",
  )  # fmt: skip
  with jax.set_mesh(mesh):
    model = numpy_layer.random_module(
        lambda: transformer.Transformer(
            config, shardings=sharding.ON_MESH, rngs=nnx.Rngs(0)
        )
    )
    settings = {"attention": {"batch_size": 2, "num_rows": 4}}
    (evaluation,) = make_evaluators(settings, source, mesh)
    values = {
        name.removeprefix("attention/"): np.asarray(value)
        for name, value in evaluation.run(model).items()
    }
  c = model.blocks.attention.num_maps
  shares = ["share_answer", "share_query", "share_first", "share_rest"]
  assert_close(sum(values[name] for name in shares), 1)
  assert_close(sum(values[f"{name}_signed"] for name in shares), 1)
  for view in ["absolute", *(f"map_{i}" for i in range(c))]:
    assert 0 < values[f"entropy_{view}"] < np.log(12)
    assert 0 < values[f"relative_entropy_{view}"] <= 1
    assert 0 <= values[f"gini_{view}"] < 1
  assert ("correlation_of_maps" in values) == (c == 2)
  assert (values["share_negative"] > 0) == (c == 2)
  # The picture: the last query of the first example.
  assert values["row_query"] == 11 and 0 <= values["row_answer"] < 8
  assert values["row_weights"].shape == (c,)
  assert ("row_map_1" in values) == (c == 2)
  for i in range(c):
    assert_close(values[f"row_map_{i}"].sum(), 1)
