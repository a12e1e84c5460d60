# What a clean clone needs: make, gcc and Python 3.11 or later. Everything else goes into .venv.

PYTHON   ?= python3
VENV     := .venv
BIN      := $(VENV)/bin
# More arguments for pip: `make venv PIP_ARGS="--index-url ..."`.
PIP_ARGS ?=
PIP      := $(BIN)/python -m pip --disable-pip-version-check --quiet

RUNTIME_STAMP := $(VENV)/.runtime-installed
DEV_STAMP     := $(VENV)/.dev-installed

.DEFAULT_GOAL := help
.PHONY: help check-tools venv venv-dev demo test test-thorough test-slow lint format update-golden docs docs-serve clean distclean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## */\t/' | awk -F '\t' '{printf "  make %-14s %s\n", $$1, $$2}'
	@echo "  PYTHON=python3.12 make venv   uses another interpreter (3.11 or later)"

check-tools:
	@command -v $(PYTHON) >/dev/null 2>&1 || { echo "error: no '$(PYTHON)' found. Install Python 3.11 or later, or name one: make PYTHON=/path/to/python3 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is $$($(PYTHON) -V 2>&1); hlogym needs Python 3.11 or later. Name one: make PYTHON=python3.11 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { echo "error: $(PYTHON) has no venv module. On Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@command -v gcc >/dev/null 2>&1 || { echo "error: no gcc found; hlogym compiles its CPU kernels with it. On Debian or Ubuntu: apt-get install gcc" >&2; exit 1; }

$(RUNTIME_STAMP): pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory check-tools
	@echo "installing hlogym into $(VENV) (some minutes the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install $(PIP_ARGS) --constraint constraints.txt --editable .
	@touch $@

$(DEV_STAMP): $(RUNTIME_STAMP)
	@echo "installing what the tests need into $(VENV)"
	@$(PIP) install $(PIP_ARGS) --constraint constraints.txt --editable '.[dev,jax,ray,tune]'
	@touch $@

venv: $(RUNTIME_STAMP)  ## make .venv with hlogym and what it runs on
venv-dev: $(DEV_STAMP)  ## the same with the tools for tests, and JAX

demo: venv  ## a tour in a few minutes: compile, check, train, evaluate
	$(BIN)/hlogym demo

test: lint  ## lint, types and the tests that take little time
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'not thorough and not slow and not gpu'

test-thorough: lint  ## the same with the thorough tests, as continuous integration runs them
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: venv-dev  ## the tests left out of both: fuzzing, sanitizers and other long ones
	$(BIN)/python -m pytest -n 2 --dist worksteal -m 'slow and not gpu'

lint: venv-dev  ## ruff, mypy and the list of words to avoid
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy .
	$(BIN)/python -m tests.style.check_words

format: venv-dev  ## format the code and mend what ruff can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

update-golden: venv-dev  ## write the golden files anew; read the diff before you commit it
	$(BIN)/python -m pytest -n 0 tests/golden --update-golden

docs: venv-dev  ## build the documentation into site/, and fail on a broken link
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: venv-dev  ## show the documentation at http://127.0.0.1:8000, on this machine only
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve --dev-addr 127.0.0.1:8000

clean:  ## remove caches and build outputs
	rm -rf build dist site *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## remove .venv too
	rm -rf $(VENV)
