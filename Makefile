# `make gates` and `make test` need Python >= 3.11 and a package index, nothing else: each makes its own .venv first.
# A second call finds the stamps under .venv and starts at once.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --quiet
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python -c requirements.lock --no-build-isolation
PYTHON ?= $(shell for name in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$name -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && command -v $$name && break; done)
TORCH := 2.13.0
WORKERS ?= 2
SMOKE ?=

# nothing here may reach for a model hub or report usage
export HF_HUB_OFFLINE := 1
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := true
export UV_LINK_MODE := copy

.PHONY: help gates test lint soak bench lab ui lock clean
help:
	@echo "make gates     pack the bundled model and walk every gate to its verdict (SMOKE=1: small sizes)"
	@echo "make test      lint, then the tests"
	@echo "make soak      the long versions of the tests"
	@echo "make bench     reads of this disk, decode speed against transformers, replay speed against libcachesim"
	@echo "make lab       JupyterLab on the notebooks"
	@echo "make ui        MLflow on the results"
	@echo "make lint      ruff, mypy, import contracts"
	@echo "make lock      renew requirements.lock"
	@echo "make clean     remove .venv and caches; results and stores stay"

# ---- set-up -----------------------------------------------------------------------------------------------------------

$(BIN)/pip:
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 found: install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "set-up: .venv from $(PYTHON)"
	@"$(PYTHON)" -m venv $(VENV)

# uv takes a third of pip's time to install 200 packages; it is itself installed by pip, pinned like the rest.
$(VENV)/.run: pyproject.toml requirements.lock | $(BIN)/pip
	@echo "set-up: packages of requirements.lock (a minute or two the first time)"
	@$(PIP) install -c requirements.lock uv setuptools
	@$(UV) -e '.[mtlio]'
	@touch $@

# torch is outside the lock because no single index names the build we want: on Linux the plain wheel brings gigabytes of
# CUDA, so the CPU build is asked for by name, where pip is already told to look and then on torch's own index.
$(VENV)/.develop: $(VENV)/.run
	@echo "set-up: tools for the tests, torch $(TORCH) (a minute or two the first time)"
	@$(UV) -e '.[mtlio,dev]'
	@if [ "$$(uname)" = Darwin ]; then $(PIP) install -c requirements.lock torch==$(TORCH); \
	else $(PIP) install -c requirements.lock torch==$(TORCH)+cpu 2>/dev/null \
		|| $(PIP) install -c requirements.lock --extra-index-url https://download.pytorch.org/whl/cpu torch==$(TORCH)+cpu; fi
	@touch $@

lock: $(VENV)/.develop
	@$(BIN)/uv pip compile --quiet --upgrade --universal --python-version 3.11 --all-extras --no-emit-package torch \
		--no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command "make lock" -o requirements.lock pyproject.toml

# ---- work -------------------------------------------------------------------------------------------------------------

gates: $(VENV)/.run
	@$(BIN)/workbench gate all --anyway $(if $(SMOKE),--smoke)

test: lint
	@$(BIN)/python -m pytest -m "not soak" -n $(WORKERS) --dist loadfile --no-loadscope-reorder

soak: $(VENV)/.develop
	@HYPOTHESIS_PROFILE=searching $(BIN)/python -m pytest -m soak -n $(WORKERS)

bench: $(VENV)/.develop
	@$(BIN)/workbench bench io
	@$(BIN)/python tests/bench/decode_speed.py
	@$(BIN)/python tests/bench/replay_speed.py

lint: $(VENV)/.develop
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

lab: $(VENV)/.run
	@$(BIN)/workbench lab

ui: $(VENV)/.run
	@$(BIN)/workbench ui

clean:
	@rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .hypothesis .import_linter_cache
	@find workbench predictors tests -name __pycache__ -type d -prune -exec rm -rf {} +
