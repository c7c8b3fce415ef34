# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The letters of this codebase: read this first.

Einsum strings, jaxtyping dimensions and PartitionSpec suffixes all use them.

  b  batch                        h  query/key width of one softmax map
  t  query position               e  value width of one head (2h in the paper)
  s  key position                 f  MLP width
  d  model width                  v  vocabulary
  n  heads                        l  layers
  k  key/value heads              r  chosen query rows
  g  query heads per kv head
  c  softmax maps per head

A *head* owns one value stream. In the Transformer it has one softmax map
(c = 1); a differential head has a pair of maps (c = 2) that share the value.
The paper (arXiv 2410.05258) writes d for our h and h for our n.
"""

from jaxtyping import Array, Bool, Float, Int

type Queries = Float[Array, "b t n c h"]
type Keys = Float[Array, "b s k ck h"]
type Values = Float[Array, "b s k e"]
type Outputs = Float[Array, "b t n e"]
type LogSumExp = Float[Array, "b t n c"]
type Hidden = Float[Array, "b t d"]
type Tokens = Int[Array, "b t"] | Int[Array, "b t i"]
type Positions = Int[Array, "b t"]
type SegmentIds = Int[Array, "b t"]
type MapMask = Bool[Array, "b t s"]
