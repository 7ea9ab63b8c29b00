# Everything runs in .venv, which is made on first use and remade when the dependencies change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.tersor-installed
PYTEST_ARGS ?= -n auto

.DEFAULT_GOAL := help
.PHONY: help quickstart test lint format types bench-smoke clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
	  echo "tersor needs Python 3.11, 3.12 or 3.13; name one with: make PYTHON=python3.12 ..." >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e ".[dev]"
	@touch $@

quickstart: $(STAMP) ## compress generated tensors with several codecs and print the table
	$(BIN)/tersor quickstart

test: $(STAMP) ## run the test suite on the CPU; PYTEST_ARGS="-m slow" and the like are passed on
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(STAMP) ## check style, format and spelling
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/typos

format: $(STAMP) ## rewrite the source in the house format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: $(STAMP) ## check the types of src, strictly
	$(BIN)/mypy

bench-smoke: $(STAMP) ## run every benchmark once on tiny inputs
	$(BIN)/tersor bench kernels --device cpu --smoke
	$(BIN)/tersor bench memory --smoke

clean: ## remove what make and the tools created
	rm -rf $(VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests -name __pycache__ -type d -exec rm -rf {} +
