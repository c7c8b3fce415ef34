# Copyright 2026 The diff_jax Authors
# SPDX-License-Identifier: Apache-2.0

# The first of $PYTHON, python3.12, python3.13, python3 that runs and is new
# enough: some are on the PATH only to say that they are not installed.
VENV ?= .venv
FIND_PYTHON = for p in "$$PYTHON" python3.12 python3.13 python3; do \
    [ -n "$$p" ] && "$$p" -c 'import sys; sys.exit(sys.version_info < (3, 12))' \
      2>/dev/null && { echo "$$p"; exit 0; }; \
  done; \
  echo "diff_jax needs Python >= 3.12: install it, or set PYTHON" >&2; exit 1

.PHONY: demo test lint clean

# A step allocates and frees many megabytes: huge pages save up to a third of it.
demo: export GLIBC_TUNABLES = glibc.malloc.hugetlb=1
demo: $(VENV)/.installed
	. $(VENV)/bin/activate && \
	diff-jax sweep configs/recall.py --workdir=runs/demo/recall \
	  --report=runs/demo/report.html && \
	diff-jax train --config=configs/tiny_lm.py --workdir=runs/demo/tiny_lm && \
	diff-jax report runs/demo/recall/* runs/demo/tiny_lm \
	  --out=runs/demo/report.html

test: $(VENV)/.installed-dev
	. $(VENV)/bin/activate && python -m pytest -q

lint: $(VENV)/.installed-dev
	. $(VENV)/bin/activate && ruff check . && pyink --check -q .

# The kernels compiled for every TPU on a machine without one; needs the extra
# `aot`: pip install -e '.[aot]'
.PHONY: check-tpu
check-tpu: $(VENV)/.installed
	. $(VENV)/bin/activate && python -m diff_jax.bench.check_tpu

# The same for Hopper; needs the extra `aot-gpu`, which is best put into an
# environment of its own: make check-gpu VENV=.venv-gpu
.PHONY: check-gpu
check-gpu: $(VENV)/.installed
	. $(VENV)/bin/activate && python -m diff_jax.bench.check_gpu

# Beside PyTorch, which gets an environment of its own. The torch of PyPI brings
# gigabytes of CUDA on Linux; where pip knows a CPU-only wheel, name it:
#   make bench-peers PEERS_TORCH=torch==2.13.0+cpu [PEERS_PYTHON=python3.11]
PEERS_VENV = .venv-peers
PEERS_PYTHON ?= $(VENV)/bin/python
PEERS_TORCH ?= torch

.PHONY: bench-peers
bench-peers: $(VENV)/.installed $(PEERS_VENV)/.installed
	. $(VENV)/bin/activate && \
	diff-jax bench --suite=peers --peers-python=$(PEERS_VENV)/bin/python

$(PEERS_VENV)/.installed: | $(VENV)/.installed
	$(PEERS_PYTHON) -m venv $(PEERS_VENV)
	$(PEERS_VENV)/bin/python -m pip install -q --disable-pip-version-check \
	  '$(PEERS_TORCH)' 'transformers>=5,<6'
	touch $@

$(VENV)/bin/python:
	python=$$($(FIND_PYTHON)) && "$$python" -m venv $(VENV)

$(VENV)/.installed: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check -e .
	touch $@

$(VENV)/.installed-dev: $(VENV)/bin/python pyproject.toml
	$(VENV)/bin/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist *.egg-info
