# `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
T ?= tests
PYTEST := $(BIN)/pytest -q

.PHONY: help setup demo check test lint types imports unit bench soak crash lock format

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: ## Install everything needed, and nothing else
	@scripts/setup

demo: setup ## Show the service doing its main job, then clean up
	@$(BIN)/bullpen demo

check: setup lint types imports unit ## The fast half: lint, types, imports, unit tests

test: check ## Everything: the fast half, then real processes, crashes and clients
	$(PYTEST) -n 2 --dist loadfile -m "(slow and not real) or patient" $(T)
	$(PYTEST) -m "real and not patient" $(T)

lint: setup ## Style and format
	@$(BIN)/ruff check src tests
	@$(BIN)/ruff format --check src tests

types: setup ## mypy, strict
	@$(BIN)/mypy

imports: setup ## Imports point down only
	@$(BIN)/lint-imports

unit: setup ## Unit and contract tests
	$(PYTEST) -n 2 -m "not slow and not real" $(T)

crash: setup ## Harm a lab of real processes, round after round: ROUNDS=100 SEED=1
	PYTHONPATH=tests/real $(BIN)/python tests/crash/harness.py \
	    --rounds $(or $(ROUNDS),100) --seed $(or $(SEED),1)

bench: setup ## Benchmarks, as ratios to references measured in the same run
	@$(BIN)/bullpen bench

soak: setup ## Simulated faults for SECONDS_MAX (600) seconds in each home, from SEED (1) on
	@$(BIN)/bullpen sim --runs 0 --until $${SECONDS_MAX:-600} --jobs 2 --seed $${SEED:-1}
	@$(BIN)/bullpen sim --runs 0 --until $${SECONDS_MAX:-600} --jobs 2 --seed $${SEED:-1} --home cluster

format: setup ## Format the code
	@$(BIN)/ruff check --fix -q src tests; $(BIN)/ruff format src tests

lock: setup ## Pin the newest allowed versions of every dependency
	@$(BIN)/uv pip compile pyproject.toml --group dev --generate-hashes \
	    --python-version 3.11 --upgrade -q -o requirements.lock
