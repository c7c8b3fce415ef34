# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Wrong arguments raise a ValueError with the argument's name and value."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import diff_jax
from diff_jax.kernels.attention import api, reference

pytestmark = pytest.mark.usefixtures("no_shape_checks")

Q, K, V = (2, 12, 4, 2, 8), (2, 12, 2, 2, 8), (2, 12, 2, 16)


def zeros(shape, dtype=jnp.float32):
  return jax.ShapeDtypeStruct(shape, dtype)


def ids(*shape):
  return np.ones(shape, np.int32)


# Arguments that replace the good ones, and what the message must contain.
BAD = {
    "q_rank": (dict(q=zeros((2, 12, 4, 8))), ["q", "(2, 12, 4, 8)"]),
    "k_rank": (dict(k=zeros((2, 12, 2, 8))), ["k", "(2, 12, 2, 8)"]),
    "v_rank": (dict(v=zeros((2, 12, 2, 2, 8))), ["v", "(2, 12, 2, 2, 8)"]),
    "k_dtype": (
        dict(q=zeros(Q, jnp.bfloat16), v=zeros(V, jnp.bfloat16)),
        ["k", "float32", "bfloat16"],
    ),
    "v_dtype": (dict(v=zeros(V, jnp.bfloat16)), ["v", "float32", "bfloat16"]),
    "integer_q": (dict(q=zeros(Q, jnp.int32)), ["q", "int32"]),
    "group": (dict(q=zeros((2, 12, 3, 2, 8))), ["k", "3", "2"]),
    "more_kv_heads": (dict(q=zeros((2, 12, 1, 2, 8))), ["k", "1", "2"]),
    "maps": (dict(q=zeros((2, 12, 4, 3, 8))), ["k", str(K), "3"]),
    "width": (dict(k=zeros((2, 12, 2, 2, 6))), ["k", "(2, 12, 2, 2, 6)"]),
    "batch": (dict(k=zeros((3, 12, 2, 2, 8))), ["k", "(3, 12, 2, 2, 8)"]),
    "v_length": (dict(v=zeros((2, 11, 2, 16))), ["v", "(2, 11, 2, 16)"]),
    "v_heads": (dict(v=zeros((2, 12, 4, 16))), ["v", "(2, 12, 4, 16)"]),
    "no_keys": (
        dict(k=zeros((2, 0, 2, 2, 8)), v=zeros((2, 0, 2, 16))),
        ["k", "(2, 0, 2, 2, 8)"],
    ),
    "weights": (dict(weights=zeros((3,))), ["weights", "(3,)"]),
    "weights_count": (
        dict(weights=(1.0,)),
        ["weights has 1 entries", "2 maps"],
    ),
    "weights_entry": (
        dict(weights=(1.0, np.zeros(5, np.float32))),
        ["weights", "[1]", "(5,)"],
    ),
    "weights_rank": (
        dict(weights=zeros((1, 2, 12, 4, 2))),
        ["weights", "(1, 2, 12, 4, 2)"],
    ),
    "weights_dtype": (
        dict(weights=zeros((2,), jnp.bool_)),
        ["weights", "bool"],
    ),
    "implementation": (
        dict(implementation="flash"),
        ["implementation", "flash", "xla", "reference"],
    ),
    "window": (dict(window=0), ["window", "0"]),
    "negative_window": (dict(window=-4), ["window", "-4"]),
    "one_segment_ids": (
        dict(k=zeros((2, 9, 2, 2, 8)), v=zeros((2, 9, 2, 16)))
        | dict(segment_ids=ids(2, 12)),
        ["segment_ids", "(2, 12)", "(2, 9)"],
    ),
    "segment_ids_shape": (
        dict(segment_ids=(ids(2, 12), ids(1, 12))),
        ["segment_ids", "(1, 12)"],
    ),
    "segment_ids_dtype": (
        dict(segment_ids=np.ones((2, 12), np.float32)),
        ["segment_ids", "float32"],
    ),
    "q_offset_chunks": (dict(q_offset=ids(1, 5)), ["q_offset", "(1, 5)", "12"]),
    "kv_offset_chunks": (
        dict(kv_offset=ids(2, 7)),
        ["kv_offset", "(2, 7)", "12"],
    ),
    "q_offset_batch": (dict(q_offset=ids(3)), ["q_offset", "(3,)"]),
    "kv_offset_rank": (
        dict(kv_offset=ids(2, 1, 1)),
        ["kv_offset", "(2, 1, 1)"],
    ),
    "q_offset_dtype": (dict(q_offset=1.5), ["q_offset", "float32"]),
    "bias_slopes": (dict(bias_slopes=zeros((2,))), ["bias_slopes", "(2,)"]),
    "sink": (dict(sink=zeros((4,))), ["sink", "(4,)"]),
}


def check(error, words):
  """The message has all the words; the first is the argument's name."""
  message = str(error.value)
  assert re.search(rf"\b{words[0]}\b", message), message
  assert all(word in message for word in words[1:]), message


def split(arguments):
  """(abstract arrays, the rest): `jax.eval_shape` takes the former."""
  arrays = {
      name: x
      for name, x in arguments.items()
      if isinstance(x, jax.ShapeDtypeStruct)
  }
  return arrays, {k: v for k, v in arguments.items() if k not in arrays}


@pytest.mark.parametrize("name", BAD)
def test_attention_names_the_argument(name):
  bad, words = BAD[name]
  good = dict(q=zeros(Q), k=zeros(K), v=zeros(V))
  arrays, rest = split(good | bad)
  with pytest.raises(ValueError) as error:
    jax.eval_shape(lambda arrays: api.attention(**arrays, **rest), arrays)
  check(error, words)


@pytest.mark.parametrize("name", ["q_rank", "window", "implementation", "sink"])
def test_parts_names_the_argument(name):
  bad, words = BAD[name]
  arrays, rest = split(dict(q=zeros(Q), k=zeros(K), v=zeros(V)) | bad)
  with pytest.raises(ValueError) as error:
    jax.eval_shape(lambda arrays: api.parts(**arrays, **rest), arrays)
  check(error, words)


@pytest.mark.parametrize(
    "q, lam, words",
    [
        ((2, 12, 4, 1, 8), (), ["q", "(2, 12, 4, 1, 8)"]),
        ((2, 12, 4, 8), (), ["q", "(2, 12, 4, 8)"]),
        (Q, (12, 3), ["lam", "(12, 3)"]),
        (Q, (1, 2, 12, 4), ["lam", "(1, 2, 12, 4)"]),
    ],
)
def test_diff_attention_names_the_argument(q, lam, words):
  with pytest.raises(ValueError) as error:
    jax.eval_shape(
        diff_jax.diff_attention, zeros(q), zeros(K), zeros(V), zeros(lam)
    )
  check(error, words)


def test_maps_fn_is_refused_above_4096_positions():
  q, k, v = (
      zeros((1, 1, 1, 1, 2)),
      zeros((1, 4097, 1, 1, 2)),
      zeros((1, 4097, 1, 2)),
  )

  def hooked(q, k, v):
    return reference.attention(q, k, v, maps_fn=lambda maps: maps)

  with pytest.raises(ValueError) as error:
    jax.eval_shape(hooked, q, k, v)
  check(error, ["maps_fn", "4,097", "4,096"])
