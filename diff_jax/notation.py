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
