# Everything runs from .venv, which `make install` fills once; later runs find its stamp and start at once.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SOURCES := relax_engine data_prep tasks workflows examples tests tools $(wildcard benchmarks)

export OMP_NUM_THREADS ?= 1
export RAY_worker_niceness ?= 0
export RAY_USAGE_STATS_ENABLED ?= 0
export TOKENIZERS_PARALLELISM ?= false
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: install lock lint test test-long test-net test-s3 test-browser screenshots parity chaos demo gpu-check bench docs \
	sbom clean

install: $(STAMP)
	@:

# torch comes first and through pip, whose own index settings choose the wheel that fits the machine; uv then
# installs everything else around it, at the versions and hashes of requirements.lock.
$(STAMP): pyproject.toml requirements.lock
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' || \
		{ echo "Python 3.11 or 3.12 is needed, $(PYTHON) is another one; set PYTHON=/path/to/python3.12" >&2; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV) (a few minutes the first time) ..."
	@$(BIN)/python -m pip install --quiet --quiet uv "torch==$$(sed -n 's/.*"torch==\([^"]*\)".*/\1/p' pyproject.toml)"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint requirements.lock --editable '.[test,trackers]'
	@touch $@

# Resolve pyproject.toml anew for both Python versions and every platform.
lock:
	@$(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--extra test --extra trackers --extra bench pyproject.toml --output-file requirements.lock

lint: $(STAMP)
	@$(BIN)/ruff check $(SOURCES)
	@$(BIN)/ruff format --check --quiet $(SOURCES)
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo

test: $(STAMP) lint
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

test-long: $(STAMP)
	@$(BIN)/python -m pytest -m long $(ARGS)

# Two sites as network namespaces, and the way between them cut: as root, with `ip` (apt-get install iproute2).
test-net: $(STAMP)
	@test "$$(id -u)" = 0 || { echo "make test-net needs root: it makes network namespaces" >&2; exit 1; }
	@command -v ip >/dev/null || { echo "make test-net needs iproute2: apt-get install --yes iproute2" >&2; exit 1; }
	@$(BIN)/python -m pytest -m net -s $(ARGS)

# The dashboard in a real browser: needs Debian's package `chromium`.
test-browser: $(STAMP)
	@command -v chromium >/dev/null || { echo "chromium is needed: apt-get install chromium" >&2; exit 1; }
	@$(BIN)/python -m pytest -m browser tests/browser $(ARGS)

# Pictures of the dashboard for the documentation, of a run that was made: after `make demo`, or with
# RUN=directory or reference of a run, and STORE=URL of an artifact store.
RUN ?= tiny-math-run@v1
STORE ?= artifacts
screenshots: $(STAMP)
	@command -v chromium >/dev/null || { echo "chromium is needed: apt-get install chromium" >&2; exit 1; }
	@$(BIN)/python tools/screenshots.py $(RUN) --store $(STORE) --out docs/images

# All families under all layouts against transformers, up to 8 ranks: a few minutes, and docs/parity.md.
parity: $(STAMP)
	@$(BIN)/python -m pytest -m long tests/integration/backends/megatron/test_parity_matrix.py $(ARGS)

# Faults injected into real processes for long, one run a part, each added to the results. One part alone, and no kill
# after five minutes: RELAX_CHAOS_SECONDS=300 make chaos ARGS='-k "[engine]"'.
chaos: $(STAMP)
	@RELAX_CHAOS_RESULTS=benchmarks/results/chaos.json $(BIN)/python -m pytest -m chaos $(ARGS)

# Object storage on a real server, Ceph's gateway, which the tests start: root and Debian's packages
# `ceph-mon ceph-osd radosgw ceph-common` are needed. `make test` and `make test-long` use moto's server.
test-s3: $(STAMP)
	@RELAX_S3_SERVER=ceph $(BIN)/python -m pytest -m 'not chaos' -k 's3 or remote or object_storage or sixteen or writer' \
		tests/integration/lineage tests/integration/data_prep/test_remote.py \
		tests/integration/checkpoint/test_object_storage.py tests/integration/flyte/test_pipeline_on_s3.py $(ARGS)

# SGLang's server, in an environment of its own beside .venv, since it pins other versions of torch and transformers.
# On CPUs it gets the torch of the training side, none of its CUDA packages, and the platform of sglang_cpu.
SGLANG := .venv-sglang
SGLANG_VERSION := 0.5.23
SGLANG_CPU := relax_engine/backends/engines/sglang_cpu

.PHONY: sglang-cpu sglang-gpu test-sglang
sglang-cpu: $(SGLANG)/.cpu
	@:

$(SGLANG)/.cpu: $(STAMP) $(wildcard $(SGLANG_CPU)/*.*)
	@echo "Installing SGLang for CPUs into $(SGLANG) (about 3 GB) ..."
	@test -x $(SGLANG)/bin/python || $(PYTHON) -m venv $(SGLANG)
	@$(SGLANG)/bin/python -m pip install --quiet --quiet "$$(grep '^torch==' $(SGLANG_CPU)/overrides.txt)"
	@rm -rf build/sglang_cpu && mkdir -p build && cp -r $(SGLANG_CPU) build/sglang_cpu
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(SGLANG)/bin/python --override $(SGLANG_CPU)/overrides.txt \
		--reinstall-package relax-sglang-cpu "sglang==$(SGLANG_VERSION)" ./build/sglang_cpu
	@touch $@

sglang-gpu: $(STAMP)
	@test -x $(SGLANG)/bin/python || $(PYTHON) -m venv $(SGLANG)
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(SGLANG)/bin/python "sglang==$(SGLANG_VERSION)"

# The same requests to SGLang's server and to the embedded engine, and training runs with the server; with its report.
test-sglang: sglang-cpu
	@$(BIN)/python -m pytest -m sglang tests/sglang $(ARGS)

# What a GPU computes beside what a CPU does, and how fast. Without one: ARGS='--device cpu'.
gpu-check: $(STAMP)
	@$(BIN)/python tools/gpu_check.py $(ARGS)

# The package verifiers as an agent, in an environment of its own, since it wants an older openai than the lock has.
VERIFIERS := .venv-verifiers
VERIFIERS_VERSION := 0.4.0

.PHONY: test-verifiers
$(VERIFIERS)/.installed: $(STAMP)
	@test -x $(VERIFIERS)/bin/python || $(PYTHON) -m venv $(VERIFIERS)
	@$(BIN)/uv pip install --quiet --python $(VERIFIERS)/bin/python "verifiers==$(VERIFIERS_VERSION)" uv
	@$(BIN)/uv pip install --quiet --python $(VERIFIERS)/bin/python --no-deps --editable .
	@touch $@

test-verifiers: $(VERIFIERS)/.installed
	@$(BIN)/python -m pytest -m verifiers tests/integration/rollout/test_verifiers_session.py $(ARGS)

demo: $(STAMP)
	@$(BIN)/python -m examples.tiny_math.demo $(ARGS)

# Minutes, beside a peer in the same run. The studies (learning, overlap, scaling, soak) take longer and are run by name.
BENCHMARKS ?= engine export rewards stream step train_step weight_sync
bench: $(STAMP)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --constraint requirements.lock --editable '.[bench]'
	@set -e; for name in $(BENCHMARKS); do echo "== benchmarks/$$name.py"; $(BIN)/python benchmarks/$$name.py $(ARGS); done

# The tables and the schema that follow from the code.
docs: $(STAMP)
	@$(BIN)/python -m relax_engine.config.reference docs
	@$(BIN)/python -m relax_engine.observe.definitions docs
	@$(BIN)/python -m relax_engine.components.rollout_api docs/openapi/rollout.json
	@$(BIN)/python tools/budget.py

# The packages of the lock as a bill of materials (CycloneDX), and their licences as a table.
sbom: $(STAMP)
	@$(BIN)/python tools/sbom.py

clean:
	@rm -rf build artifacts .mypy_cache .ruff_cache .import_linter_cache .pytest_cache
	@find . -name __pycache__ -type d -not -path './$(VENV)*/*' -prune -exec rm -rf {} +
