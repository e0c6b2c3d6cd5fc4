# make demo    the main job: flights into a store, a crash, recovery, Spark over the log
# make test    all tests (Java peers and Spark included); a part that cannot be installed has its tests skipped and named
# make setup   the environment of the development in .venv, from requirements.lock
# make check   formatter, linter, strict types, layers, docs, tests that mirror modules
# make campaign [MINUTES=60] [SEED=1]   a cluster under kills, bad links, full disks and damaged files, judged
# make mutants [MODULE=store/recovery] [N=8] [SEED=1]   what of a module the tests would not notice if it changed
# make bench   mqlake beside its peers, a ratio a line; AGAINST=DIR: beside another checkout, by CPU time
# make wheel   the wheel in dist, installed for a trial and measured
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
TEST_PARTS := java javac maven go node npm chromium strace systemd
BIN := $(VENV)/bin
# most tests wait for another process, so there are more of them than processors
WORKERS ?= 6
# compiled modules are kept: each of the many processes would compile all it imports
export PYTHONDONTWRITEBYTECODE :=
UV_VERSION := 0.13.8
UV := $(shell command -v uv 2>/dev/null || echo .uv/bin/uv)

.DEFAULT_GOAL := help
.PHONY: help setup demo test check format campaign mutants bench wheel spark-versions lock clean

help:
	@sed -n 's/^# make /make /p' Makefile

.PHONY: python
python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "Python 3.11 or newer is needed: apt-get install python3 (or say make PYTHON=/path/to/python3.11)"; exit 1; }

.uv/bin/uv: | python
	@$(PYTHON) tools/parts.py $(INSTALL) venv
	@$(PYTHON) -m venv .uv || { rm -rf .uv; exit 1; }
	@.uv/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(VENV)/.ready: requirements.lock pyproject.toml | $(filter .uv/bin/uv,$(UV))
	@test -x $(BIN)/python || $(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(VENV)
	@echo "installing the locked environment into $(VENV)"
	@VIRTUAL_ENV=$(VENV) $(UV) pip sync --quiet --require-hashes requirements.lock
	@VIRTUAL_ENV=$(VENV) $(UV) pip install --quiet --no-deps -e .
	@touch $@

setup: $(VENV)/.ready
	@$(BIN)/python tools/parts.py

# what the demo needs and nothing else, unless the environment of the development is there
$(DEMO)/.ready: requirements.lock pyproject.toml | $(filter .uv/bin/uv,$(UV))
	@test -x $(DEMO)/bin/python || $(UV) venv --quiet --python "$$(command -v $(PYTHON))" $(DEMO)
	@echo "installing mqlake, Spark and what the demo needs into $(DEMO) (about 1 GB)"
	@VIRTUAL_ENV=$(DEMO) $(UV) pip install --constraint requirements.lock --editable '.[demo]'
	@touch $@

demo: | python
	@$(PYTHON) tools/parts.py $(INSTALL) java
	@$(MAKE) --no-print-directory $(if $(wildcard $(VENV)/.ready),$(VENV),$(DEMO))/.ready
	$(if $(wildcard $(VENV)/.ready),$(VENV),$(DEMO))/bin/mqlake demo

test: | python
	@$(PYTHON) tools/parts.py $(INSTALL) $(if $(MQLAKE_REQUIRE_PARTS),,--optional) $(TEST_PARTS)
	@$(MAKE) --no-print-directory $(VENV)/.ready
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

check: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python tools/check_layers.py
	$(BIN)/python tools/config_table.py --check
	$(BIN)/python tools/access_table.py --check
	$(BIN)/python tools/make_man.py --check
	$(BIN)/python tools/check_size.py
	$(BIN)/python tools/check_tests.py
	$(BIN)/python tools/check_functions.py
	$(BIN)/python tools/prose.py

spark-versions: $(VENV)/.ready
	@$(BIN)/python tools/parts.py java
	$(BIN)/python tools/spark_versions.py

format: $(VENV)/.ready
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/python tools/prose.py --fix

campaign: $(VENV)/.ready
	$(BIN)/python -m tests.campaign --minutes $(or $(MINUTES),60) --seed $(or $(SEED),1)

mutants: $(VENV)/.ready
	$(BIN)/python tools/mutants.py $(MODULE) -n $(or $(N),8) --seed $(or $(SEED),1)

bench: $(VENV)/.ready
	@$(BIN)/python tools/parts.py $(if $(AGAINST),,java maven)
	$(BIN)/python -m bench $(if $(AGAINST),--against $(AGAINST))

wheel: $(VENV)/.ready
	$(BIN)/python tools/make_man.py
	$(BIN)/python tools/check_size.py --wheel dist

lock: | $(filter .uv/bin/uv,$(UV))
	$(UV) pip compile --quiet --universal --generate-hashes --no-header --python-version 3.11 \
	  --all-extras --group dev pyproject.toml -o requirements.lock

clean:
	rm -rf .venv .venv-demo .venv-spark .uv .mypy_cache .ruff_cache .pytest_cache .hypothesis mqlake-demo dist
