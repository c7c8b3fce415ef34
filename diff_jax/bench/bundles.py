# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Reads the TPU compiler's final schedule: the VLIW bundles of a kernel.

`aot.DUMP_FLAGS` makes libtpu write one `*-final_bundles.txt` a program. A
bundle issues once a cycle, so a straight line of bundles takes at least as many
cycles as it has bundles, and at least as many as the rows that it pushes
through the busiest matrix unit (MXU) need: max(bundles, MXU row-cycles).
Waiting for memory is not in it: a bound by the compiler, not a measurement.
"""

import dataclasses
import pathlib
import re
from collections.abc import Sequence

# A push streams the rows of one vector register: 8 of 32 bits, 16 of 16.
ROWS_A_PUSH = {"bf16": 16, "f32": 8}
# `  0x2a LB: >> { ... }`: address, control target, loop depth, instructions.
_BUNDLE = re.compile(
    r"^ *(?P<address>0x[0-9a-f]+|0) +(?:(?P<target>[A-Z]{2}):|:) *"
    r"(?P<depth>>*) *(?={)",
    re.MULTILINE,
)
_ENTRY = re.compile(r"entry bundle: %(\S+) = .*custom-call\(")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_PUSH = re.compile(r"\bvmatmul\.(?P<modes>[a-z0-9_.\[\]]*?)mxu(?P<mxu>\d)")
_EXP = re.compile(r"\bv(?:pow2|exp2)\.")
_COMPARE = re.compile(r"\bvcmp\.[a-z]+\.s(?:16|32)")
_SPILL = re.compile(r"\bvst\b[^;}]*_spill\]")


class ParseError(Exception):
  """A dump that this reader does not understand."""


@dataclasses.dataclass(frozen=True)
class Region:
  """Bundles between two places that control may enter or leave."""

  start: int  # address of the first bundle
  bundles: int
  depth: int = 0  # loops around it; 1 is the grid
  rows: int = 0  # through the busiest MXU
  exps: int = 0  # registers of exponentials
  compares: int = 0  # registers of integer comparisons
  spills: int = 0  # registers written to memory for want of registers

  @property
  def computes(self) -> bool:
    """Whether it works on scores; the rest prepares, loops and stores."""
    return bool(self.rows or self.exps)

  @property
  def masks(self) -> bool:
    """Whether it compares positions: once a score, or once for all maps."""
    return 8 * self.compares >= self.exps > 0

  def cycles(self, rows_a_cycle: int) -> int:
    return max(self.bundles, -(-self.rows // rows_a_cycle))


def kernels(folder: pathlib.Path) -> dict[str, list[Region]]:
  """Regions of each Pallas kernel whose final bundles lie in `folder`."""
  found = {}
  for file in sorted(folder.glob("*-final_bundles.txt")):
    text = file.read_text()
    entry = _ENTRY.search(text)
    if entry:
      found[entry[1]] = regions(text)
  return found


def regions(text: str) -> list[Region]:
  """Cuts a program at its control targets and after its branches.

  Raises:
    ParseError: if there are no bundles, or a matrix push of an unknown type.
  """
  text = _COMMENT.sub("", text)
  heads = list(_BUNDLE.finditer(text))
  if not heads:
    raise ParseError("The dump has no bundles.")
  found, part, after_branch = [], [], False
  for head, following in zip(heads, [*heads[1:], None], strict=True):
    if part and (head["target"] or after_branch):
      found.append(_region(part))
      part = []
    bundle = text[head.end() : following.start() if following else None]
    part.append((head, bundle))
    after_branch = "sbr.rel" in bundle
  return [*found, _region(part)]


def _region(part: Sequence[tuple[re.Match, str]]) -> Region:
  text = "\n".join(bundle for _, bundle in part)
  rows = {}
  for push in _PUSH.finditer(text):
    kind = next((x for x in push["modes"].split(".") if x in ROWS_A_PUSH), None)
    if kind is None:
      raise ParseError(f"{push[0]}: operands must be one of {[*ROWS_A_PUSH]}.")
    rows[push["mxu"]] = rows.get(push["mxu"], 0) + ROWS_A_PUSH[kind]
  return Region(
      start=int(part[0][0]["address"], 16),
      bundles=len(part),
      depth=max(len(head["depth"]) for head, _ in part),
      rows=max(rows.values(), default=0),
      exps=len(_EXP.findall(text)),
      compares=len(_COMPARE.findall(text)),
      spills=len(_SPILL.findall(text)),
  )


def ways(program: Sequence[Region]) -> tuple[list[Region], list[Region]]:
  """The regions that compute a tile without the mask, and with it.

  A kernel that masks every tile has one way, which is both.

  Raises:
    ParseError: if there are two ways that do not push the same rows.
  """
  parts = [region for region in program if region.computes]
  masked = [region for region in parts if region.masks]
  plain = [region for region in parts if not region.masks]
  if not masked or not plain:
    return parts, parts
  rows = [sum(x.rows for x in way) for way in (plain, masked)]
  if rows[0] != rows[1]:
    raise ParseError(
        f"A tile pushes {rows[0]} rows without the mask, {rows[1]} with it."
    )
  return plain, masked
