# Every target makes its own environment: nothing has to be set up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check

# Files of tests side by side, the long ones first (tests/conftest.py).
BESIDE := --dist loadfile --no-loadscope-reorder

# Tests that start processes wait half of the time, for a disk, a download or a timeout: two for each processor.
CROWD := $(shell $(PYTHON) -c 'import os; print(min(6, 2 * (os.cpu_count() or 1)))')

# What is skipped is named with how to get what it lacks, and so is what took longest.
PYTEST := $(BIN)/python -m pytest -ra --durations 15

STARTING := tests/integration tests/fault tests/browser

LINT := $(BIN)/ruff check . && $(BIN)/ruff format --check . && $(BIN)/mypy && $(BIN)/lint-imports

# Runs stages, however they end, and prints the time of each and of all.
STAGES := $(BIN)/python tests/stages.py

.DEFAULT_GOAL := help
.PHONY: help run test test-all test-torch mutants lint bench docs site lock release-check clean

help: ## show this
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

installed = touch $(1) && echo "installed $(1) in $$(($$(date +%s) - $$(cat $(VENV)/.begun))) s"

# torch comes first and alone: whatever depends on it then takes the build that is there.
$(VENV)/.run: pyproject.toml constraints.txt
	@mkdir -p $(VENV) && date +%s > $(VENV)/.begun
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt torch
	$(PIP) install --quiet --constraint constraints.txt --editable '.[all]'
	@$(call installed,$@)

$(VENV)/.dev: $(VENV)/.run
	@date +%s > $(VENV)/.begun
	$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@$(call installed,$@)

# Light: neither torch nor what else is needed to measure.
$(VENV)/.site: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install --quiet --constraint constraints.txt --editable '.[site]'
	@touch $@

run: $(VENV)/.run ## measure this machine with the suite 'quick' and write paceline-report.html
	$(BIN)/paceline run quick --report paceline-report.html

# Hundreds of processes import the package: it is compiled once, also where the environment says not to keep that.
test test-all: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.dev ## what must hold at every commit: lint, types, tests (19 minutes on two cores)
	@$(STAGES) \
	  'compile: $(BIN)/python -m compileall -q src tests/support' \
	  '+lint, beside the next: $(LINT)' \
	  'unit and property tests: $(PYTEST) tests/unit tests/property -m "not long" -n auto --maxprocesses 8 $(BESIDE)' \
	  'tests that start processes: $(PYTEST) $(STARTING) -m "not alone and not long" -n $(CROWD) $(BESIDE)' \
	  'tests that run alone: $(PYTEST) $(STARTING) -m "alone and not long"'

test-all: test ## also what takes longer: installed servers, clusters, fifty kills, every layout (an hour)
	@$(STAGES) 'long tests: $(BIN)/python tests/rotation.py'

# What compilers do differs from version to version of torch, and GPUs often run an older one.
OTHER := $(VENV)-torch-$(TORCH)
test-torch: ## unit tests and layouts with another torch, in its own environment (gigabytes): TORCH=2.11.0
	@test -n "$(TORCH)" || { echo 'TORCH is not set; for example: make test-torch TORCH=2.11.0' >&2; exit 2; }
	test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	grep -vE '^(torch|torchvision|torchao|setuptools|sympy)==' constraints.txt > $(OTHER)/constraints.txt
	echo 'torch==$(TORCH)' >> $(OTHER)/constraints.txt
	$(OTHER)/bin/python -m pip --disable-pip-version-check install -q -c $(OTHER)/constraints.txt torch
	$(OTHER)/bin/python -m pip --disable-pip-version-check install -q -c $(OTHER)/constraints.txt --editable '.[dev]'
	$(OTHER)/bin/python -m pytest -ra tests/unit tests/property tests/integration/test_parallel_parity.py --numprocesses auto --maxprocesses 8 $(BESIDE)

mutants: $(VENV)/.dev ## what the tests would notice: the share of 300 changed expressions that fail a test (an hour)
	$(BIN)/python tools/mutants.py

lint: $(VENV)/.dev ## style, types and the arrows of the design
	$(LINT)

bench: $(VENV)/.dev ## Paceline's own speed, as ratios
	$(BIN)/python -m bench

docs: $(VENV)/.dev ## generate docs/reference from the code
	$(BIN)/python docs/generate.py

site: $(VENV)/.site ## the documentation as a site, in build/site; a broken link is an error
	rm -rf build/site
	$(BIN)/python -m sphinx -c docs/site -d build/site-cache -W --keep-going -q . build/site
	@echo 'open build/site/index.html'

lock: $(VENV)/.dev ## give the pins of servers and requirements.lock the hashes that the package index states
	$(BIN)/python tools/pin_hashes.py

# As a user would install it: what is locked, with hashes; then torch, whose build depends on the machine; then the wheel.
RELEASE := build/release
RELEASE_PIP := $(RELEASE)/installed/bin/python -m pip --disable-pip-version-check install --quiet
release-check: ## build the packages, install them from the lock, write build/sbom.json and audit what it lists
	rm -rf $(RELEASE) && mkdir -p $(RELEASE)
	$(PYTHON) -m venv $(RELEASE)/tools
	$(RELEASE)/tools/bin/python -m pip install --quiet build cyclonedx-bom pip-audit
	$(RELEASE)/tools/bin/python -m build --outdir $(RELEASE)/dist .
	$(PYTHON) -m venv $(RELEASE)/installed
	$(RELEASE_PIP) --require-hashes --no-deps --requirement requirements.lock
	$(RELEASE_PIP) --constraint constraints.txt torch
	$(RELEASE_PIP) --no-deps $(RELEASE)/dist/*.whl
	$(RELEASE)/installed/bin/python -m pip check
	$(RELEASE)/installed/bin/paceline --version
	$(RELEASE)/tools/bin/cyclonedx-py environment $(RELEASE)/installed/bin/python --output-format JSON --output-file build/sbom.json
	$(RELEASE)/tools/bin/python tools/audit.py build/sbom.json

clean: ## remove the environment and caches
	rm -rf $(VENV) .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis build
