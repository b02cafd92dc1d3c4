# Every target installs what it needs into .venv by itself: a fresh machine needs only python3 (with venv) and make.
PYTHON ?= python3
VENV := .venv
CONSTRAINTS := constraints.txt
# The versions of Python that setup.cfg names.
SUPPORTED := $(shell sed -n 's/.*Python :: \(3\.[0-9]*\)$$/\1/p' setup.cfg)
BIN := $(VENV)/bin

# The tests wait more than they compute: several at a time.
SIDE_BY_SIDE := -n 4 --dist worksteal
# Each of these processes imports all tests: what pytest makes of their source is kept, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

# Every warning is an error, and so is a reference that leads nowhere.
BUILD_SITE = $(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet --builder html docs build/docs

PAGES := README.md CONTRIBUTING.md $(wildcard docs/*.md docs/*/*.md)

# `make check` runs these.
QUICK_TESTS := tests/project/test_layers.py tests/project/test_import.py tests/project/test_examples.py \
	tests/project/test_guarantees.py

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help demo test test-all test-slow test-ray fuzz test-pythons test-oldest test-readers constraints check format bench docs check-site wheel clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/.installed-demo  ## run a job: 50,000 steps of CartPole-v1 from 8 envs into data/cartpole
	$(BIN)/python -m collector run examples/jobs/cartpole.toml --out data/cartpole --overwrite

test: $(VENV)/.installed-dev  ## run the quick tier of tests: every promise once
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) --durations 10

test-all: $(VENV)/.installed-dev  ## run the tests that `make test` leaves out, but the slow ones and those on Ray
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "full and not slow and not ray"

test-slow: $(VENV)/.installed-slow  ## run all tests without Ray, the slow ones too; installs EnvPool, 740 MB, for them
	$(BIN)/python -m pytest $(SIDE_BY_SIDE) -m "not ray"

test-ray: $(VENV)/.installed-dev  ## run the tests on Ray clusters that `make test` leaves out
	$(BIN)/python -m pytest -n 3 --dist loadfile -m "ray and not slow"

TIER ?= test
test-pythons:  ## run TIER=test (or test-slow, ...) with each supported Python that is installed, and name the missing ones
	TIER=$(TIER) .ci/test-pythons $(SUPPORTED)

test-oldest:  ## run the quick tier with the oldest Python and the oldest version of each dependency that setup.cfg allows
	$(MAKE) --no-print-directory test VENV=.venv-oldest CONSTRAINTS=constraints-oldest.txt \
		PYTHON="$$(.ci/find-python $(firstword $(SUPPORTED)))"

READERS ?= beside frames d3rlpy imitation lerobot tensorflow tianshou trainers agents
test-readers: $(VENV)/.installed-dev  ## other libraries, in environments of their own: readers of exports, trainers, envs of agents; 16 GB
	$(BIN)/python -m tests.readers.make_data build/readers/data
	.ci/test-readers $(READERS)

MINUTES ?= 1
fuzz: $(VENV)/.installed-dev  ## run each random program against its oracle for MINUTES=1 minutes; seeds are in the output
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES)

check: $(VENV)/.installed-dev  ## format, lint, types, quick tests, and the site: before every commit
	$(BIN)/ruff format --check .
	$(BIN)/ruff format --check --line-length 88 $(PAGES)
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/mypy --platform darwin --no-warn-unreachable --cache-dir .mypy_cache/darwin
	$(BIN)/python -m pytest $(QUICK_TESTS)
	$(BUILD_SITE)

format: $(VENV)/.installed-dev  ## rewrite the code the way `make check` wants it
	$(BIN)/ruff format .
	$(BIN)/ruff format --line-length 88 $(PAGES)
	$(BIN)/ruff check --fix .

bench: $(VENV)/.installed-dev  ## measure the figures of the README, beside the peers that are installed
	$(BIN)/python -m benchmarks.loops
	$(BIN)/python -m benchmarks.tuning
	$(BIN)/python -m benchmarks.run

docs: $(VENV)/.installed-dev  ## build the site into build/docs
	$(BUILD_SITE)

check-site:  ## look at the built site in Chromium: widths, links, pictures
	$(BIN)/python docs/check_site.py

wheel: $(VENV)/.installed-dev  ## build the source distribution and the wheel into dist/
	$(BIN)/python -m build --outdir dist .

clean:  ## remove what these targets made, except data/
	rm -rf $(VENV) .venv-* build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

UNIVERSAL := --universal --python-version $(firstword $(SUPPORTED)) --annotation-style line --no-header setup.cfg
# One version of torch, so that pip takes the CPU build of an index that has one instead of a newer CUDA build.
NEWEST := echo torch==2.13.0 | uv pip compile --constraint - --all-extras $(UNIVERSAL) --output-file constraints.txt
OLDEST := uv pip compile --resolution lowest-direct --extra dev $(UNIVERSAL) --output-file constraints-oldest.txt

# uv keeps the versions that constraints.txt has, if setup.cfg allows them. `make constraints UPGRADE=--upgrade` does not.
constraints: $(VENV)-uv/bin/uv  ## write constraints.txt and constraints-oldest.txt again, after a change of setup.cfg
	PATH="$(VENV)-uv/bin:$$PATH"; $(NEWEST) $(UPGRADE) > /dev/null
	PATH="$(VENV)-uv/bin:$$PATH"; $(OLDEST) --upgrade > /dev/null
	sed -i.old '1i # $(NEWEST)' constraints.txt
	sed -i.old '1i # $(OLDEST)' constraints-oldest.txt
	rm constraints.txt.old constraints-oldest.txt.old

$(VENV)-uv/bin/uv:
	$(PYTHON) -m venv --clear $(VENV)-uv
	$(VENV)-uv/bin/pip install --quiet "uv>=0.9"

EXTRAS_demo := torch,job
EXTRAS_dev := dev
EXTRAS_slow := slow

# pip is the last thing that venv writes: where it is missing, an earlier attempt was cut short.
$(VENV)/.installed-%: setup.py setup.cfg $(CONSTRAINTS)
	@echo "Installing vecenv[$(EXTRAS_$*)] into $(VENV); the first time takes some minutes."
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --constraint $(CONSTRAINTS) --editable ".[$(EXTRAS_$*)]"
	@touch $@
