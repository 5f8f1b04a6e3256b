# draftwire: `make demo` shows it, `make test` checks it. Both set everything up first.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
LEAN := $(CURDIR)/tools/lean-llama.cmake
# Parts of llama.cpp that draftwire does not use are left out: a third of the compile time remains.
LLAMA_FLAGS ?= -DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF -DCMAKE_PROJECT_llama_cpp_INCLUDE=$(LEAN)
export CMAKE_ARGS := $(LLAMA_FLAGS) $(CMAKE_ARGS)
# Both ends share this machine, and a spinning OpenMP thread beside a busy neighbour costs a factor of 80.
export GOMP_SPINCOUNT := 1000
export OMP_WAIT_POLICY := active
export KMP_BLOCKTIME := 0
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export TOKENIZERS_PARALLELISM := false

.PHONY: help setup models demo test nightly lint stubs clean

help: ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z]+):.*## (.*)/  make \1\t\2/' | expand -t 16

setup: $(VENV)/.ready ## virtual environment and packages

$(VENV)/.ready: pyproject.toml constraints.txt tools/stub-generator.txt
	$(PYTHON) -m venv $(VENV)
	@echo "installing packages; llama-cpp-python compiles the first time (3 to 11 minutes)"
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --progress-bar on -c constraints.txt -e '.[dev]'
	$(BIN)/pip install --quiet --no-deps -r tools/stub-generator.txt
	@touch $@

models: setup ## fetch the default pair (1.6 GB) and the small test model, convert the targets
	$(BIN)/draftwire models pull qwen2.5-coder
	$(BIN)/draftwire models pull smollm2-self
	$(BIN)/draftwire-cloud convert qwen2.5-coder
	$(BIN)/draftwire-cloud convert smollm2-self --dtype float32

demo: setup ## the main job: three texts, from the cloud alone and together
	$(BIN)/draftwire demo

test: models ## everything that is checked before a merge
	$(BIN)/pytest

nightly: models ## the slow checks
	$(BIN)/pytest -m nightly

lint: setup ## formatting, style, types, import contracts, stubs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/gen_stubs.py --check

stubs: setup ## regenerate the committed protobuf stubs
	$(BIN)/python tools/gen_stubs.py

clean: ## remove the environment and caches of tools; models stay
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache
