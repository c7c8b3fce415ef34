# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Settings and fixtures that every test shares: eight fake CPU devices."""

# The environment comes before jax.
# ruff: noqa: E402

import atexit
import os
import shutil
import tempfile

# Child processes inherit these. What one test or child compiled the next finds.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
COMPILED = tempfile.mkdtemp(prefix="diff_jax_compiled_")
os.environ["JAX_COMPILATION_CACHE_DIR"] = COMPILED
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.3"
atexit.register(shutil.rmtree, COMPILED, ignore_errors=True)

import jax
import jaxtyping
import pytest
from absl import flags

jax.config.update("jax_num_cpu_devices", 8)
jax.config.update("jax_numpy_rank_promotion", "raise")

if not flags.FLAGS.is_parsed():
  flags.FLAGS.mark_as_parsed()


@pytest.fixture
def no_shape_checks(monkeypatch):
  """Switches the jaxtyping checks off: users run without them.

  A test of an error message needs it, else beartype's error comes first.
  """
  monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
