# `make demo` and `make test` work on a bare machine with Python 3.11, gcc and make: the first run creates
# the environment, later runs find it ready. Another Python or torch: make test VENV=.venv312 PYTHON=python3.12
# CONSTRAINTS=my-pins.txt.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV ?= .venv
CONSTRAINTS ?= constraints-dev.txt
JOBS ?= 2

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
READY := $(VENV)/.ready

# Processes that tests start read hundreds of files: their bytecode is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test lint typecheck pytest slow soak soak-steps soak-tensors soak-long soak-graphs faults conformance docs site examples ecosystem bench ui-test gpu-test gpu-suite gpu-bench format clean
.DEFAULT_GOAL := help

help:
	@echo "make demo      train a small model plainly, with torch.compile and with bothways, and compare"
	@echo "make test      lint, type check, tests"
	@echo "make lint      ruff alone"
	@echo "make typecheck mypy alone"
	@echo "make pytest    the tests alone (ARGS='-k name' to choose)"
	@echo "make slow      the tests that take long"
	@echo "make soak      thousands of generated programs, plain and compiled (SEED=1000 COUNT=2000 FEATURES=hooks,special)"
	@echo "make soak-tensors  the same with operations in place, views and dtypes (SEED=1000 COUNT=2000)"
	@echo "make soak-steps  hundreds of generated training steps, plain and compiled (SEED=1000 COUNT=2000)"
	@echo "make soak-long one of them for a time: KIND=programs, statements, calls, steps or tensors, SECONDS=3600 JOBS=2; programs that differ in build/soak"
	@echo "make faults    kills, signals, full disks, compilers that hang, threads, forks: half an hour (FAULTS=0.1)"
	@echo "make conformance  PyTorch's samples of its operations as kernels; writes docs/conformance.md"
	@echo "make docs      write what is made in docs/: listings of the walkthrough, API reference, figure"
	@echo "make site      build the documentation with strict links into build/site"
	@echo "make examples  run each program of examples/ for some steps"
	@echo "make ecosystem transformers, accelerate, Lightning, timm, diffusers, in an environment of their own"
	@echo "make bench     call overhead, capture time, memory, models, growth, blocks, next to eager and torch.compile (long)"
	@echo "make ui-test   reports in a real browser (Debian: apt install chromium chromium-driver); screens in build/ui"
	@echo "make gpu-test  what is about GPUs: PyTorch's samples, streams, memory, training (on a machine with one)"
	@echo "make gpu-suite the tests of everything else with their tensors on a GPU (on a machine with one, ten minutes)"
	@echo "make gpu-bench models, whole steps and bandwidth on a GPU, next to eager and torch.compile (half an hour)"
	@echo "make format    let ruff fix what it can"
	@echo "make clean     remove the environment and every cache"

# torch comes first and from the pinned constraints: resolved from the open range of pyproject.toml it could be
# another version with gigabytes of accelerator packages. No build isolation, for the same reason.
$(READY): pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "Python 3.11 to 3.14 is needed; set PYTHON=..."; exit 1; }
	test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV)
	$(BIN)/python -c 'import sys; (3, 11) <= sys.version_info[:2] < (3, 15) or sys.exit("Python 3.11 to 3.14 is needed, this is " + sys.version.split()[0])'
	$(PIP) install --quiet --constraint $(CONSTRAINTS) setuptools torch
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[dev]'
	@touch $@

demo: $(READY)
	$(BIN)/python examples/train.py

test: lint typecheck pytest

lint: $(READY)
	$(BIN)/ruff check .

typecheck: $(READY)
	MYPY_NUM_WORKERS=$(JOBS) $(BIN)/mypy

pytest: $(READY)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal $(ARGS)

slow: $(READY)
	$(BIN)/python -m pytest -q -n $(JOBS) -m slow $(ARGS)

SEED ?= 1000
COUNT ?= 2000
FEATURES ?=
SWEEP ?=

soak: $(READY)
	BOTHWAYS_SOAK_SEED=$(SEED) BOTHWAYS_SOAK_COUNT=$(COUNT) BOTHWAYS_SOAK_SWEEP=$(SWEEP) BOTHWAYS_SOAK_FEATURES=$(FEATURES) \
	$(BIN)/python -m pytest -q -n $(JOBS) -m slow tests/reliability/test_soak.py tests/reliability/test_soak_statements.py tests/reliability/test_soak_calls.py

soak-steps: $(READY)
	BOTHWAYS_SOAK_SEED=$(SEED) BOTHWAYS_SOAK_COUNT=$(COUNT) BOTHWAYS_SOAK_SWEEP=$(SWEEP) \
	$(BIN)/python -m pytest -q -n $(JOBS) -m slow tests/reliability/test_soak_steps.py

soak-tensors: $(READY)
	BOTHWAYS_SOAK_SEED=$(SEED) BOTHWAYS_SOAK_COUNT=$(COUNT) BOTHWAYS_SOAK_SWEEP=$(SWEEP) \
	$(BIN)/python -m pytest -q -n $(JOBS) -m slow tests/reliability/test_soak_tensors.py

KIND ?= programs
SECONDS ?= 3600

soak-long: $(READY)
	$(BIN)/python tests/soak_long.py $(KIND) --seed $(SEED) --count 1000000 --seconds $(SECONDS) --processes $(JOBS) --out build/soak

# On a GPU with its graphs, elsewhere with graphs that fill their memory with NaN.
soak-graphs: $(READY)
	PYTHONPATH=tests:. $(BIN)/python tests/soak_graphs.py --seed $(SEED) --programs $(COUNT)

# How long each fault goes on, as a share of its usual time.
FAULTS ?= 1.0
FAULT_TESTS := $(addprefix tests/reliability/test_,faults.py threads.py unloading.py compiler_troubles.py cache_trust.py cache_damage.py)

faults: $(READY)
	BOTHWAYS_FAULTS=$(FAULTS) $(BIN)/python -m pytest -q -s -n 0 -m 'faults or (slow or not slow)' $(FAULT_TESTS) $(ARGS)

conformance: $(READY)
	rm -rf build/conformance
	BOTHWAYS_CONFORMANCE=build/conformance $(BIN)/python -m pytest -q -n $(JOBS) -m slow \
		tests/lower/test_native_opinfo.py tests/symbols/test_dynamic_sweep.py; \
	status=$$?; PYTHONPATH=tests:tests/lower $(BIN)/python tests/conformance_report.py build/conformance docs/conformance.md && exit $$status

docs: $(READY)
	$(BIN)/python docs/making

site: $(READY)
	$(PIP) install --quiet --constraint $(CONSTRAINTS) --no-build-isolation --editable '.[docs]'
	$(BIN)/python docs/making/site.py build/site-pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict

examples: $(READY)
	for program in nanogpt classifier gan_with_penalty functions_and_hooks; do \
		$(BIN)/python examples/$$program.py || exit 1; \
	done

# The packages of others, at their newest, beside the torch that constraints-dev.txt pins: no other one is pulled in.
ECOSYSTEM ?= .venv-ecosystem

ecosystem:
	test -x $(ECOSYSTEM)/bin/python || "$(PYTHON)" -m venv $(ECOSYSTEM)
	grep -E '^(torch|numpy|setuptools)==' $(CONSTRAINTS) > $(ECOSYSTEM)/constraints.txt
	$(ECOSYSTEM)/bin/python -m pip install --quiet --constraint $(ECOSYSTEM)/constraints.txt setuptools torch
	$(ECOSYSTEM)/bin/python -m pip install --quiet --constraint $(ECOSYSTEM)/constraints.txt --no-build-isolation \
		--editable '.[ecosystem]' pytest pytest-timeout expecttest
	$(ECOSYSTEM)/bin/python -m pytest -q -m slow tests/ecosystem $(ARGS)

bench: $(READY)
	$(BIN)/python benchmarks/overhead.py
	$(BIN)/python benchmarks/host.py
	$(BIN)/python benchmarks/capture.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/models.py
	$(BIN)/python benchmarks/step.py
	$(BIN)/python benchmarks/picture.py
	$(BIN)/python benchmarks/programs.py
	$(BIN)/python benchmarks/scaling.py
	$(BIN)/python benchmarks/regional.py

# Without Chromium and its driver everything is skipped, and says why.
ui-test: $(READY)
	@$(BIN)/python -c 'import selenium' 2>/dev/null || ! command -v chromedriver >/dev/null || \
		$(PIP) install --quiet --constraint $(CONSTRAINTS) selenium
	$(BIN)/python -m pytest -q -n 0 -m ui tests/ui $(ARGS) || test $$? -eq 5  # none was run

# Without a GPU these say so. On a machine whose own Python has the torch to be measured: make gpu-test BIN=/usr/bin
# READY=, or any folder with a python in it.
GPU_TESTS := tests/gpu tests/replay tests/grad/test_grad_gpu.py tests/grad/test_custom_functions_gpu.py tests/lower/test_devices.py

gpu-test: $(READY)
	@$(BIN)/python -c 'import torch; torch.cuda.is_available() or print("no GPU: everything is skipped")'
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal -m 'slow or not slow' $(GPU_TESTS) $(ARGS)

# An index out of range ends its process there: the tests that do that are named, and others go on in a new one.
GPU_SUITE := $(addprefix tests/,backward capture grad runtime steps symbols api) tests/lower/test_mixed_devices.py

gpu-suite: $(READY)
	$(BIN)/python -m pytest -q -n $(JOBS) --dist worksteal --max-worker-restart 500 --tensors-on cuda $(GPU_SUITE) $(ARGS)

gpu-bench: $(READY)
	$(BIN)/python benchmarks/gpu.py
	$(BIN)/python benchmarks/gpu.py --bandwidth
	$(BIN)/python benchmarks/gpu_step.py

format: $(READY)
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +
