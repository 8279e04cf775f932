SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# In continuous integration the lock file is the contract.
LOCKED := $(if $(CI),--locked)
SCRIPTS := compose/stack compose/prepare compose/producers .ci/run

.PHONY: help
help: ## List these targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: demo
demo: prepare ## Build, start Redis and Postgres, and watch 100,000 events take effect once each
	compose/stack up redis postgres
	eval "$$(compose/stack env)" && cargo run $(LOCKED) --release -- demo

.PHONY: test
test: stack-up ## Run every test, with real Kafka, Redis and Postgres, and producers of other makers
	@compose/producers prepare
	eval "$$(compose/stack env)" && cargo test $(LOCKED) --all-features

.PHONY: test-long
test-long: stack-up ## Run what takes longer: storms, soaks, millions of rows
	eval "$$(compose/stack env)" && cargo test $(LOCKED) --release --all-features --test 'long_*'

.PHONY: bench
bench: prepare ## Measure
	compose/stack up redis postgres
	eval "$$(compose/stack env)" && cargo bench $(LOCKED) --all-features

.PHONY: bench-parts
bench-parts: prepare ## Measure what runs per event, part by part, without any server
	cargo bench $(LOCKED) --bench per_event

.PHONY: lint
lint: prepare lint-shell ## Check format, lints, scripts, licences and sources of the dependencies
	cargo fmt --check
	cargo clippy $(LOCKED) --all-targets --all-features -- -D warnings
	$(MAKE) lint-dependencies

.PHONY: lint-shell
lint-shell:
	@if ! command -v shellcheck >/dev/null; then \
	  echo 'lint: no shellcheck here, scripts are not checked'; \
	else \
	  shellcheck --external-sources --check-sourced $(SCRIPTS); \
	fi

# The advisories are a database of their own, which not every machine reaches.
.PHONY: lint-dependencies
lint-dependencies:
	@set -e; if ! command -v cargo-deny >/dev/null; then \
	  echo 'lint: no cargo-deny here, licences and sources are not checked'; \
	else \
	  cargo deny check --hide-inclusion-graph licenses bans sources; \
	  if timeout 60 cargo deny fetch db >/dev/null 2>&1; then \
	    cargo deny check advisories; \
	  else \
	    echo 'lint: the advisory database cannot be reached, advisories are not checked'; \
	  fi; \
	fi

.PHONY: fmt
fmt: ## Format the code
	cargo fmt

.PHONY: prepare
prepare: ## Install what the build needs
	@compose/prepare

.PHONY: stack-up
stack-up: prepare ## Start Kafka, Redis and Postgres and wait until they are ready
	@compose/stack up

.PHONY: stack-down
stack-down: ## Stop them; their data stays
	@compose/stack down

.PHONY: stack-status
stack-status: ## Show what runs where
	@compose/stack status
