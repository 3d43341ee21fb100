PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN = .venv/bin
AS_ROOT = $(shell [ "$$(id -u)" = 0 ] || echo sudo -n)

.PHONY: demo pipeline run space test thorough versions browser check bench matrix torture soak live fuzz mutants lock dist class-table clean help

demo: .venv/installed  ## show the whole job on a Hub on this machine
	$(BIN)/python -m sharding.demo.whole_job

pipeline: .venv/installed  ## show one model on two processes, each with its own part
	$(BIN)/python -m sharding.demo.pipeline

# The page as a visitor sees it, on a loopback Hub with samples, signed in as a demo user.
run: .venv/installed  ## serve the page without a network
	$(BIN)/python -m sharding.demo.offline

space:  ## write into space/ what a Space of OWNER needs
	@$(PYTHON) .ci/space.py '$(OWNER)'

# What a change is tried with: some ten minutes on two cores. Three processes keep those busy, as tests often wait.
# tests/conftest.py says which tests stay together.
test: .venv/tested browser  ## what a change is tried with
	$(BIN)/python -m pytest -m "not thorough" --numprocesses 3 --dist loadfile --no-loadscope-reorder

# What is long by nature: every architecture, many kills at random moments, memory as the kernel counts it, repos of
# every kind loaded by their own libraries.
thorough: .venv/tested .venv/loaders/installed .venv/llama/logits browser  ## what is long by nature
	$(BIN)/python -m pytest -m thorough --numprocesses 2 --dist worksteal

versions: .venv/tested  ## run the tests of the Hub with the oldest and newest libraries
	.ci/versions

# Chromium, and axe-core for the test of accessibility: installed where they are missing and that is permitted.
# Where it is not, their tests are skipped; with CI set they fail.
browser:
	@command -v chromium > /dev/null || { $(AS_ROOT) apt-get update -qq && $(AS_ROOT) apt-get install -qq -y chromium; } || true
	@test -d tests/page/node_modules/axe-core || npm install --silent --no-package-lock --prefix tests/page || true

check: .venv/tested  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/tested  ## measure everything anew, for bench/RESULTS.md: hours, on a machine left alone
	$(BIN)/python bench

# Every fault on every endpoint that a job asks, noted in bench/RESULTS.md: some minutes.
matrix: .venv/tested  ## break every endpoint of the Hub in every way
	$(BIN)/python -m tests.scenarios.matrix

# Jobs killed N times at random moments, noted in bench/RESULTS.md.
N = 500
torture: .venv/tested  ## kill jobs at random moments
	$(BIN)/python -m tests.scenarios.torture $(N) --note

# A crowd on the page, then its routes asked at random, noted in bench/RESULTS.md unless a promise is broken.
MINUTES = 15
FUZZ_MINUTES = 20
soak: .venv/tested  ## let fifty visitors at the page, then ask its routes at random
	$(BIN)/python -m tests.scenarios.soak --minutes $(MINUTES) --fuzz-minutes $(FUZZ_MINUTES) --note

# What only a Hub itself can answer, on nine throw-away repos of whoever HF_TOKEN names: about 40 commits and 40 MB.
live: .venv/installed  ## ask the Hub itself, with a token
	$(BIN)/python -m tests.scenarios.live

# Coverage-guided fuzzing of what reads strangers' bytes, a million executions each (Linux on x86-64 only);
# `make fuzz TARGET=archive` for one of them. What is found is kept in fuzz/.
TARGET ?= header gguf index archive pickle report sharding_info metadata
fuzz: .venv/tested  ## look for bytes that crash what reads strangers' files
	$(BIN)/pip install --quiet -r tests/fuzz/requirements.txt
	for target in $(TARGET); do $(BIN)/python -m tests.fuzz $$target -runs=1000000 || exit 1; done

# Faults put into the code, each tried with the tests that execute its line, noted in bench/RESULTS.md: some seconds each.
# As many as MUTANTS says, drawn at random (another SEED draws others), or `all`, which takes hours.
MUTANTS = 300
SEED = 0
mutants: .venv/tested  ## put faults into the code and see whether a test notices
	$(BIN)/python -m tests.mutants $(MUTANTS) --seed $(SEED) --note

# The hashes of every file that the index has of the versions in each requirements.txt, for whatever system; torch,
# whose build depends on the system, excepted.
COMPILE = $(BIN)/uv pip compile --quiet --upgrade --python-version 3.11 --no-deps --generate-hashes \
    --no-emit-package torch --no-emit-index-url --no-annotate --custom-compile-command "make lock, for CPython 3.11"
lock: .venv/tested  ## note the hashes of what CI installs
	$(COMPILE) --output-file .ci/requirements.lock requirements.txt tests/requirements.txt
	$(COMPILE) --output-file .ci/thorough.lock tests/kinds/requirements.txt

# The wheel is built from the sdist, so that both hold all that is needed.
dist: .venv/tested  ## build a release into dist/, and try its wheel
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist
	$(BIN)/uv tool run --quiet twine==7.0.0 check --strict dist/*.whl dist/*.tar.gz
	DIST=dist $(BIN)/python -m pytest tests/scenarios/test_wheel.py

# What each class of the installed transformers keeps in fp32, never splits and ties: minutes.
class-table: .venv/tested  ## write down what the classes of transformers are like
	$(BIN)/python -m tests.model_class.table_maker

clean:  ## remove what all of these have made
	rm -rf .venv demo dist fuzz space

help:  ## list these
	@awk -F ':.*  ## ' '/^[a-z-]+:.*  ## / { printf "%-12s%s\n", $$1, $$2 }' Makefile

.venv/installed: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet -r requirements.txt
	touch $@

.venv/tested: .venv/installed tests/requirements.txt
	$(BIN)/pip install --quiet -r tests/requirements.txt
	touch $@

# llama.cpp as npm has it, with its gguf-split (half a minute).
.venv/llama/logits: .venv/installed .ci/llama tests/kinds/logits.cpp
	@for tool in g++ git npm; do command -v $$tool > /dev/null || { $(AS_ROOT) apt-get update -qq && $(AS_ROOT) apt-get install -qq -y $$tool; }; done
	.ci/llama

# Apart from all else: transformers imports torchvision wherever it finds one, and that of the index imports only beside
# a torch that was built for the same CUDA.
.venv/loaders/installed: .venv/tested tests/kinds/requirements.txt
	$(BIN)/python -m venv --without-pip .venv/loaders
	$(BIN)/pip --python .venv/loaders install --quiet --no-deps -r tests/kinds/requirements.txt
	touch $@
