# FleetSieve: everything a developer or CI runs. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# Any Python that is new enough; override with `make PYTHON=/path/to/python3.12 ...`.
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
	"$$python" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$python" && break; done)
VENV := .venv
BIN := $(VENV)/bin
VENV34 := .venv-airflow34
AIRFLOW34 := apache-airflow==3.4.0b2 apache-airflow-core==3.4.0b2 apache-airflow-task-sdk==1.4.0b2
INSTALL := pip install --quiet
# Where it is set, every Airflow process and every task compiles its imports anew: minutes instead of seconds.
unexport PYTHONDONTWRITEBYTECODE
# Workers of the default suite: as many as cores, but each may hold an Airflow of its own.
WORKERS ?= 2

.PHONY: help demo up down install test test-again explore test-airflow34 check format constraints clean

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

demo: $(VENV)/.demo  ## plan a fleet end to end in a real Airflow, in under five minutes, then end everything
	@$(BIN)/python -m fleetsieve_airflow.demo run

up: $(VENV)/.demo  ## start Airflow and MLflow on this machine and leave them running
	@$(BIN)/python -m fleetsieve_airflow.demo up

down:  ## end what `make up` started
	@if [ -x $(BIN)/python ]; then $(BIN)/python -m fleetsieve_airflow.demo down; else echo "Nothing is installed, so nothing runs."; fi

install: $(VENV)/.dev  ## make .venv with everything that tests and checks need

test: $(VENV)/.dev  ## run the whole default test suite
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --cov --cov-report=term:skip-covered
	$(BIN)/python -m coverage report --include='fleetsieve_airflow/core/*' --fail-under=95

test-again: $(VENV)/.dev  ## run what failed in `make test` once more, then its check of the core's coverage
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --last-failed
	$(BIN)/python -m coverage report --include='fleetsieve_airflow/core/*' --fail-under=95

explore: $(VENV)/.dev  ## run the property tests on examples that were never tried, as often as ROUNDS says
	for round in $$(seq $(or $(ROUNDS),5)); do \
		HYPOTHESIS_PROFILE=explore $(BIN)/python -m pytest -q -n $(WORKERS) $$(grep -rlE '^from hypothesis import' --include='test_*.py' tests); done

test-airflow34: $(VENV34)/.dev  ## run what depends on Airflow's version on the 3.4 pre-release
	$(VENV34)/bin/python -m pytest -n $(WORKERS) --dist loadgroup \
		tests/dags tests/operators tests/triggers tests/test_plugin.py tests/test_provider_info.py \
		tests/integration/test_campaign.py

check: $(VENV)/.dev  ## lint, format, types and the direction of imports
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/python -m pytest -q tests/test_import_rules.py

format: $(VENV)/.dev  ## rewrite the code in the project's format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

constraints: $(VENV)/.uv  ## resolve constraints.txt anew from pyproject.toml
	echo "# What this release was tested with, on Python 3.11. Written by \`make constraints\`." > constraints.txt
	$(BIN)/uv pip compile pyproject.toml --quiet --extra dev --extra simulator --python-version 3.11 --upgrade \
		--no-header --no-annotate --no-emit-index-url --no-emit-find-links >> constraints.txt

clean: down  ## remove environments, databases and caches
	rm -rf $(VENV) $(VENV34) .local .coverage .mypy_cache .ruff_cache .pytest_cache .hypothesis dist

$(VENV)/.uv:
	@[ -n "$(PYTHON)" ] || { echo "FleetSieve needs Python 3.11 or newer with venv; set PYTHON=/path/to/python." >&2; exit 1; }
	@echo "Making $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt uv
	@touch $@

$(VENV)/.demo: $(VENV)/.uv pyproject.toml constraints.txt
	@echo "Installing Airflow, MLflow and FleetSieve into $(VENV)"
	@$(BIN)/uv $(INSTALL) --python $(BIN)/python --constraint constraints.txt --editable '.[server]'
	@touch $@

$(VENV)/.dev: $(VENV)/.uv pyproject.toml constraints.txt
	@echo "Installing FleetSieve and its development tools into $(VENV)"
	@$(BIN)/uv $(INSTALL) --python $(BIN)/python --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/.demo

$(VENV34)/.dev: $(VENV)/.uv pyproject.toml constraints.txt
	@echo "Installing $(firstword $(AIRFLOW34)) into $(VENV34)"
	@$(PYTHON) -m venv $(VENV34)
	@grep -vE '^apache-airflow' constraints.txt > $(VENV34)/constraints.txt
	@$(BIN)/uv $(INSTALL) --python $(VENV34)/bin/python --constraint $(VENV34)/constraints.txt --editable '.[dev]' $(AIRFLOW34)
	@touch $@

include make/*.mk
