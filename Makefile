PYTHON ?= python3
VENV ?= .venv
GAME ?= qbert
ARGS ?=
BIN := $(VENV)/bin

.PHONY: train test test-slow lint clean

train: $(VENV)/installed
	$(BIN)/python -m rainbow_tf.main --game=$(GAME) $(ARGS)

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# All games, timing ratios, and the full learning thresholds: an hour or two on two cores.
test-slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -v -m "slow or long"

$(VENV)/installed: setup.py pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV)
