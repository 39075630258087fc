# `make` alone lists the targets.
.DEFAULT_GOAL := help
SHELL := /bin/bash
BIN := .venv/bin
T ?= tests
RERUNS ?=
PYTEST := $(BIN)/pytest -q $(RERUNS)

# Without bytecode, each of the many processes that tests start compiles everything again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo up check test test-cluster dist docs release lint types imports unit coverage bench figures soak crash fuzz lock chart kinds proto format test-tools

help: ## List the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: ## Install everything needed, and nothing else
	@scripts/setup

demo: setup ## Show the service doing its main job, then clean up
	@$(BIN)/bullpen demo

up: setup ## Run the service with a pool of U-Boot boards; prints a link to the dashboard
	@$(BIN)/bullpen up --data lab -f examples/uboot-pool.yaml

check: setup ## The fast half: lint, types, imports, unit tests
	@$(MAKE) --no-print-directory -j 2 lint types imports unit

test-tools: setup ## What only tests need: Chromium, Prometheus, clients of Corellium, and packages of npm
	@scripts/setup test-tools
	@$(BIN)/python scripts/pages dev

# Properties are tried on more examples than in `make check`. Real processes wait much of their time,
# so more of them run than there are processors. Labs run before them and not beside them: tests that
# fork programs and tests with event loops of their own share no process, because gRPC bears neither.
test: setup test-tools ## Everything: the fast half, then whole labs, real processes, crashes and clients
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-repeatable} $(MAKE) --no-print-directory check
	$(PYTEST) -n 2 --dist worksteal -m "(lab or slow) and not real" $(T)
	$(PYTEST) -n 4 --dist loadfile --no-loadscope-reorder -m "real and not quiet" $(T)
	$(PYTEST) -m quiet $(T:tests=tests/real)

lint: setup ## Style and format
	@$(BIN)/ruff check src tests
	@$(BIN)/ruff format --check src tests

types: setup ## mypy, strict
	@$(BIN)/mypy
	@$(BIN)/python scripts/pages check

imports: setup ## Imports point down only
	@$(BIN)/lint-imports

unit: setup ## Unit tests
	HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-quick} $(PYTEST) -n 2 \
	    -m "not lab and not slow and not real" --ignore tests/real --ignore tests/cluster $(T)

coverage: setup ## Branches of core, store, registry and runtime that the unit and contract tests take
	@$(BIN)/python scripts/coverage

test-cluster: setup ## The contract and the stories in the cluster of KUBECONFIG=FILE
	@test -n "$(KUBECONFIG)" || { echo "say which cluster: make test-cluster KUBECONFIG=FILE"; exit 2; }
	KUBECONFIG=$(abspath $(KUBECONFIG)) $(PYTEST) -s -m cluster tests/contract tests/cluster

crash: setup ## Harm a lab of real processes, round after round: ROUNDS=100 SEED=1
	PYTHONPATH=tests $(BIN)/python tests/crash/harness.py \
	    --rounds $(or $(ROUNDS),100) --seed $(or $(SEED),1)

fuzz: setup ## Search with coverage for input that hurts: SECONDS_MAX (60) for each, TARGET=NAME, CORPUS=DIR
	$(BIN)/python tests/fuzz/fuzz_run.py --seconds $${SECONDS_MAX:-60} \
	    $(addprefix --target ,$(TARGET)) $(addprefix --corpus ,$(CORPUS))

bench: setup ## Benchmarks, as ratios to references measured in the same run
	@$(BIN)/bullpen bench

figures: setup ## Run all benchmarks, and write the figures into README.md and docs/
	@$(BIN)/bullpen bench --write

soak: setup ## Simulated faults, SECONDS_MAX (600) seconds in each home, from SEED (1) on, SIZE (usual)
	@for home in embedded cluster; do $(BIN)/bullpen sim --runs 0 --until $${SECONDS_MAX:-600} \
	    --jobs 2 --seed $${SEED:-1} --home $$home --size $${SIZE:-usual} || exit; done

format: setup ## Format the code
	@$(BIN)/ruff check --fix -q src tests; $(BIN)/ruff format src tests

dist: setup ## Build the wheel and the source archive into dist/
	@rm -rf dist && $(BIN)/python -m hatchling build -d dist

docs: setup ## Build the documentation into site/, with links checked
	@$(BIN)/python scripts/docs

release: setup ## Build and prove what a release consists of: DRY=1 without a tag, IMAGE=0, BASE=IMAGE
	@DRY="$(DRY)" IMAGE="$(IMAGE)" BASE="$(BASE)" $(BIN)/python scripts/release

proto: setup ## Write the code of the .proto files in src/bullpen/protocol
	@cd src && ../$(BIN)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. \
	    --grpc_python_out=. bullpen/protocol/*.proto

kinds: setup ## Write docs/reference/lasting-targets.md from the schemas
	@$(BIN)/python scripts/kinds

chart: setup ## Write the Helm chart in deploy/chart from src/bullpen/install
	@$(BIN)/python -m bullpen.install.chart deploy/chart

lock: setup ## Pin the newest allowed versions of every dependency
	@$(BIN)/uv pip compile pyproject.toml --group dev --generate-hashes \
	    --python-version 3.11 --upgrade -q -o requirements.lock
	@$(BIN)/uv pip compile pyproject.toml --extra ssh --extra ec2 --extra tracing --generate-hashes --no-header --no-annotate \
	    --python-version 3.11 --upgrade -c requirements.lock -q -o deploy/images/requirements.lock
