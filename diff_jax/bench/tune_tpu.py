# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""python -m diff_jax.bench.tune_tpu: tiles of the TPU kernels, without a TPU.

Compiles the kernels at every candidate and ranks them, forward and backward
apart, by the static schedule (`static.py`) of a causal sequence: cycles of the
interior tiles that it visits, of the masked ones, and a constant for each
step of the grid. Waiting for memory is not in it. Run by hand; `block_sizes.CHIPS` keeps what was found.
"""

import argparse
import itertools
import pathlib
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from diff_jax.bench import aot, static, static_child
from diff_jax.bench.table import Table
from diff_jax.config import ConfigError, RunError
from diff_jax.kernels.attention import masking as masking_lib
from diff_jax.kernels.attention import tile_visits
from diff_jax.kernels.attention.block_sizes import LANES

BLOCKS = (512, 1024, 2048)
PIECES = (256, 512, 1024)
# Tiles are unrolled: beyond this many pairs a compilation takes minutes.
MAX_PAIRS = 1024 * 2048
# An assumption, not of the schedule: 0.35 us at 1.75 GHz. Without it the
# smallest tiles win, which have the fewest masked pairs and the most steps.
STEP_CYCLES = 600
ROW = "fused diff"

Tile = tuple[int, int, int]  # Queries, keys, either of them in a piece.


def candidates(blocks: Sequence[int], pieces: Sequence[int]) -> list[Tile]:
  """Tiles of these blocks, in either order, and pieces that divide them.

  Raises:
    ConfigError: for rows that the kernels do not take, or if no tile is left.
  """
  for name, rows in (("blocks", blocks), ("pieces", pieces)):
    if any(x < LANES or x % LANES for x in rows):
      raise ConfigError(f"{name}={[*rows]} must be multiples of {LANES}.")
  tiles = [
      (q, kv, piece)
      for q, kv, piece in itertools.product(blocks, blocks, pieces)
      if q * kv <= MAX_PAIRS and q % piece == kv % piece == 0
  ]
  if not tiles:
    raise ConfigError(
        f"pieces={[*pieces]} must divide blocks={[*blocks]}, and two of these"
        f" be at most {MAX_PAIRS:,} pairs."
    )
  return tiles


def cycles_a_pair(cost: dict[str, float], tile: Tile, length: int) -> float:
  """Of one head of two maps, for a query and a key that it sees.

  Args:
    cost: `cycles` of an interior tile and `masked` of one that the mask
      touches, for `static_child.PAIRS` of its pairs.
    tile: of the kernel.
    length: of a causal sequence, a multiple of the blocks.
  """
  sides = tile_visits.pad_sides(
      masking_lib.make_masking(length, length, None, 0, 0), length, length
  )
  needed, full = tile_visits.tiles(sides, *tile[:2], causal=True, window=None)
  plain, masked = (int(x.sum()) for x in (needed & full, needed & ~full))
  scale = tile[0] * tile[1] / static_child.PAIRS
  cycles = scale * (plain * cost["cycles"] + masked * cost["masked"])
  seen = length * (length + 1) // 2
  return (cycles + STEP_CYCLES * (plain + masked)) / seen


def run(
    topology: str,
    sizes: Sequence[str] = tuple(static.SIZES),
    length: int = 8192,
    blocks: Sequence[int] = BLOCKS,
    pieces: Sequence[int] = PIECES,
) -> Table:
  """A row a pass, head size and tile, best first; notes say what to write.

  Args:
    topology: such as `v5p:2x2x1`.
    sizes: of `static.SIZES`.
    length: of the causal sequence that weighs masked tiles.
    blocks: rows of queries or of keys to try, in tokens.
    pieces: rows of either that are computed together.

  Raises:
    ConfigError: for an unknown chip, tiles that the kernels do not take, or a
      length that blocks do not divide.
    RunError: where libtpu is missing, or nothing compiles.
  """
  static.check_topology(topology)
  tiles = candidates(blocks, pieces)
  for tile in tiles:
    if length < 1 or length % tile[0] or length % tile[1]:
      raise ConfigError(
          f"length={length} must be a positive multiple of every block, such"
          f" as {max(tile[:2])}."
      )
  costs, notes = {}, []
  for size, tile in itertools.product(sizes, tiles):
    label = f"{size} {static.tile_name(tile)}"
    try:
      costs[size, tile] = _measure(topology, size, tile)
    except aot.ChildError as error:
      notes.append(f"{label}: {error}")
    print(label, file=sys.stderr, flush=True)
  if not costs:
    raise RunError("; ".join(notes))
  versions = ", ".join(f"{name} {x}" for name, x in aot.versions().items())
  title = (
      f"Tiles by the static schedule of the TPU compiler for {topology}"
      f" ({versions}) and {STEP_CYCLES} cycles a step: cycles per pair that is"
      f" seen, one head of two maps, causal, {length:,} tokens"
  )
  rows = _ranked(costs, length)
  return Table(title, rows, notes=[*_to_write(costs, rows), *notes])


def _measure(topology: str, size: str, tile: Tile) -> dict[str, Any]:
  with tempfile.TemporaryDirectory() as folder:
    return aot.call(
        "diff_jax.bench.static_child:measure_tile",
        dict(
            topology=topology, name=ROW, h=static.SIZES[size], tile=tile,
            folder=folder,
        ),
        dump=pathlib.Path(folder),
    )  # fmt: skip


def _ranked(costs, length: int) -> list[dict[str, Any]]:
  rows = []
  for name, size in itertools.product(
      static.PASSES, dict.fromkeys(size for size, _ in costs)
  ):
    found = [
        dict(
            {"pass": name},
            size=size,
            tile=static.tile_name(tile),
            a_pair=cycles_a_pair(cost[name], tile, length),
            interior=cost[name]["cycles"],
            masked=cost[name]["masked"],
            spills=cost[name]["spills"],
        )
        for (of_size, tile), cost in costs.items()
        if of_size == size
    ]
    rows += sorted(found, key=lambda row: row["a_pair"])
  return rows


def _to_write(costs, rows) -> list[str]:
  """For each pass, the tile whose worst loss over the head sizes is least."""
  tiles = {static.tile_name(tile): tile for _, tile in costs}
  notes = []
  for name in static.PASSES:
    of_pass = [row for row in rows if row["pass"] == name]
    best, loss = {}, {}
    for row in of_pass:  # Best first.
      best.setdefault(row["size"], row["a_pair"])
      loss.setdefault(row["tile"], []).append(row["a_pair"] / best[row["size"]])
    everywhere = {t: max(x) for t, x in loss.items() if len(x) == len(best)}
    if not everywhere:
      notes.append(f"{name}: no tile compiles at every head size.")
      continue
    tile = min(everywhere, key=everywhere.get)
    kind = next(iter(costs.values()))["device_kind"]
    q, kv, piece = tiles[tile]
    notes.append(
        f"{name}: for block_sizes.CHIPS[{kind!r}],"
        f" BlockSizes({q}, {kv}, {piece}, {piece}): at most"
        f" {everywhere[tile] - 1:.1%} over the best of each head size."
    )
  return notes


def main(argv: Sequence[str] | None = None) -> int:
  """Prints the table; status 1 where nothing compiles, 2 for an argument."""
  parser = argparse.ArgumentParser(prog="tune_tpu", description=__doc__)
  parser.add_argument("--topology", default=aot.TOPOLOGIES["v5p"])
  parser.add_argument(
      "--sizes", nargs="+", choices=static.SIZES, default=list(static.SIZES)
  )
  parser.add_argument("--length", type=int, default=8192)
  parser.add_argument("--blocks", type=int, nargs="+", default=BLOCKS)
  parser.add_argument("--pieces", type=int, nargs="+", default=PIECES)
  try:
    print(run(**vars(parser.parse_args(argv))))
  except (ConfigError, RunError) as error:
    print(error, file=sys.stderr)
    return 2 if isinstance(error, ConfigError) else 1
  return 0


if __name__ == "__main__":
  sys.exit(main())
