# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0
"""Compiled programs are kept beside the runs, unless the user says where."""

import jax
import pytest

from diff_jax.compile_cache import use_compile_cache


@pytest.fixture
def cache_dir():
  before = jax.config.jax_compilation_cache_dir
  yield lambda: jax.config.jax_compilation_cache_dir
  jax.config.update("jax_compilation_cache_dir", before)


def test_the_cache_lies_above_the_workdir(tmp_path, cache_dir):
  jax.config.update("jax_compilation_cache_dir", None)
  use_compile_cache(tmp_path / "runs" / "x")
  assert cache_dir() == str(tmp_path / "runs" / ".jax_cache")


def test_a_cache_of_the_user_stays(tmp_path, cache_dir):
  jax.config.update("jax_compilation_cache_dir", "mine")
  use_compile_cache(tmp_path / "runs" / "x")
  assert cache_dir() == "mine"
