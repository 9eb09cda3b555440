# Every target makes its own environment: nothing has to be set up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Files of tests side by side, the long ones first (tests/conftest.py).
BESIDE := --dist loadfile --no-loadscope-reorder

# Tests that start processes wait half of the time, for a disk, a download or a timeout: two for each processor.
CROWD := $(shell $(PYTHON) -c 'import os; print(min(6, 2 * (os.cpu_count() or 1)))')

# What starts processes depends on when the machine lets them run: a test that fails is tried again, and the summary
# names it (RERUN), so that it can be mended; what is skipped is named with how to get what it lacks.
AGAIN := --reruns 2 -raR --durations 15

STARTING := tests/integration tests/fault tests/browser

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-torch lint bench docs site clean

help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-10s %s\n", $$1, $$2}'

# torch comes first and alone: whatever depends on it then takes the build that is there.
$(VENV)/.run: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt torch
	$(PIP) install --quiet --constraint constraints.txt --editable '.[all]'
	@touch $@

$(VENV)/.dev: $(VENV)/.run
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Light: neither torch nor what else is needed to measure.
$(VENV)/.site: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[site]'
	@touch $@

run: $(VENV)/.run ## measure this machine with the suite 'quick' and write paceline-report.html
	$(BIN)/paceline run quick --report paceline-report.html

# Hundreds of processes import the package: it is compiled once, also where the environment says not to keep that.
test: export PYTHONDONTWRITEBYTECODE =
test: lint ## everything that must hold: lint, types, import contract, tests
	$(BIN)/python -m compileall -q src tests/support
	$(BIN)/python -m pytest tests/unit tests/property --numprocesses auto --maxprocesses 8 $(BESIDE) $(AGAIN)
	$(BIN)/python -m pytest $(STARTING) -m 'not alone and not all_servers' --numprocesses $(CROWD) $(BESIDE) $(AGAIN)
	$(BIN)/python -m pytest $(STARTING) -m 'alone' $(AGAIN)

test-all: test ## also with every serving software that can be installed here
	$(BIN)/python -m pytest tests/integration -m all_servers

# What compilers do differs from version to version of torch, and GPUs often run an older one.
OTHER := $(VENV)-torch-$(TORCH)
test-torch: ## unit tests and layouts with another torch, in its own environment (gigabytes): TORCH=2.11.0
	@test -n "$(TORCH)" || { echo 'TORCH is not set; for example: make test-torch TORCH=2.11.0' >&2; exit 2; }
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	grep -vE '^(torch|torchvision|torchao|setuptools|sympy)==' constraints.txt > $(OTHER)/constraints.txt
	echo 'torch==$(TORCH)' >> $(OTHER)/constraints.txt
	$(OTHER)/bin/python -m pip --disable-pip-version-check install -q -c $(OTHER)/constraints.txt torch
	$(OTHER)/bin/python -m pip --disable-pip-version-check install -q -c $(OTHER)/constraints.txt --editable '.[dev]'
	$(OTHER)/bin/python -m pytest tests/unit tests/property tests/integration/test_parallel_parity.py --numprocesses auto --maxprocesses 8 $(BESIDE) $(AGAIN)

lint: $(VENV)/.dev ## style, types and the arrows of the design
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.dev ## Paceline's own speed, as ratios
	$(BIN)/python -m bench

docs: $(VENV)/.dev ## generate docs/reference from the code
	$(BIN)/python docs/generate.py

site: $(VENV)/.site ## the documentation as a site, in build/site; a broken link is an error
	rm -rf build/site
	$(BIN)/python -m sphinx -c docs/site -d build/site-cache -W --keep-going -q . build/site
	@echo 'open build/site/index.html'

clean: ## remove the environment and caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build
