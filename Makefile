# make serve: install what is needed into .venv, and serve the demo model on 127.0.0.1:8000.
# make test:  the same environment, and every check.
# make test-clients: clients of others against the demo model, from an environment of their own.
# make test-chaos: faults under load, some minutes; CHAOS_SEED=N has those of another run again.
# make soak: ten minutes of load, after which both processes must be as large as before.
# make bench: the same environment, and every measurement; ARGS="--quick" for a look, ARGS="--output FILE" for a report.

PYTHON ?= python3
# Options for pip when it installs torch, e.g. the index of PyTorch's CPU wheels.
TORCH_ARGS ?=
# Flags of octavo serve, e.g. ARGS="--port 8123", or of the benchmarks.
ARGS ?=
# What pytest runs, e.g. TESTS=tests/gateway.
TESTS ?=

BIN := .venv/bin

.PHONY: venv serve test test-clients test-chaos soak bench lint clean

venv:
	@PYTHON='$(PYTHON)' TORCH_ARGS='$(TORCH_ARGS)' sh scripts/venv.sh

serve: venv
	@exec $(BIN)/octavo serve smollm2 $(ARGS)

test: lint
	$(BIN)/python -m pytest $(TESTS)

test-clients: venv
	@sh scripts/clients.sh
	.venv-clients/bin/python -m pytest tests/clients $(TESTS)

test-chaos: venv
	$(BIN)/python -m pytest tests/chaos $(TESTS)

soak: venv
	SOAK_SECONDS=600 $(BIN)/python -m pytest tests/chaos/test_chaos_soak.py $(TESTS)

bench: venv
	@exec $(BIN)/python -m benchmarks $(ARGS)

lint: venv
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf .venv .venv-clients tests/clients/node/node_modules build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
