# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Who writes a corpus's shards: processes of this machine, or a cluster."""

import concurrent.futures
import logging
import multiprocessing
import os
import pickle
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from diff_jax.config import ConfigError, RunError
from diff_jax.data import shard


def on_processes(
    jobs: Sequence[shard.Job], workers: int | None
) -> Iterator[int]:
  """Indices of the jobs as they are done, by processes of this machine."""
  workers = min(workers or os.cpu_count() or 1, len(jobs))
  executor = concurrent.futures.ProcessPoolExecutor(
      workers, multiprocessing.get_context("spawn"), initializer=_start_worker
  )
  try:
    futures = [executor.submit(shard.write, job) for job in jobs]
    for future in concurrent.futures.as_completed(futures):
      yield future.result()
  except BrokenProcessPool as error:
    raise RunError(
        "a worker process died, killed or out of memory: the same command"
        f" continues; fewer than workers={workers} need less memory"
    ) from error
  finally:
    executor.shutdown(cancel_futures=True)  # Waits for what is being written.


def _start_worker() -> None:
  """Ctrl-C ends a worker without a traceback, its parent's death too."""
  signal.signal(signal.SIGINT, signal.SIG_DFL)
  os.environ["TOKENIZERS_PARALLELISM"] = "false"  # One core a worker.
  parent = multiprocessing.parent_process()

  def end_with_parent():
    parent.join()
    os._exit(1)

  threading.Thread(target=end_with_parent, daemon=True).start()


def on_ray(jobs: Sequence[shard.Job], workers: int | None) -> Iterator[int]:
  """The same by Ray Data, on the cluster that this process belongs to.

  Without one (RAY_ADDRESS, `ray start`, `ray job submit`) on this machine.
  """
  try:
    import ray
    import ray.data
  except ImportError:
    raise ConfigError(
        "engine='ray' needs Ray: pip install 'diff_jax[ray]'"
    ) from None
  if not ray.is_initialized():
    ray.init(logging_level="ERROR")
  ray.data.DataContext.get_current().enable_progress_bars = False
  logging.getLogger("ray.data").setLevel(logging.ERROR)
  rows = [{"job": pickle.dumps(job)} for job in jobs]
  dataset = ray.data.from_items(rows, override_num_blocks=len(rows))
  try:
    for row in dataset.map(_write_row, concurrency=workers).iter_rows():
      if row["error"]:
        raise ConfigError(row["error"])
      yield row["index"]
  except ray.exceptions.RayError as error:
    raise RunError(f"engine='ray' failed: {error}") from error


def _write_row(row: dict[str, Any]) -> dict[str, Any]:
  """`shard.write` on rows; an error is a value, as Ray would rewrap it."""
  try:
    return {"index": shard.write(pickle.loads(row["job"])), "error": ""}
  except (ConfigError, OSError) as error:
    return {"index": -1, "error": str(error)}
