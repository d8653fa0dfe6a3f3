PYTHON ?= python3
VENV ?= .venv
GAME ?= qbert
ARGS ?=
BIN := $(VENV)/bin

.PHONY: train test lint learning clean

train: $(VENV)/installed
	$(BIN)/python -m rainbow_tf.main --game=$(GAME) $(ARGS)

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The full thresholds, three seeds each: about an hour on two cores.
learning: $(VENV)/installed-dev
	$(BIN)/python -m pytest -m "learning and long" --override-ini="addopts=-v --strict-markers"

$(VENV)/installed: setup.py pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV)
