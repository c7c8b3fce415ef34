# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Settings and fixtures that every test shares: eight fake CPU devices."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # Child processes inherit it.

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
