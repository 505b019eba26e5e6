# `make demo` and `make test` are all a new machine needs: Python 3.11 or newer with venv, and pip's network.
# Both share one virtual environment. It is installed once, and again only when pyproject.toml changes.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.DEFAULT_GOAL := help
.PHONY: help demo test stress test-wheel test-oldest lint types format docs bench bench-quick clean

help:
	@echo 'make demo         train on real photographs with DataLoader and with StageLoader, side by side'
	@echo 'make test         run the tests'
	@echo 'make stress       do random things with random loaders for half an hour, and compare every batch with a model'
	@echo 'make test-wheel   install the wheel in new environments: core alone, each extra alone (downloads some GB)'
	@echo 'make test-oldest  the tests of what torch decides, with the oldest torch that is supported (or TORCH=2.x.y)'
	@echo 'make lint types   check style with ruff and types with pyright'
	@echo 'make format       let ruff put the code in shape'
	@echo 'make docs         build the pages of docs/ as a site into site/; nothing is fetched for it'
	@echo 'make bench        run all benchmarks and draw their pages and pictures (make bench-quick: a short look)'
	@echo 'make clean        remove the virtual environment and what the tools left'

demo: $(VENV)/installed-test
	$(BIN)/python examples/01_drop_in.py

test: $(VENV)/installed-test
	$(BIN)/python -m pytest -n logical --maxprocesses 4 -m 'not timing'
	$(BIN)/python -m pytest -m timing  # one at a time: they measure

test-wheel:
	$(PYTHON) tests/installing/in_venvs.py

# What torch decides: batches, order, errors, draws, state and processes. The rest of the tests needs more than torch.
TORCH ?= 2.9.1
OLDEST := .venv-torch-$(TORCH)
test-oldest:
	$(PYTHON) -m venv $(OLDEST)
	$(OLDEST)/bin/python -m pip install 'torch==$(TORCH)' torchdata torchvision pillow psutil av \
		pytest pytest-timeout 'pytest-xdist[psutil]' hypothesis --editable .
	$(OLDEST)/bin/python -m pytest -n logical --maxprocesses 4 tests/parity tests/samplers tests/engine tests/executors \
		tests/processes tests/test_order.py tests/test_threads.py tests/test_lanes.py tests/test_rng.py \
		tests/test_rng_elsewhere.py tests/test_torch_draws.py tests/test_randomness.py tests/test_transfer.py \
		tests/test_redirect.py tests/test_placing.py

TORCHSTAGE_STRESS_MINUTES ?= 30
TORCHSTAGE_STRESS_SEED ?= $(shell date +%s)

stress: $(VENV)/installed-test
	$(BIN)/python -m tests.stress --minutes $(TORCHSTAGE_STRESS_MINUTES) --seed $(TORCHSTAGE_STRESS_SEED)

lint: $(VENV)/installed-test
	$(BIN)/python -m ruff check .
	$(BIN)/python -m ruff format --check .

types: $(VENV)/installed-test
	$(BIN)/python -m pyright --pythonpath $(BIN)/python

format: $(VENV)/installed-test
	$(BIN)/python -m ruff check --fix .
	$(BIN)/python -m ruff format .

docs: $(VENV)/installed-test
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

bench: $(VENV)/installed-bench
	$(BIN)/python -m benchmarks
	$(BIN)/python -m benchmarks.ceiling --measure
	$(BIN)/python -m benchmarks.draw

bench-quick: $(VENV)/installed-bench
	$(BIN)/python -m benchmarks --quick

clean:
	rm -rf $(VENV) .venv-torch-* build dist site .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Removing the old stamp first means that an interrupted installation is not taken for a finished one.
$(VENV)/installed-%: pyproject.toml | $(BIN)/python
	rm -f $@
	$(BIN)/python -m pip install --editable '.[$*]'
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
