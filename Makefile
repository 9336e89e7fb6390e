# `make` alone says what there is. Recipes run in plain sh.
.DEFAULT_GOAL := help
.NOTPARALLEL:

PY := .venv/bin/python
EXTRAS := local,notebooks,bench,dev
# Empty, except under `make test`, which collects coverage over all directories.
COV :=
# What switches something on: KEEP=1 or KEEP=yes does, KEEP=0 and KEEP= do not.
on = $(filter 1 yes,$(1))
# So many processes share the tests, each with clusters and a Spark session of its own: JOBS=1 for one after the other.
JOBS := 2
SHARED = $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadfile)

.PHONY: help java venv jars classes demo test check lint types unit spark-test broker-test chaos bench forget-coverage format

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# The same bounds as in src/mirrorlake/jars.py, which is not installed yet when this is asked; a test compares them.
java:
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	major=$$("$$java" -version 2>&1 | sed -n 's/.*version "\(1\.\)\{0,1\}\([0-9]*\).*/\2/p' | head -n 1); \
	if [ "$${major:-0}" -ge 17 ] && [ "$$major" -lt 23 ]; then exit 0; fi; \
	needed="17 or newer is needed, and older than 23"; \
	if [ -n "$$major" ]; then echo "$$java is Java $$major; $$needed." >&2; \
	else echo "Java was not found ($$java); $$needed." >&2; fi; \
	echo "  On Debian and Ubuntu:  apt-get install -y openjdk-17-jre-headless" >&2; \
	echo "  Where several are installed, set JAVA_HOME." >&2; \
	exit 1

venv: ## .venv with everything; instant while pyproject.toml and constraints.txt stay the same
	@want=$$(cat pyproject.toml constraints.txt | cksum); \
	if [ -x $(PY) ] && [ "$$(cat .venv/.installed 2>/dev/null)" = "$$want" ]; then exit 0; fi; \
	fits='import ensurepip, sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))'; \
	if ! $(PY) -c "$$fits" 2>/dev/null; then \
	  for python in $(PYTHON) python3 python3.12 python3.11 python3.10; do \
	    if "$$python" -c "$$fits" 2>/dev/null; then found=$$python; break; fi; \
	  done; \
	  if [ -z "$${found:-}" ]; then \
	    echo "No Python 3.10, 3.11 or 3.12 with its venv module was found." >&2; \
	    echo "  On Debian and Ubuntu:  apt-get install -y python3 python3-venv" >&2; \
	    echo "  Or name one:           make venv PYTHON=/path/to/python3.11" >&2; \
	    exit 1; \
	  fi; \
	  echo "Making .venv with $$($$found --version)"; \
	  "$$found" -m venv --clear .venv || exit 1; \
	fi; \
	echo "Installing mirrorlake[$(EXTRAS)] into .venv (PySpark is large: some minutes the first time)"; \
	$(PY) -m pip install --disable-pip-version-check -c constraints.txt -e '.[$(EXTRAS)]' || exit 1; \
	echo "$$want" > .venv/.installed; \
	echo "Done: .venv/bin/mirrorlake"

jars: java venv ## fetch the Java jars of Spark and of the lab's brokers
	$(PY) -m mirrorlake.jars

classes: java venv ## a short relay from which Java keeps its classes for quicker starts; instant where it did
	@$(PY) -m mirrorlake.cli lab classes > /dev/null || echo "Going on without them: starts take some seconds more."

demo: java venv classes ## real brokers, a relay and its proof, from nothing; KEEP=1 leaves them running
	$(PY) -m mirrorlake.demo $(if $(call on,$(KEEP)),--keep)

test: COV = --cov --cov-append --cov-report=
test: java venv lint types forget-coverage unit spark-test broker-test ## everything, quickest first, with coverage
	@$(PY) -m coverage report

check: lint types unit ## what needs no Java: style, types, unit tests

lint: venv ## style, by ruff
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

types: venv ## types, by mypy
	$(PY) -m mypy

unit: venv ## tests/unit: seconds, no JVM
	$(PY) -m pytest tests/unit $(SHARED) $(COV)

spark-test: java venv ## tests/spark: a local Spark session
	$(PY) -m pytest tests/spark $(SHARED) $(COV)

broker-test: java venv classes ## tests/broker: real Kafka brokers from jars
	$(PY) -m pytest tests/broker $(SHARED) $(COV)

chaos: java venv classes ## the fault table against real brokers and runners; ROWS=24,kill SEED=7 MINUTES=10
	$(PY) tests/chaos --jobs $(JOBS) $(if $(ROWS),--rows $(ROWS)) $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

bench: java venv ## beside the real MirrorMaker 2, takes hours; QUICK=1 for a short look; BENCH='--rounds 2'
	$(PY) -m mirrorlake.cli bench $(if $(call on,$(QUICK)),--quick) $(BENCH)

forget-coverage: venv
	@$(PY) -m coverage erase

format: venv ## mend what ruff can mend
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .
