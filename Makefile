PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN = .venv/bin

.PHONY: demo run test check clean

demo: .venv/installed
	$(BIN)/python -m sharding.demo

run: demo

test: .venv/tested
	$(BIN)/python -m pytest

check: .venv/tested
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

clean:
	rm -rf .venv demo

.venv/installed: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -r requirements.txt
	touch $@

.venv/tested: .venv/installed tests/requirements.txt
	$(BIN)/pip install --quiet -r tests/requirements.txt
	touch $@
