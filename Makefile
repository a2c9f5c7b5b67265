# Every target sets up what it needs, in .venv; run `make` to see them.
.DEFAULT_GOAL := help
SHELL := /bin/bash
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PYTEST_WORKERS ?= 2

.PHONY: help demo test lint lint-deploy manifests docs bench bench-details chaos soak clean

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: .venv/.ready-demo  ## run two nodes, kill one under a running workflow, watch it finish
	@$(BIN)/headrace demo

test: .venv/.ready-test  ## run the whole test suite (needs redis-server, haproxy, nginx and chromium)
	@.ci/need redis-server haproxy nginx-light chromium
	$(BIN)/python -m pytest -n $(PYTEST_WORKERS) $(TESTS)

lint: .venv/.ready-test .venv/.ready-lint  ## style, types and the import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

lint-deploy: .venv/.ready-lint  ## what is under deploy/, by the tools that read it
	@PYTHON=$(BIN)/python .ci/lint-deploy

manifests: .venv/bin/python  ## make deploy/kubernetes/headrace.yaml anew from the chart
	@PYTHON=$(BIN)/python .ci/manifests >deploy/kubernetes/headrace.new
	@mv deploy/kubernetes/headrace.new deploy/kubernetes/headrace.yaml

docs: .venv/.ready-docs  ## the documentation as a site, in build/site
	$(BIN)/zensical build --strict

bench: .venv/.ready-test  ## measure beside other systems (WORKLOADS=W1,W2 PEERS=celery BENCH=--publish)
	@.ci/need redis-server
	$(BIN)/python -m tests.bench $(BENCH)

bench-details: .venv/.ready-test  ## measure single requests, histories, timers and limits
	@.ci/need redis-server
	$(BIN)/python -m pytest -m bench -p no:randomly --timeout 600 -s tests/bench

SEED ?= 1
ROUNDS ?= 2

chaos: .venv/.ready-test  ## break everything in turn and check what became of the work (SEED=1 ROUNDS=2)
	@.ci/need redis-server haproxy
	$(BIN)/python -m tests.chaos.campaign --seed $(SEED) --rounds $(ROUNDS) $(CHAOS)

soak: .venv/.ready-test  ## work for 20 minutes and check that nothing grows (HEADRACE_SOAK_MINUTES=20)
	@.ci/need redis-server
	$(BIN)/python -m tests.chaos.soak

clean:  ## remove the virtual environment and caches
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis build dist *.egg-info

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "Python 3.11 or newer is needed: install python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed, %s is %s" % (sys.executable, sys.version.split()[0]) if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv .venv || { rm -rf .venv; .ci/need python3-venv && $(PYTHON) -m venv .venv; }

.venv/.ready-%: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[$*]'
	@touch $@
