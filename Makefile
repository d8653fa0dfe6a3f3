PYTHON ?= python3
VENV ?= .venv
GAME ?= qbert
ARGS ?=
PEER ?= pfrl
PEER_PACKAGES ?= torch $(PEER) ale-py gymnasium packaging
BIN := $(VENV)/bin

.PHONY: train test test-slow stress lint docs repository bench bench-compare clean

train: $(VENV)/installed
	$(BIN)/python -m rainbow_tf.main --game=$(GAME) $(ARGS)

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/installed-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# All games, timing ratios, and the full learning thresholds.
test-slow: $(VENV)/installed-dev
	$(BIN)/python -m pytest -v -m "slow or long"

# Kills a run a hundred times and resumes it; replays a thousand recorded starts.
stress: $(VENV)/installed-dev
	$(BIN)/python -m pytest -v -m stress

# The site in build/site; broken links are errors.
docs: $(VENV)/installed-dev
	$(BIN)/python docs/configuration.py
	$(BIN)/python docs/imports.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Writes the project's public address where GITHUB_REPOSITORY stands for it.
repository:
	@test -n "$(REPOSITORY)" || { echo "Give REPOSITORY=owner/name."; exit 1; }
	sed -i 's|GITHUB_REPOSITORY|$(REPOSITORY)|g' colab/*.ipynb colab/README.md

bench: $(VENV)/installed-dev
	$(BIN)/python -m rainbow_tf.benchmark $(ARGS)

# The peer is installed from the registry into a virtual environment of its own.
bench-compare: $(VENV)/installed $(VENV)-$(PEER)/installed
	$(BIN)/python benchmarks/compare.py $(VENV)-$(PEER)/bin/python $(PEER) $(GAME)

$(VENV)-$(PEER)/installed:
	$(PYTHON) -m venv $(VENV)-$(PEER)
	$(VENV)-$(PEER)/bin/pip install --quiet $(PEER_PACKAGES)
	touch $@

$(VENV)/installed: setup.py pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --editable .
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) $(VENV)-*
