# Everything that is installed goes into .venv; nothing else on the machine is touched.

PYTHON ?= python3
JOBS ?= 2
SOAK ?= 3600
BIN := .venv/bin
CORE := .venv/.core
READY := .venv/.ready
OTHERS := .venv/.others
SPARK := .venv/.spark
LOCKED = $(BIN)/python deploy/locked.py
# Each file is compared with the hashes of requirements.lock. Nothing else is fetched, not even what builds a package.
PIP := $(BIN)/python -m pip --quiet --disable-pip-version-check
INSTALL := $(PIP) install --require-hashes --no-deps -r
LOWEST := .venv/lowest
DEPLOY := .venv/deploy

# Some machines tell Python to keep no bytecode. Tests start hundreds of processes, and each would compile the code anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-long test-unit test-lowest test-postgres test-python torture soak bench lint lint-deploy format lock revisions tables release docs clean

help:  ## Say what there is to make
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(CORE)  ## Watch this repository's history go through two workers while things go wrong, and the result checked
	$(BIN)/headrace demo

test: $(READY)  ## Run the tests, on an embedded Postgres
ifdef ARGS
	$(BIN)/python -m pytest -n $(JOBS) $(ARGS)
else
	$(BIN)/python -m pytest -n $(JOBS) --ignore tests/spark
	$(BIN)/python -m pytest -n $(JOBS) tests/spark
endif

test-long: $(READY)  ## Run the tests that take many seconds each, which `make test` leaves out
	$(BIN)/python -m pytest -n $(JOBS) -m "long and not torture" $(ARGS)

test-unit: $(READY)  ## Run the tests that need neither Postgres nor other processes
	$(BIN)/python -m pytest -n $(JOBS) -m unit --ignore tests/spark $(ARGS)

test-lowest: $(READY)  ## Run the tests on the lowest versions of the dependencies
	$(PYTHON) -m venv $(LOWEST)
	$(BIN)/python -m tests.support.lowest > $(LOWEST)/requirements.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check -r $(LOWEST)/requirements.txt
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	$(LOWEST)/bin/python -m pytest -n $(JOBS) -W default::DeprecationWarning --ignore tests/spark $(ARGS)

test-postgres: $(READY)  ## Run the tests of SQL on another Postgres: VERSION=15, or VERSION=all
	@test -n "$(VERSION)" || { echo "Name the version: make test-postgres VERSION=15, or VERSION=all"; exit 2; }
	$(BIN)/python -m tests.versions.postgres $(VERSION) $(if $(SHORT),--short) $(if $(REPACK),--repack) --jobs $(JOBS) -- $(ARGS)

test-python:  ## Run the core's tests on another Python: VERSION=3.15, PYTHON=python3.13, or NEWEST=1
	$(if $(shell $(PYTHON) -V 2>/dev/null),$(PYTHON),python3) -m tests.versions.python $(if $(NEWEST),--newest,$(or $(VERSION),$(PYTHON))) $(if $(SHORT),--short) --jobs $(JOBS) -- $(ARGS)

torture: $(READY)  ## Run the longest tests, which kill, freeze and restart things
	$(BIN)/python -m pytest -m torture -o faulthandler_timeout=0 $(ARGS)

soak: $(READY)  ## Run all features for an hour, and look for leaks: SOAK=600 for ten minutes
	$(BIN)/python -m benchmarks soak --seconds $(SOAK) $(ARGS)

bench: $(READY)  ## Run every benchmark, beside the raw limits of Postgres; best with nothing else running
	$(BIN)/python -m benchmarks all $(ARGS)

lint: $(READY)  ## Check style, types, and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tests.docs.docstrings

lint-deploy: $(READY)  ## Check the files below deploy/ with the linters of their tools
	$(PYTHON) -m venv $(DEPLOY)
	$(DEPLOY)/bin/python -m pip install --quiet --disable-pip-version-check -r tests/deploy/linters.txt
	$(DEPLOY)/bin/hadolint deploy/Dockerfile
	$(DEPLOY)/bin/yamllint --config-file tests/deploy/yamllint.yaml --strict deploy
	$(DEPLOY)/bin/kubernetes-validate --strict $(filter-out %/kustomization.yaml %/grants.yaml,$(wildcard deploy/kubernetes/*.yaml))
	$(DEPLOY)/bin/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose/compose.yaml
	$(BIN)/python -m tests.deploy.units

format: $(READY)  ## Format the code
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

lock: $(READY)  ## Resolve the dependencies anew into requirements.lock, for the oldest Python
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip compile --quiet --upgrade --universal --generate-hashes --python-version 3.11.0 \
		--all-extras --group test --group lint --group docs --group build --no-emit-index-url --no-emit-find-links --no-header --no-emit-package headrace --output-file requirements.lock pyproject.toml

revisions: $(READY)  ## Record what the newest revision of the schema consists of, after its SQL was changed
	$(BIN)/python -m tests.upgrade.lock

tables: $(READY)  ## Write the tables of settings into the documentation, after a setting was changed
	$(BIN)/python -m docsite.tables

release: $(READY)  ## Keep the code of this version, for tests of upgrades from it
	$(BIN)/python -m tests.upgrade.release

docs: $(READY)  ## Build the documentation site, with search, and check its links
	$(BIN)/python -m docsite

clean:  ## Stop the project's embedded Postgres, and remove what was installed and cached
	-[ -x $(BIN)/headrace ] && $(BIN)/headrace pg stop
	rm -rf .headrace/programs .headrace/npm
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# A worker and the embedded Postgres are enough for the demo. Tests need the rest.
$(CORE): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "Headrace needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=/path/to/python3.11"; exit 1; }
	@# Some systems ship Python without the venv module's pip: then virtualenv, kept below .venv too.
	@echo "Making .venv, into which everything goes."
	@$(PYTHON) -m venv .venv || { $(PYTHON) -m pip install --quiet --target .venv/bootstrap virtualenv \
		&& PYTHONPATH=.venv/bootstrap $(PYTHON) -m virtualenv --quiet .venv; }
	@$(LOCKED) project embedded build > $(CORE).txt
	@echo "Installing $$(grep -c == $(CORE).txt) packages, with their hashes checked. The largest is Postgres itself."
	@$(INSTALL) $(CORE).txt
	@echo "Installing Headrace."
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $(CORE)

# Spark comes as source, and to build its package takes as long as to install all others: both at once.
$(READY): $(CORE)
	@$(MAKE) --no-print-directory -j 2 $(OTHERS) $(SPARK)
	@$(PIP) install --no-deps $(SPARK)/*.whl
	@rm -rf $(SPARK)
	@touch $(READY)

$(OTHERS): $(CORE)
	@$(LOCKED) all -pyspark > $(OTHERS).part
	@echo "Installing the $$(grep -c == $(OTHERS).part) packages of the tests and of the other parts."
	@$(INSTALL) $(OTHERS).part
	@mv $(OTHERS).part $(OTHERS)

$(SPARK): $(CORE)
	@rm -rf $(SPARK) $(SPARK).part
	@$(LOCKED) =pyspark > $(SPARK).txt
	@echo "Building PySpark from its source, which takes a minute."
	@# Without --use-pep517, a pip older than 23.1 needs the package wheel.
	@$(PIP) wheel --use-pep517 --no-build-isolation --require-hashes --no-deps --wheel-dir $(SPARK).part -r $(SPARK).txt
	@mv $(SPARK).part $(SPARK)
