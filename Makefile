# make demo    an end-to-end demo: flights into a store, a crash, recovery, Spark over the log
# make test [TESTS=DIR]   the tests (Java peers and Spark included); of a part that is missing they are skipped and named
#   what fails runs once more, alone, and is named as flaky if it passes then; RETRY= runs nothing twice
# make quick [TESTS=DIR]   the tests that take little time, without Java, Spark and other peers: for the work in between
# make test-all   and those that are left to the night: other clients in other languages, longer variants
# make setup   the environment of the development in .venv, from requirements.lock
# make native  native code compiled again, in place
# make check   formatter, linter, strict types, layers, docs, tests that mirror modules
# make campaign [MINUTES=60] [SEED=1]   a cluster under kills, bad links, full disks and damaged files, judged
# make rocketmq-tests ROCKETMQ_SOURCE=DIR [TESTS=..] [MINUTES=60]   RocketMQ's own integration tests against mqlake
# make mutants [MODULE=store/recovery] [N=16] [SEED=1]  what of a module the tests would not notice if it changed
# make sanitize [BYTES=100000000] [SEED=1]   native code with ASan and UBSan under damaged bytes and its own tests
# make bench   mqlake beside its peers, a ratio a line; AGAINST=DIR: beside another checkout, by CPU time
# make wheel   the wheel in dist, installed for a trial and measured
# make release [REHEARSE=1]   from a tag: sdist, a wheel for each Python there is, SBOM, checksums in dist; uploads nothing
# make site    the documentation as a site in dist/site: search, and the API from the docstrings
# make spark-versions   the Spark tests with the oldest and the newest PySpark
# make lock    resolve the dependencies again
SHELL := /bin/bash
# The system's Python where it will do: distributions optimize theirs with profiles, which one built from source
# (pyenv's) mostly lacks, and pure Python takes up to twice as long there. `make PYTHON=python3.13` takes another.
PYTHON ?= $(or $(shell for python in /usr/bin/python3 python3; do $$python -c \
  'import ensurepip, sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && echo $$python && break; \
  done),python3)
VENV := .venv
DEMO := .venv-demo
# what is missing outside Python is installed where this user may; `make INSTALL=` only says what is missing
INSTALL ?= --install
TEST_PARTS := java javac maven node npm chromium strace systemd etcd
BIN := $(VENV)/bin
RETRY ?= 1
# most tests wait for another process, so there are more of them than processors
WORKERS ?= 6
# compiled modules are kept: each of the many processes would compile all it imports
export PYTHONDONTWRITEBYTECODE :=
UV_VERSION := 0.13.8
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)

.DEFAULT_GOAL := help
.PHONY: help setup native demo test test-all quick check format campaign rocketmq-tests mutants sanitize bench wheel release site spark-versions lock clean

help:
	@sed -n 's/^# make /make /p' Makefile

.PHONY: python
python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed: apt-get install python3 (or say make PYTHON=/path/to/python3.11)"; exit 1; }

.uv/bin/uv: | python
	@$(PYTHON) tools/get_uv.py $(UV_VERSION) $@

$(VENV)/.ready: requirements.lock pyproject.toml | $(filter .uv/bin/uv,$(UV))
	@$(PYTHON) tools/parts.py $(INSTALL) --optional headers compiler
	@test -x $(BIN)/python || $(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(VENV)
	@echo "installing the locked environment into $(VENV)"
	@VIRTUAL_ENV=$(VENV) $(UV) pip sync --quiet --require-hashes requirements.lock
	@VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps --reinstall -e .
	@touch $@

# native code is compiled again when one of its sources has changed; where nothing can be compiled, that is said
$(VENV)/.native: $(filter-out %.so %.new %/__pycache__,$(wildcard src/mqlake/native/*)) tools/build_native.py | $(VENV)/.ready
	@if $(BIN)/python tools/parts.py headers compiler; then $(BIN)/python tools/build_native.py && touch $@; \
	  else test -z "$(MQLAKE_REQUIRE_PARTS)"; fi

native: $(VENV)/.native

setup: $(VENV)/.ready $(VENV)/.native
	@$(BIN)/python tools/parts.py

# what the demo needs and nothing else, unless the environment of the development is there
$(DEMO)/.ready: requirements.lock pyproject.toml | $(filter .uv/bin/uv,$(UV))
	@$(PYTHON) tools/parts.py $(INSTALL) --optional headers compiler
	@test -x $(DEMO)/bin/python || $(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(DEMO)
	@echo "installing mqlake, Spark and what the demo needs into $(DEMO) (about 1 GB)"
	@VIRTUAL_ENV=$(DEMO) $(UV) pip install --constraint requirements.lock --editable '.[demo]'
	@touch $@

demo: | python
	@$(PYTHON) tools/parts.py $(INSTALL) java
	@$(MAKE) --no-print-directory $(if $(wildcard $(VENV)/.ready),$(VENV),$(DEMO))/.ready
	$(if $(wildcard $(VENV)/.ready),$(VENV),$(DEMO))/bin/mqlake demo

test: CHOSEN := -m "not nightly"
test-all: TEST_PARTS += go
test test-all: | python
	@$(PYTHON) tools/parts.py $(INSTALL) $(if $(MQLAKE_REQUIRE_PARTS),,--optional) $(TEST_PARTS)
	@$(MAKE) --no-print-directory $(VENV)/.native
	$(BIN)/python -m tools.run_tests $(if $(RETRY),,--no-retry) -n $(WORKERS) --dist loadfile $(CHOSEN) $(TESTS)

quick: $(VENV)/.native
	$(BIN)/python -m tools.run_tests $(if $(RETRY),,--no-retry) -n 3 --dist loadfile --quick \
	  -m "not nightly and not java and not spark" $(TESTS)

CHECKS := "ruff format --check ." "ruff check ." mypy $(patsubst %,"python tools/%",check_layers.py \
  check_size.py check_tests.py check_functions.py prose.py) $(patsubst %,"python tools/% --check", \
  native_constants.py config_table.py access_table.py make_man.py)
# all of them run, and those that failed are named at the end
check: $(VENV)/.native
	@failed=; for check in $(CHECKS); do echo "$$check"; $(BIN)/$$check || failed+="  $$check"$$'\n'; done; \
	  test -z "$$failed" || { echo; echo "make check found faults by:"; echo -n "$$failed"; exit 1; }

spark-versions: $(VENV)/.ready
	@$(BIN)/python tools/parts.py java
	$(BIN)/python tools/spark_versions.py

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/prose.py --fix

campaign: $(VENV)/.ready
	$(BIN)/python -m tests.campaign --minutes $(or $(MINUTES),60) --seed $(or $(SEED),1)

rocketmq-tests: $(VENV)/.ready
	@$(BIN)/python tools/parts.py $(INSTALL) java javac maven
	ROCKETMQ_SOURCE="$(ROCKETMQ_SOURCE)" $(BIN)/python -m tests.rocketmq_it --minutes $(or $(MINUTES),60) \
	  --workers $(or $(JOBS),2) $(TESTS)

mutants: $(VENV)/.ready
	$(BIN)/python tools/mutants.py $(MODULE) $(addprefix -n ,$(N)) $(addprefix --seed ,$(SEED))

sanitize: $(VENV)/.native
	$(BIN)/python -m tests.fuzz.sanitize $(addprefix --bytes ,$(BYTES)) $(addprefix --seed ,$(SEED))

bench: $(VENV)/.ready
	@$(BIN)/python tools/parts.py $(if $(AGAINST),,java maven)
	$(BIN)/python -m bench $(if $(AGAINST),--against $(AGAINST))

wheel: $(VENV)/.ready
	$(BIN)/python tools/make_man.py
	$(BIN)/python tools/check_size.py --wheel dist

release: $(VENV)/.ready
	$(BIN)/python tools/make_man.py --check
	$(BIN)/python tools/release.py --uv "$(UV)" $(if $(REHEARSE),--rehearse)

site: $(VENV)/.ready
	$(BIN)/python -m sphinx -q -W --keep-going -c docs/site docs dist/site
	@echo "dist/site/README.html"

lock: | $(filter .uv/bin/uv,$(UV))
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 \
	  --all-extras --group dev pyproject.toml -o requirements.lock

clean:
	rm -rf .venv .venv-demo .venv-spark .uv .mypy_cache .ruff_cache .pytest_cache .hypothesis mqlake-demo dist
