# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""The child's side of `static.py`: compiles a row's kernels and reads them."""

import collections
import itertools
import math
import pathlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import topologies

from diff_jax.bench import bundles, static_layer
from diff_jax.bench.check_tpu_child import kernels_by_computation
from diff_jax.kernels.attention import api, mosaic_tpu, two_call
from diff_jax.kernels.attention.block_sizes import BlockSizes

PAIRS = 512 * 512  # that a cost is for


class Chip(NamedTuple):
  mxu_edge: int
  mxus: int
  rows_a_cycle: int  # of one MXU


CHIPS = {
    "v5e": Chip(128, 4, 1),
    "v5p": Chip(128, 4, 1),
    "v6e": Chip(256, 2, 2),
    "tpu7x": Chip(256, 2, 2),
}


class Row(NamedTuple):
  implementation: str
  maps: int  # of a head


ROWS = {
    "fused diff": Row("mosaic_tpu", 2),
    "fused softmax": Row("mosaic_tpu", 1),
    "splash softmax": Row("two_call", 1),
    "splash two calls": Row("two_call", 2),
}
# Rows of queries, of keys, and of keys in one product.
TILES = (
    (512, 512, 512),
    (512, 1024, 256),
    (1024, 1024, 256),
    (1024, 1024, 512),
)
# v6e prefers long rows of scores; the backward pass compiles for minutes.
FORWARD_TILES = (*TILES, (1024, 1024, 1024))


def _two_call(tiles, q, k, v, weights):
  forward, backward = (two_call.Tile(*x) for x in tiles)
  return two_call.attention(
      q, k, v, weights, tile=forward, backward_tile=backward
  )


def _mosaic_tpu(tiles, q, k, v, weights):
  sizes = tuple(
      BlockSizes(block_q, block_kv, compute, compute)
      for block_q, block_kv, compute in tiles
  )
  return mosaic_tpu.attention(
      q, k, v, weights, first_weight_is_one=True, block_sizes=sizes
  )


ATTENTION = {"two_call": _two_call, "mosaic_tpu": _mosaic_tpu}


def rows() -> list[str]:
  """Names of the rows whose implementation exists."""
  known = {"two_call", *api.IMPLEMENTATIONS}
  return [name for name, row in ROWS.items() if row.implementation in known]


class Call(NamedTuple):
  """One row's attention at one size."""

  row: Row
  h: int
  tiles: tuple[tuple[int, ...], tuple[int, ...]]  # forward, backward

  @property
  def e(self) -> int:
    return self.h * self.row.maps

  def __call__(self, q, k, v, weights):
    return ATTENTION[self.row.implementation](self.tiles, q, k, v, weights)

  def arguments(self, heads: int = 2, t: int = static_layer.LENGTH):
    c = self.row.maps
    return (
        *[jax.ShapeDtypeStruct((1, t, heads, c, self.h), jnp.bfloat16)] * 2,
        jax.ShapeDtypeStruct((1, t, heads, self.e), jnp.bfloat16),
        jax.ShapeDtypeStruct((1, t, heads, c), jnp.float32),
    )

  def floor_rows(self, chip: Chip, pairs: int) -> dict[str, float]:
    """MXU rows that no schedule of one head's `pairs` goes below, by pass.

    Forward q k and p v; backward, in one kernel, scores again, dq and dk for
    each map, dP and dv once.
    """
    key, value = (-(-x // chip.mxu_edge) for x in (self.h, self.e))
    products = {
        "forward": self.row.maps * (key + value),
        "backward": self.row.maps * 3 * key + 2 * value,
    }
    rows_a_product = pairs / chip.mxu_edge / chip.mxus
    return {name: x * rows_a_product for name, x in products.items()}


def _programs(function, arguments, mesh, folder):
  """(regions of each kernel that is called, abstract result)."""
  for file in folder.iterdir():
    file.unlink()
  executable, result = static_layer.compile_for(function, arguments, mesh)
  called = kernels_by_computation(executable.as_text())
  calls = collections.Counter(itertools.chain(*called.values()))
  programs = {}
  for name, regions in bundles.kernels(folder).items():
    programs.setdefault(name.rsplit(".", 1)[0], []).append(regions)
  if calls.keys() != programs.keys():
    raise bundles.ParseError(f"Called: {[*calls]}; dumped: {[*programs]}.")
  kernels = []
  for name, number in calls.items():
    # Equal calls are compiled once.
    times, rest = divmod(number, len(programs[name]))
    if rest:
      raise bundles.ParseError(
          f"{number} calls of {len(programs[name])} {name}"
      )
    kernels += programs[name] * times
  return kernels, result


def _passes(call: Call, mesh, folder):
  """Regions of the kernels of the forward pass, then of the backward pass."""
  arguments = call.arguments()

  def forward(*arguments):
    return jax.vjp(call, *arguments)

  kernels, (out, pullback) = _programs(forward, arguments, mesh, folder)
  yield "forward", kernels
  kernels, _ = _programs(lambda f, x: f(x), (pullback, out), mesh, folder)
  yield "backward", kernels


def _costs(
    call: Call, chip: Chip, mesh, folder, passes: int = 2
) -> dict[str, dict[str, float]]:
  """Cycles and spills of an interior tile, cycles of a masked one, by pass.

  Args:
    call: what is compiled.
    chip, mesh, folder: for what, and where the compiler dumps its schedule.
    passes: 1 for the forward pass alone.
  """
  found = {}
  compiled = itertools.islice(_passes(call, mesh, folder), passes)
  for index, (name, kernels) in enumerate(compiled):
    ways = [bundles.ways(kernel) for kernel in kernels]
    plain, masked = (list(itertools.chain(*x)) for x in zip(*ways, strict=True))
    pairs = math.prod(call.tiles[index][:2])
    rows, floor = sum(x.rows for x in plain), call.floor_rows(chip, pairs)[name]
    if not 0.95 * floor <= rows < 1.95 * floor:
      raise bundles.ParseError(
          f"the {name} pass pushes {rows} rows a tile of {call.tiles[index]},"
          f" where {floor:.0f} are needed: is a loop not unrolled, or a tile"
          " in the program twice?"
      )
    scale = _heads(call) * PAIRS / pairs
    cycles, worst = (
        sum(x.cycles(chip.rows_a_cycle) for x in way) for way in (plain, masked)
    )
    found[name] = dict(
        cycles=cycles * scale,
        masked=worst * scale,
        spills=sum(x.spills for x in plain) * scale,
    )
  return found


def _heads(call: Call) -> int:
  """Heads that are a pair of maps."""
  return 2 // call.row.maps


def _machine(topology: str):
  """The chip, and a mesh of one of it."""
  devices = topologies.get_topology_desc(
      platform="tpu", topology_name=topology
  ).devices[:1]
  mesh = jax.make_mesh((1,), ("x",), devices=devices)
  return CHIPS[topology.partition(":")[0]], mesh


def measure_tile(
    topology: str, name: str, h: int, tile: tuple[int, ...], folder: str
) -> dict[str, Any]:
  """One row at one size and tile: `_costs`, and the kind of the device."""
  chip, mesh = _machine(topology)
  call = Call(ROWS[name], h, (tuple(tile),) * 2)
  costs = _costs(call, chip, mesh, pathlib.Path(folder))
  return costs | dict(device_kind=mesh.devices.flat[0].device_kind)


def measure(topology: str, name: str, h: int, folder: str) -> dict[str, Any]:
  """One row at one size: each pass at its cheapest tile, and the layer."""
  row = ROWS[name]
  chip, mesh = _machine(topology)
  tried, failed = [], []
  for tile in FORWARD_TILES:
    call = Call(row, h, (tile, tile))
    try:
      costs = _costs(
          call, chip, mesh, pathlib.Path(folder), passes=1 + (tile in TILES)
      )
    except (
        ValueError,
        jax.errors.JaxRuntimeError,
        bundles.ParseError,
    ) as error:
      failed.append(f"tile {tile}: {str(error).strip().splitlines()[0]}")
      continue
    tried.append((tile, costs))
  if not tried:
    raise RuntimeError("; ".join(failed))
  result = dict(failed=failed, tried=tried)
  best = []
  for name in ("forward", "backward"):
    tile, costs = min(
        (x for x in tried if name in x[1]), key=lambda x: x[1][name]["cycles"]
    )
    floor = call.floor_rows(chip, PAIRS)[name] * _heads(call)
    result[name] = costs[name] | dict(
        tile=tile, floor=floor / chip.rows_a_cycle
    )
    best.append(tile)
  return result | static_layer.traffic(Call(row, h, tuple(best)), mesh)
