# Everything runs in .venv, which is made on first use and remade when the dependencies change.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.tersor-installed
# torchrec pins what it needs too tightly to live beside the other tools
TORCHREC_VENV := .venv-torchrec
TORCHREC_STAMP := $(TORCHREC_VENV)/.tersor-installed
PYTEST_ARGS ?= -n auto
GPU_PYTHON ?= 3.12
# ignored by git; on a GPU machine, unpacked from the archive that make gpu-packages writes
GPU_PACKAGES := peers/gpu-packages
GPU_PATH := src:$(GPU_PACKAGES)

.DEFAULT_GOAL := help
.PHONY: help quickstart test test-torchrec test-gpu sanitize gpu-packages lint format types bench-smoke clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

define NEW_VENV
@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' || { \
  echo "tersor needs Python 3.11, 3.12 or 3.13; name one with: make PYTHON=python3.12 ..." >&2; exit 2; }
$(PYTHON) -m venv
endef

$(STAMP): pyproject.toml constraints.txt
	$(NEW_VENV) $(VENV)
	$(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e ".[dev]"
	@touch $@

$(TORCHREC_STAMP): pyproject.toml constraints.txt constraints-torchrec.txt
	$(NEW_VENV) $(TORCHREC_VENV)
	$(TORCHREC_VENV)/bin/python -m pip install --disable-pip-version-check --quiet \
	  -c constraints.txt -c constraints-torchrec.txt \
	  -e . iopath pyre-extensions pytest pytest-timeout tensordict torchmetrics tqdm
	$(TORCHREC_VENV)/bin/python -m pip install --disable-pip-version-check --quiet --no-deps \
	  -c constraints-torchrec.txt fbgemm-gpu-cpu torchrec
	@touch $@

quickstart: $(STAMP) ## train a small recommendation model with and without compression
	$(BIN)/tersor quickstart

test: $(STAMP) ## run the test suite on the CPU; PYTEST_ARGS="-m slow" and the like are passed on
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-torchrec: $(TORCHREC_STAMP) ## run the tests of the TorchRec codecs, in an environment of their own
	$(TORCHREC_VENV)/bin/python -m pytest tests/torchrec

# a machine with a GPU brings a torch for it, so these two use its own Python
test-gpu: ## run the tests that need a GPU, with this machine's Python and torch
	PYTHONPATH=$(GPU_PATH) OMP_NUM_THREADS=1 $(PYTHON) -m pytest -m gpu -n 12 -p no:benchmark -q

sanitize: ## let compute-sanitizer watch every codec on this machine's GPU
	PYTHONPATH=$(GPU_PATH) compute-sanitizer --tool racecheck --error-exitcode 9 \
	  $(PYTHON) -m tests.container.sanitized --flips 1
	PYTHONPATH=$(GPU_PATH) PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 \
	  $(PYTHON) -m tests.container.sanitized --flips 2

gpu-packages: $(STAMP) ## pack what a GPU machine without network lacks, for its Python (GPU_PYTHON), into peers/gpu-packages.tgz
	rm -rf $(GPU_PACKAGES) $(GPU_PACKAGES).tgz
	$(BIN)/python -m pip install --disable-pip-version-check --quiet --target $(GPU_PACKAGES) --no-compile \
	  --python-version $(GPU_PYTHON) --only-binary :all: --no-deps -c constraints.txt \
	  $(foreach glibc,_2_28 _2_27 2014,--platform manylinux$(glibc)_x86_64) \
	  execnet jinja2 lz4 markupsafe msgspec pytest-timeout pytest-xdist xxhash zstandard \
	  nvidia-libnvcomp-cu13 nvidia-nvcomp-cu13
	tar czf $(GPU_PACKAGES).tgz $(GPU_PACKAGES) && rm -rf $(GPU_PACKAGES)

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
	$(BIN)/tersor bench programs --smoke
	$(BIN)/tersor bench embeddings --smoke
	$(BIN)/tersor bench embeddings --synthetic --smoke
	$(BIN)/tersor bench shards --smoke
	$(BIN)/tersor bench activations --smoke
	$(BIN)/tersor bench accuracy gpt --smoke
	$(BIN)/tersor bench accuracy activations gcn --smoke

clean: ## remove what make and the tools created
	rm -rf $(VENV) $(TORCHREC_VENV) .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist
	find src tests -name __pycache__ -type d -exec rm -rf {} +
