# The only entry point. `make` or `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
# Whatever is expensive to make lives here, keyed by content, outside the tree.
export PDCLUSTER_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/pdcluster
UV_KEY := $(shell sha256sum locks/uv.txt | cut -c1-12)
UV := $(PDCLUSTER_CACHE)/uv-$(UV_KEY)/bin/uv
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  \033[1m%-12s\033[0m %s\n", $$1, $$2}'

# pip cannot install offline from a warm cache, uv can: so pip fetches uv once, pinned by hash.
$(UV): locks/uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "pdcluster needs Python 3.11 or later; set PYTHON=python3.12 or the like" >&2; exit 2; }
	@[ -x $@ ] || $(PYTHON) -m pip install --quiet --no-warn-script-location --root-user-action ignore --require-hashes --no-deps --target $(PDCLUSTER_CACHE)/uv-$(UV_KEY) -r locks/uv.txt
	@touch $@

$(STAMP): $(UV) pyproject.toml locks/dev.txt locks/nixl.txt
	@[ -x $(BIN)/python ] || $(UV) venv --quiet --no-project --python $(PYTHON) $(VENV)
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes locks/dev.txt
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r locks/nixl.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: setup
setup: $(STAMP) ## Make the development environment (.venv)
