# Everything that a contributor or CI runs. `make help` lists it.
#
# `make test` and `make demo` set up everything they need: they make .venv, install the packages of
# requirements/*.lock (each file is checked against its hash), and then the project itself, editable. Stamp files
# in .venv skip this while nothing has changed. If there is a C compiler, the installation compiles the kernels.

SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
LOWEST_VENV := .venv-lowest
LOWEST_BIN := $(LOWEST_VENV)/bin
BENCH_VENV := .venv-bench
BENCH_BIN := $(BENCH_VENV)/bin
BENCH_SPARK_VENV := .venv-bench-spark
BENCH_SPARK_BIN := $(BENCH_SPARK_VENV)/bin
S3_VENV := .venv-s3
HARLEQUIN_VENV := .venv-harlequin
TOOLS_VENV := .venv-tools
PYTHONS := 3.12 3.13 3.14
DEMO_STORE ?= demo-store
# The files that the installation of the project depends on, besides the lock.
BUILD := pyproject.toml hatch_build.py tools/build_kernels.py src/nyala/cfile/kernels/compiled.pyx \
    $(wildcard src/nyala/cfile/kernels/*.pxi)
# Arguments for pytest, e.g. make test ARGS="-k upsert"
ARGS ?=

# Variables of the caller's shell about Python and Spark must not reach .venv. Without PYTHONDONTWRITEBYTECODE, the
# hundreds of processes that tests start can share the compiled files of Nyala.
unexport PYTHONPATH PYTHONHOME PYTHONDONTWRITEBYTECODE VIRTUAL_ENV SPARK_HOME SPARK_CONF_DIR PYSPARK_PYTHON PYSPARK_DRIVER_PYTHON PYSPARK_SUBMIT_ARGS
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONNOUSERSITE := 1

.DEFAULT_GOAL := help
.PHONY: help setup kernels demo test test-fast test-pythons test-lowest test-s3 test-harlequin test-tools test-long bench bench-spark docs lint fmt lock clean java

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed  ## make .venv and install everything from the lock (`make demo` and `make test` do this too)

# One environment for each lock: the packages of the lock, and then the project itself, editable.
ENVIRONMENTS := $(VENV) $(LOWEST_VENV) $(BENCH_VENV) $(BENCH_SPARK_VENV) $(S3_VENV) $(HARLEQUIN_VENV) $(TOOLS_VENV)
$(VENV)/.locked: requirements/dev.lock
$(LOWEST_VENV)/.locked: requirements/lowest.lock
$(BENCH_VENV)/.locked: requirements/bench.lock
$(BENCH_SPARK_VENV)/.locked: requirements/bench-spark.lock
$(S3_VENV)/.locked: requirements/s3-server.lock
$(HARLEQUIN_VENV)/.locked: requirements/harlequin.lock
$(TOOLS_VENV)/.locked: requirements/tools.lock
FETCHED := the first time this fetches Spark, some 450 MB
# The other databases of the benchmarks are large, and no test needs them. So they have their own environment.
$(BENCH_VENV)/.locked: FETCHED := DuckDB, polars, Delta Lake: some 200 MB to fetch
$(S3_VENV)/.locked: FETCHED := PyArrow and SeaweedFS: some 150 MB to fetch

$(ENVIRONMENTS:=/.locked): %/.locked: requirements/build.lock
	@tools/make-venv $*
	@echo "Installing what $(lastword $^) names into $* ($(FETCHED)) ..."
	@$*/bin/python tools/pip-install --require-hashes -r requirements/build.lock
	@$*/bin/python tools/pip-install --require-hashes --no-build-isolation -r $(lastword $^)
	@touch $@

$(ENVIRONMENTS:=/.installed): %/.installed: %/.locked $(BUILD)
	@$*/bin/python tools/pip-install --no-deps --no-build-isolation --editable .
	@$*/bin/python tools/say-kernels
	@touch $@

kernels: setup  ## compile the kernels in place (NYALA_KERNEL_CHECKS=1: with checks of each access to memory)
	@$(BIN)/python tools/build_kernels.py
	@$(BIN)/python tools/say-kernels

java:
	@tools/check-java

demo: java setup  ## the main job: a year of real flights through PySpark into Nyala (some minutes; ARGS=--quick for one)
	@$(BIN)/python -m examples.flights --store $(DEMO_STORE) $(ARGS)

lint: setup  ## ruff, mypy --strict, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src examples
	$(BIN)/lint-imports

fmt: setup  ## format the code, and fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: java setup lint  ## the gate: lint, then all tests but those marked `long`
	$(BIN)/python -m pytest -n 2 -m "not long" $(ARGS)

test-fast: setup  ## the tests that need no Spark, without lint
	$(BIN)/python -m pytest -n 2 -m "not long and not spark" $(ARGS)

# Each version of Python has its own environment, such as .venv-3.13, and its own kernels.
test-pythons:  ## the fast tests on each of Python 3.12 to 3.14 that this machine has (the gate runs on 3.11)
	@for version in $(PYTHONS); do \
	    if python=$$(tools/find-python $$version); then \
	        $(MAKE) --no-print-directory test-fast VENV=.venv-$$version PYTHON=$$python || exit 1; \
	    else \
	        echo "Python $$version was not found: its tests are left out"; \
	    fi; \
	done

test-lowest: java $(LOWEST_VENV)/.installed  ## the tests with the lowest allowed version of each dependency
	$(LOWEST_BIN)/python -m pytest -n 2 -m "not long" $(ARGS)

test-s3: $(S3_VENV)/.installed  ## the tests marked `s3`, with SeaweedFS as a real S3 server that checks signatures
	$(S3_VENV)/bin/python -m pytest -m s3 tests/unit/objects $(ARGS)

test-harlequin: $(HARLEQUIN_VENV)/.installed  ## the tests of the adapter for Harlequin, with Harlequin
	$(HARLEQUIN_VENV)/bin/python -m pytest tests/shell/test_harlequin.py $(ARGS)

test-tools: $(TOOLS_VENV)/.installed  ## the tests of ibis, dbt and JupySQL over a store
	$(TOOLS_VENV)/bin/python -m pytest tests/docs/test_other_tools.py $(ARGS)

test-long: java setup  ## tests of more than an hour: many more random cases, and the tests marked `long`; writes figures to docs/reliability.md
	@rm -rf .figures
	NYALA_FIGURES=$(CURDIR)/.figures $(BIN)/python -m pytest -n 2 --hypothesis-profile nightly --timeout 3600 -o faulthandler_timeout=3590 $(ARGS)
	@$(BIN)/python -m tests.figures .figures

bench: $(BENCH_VENV)/.installed  ## speed beside SQLite, DuckDB, Delta Lake, Parquet (ARGS=--quick: some minutes; see bench/README.md)
	@$(BENCH_BIN)/python -m bench $(ARGS)
	@$(BENCH_BIN)/python tools/draw_chart.py

bench-spark: java $(BENCH_SPARK_VENV)/.installed  ## speed through Spark beside Parquet and Delta Lake (ARGS=--quick: some minutes)
	@$(BENCH_SPARK_BIN)/python -m bench.spark $(ARGS)
	@$(BENCH_SPARK_BIN)/python -m bench.spark_bucket $(filter --quick,$(ARGS))

docs:/.locked  ## build the documentation site in build/site (any warning is an error)
	@$(BIN)/python tools/docs

lock: setup  ## choose versions of all dependencies, and write requirements/*.lock (needs uv)
	tools/lock

clean:  ## remove .venv, caches and the demo's store
	rm -rf $(VENV) $(PYTHONS:%=.venv-%) $(LOWEST_VENV) $(BENCH_VENV) $(BENCH_SPARK_VENV) $(S3_VENV) $(HARLEQUIN_VENV) $(TOOLS_VENV) build $(DEMO_STORE) .mypy_cache .ruff_cache .pytest_cache .hypothesis .figures .import_linter_cache spark-warehouse
