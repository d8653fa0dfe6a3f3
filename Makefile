PYTHON ?= python3
VENV ?= .venv
GAME ?= qbert
POLICY ?= minatar_breakout
ARGS ?=
PEER ?= pfrl
THREADS ?= $(shell nproc)
# The CPU build: others bring gigabytes of CUDA. Where pip does not find it, give TORCH=torch.
TORCH ?= torch==2.13.0+cpu
PEER_PACKAGES ?= $(TORCH) numpy $(if $(filter-out torch,$(PEER)),$(PEER) ale-py gymnasium packaging)
BIN := $(VENV)/bin

# Two workers, each with one TensorFlow thread; a module's tests share one worker and its fixtures.
PARALLEL := -n 2 --dist loadscope

.DEFAULT_GOAL := help
.PHONY: help train demo check test test-slow stress coverage lint docs repository bench bench-compare \
  constraints clean

help:  ## Print this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' Makefile

train: $(VENV)/installed  ## Train on GAME=qbert with ARGS="--flag=value ...".
	$(BIN)/python -m rainbow_tf.main --game=$(GAME) $(ARGS)

demo: $(VENV)/installed-demo  ## Play a trained policy, POLICY=minatar_breakout or cartpole, into a GIF.
	$(BIN)/python -m rainbow_tf.export.play --model_dir=results/policies/$(POLICY) --episodes=1 --out=$(POLICY).gif

check: lint  ## Before a commit: lint, types and the tests that compile nothing.
	$(BIN)/python -m pytest $(PARALLEL) -m "not compiles and not slow and not long and not stress"

test: lint  ## Lint, types and all tests but the slow ones.
	$(BIN)/python -m pytest $(PARALLEL)

test-slow: $(VENV)/installed-dev  ## Every game, timing ratios, notebooks, twenty kills, full learning thresholds.
	$(BIN)/python -m pytest -v $(PARALLEL) -m "slow or long"

stress: $(VENV)/installed-dev  ## Kill a run a hundred times, damage 160,000 files, replay a thousand starts, load a server.
	$(BIN)/python -m pytest -v $(PARALLEL) -m stress

coverage: $(VENV)/installed-dev  ## Run the tests of `make test` and print the lines that none of them reached.
	$(BIN)/python -m pytest $(PARALLEL) --cov=rainbow_tf --cov=flags --cov=export --cov-report=term-missing:skip-covered

lint: $(VENV)/installed-dev  ## Run ruff and mypy.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(VENV)/installed-dev  ## Build the site in build/site; broken links are errors.
	$(BIN)/python docs/configuration.py
	$(BIN)/python docs/imports.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

repository:  ## Write REPOSITORY=owner/name into the notebooks' links.
	@test -n "$(REPOSITORY)" || { echo "Give REPOSITORY=owner/name."; exit 1; }
	sed -i 's|GITHUB_REPOSITORY|$(REPOSITORY)|g' colab/*.ipynb colab/README.md

bench: $(VENV)/installed-dev  ## Measure the agent on this machine.
	$(BIN)/python -m rainbow_tf.benchmark $(ARGS)

# The peer is installed from the registry into a virtual environment of its own.
bench-compare: $(VENV)/installed $(VENV)-$(PEER)/installed  ## Compare the speed with PEER=pfrl on GAME, or updates with PEER=torch, and THREADS.
	$(BIN)/python benchmarks/compare.py $(VENV)-$(PEER)/bin/python $(PEER) $(GAME) $(THREADS)

$(VENV)-$(PEER)/installed:
	$(PYTHON) -m venv $(VENV)-$(PEER)
	$(VENV)-$(PEER)/bin/pip install --quiet $(PEER_PACKAGES)
	touch $@

$(VENV)/installed: setup.py pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	touch $@

$(VENV)/installed-demo: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[minatar,video]"
	touch $@

$(VENV)/installed-dev: $(VENV)/installed
	$(BIN)/pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

constraints:  ## Write the newest versions of all packages to constraints.txt; then run `make test`.
	$(PYTHON) -m venv --clear build/constraints
	build/constraints/bin/pip install --quiet --editable ".[dev]"
	build/constraints/bin/pip freeze --exclude-editable > constraints.txt

clean:  ## Delete the virtual environments.
	rm -rf $(VENV) $(VENV)-*
