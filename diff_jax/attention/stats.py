# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Statistics of softmax maps and of their signed sums.

The rows of A1 - lambda A2 sum to 1 - lambda, and the per-head norm erases even
that scale, so that "share of attention" has no single meaning for a signed map.
Every statistic here is therefore defined for a nonnegative row that sums to 1,
and is given for each of these views of a head:

  map_0, map_1, ...  the softmax maps A_c themselves
  absolute           |A| / sum_s |A|    with A = sum_c weights_c A_c
  signed             A / sum_s A        shares only: they may be negative

The Transformer has the same views; there they agree.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


def combine(
    maps: Float[Array, "*lead n c r s"], weights: Float[Array, "*lead r n c"]
) -> Float[Array, "*lead n r s"]:
  """The signed map A = sum_c weights_c A_c of each head."""
  return jnp.einsum("...ncrs,...rnc->...nrs", maps, weights)


def absolute(signed: Float[Array, "*lead s"]) -> Float[Array, "*lead s"]:
  """|A| / sum |A| over keys; a row of zeros stays zero."""
  size = jnp.abs(signed)
  total = size.sum(axis=-1, keepdims=True)
  return size / jnp.where(total > 0, total, 1)


def entropy_nats(p: Float[Array, "*lead s"]) -> Float[Array, "*lead"]:
  """-sum p log p of each row, in nats; 0 log 0 = 0."""
  return -jnp.sum(p * jnp.log(jnp.where(p > 0, p, 1)), axis=-1)


def relative_entropy(
    p: Float[Array, "*lead s"], visible: Float[Array, "*lead"]
) -> Float[Array, "*lead"]:
  """Entropy over log(visible keys): 1 for a uniform row; 0 for one key."""
  most = jnp.log(jnp.maximum(visible, 1))
  return entropy_nats(p) / jnp.where(most > 0, most, 1)


def gini(
    p: Float[Array, "*lead s"], visible: Bool[Array, "*lead s"]
) -> Float[Array, "*lead"]:
  """Gini coefficient over the visible keys: 0 uniform, near 1 on one key.

  A row of zeros counts as uniform.
  """
  count = visible.sum(axis=-1)
  # Invisible keys have p = 0 and sort first: they take the lowest ranks.
  ordered = jnp.sort(jnp.where(visible, p, 0), axis=-1)
  hidden = p.shape[-1] - count
  ranks = (
      jnp.arange(1, p.shape[-1] + 1).reshape((1,) * (p.ndim - 1) + (-1,))
      - hidden[..., None]
  )
  total = ordered.sum(axis=-1)
  weighted = (ordered * ranks).sum(axis=-1)
  count = jnp.maximum(count, 1)
  safe_total = jnp.where(total > 0, total, 1)
  coefficient = 2 * weighted / (count * safe_total) - (count + 1) / count
  return jnp.where(total > 0, coefficient, 0)


def share(
    p: Float[Array, "*lead s"], group: Bool[Array, "*lead s"]
) -> Float[Array, "*lead"]:
  """Sum of a row over a group of keys."""
  return jnp.sum(jnp.where(group, p, 0), axis=-1)


def share_negative(signed: Float[Array, "*lead s"]) -> Float[Array, "*lead"]:
  """Share of |A| that lies on keys where A < 0."""
  return share(absolute(signed), signed < 0)


def correlation(
    x: Float[Array, "*lead s"],
    y: Float[Array, "*lead s"],
    visible: Bool[Array, "*lead s"],
) -> Float[Array, "*lead"]:
  """Pearson correlation of two rows over the visible keys; 0 if constant."""
  count = jnp.maximum(visible.sum(axis=-1, keepdims=True), 1)

  def centred(z):
    mean = jnp.where(visible, z, 0).sum(axis=-1, keepdims=True) / count
    return jnp.where(visible, z - mean, 0)

  def varies(z, deviations):
    # Centring a constant row leaves rounding errors of its size.
    noise = (8 * jnp.finfo(z.dtype).eps) ** 2
    size = jnp.where(visible, z * z, 0).sum(axis=-1)
    return (deviations**2).sum(axis=-1) > noise * size

  dx, dy = centred(x), centred(y)
  scale = jnp.sqrt((dx * dx).sum(axis=-1) * (dy * dy).sum(axis=-1))
  defined = varies(x, dx) & varies(y, dy)
  return jnp.where(
      defined, (dx * dy).sum(axis=-1) / jnp.where(defined, scale, 1), 0
  )


def views(
    maps: Float[Array, "*lead n c r s"], weights: Float[Array, "*lead r n c"]
) -> dict[str, jax.Array]:
  """The views of the module's docstring, each [*lead, n, r, s]."""
  signed = combine(maps, weights)
  total = signed.sum(axis=-1, keepdims=True)
  named = {f"map_{c}": maps[..., c, :, :] for c in range(maps.shape[-3])}
  named["absolute"] = absolute(signed)
  named["signed"] = signed / jnp.where(total != 0, total, 1)
  return named
