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

# The kernels compiled without the accelerator, each compiler in an environment
# of its own (libtpu is 0.7 GB, and a jax that finds it looks for a TPU):
#   make check-tpu [CHIPS=v5e,v6e]
CHIPS ?= v5e,v5p,v6e,tpu7x

.PHONY: check-tpu check-gpu
check-tpu: .venv-aot/.installed
	.venv-aot/bin/python -m diff_jax.bench.check_tpu --chips=$(CHIPS)

check-gpu: .venv-aot-gpu/.installed
	.venv-aot-gpu/bin/python -m diff_jax.bench.check_gpu

.venv-%/.installed: pyproject.toml | $(VENV)/bin/python
	$(VENV)/bin/python -m venv .venv-$*
	.venv-$*/bin/python -m pip install -q --disable-pip-version-check -e '.[$*]'
	touch $@

# The kernels on a Hopper GPU: correctness first, then times. It stops after 9
# minutes; run it again and it goes on. A piece, or a report of what there is:
#   make gpu GPU_FLAGS=--piece=attention
#   make gpu GPU_FLAGS=--report
# With a Python that has jax for CUDA already: make gpu GPU_PYTHON=python3
GPU_PYTHON ?= .venv-cuda/bin/python

.PHONY: gpu
gpu: $(patsubst %/bin/python,%/.installed,$(filter .venv-cuda/%,$(GPU_PYTHON)))
	$(GPU_PYTHON) -m diff_jax.bench.gpu $(GPU_FLAGS)

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
