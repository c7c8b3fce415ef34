# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""python -m diff_jax.bench.visits: what the TPU kernels visit of a packed row.

Pairs in the tiles that the tables of `tile_visits` name, over the pairs that a
causal mask within documents lets through: 1 is the ideal of no tile at all.
"""

import argparse
import sys
from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np

from diff_jax.bench.table import Table
from diff_jax.kernels.attention import masking as masking_lib
from diff_jax.kernels.attention import mosaic_tpu_sizes, tile_visits

# Lengths of documents with a mean, in tokens.
LENGTHS = {
    "all equal": lambda rng, mean, n: np.full(n, mean),
    "exponential": lambda rng, mean, n: 1 + rng.exponential(mean - 1, n),
    "uniform, 1 to twice the mean": lambda rng, mean, n: rng.integers(
        1, 2 * mean, n
    ),
}


def segments(lengths: Sequence[int], row: int) -> np.ndarray:
  """Segment ids [1, row] of documents one after another, the last one cut."""
  ids = np.repeat(np.arange(1, len(lengths) + 1), np.asarray(lengths, int))
  return ids[None, :row].astype(np.int32)


def visited_over_visible(ids: np.ndarray, block: int) -> float:
  """Pairs visited in tiles of block x block over visible pairs."""
  row = ids.shape[1]
  ids = jnp.asarray(ids)
  masking = masking_lib.make_masking(row, row, (ids, ids), 0, 0)
  sides = tile_visits.pad_sides(masking, row, row)
  needed, _ = tile_visits.tiles(sides, block, block, causal=True, window=None)
  lengths = np.unique(np.asarray(ids), return_counts=True)[1].astype(float)
  visible = (lengths * (lengths + 1) / 2).sum()
  return float(needed.sum()) * block**2 / visible


def run(row: int, mean: int, blocks: Sequence[int], draws: int) -> Table:
  """One line a distribution of lengths: the mean over draws, by block size."""
  rows = []
  for name, draw in LENGTHS.items():
    rng = np.random.default_rng(0)
    ids = [
        segments(draw(rng, mean, 4 * row // mean), row) for _ in range(draws)
    ]
    found = {
        f"block_{block}": np.mean([visited_over_visible(x, block) for x in ids])
        for block in blocks
    }
    rows.append({"lengths": name} | found)
  title = (
      f"Pairs visited / pairs visible: causal rows of {row:,} tokens, documents"
      f" of {mean:,} in the mean, {draws} draws; the kernels take blocks of"
      f" {mosaic_tpu_sizes.EDGED}"
  )
  return Table(title, rows)


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the table."""
  parser = argparse.ArgumentParser(prog="visits", description=__doc__)
  parser.add_argument("--row", type=int, default=65536)
  parser.add_argument("--mean", type=int, default=2048)
  parser.add_argument("--blocks", type=int, nargs="+", default=[256, 512, 1024])
  parser.add_argument("--draws", type=int, default=8)
  arguments = parser.parse_args(argv)
  table = run(arguments.row, arguments.mean, arguments.blocks, arguments.draws)
  print(table)
  return 0


if __name__ == "__main__":
  sys.exit(main())
