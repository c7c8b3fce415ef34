# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""What XLA compiled is kept beside the runs, for the next start."""

import os
import pathlib

import jax


def use_compile_cache(workdir: str | os.PathLike) -> None:
  """Keeps compiled programs in the folder above `workdir`.

  A cache that the user has set (JAX_COMPILATION_CACHE_DIR) is left as it is;
  JAX_ENABLE_COMPILATION_CACHE=false uses none.
  """
  if jax.config.jax_compilation_cache_dir is None:
    folder = pathlib.Path(workdir).absolute().parent / ".jax_cache"
    jax.config.update("jax_compilation_cache_dir", str(folder))
