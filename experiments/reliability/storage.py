# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Damaged checkpoints, full disks, folders that cannot be written or vanish."""

import contextlib
import os
import pathlib
import resource
import shutil
import subprocess
from collections.abc import Iterator

from child import (
  Child,
  Row,
  finish,
  last_line,
  last_step,
  losses,
  said,
  saved_steps,
  sessions,
)  # fmt: skip

STEPS = 400


def damaged_checkpoints(out: pathlib.Path) -> list[Row]:
  """Saved at 30 and 40; 40 is damaged; the run goes on to 60."""
  finish(out / "undamaged", "--config.stop_after_steps=40")
  rows = []
  for name, damage in DAMAGES.items():
    workdir = out / f"damaged_{name.replace(' ', '_')}"
    shutil.copytree(out / "undamaged", workdir)
    damage(workdir / "checkpoints" / "seed_0" / "40")
    status, words = finish(workdir)
    first = sessions(workdir)[-1]["first_step"]
    whole = _whole(out)
    same = losses(workdir) == whole
    aside = (workdir / "checkpoints" / "seed_0" / "damaged_40").is_dir()
    passed = status == 0 and first == 30 and same and aside
    # Orbax may print what a coroutine raised that nobody awaits any more.
    passed &= "checkpoint 40 is damaged" in words
    happened = (
        f"exit {status}: told, set aside, went on after step {first}; losses"
        f" {'the same' if same else 'DIFFER'}"
    )
    if not passed:
      happened += f"; {last_line(words)}"
    rows.append(Row("damaged newest checkpoint", name, happened, passed))
  workdir = out / "damaged_all"
  shutil.copytree(out / "undamaged", workdir)
  for step in (30, 40):
    _empty(workdir / "checkpoints" / "seed_0" / str(step))
  status, words = finish(workdir)
  passed = status == 1 and said(words, "no checkpoint can be read")
  happened = f"exit {status}: {last_line(words)}"
  return [*rows, Row("all checkpoints damaged", "emptied", happened, passed)]


def _whole(out: pathlib.Path) -> dict[int, float]:
  if not (out / "undamaged_whole").exists():
    finish(out / "undamaged_whole")
  return losses(out / "undamaged_whole")


def _arrays(step: pathlib.Path) -> pathlib.Path:
  """The largest file of a checkpoint, which the arrays are in."""
  files = [p for p in (step / "state").rglob("*") if p.is_file()]
  return max(files, key=lambda p: p.stat().st_size)


def _truncate(path: pathlib.Path) -> None:
  os.truncate(path, path.stat().st_size // 2)


def _flip(path: pathlib.Path) -> None:
  data = bytearray(path.read_bytes())
  data[len(data) // 2] ^= 1
  path.write_bytes(data)


def _flip_position(step: pathlib.Path) -> None:
  (path,) = (step / "data").glob("*.json")
  text = path.read_text()
  path.write_text(text.replace("40", "41"))
  assert path.read_text() != text


def _empty(folder: pathlib.Path) -> None:
  shutil.rmtree(folder)
  folder.mkdir()


DAMAGES = {
    "truncated array": lambda step: _truncate(_arrays(step)),
    "missing array": lambda step: _arrays(step).unlink(),
    "one flipped bit in an array": lambda step: _flip(_arrays(step)),
    "truncated manifest": lambda step: _truncate(
        step / "state" / "manifest.ocdbt"
    ),
    "missing metadata": lambda step: (step / "meta" / "metadata").unlink(),
    "one flipped bit in the data position": _flip_position,
    "empty folder": _empty,
}


def full_disk(out: pathlib.Path) -> list[Row]:
  """A disk that fills up while a run trains, and is emptied again."""
  rows = [_limited(out)]
  with _small_disk(out / "disk") as disk:
    if disk is None:
      return [*rows, _not_tried("full disk", "mounting one needs root")]
    workdir, filler = disk / "run", disk / "filler"
    log = out / "disk.log"  # not on the disk that is full
    child = Child(workdir, f"--config.num_steps={STEPS}", log=log)
    child.wait_for_step(25)
    _fill(filler)
    told = child.wait_until(lambda: "could not be saved" in child.words())
    filler.unlink()
    status, words = child.finish()
    rows.append(_survived(workdir, status, words, told, "tmpfs is filled up"))
    _fill(filler)
    longer = f"--config.num_steps={2 * STEPS}"
    status, words = finish(workdir, longer, log=log)
    passed = status == 1 and said(words, "No space left")
    happened = f"exit {status}: {last_line(words)}"
    rows.append(Row("full disk", "and the run is continued", happened, passed))
    filler.unlink()
    status, _ = finish(workdir, longer, log=log)
    complete = sorted(losses(workdir)) == list(range(1, 2 * STEPS + 1))
    happened = f"exit {status}; {len(losses(workdir))} of {2 * STEPS} losses"
    passed = status == 0 and complete
    rows.append(Row("full disk", "and after room is made", happened, passed))
  return rows


def _limited(out: pathlib.Path) -> Row:
  """No file can grow beyond a size, which needs no root."""
  workdir = out / "limited"
  child = Child(workdir, f"--config.num_steps={STEPS}")
  child.wait_for_step(25)
  pid, limit = child.process.pid, resource.RLIMIT_FSIZE
  _, hard = resource.prlimit(pid, limit)
  resource.prlimit(pid, limit, (4096, hard))
  told = child.wait_until(lambda: "could not be saved" in child.words())
  resource.prlimit(pid, limit, (hard, hard))
  status, words = child.finish()
  return _survived(workdir, status, words, told, "RLIMIT_FSIZE of 4 KiB")


def _survived(workdir, status: int, words: str, told: bool, done: str) -> Row:
  complete = sorted(losses(workdir)) == list(range(1, STEPS + 1))
  passed = (
      status == 0 and told and complete and saved_steps(workdir)[-1:] == [STEPS]
  )
  passed &= said(words, "training goes on", "saved after")
  happened = (
      f"exit {status}: {'told' if told else 'NOT told'}, went on, saved again"
      f" at {saved_steps(workdir)}; {len(losses(workdir))} of {STEPS} losses"
  )
  return Row("full disk", f"{done} while it trains", happened, passed)


def read_only(out: pathlib.Path) -> list[Row]:
  workdir, steps = out / "read_only", f"--config.num_steps={STEPS}"
  if not os.geteuid() and not shutil.which("setpriv"):
    return [_not_tried("read-only workdir", "without setpriv root may write")]
  child = Child(workdir, steps, may_override=False)
  child.wait_for_step(15)
  _set_mode(workdir, 0o555, 0o444)
  status, words = child.finish()
  passed = status == 1 and said(words, "can no longer be written")
  passed &= _is_one_line(words)
  happened = f"exit {status}: {last_line(words)}"
  rows = [Row("read-only workdir", "while it trains", happened, passed)]
  status, words = finish(workdir, steps, may_override=False)
  passed = status == 2 and said(words, "must be a folder that can be written")
  happened = f"exit {status}: {last_line(words)}"
  passed &= _is_one_line(words)
  rows.append(Row("read-only workdir", "at the start", happened, passed))
  _set_mode(workdir, 0o755, 0o644)
  status, words = finish(workdir, steps)
  complete = sorted(losses(workdir)) == list(range(1, STEPS + 1))
  happened = f"exit {status}; {len(losses(workdir))} of {STEPS} losses"
  passed = status == 0 and complete
  return [*rows, Row("read-only workdir", "writable again", happened, passed)]


def _set_mode(folder: pathlib.Path, folders: int, files: int) -> None:
  for path in (folder, *folder.rglob("*")):
    path.chmod(folders if path.is_dir() else files)


def _is_one_line(words: str) -> bool:
  return len(words.splitlines()) == 1


def vanished(out: pathlib.Path) -> list[Row]:
  workdir, elsewhere = out / "vanished", out / "elsewhere"
  child = Child(workdir, f"--config.num_steps={STEPS}")
  child.wait_for_step(15)
  workdir.rename(elsewhere)
  status, words = child.finish()
  reached = last_step(elsewhere)
  passed = status == 1 and said(words, "has vanished")
  happened = f"exit {status} after step {reached}: {last_line(words)}"
  rows = [Row("vanished workdir", "renamed", happened, passed)]
  # TensorStore makes the folder again if it vanishes during a save.
  shutil.rmtree(workdir, ignore_errors=True)
  elsewhere.rename(workdir)
  status, _ = finish(workdir, f"--config.num_steps={STEPS}")
  complete = sorted(losses(workdir)) == list(range(1, STEPS + 1))
  happened = f"exit {status}; {len(losses(workdir))} of {STEPS} losses"
  passed = status == 0 and complete
  return [*rows, Row("vanished workdir", "and back again", happened, passed)]


def damaged_cache(out: pathlib.Path) -> list[Row]:
  """Compiled programs that a kill cut short."""
  finish(out / "before", "--config.num_steps=20", cache=out / "cache")
  programs = [p for p in (out / "cache").iterdir() if p.is_file()]
  for path in programs:
    _truncate(path)
  status, words = finish(
      out / "after", "--config.num_steps=20", cache=out / "cache"
  )
  same = losses(out / "before") == losses(out / "after")
  passed = status == 0 and same and bool(programs) and "Traceback" not in words
  happened = (
      f"exit {status}; {len(programs)} files cut, compiled anew; losses"
      f" {'the same' if same else 'DIFFER'}"
  )
  return [Row("damaged compile cache", "files cut in two", happened, passed)]


@contextlib.contextmanager
def _small_disk(folder: pathlib.Path) -> Iterator[pathlib.Path | None]:
  """A disk of 8 MB; None if we may not mount one."""
  folder.mkdir(parents=True)
  mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
  if subprocess.run(mount, capture_output=True, check=False).returncode:
    yield None
    return
  try:
    yield folder
  finally:
    subprocess.run(["umount", "-l", folder], check=True)


def _fill(path: pathlib.Path) -> None:
  with contextlib.suppress(OSError), open(path, "wb", 0) as file:
    while file.write(bytes(4096)):
      pass


def _not_tried(fault: str, why: str) -> Row:
  return Row(fault, "", f"NOT TRIED: {why}", True)
