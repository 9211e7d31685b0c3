# Everything runs in a virtual environment inside the tree; nothing global is touched.
# `make help` lists the targets. A certain interpreter: make test PYTHON=/path/to/python3.12

PYTHON ?=
JOBS ?= auto

VENV := .venv
BIN := $(VENV)/bin
# One device and one thread per process: the tests run side by side, and need no accelerator.
ON_CPU := JAX_PLATFORMS=$${JAX_PLATFORMS:-cpu}
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1
# Tests compile far more than they compute: programs that run slower are had much sooner.
QUICK_COMPILE = JAX_DISABLE_MOST_OPTIMIZATIONS=1
ifeq ($(shell uname -m),x86_64)
# Without fused multiply-add, the simpler compiler rounds a sum the same way in every program.
# Later versions of XLA have no simpler compiler, and stop at a flag that they do not know.
SIMPLER = $(if $(wildcard $(VENV)/lib/python*/site-packages/jaxlib-0.10.*),--xla_cpu_use_fusion_emitters=false)
QUICK_COMPILE += XLA_FLAGS="$(SIMPLER) --xla_cpu_max_isa=AVX --xla_cpu_parallel_codegen_split_count=1 $$XLA_FLAGS"
endif
# Expanded when a recipe runs: by then the environment is there.
TESTING = $(ON_CPU) $(ONE_THREAD) $(QUICK_COMPILE) $(BIN)/python
# Tests of a file share what they compile and their fixtures, so they stay in one process.
PYTEST = $(TESTING) -m pytest -n $(JOBS) --maxprocesses 4 --dist loadfile

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow mutants lint format bench docs pictures setup clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 14

demo: setup ## learn dosing policies, draw one, and make a dossier of one, into demo/ (about two minutes)
	@$(ON_CPU) $(BIN)/python -m fat2thin demo --out demo

test: lint ## lint, then every quick test and a sample of the slow ones
	@$(PYTEST) -m "not slow or sampled"

test-slow: setup ## all slow tests (over an hour with those marked long)
	@$(PYTEST) -m slow

mutants: setup ## plant bugs one by one and list those that no quick test detects (ARGS="-k NAME --jobs 2")
	@$(TESTING) tests/mutants/run.py $(ARGS)

lint: setup ## ruff (lint and format) and mypy
	@$(BIN)/python -m ruff check .
	@$(BIN)/python -m ruff format --check .
	@$(BIN)/python -m mypy

format: setup ## format the code
	@$(BIN)/python -m ruff check --fix .
	@$(BIN)/python -m ruff format .

bench: setup ## measure the speed of the distributions, on the device that JAX picks
	@$(BIN)/python benchmarks/distributions.py

docs: setup ## build the documentation site into site/, offline (seconds)
	@$(ON_CPU) $(BIN)/python docs/make_site.py

pictures: setup ## draw the pictures of the documentation again
	@$(ON_CPU) $(BIN)/python -m fat2thin gallery --out docs/images

setup: ## the virtual environment (done by the other targets as well)
	@sh .ci/setup $(VENV) "$(PYTHON)"

clean: ## remove the environment, caches and what the commands wrote
	rm -rf $(VENV) demo site build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
