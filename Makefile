# make serve: install what is needed into .venv, and serve the demo model on 127.0.0.1:8000.
# make test:  the same environment, and every check.
# make test-machine: those checks that a machine can change: the compiler it lacks, its Python, its user, its folders.
# make test-clients: clients of others against the demo model, from an environment of their own.
# make test-dashboards: a real Prometheus watches octavo, and is asked every expression of the dashboards and alerts.
# make test-gpu: kernels, whole models and their speed on this machine's GPU, in six minutes.
# make compile-ahead: every GPU kernel compiled, without a GPU, and what it takes of one; ARGS="--all" for more shapes.
# make test-chaos: faults under load, some minutes; CHAOS_SEED=N has those of another run again.
# make soak: ten minutes of load, after which both processes must be as large as before.
# make loadtest: a minute of users against 127.0.0.1:8000 or LOCUST_HOST, and a report; ARGS="--help" says the flags.
# make bench: the same environment, and every measurement; ARGS="--quick" for a look, ARGS="--output FILE" for a report.

PYTHON ?= python3
# Options for pip when it installs torch, e.g. the index of PyTorch's CPU wheels.
TORCH_ARGS ?=
# Flags of octavo serve, e.g. ARGS="--port 8123", or of the benchmarks.
ARGS ?=
# What pytest runs, e.g. TESTS=tests/gateway.
TESTS ?=
# In so many processes; 0 for pytest's own. Two, since the end-to-end tests, which wait as much as they compute, are
# about half of all: one process has them (tests/conftest.py), the other has the rest.
PROCESSES ?= 2

BIN := .venv/bin
PYTEST = $(BIN)/python -m pytest -n $(PROCESSES) --dist loadscope --no-loadscope-reorder
# Computed from what is in memory, by Python and the reference kernels, which make test takes too: nothing of a machine
# comes in. Native kernels are tested where there is a compiler only.
SAME_EVERYWHERE := tests/kernels tests/engine_core/scheduler tests/engine_core/models \
	tests/engine_core/test_same_tokens.py tests/engine_core/test_triton_engine.py

.PHONY: venv serve test test-machine test-clients test-dashboards test-gpu compile-ahead test-chaos soak loadtest bench lint clean

venv:
	@PYTHON='$(PYTHON)' TORCH_ARGS='$(TORCH_ARGS)' sh scripts/venv.sh

serve: venv
	@exec $(BIN)/octavo serve smollm2 $(ARGS)

test: lint
	$(PYTEST) $(TESTS)

test-machine: venv
	$(PYTEST) $(SAME_EVERYWHERE:%=--ignore=%) $(TESTS)

test-clients: venv
	@sh scripts/clients.sh
	.venv-clients/bin/python -m pytest tests/clients $(TESTS)

test-dashboards: venv
	@sh scripts/prometheus.sh
	$(BIN)/python -m pytest tests/dashboards $(TESTS)

test-gpu: venv
	PYTHON=$(BIN)/python bash tests/gpu/run.sh

compile-ahead: venv
	$(BIN)/python -m kernels.triton.compile_ahead $(ARGS)

test-chaos: venv
	$(BIN)/python -m pytest -n $(PROCESSES) --maxschedchunk 1 tests/chaos $(TESTS)

soak: venv
	SOAK_SECONDS=600 $(BIN)/python -m pytest tests/chaos/test_chaos_soak.py $(TESTS)

loadtest: venv
	@exec $(BIN)/python -m loadtest $(ARGS)

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
