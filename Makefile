# GNU make and Python 3.11+ are all it takes; everything else comes into .venv from the lock files, checked by hash.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	"$$p" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo "$$p" && break; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.done
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
WORKERS ?= 3
LONG := PGTRICKLE_RANDOM_EXAMPLES=30 PGTRICKLE_SOAK_SECONDS=180 PGTRICKLE_DAG_SECONDS=60 PGTRICKLE_TPCH_WINDOWS=20
FUZZ_MINUTES ?= 30
LOWEST := $(VENV)/lowest-pyspark
OF_SPARK := tests/spark tests/steps/test_spark.py tests/refresh/test_large.py tests/interface/test_given_session.py \
	tests/tpch/test_tpch.py tests/service/test_kills.py tests/refresh/test_retry.py
UV_COMPILE = uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate

.PHONY: setup demo test test-long fuzz plans reference docs check format bench lock clean

setup: $(STAMP)

# The lock of the build tools comes first: pyspark is a source archive, and building it must not fetch unchecked ones.
$(STAMP): requirements.lock requirements-build.lock pyproject.toml
	@test -n "$(PYTHON)" || { echo "pgtrickle needs Python 3.11 or newer; none was found." >&2; \
		echo "Install one, or name it: make PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "setting up $(VENV) (the first time takes a few minutes)"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --require-hashes --no-deps -r requirements-build.lock
	@$(PIP) install --require-hashes --no-deps --no-build-isolation -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation -e .
	@touch $@

demo: setup
	@$(BIN)/python -m pgtrickle.demo

# The same every time: fixed examples and seeds, and the order of sets too.
test: setup .venv-dbt/.done
	@$(BIN)/python -m pgtrickle.spark.archive || true
	@PYTHONHASHSEED=0 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# Everything: soaks, long random runs, each test on both server versions; capture, catalog, handover and one random story
# on every supported version, which are fetched once; what uses Spark on the oldest PySpark too. Hours.
test-long: setup .venv-dbt/.done $(LOWEST)/.done
	@$(BIN)/python -m tests.servers
	@PYTHONPATH=$(LOWEST) PYTHONHASHSEED=0 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(OF_SPARK)
	@PYTHONHASHSEED=0 $(LONG) $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --long

# The oldest PySpark, in a directory that goes before the other.
$(LOWEST)/.done: requirements-lowest.lock $(STAMP)
	@rm -rf $(LOWEST)
	@$(PIP) install --require-hashes --no-deps --no-build-isolation --target $(LOWEST) -r requirements-lowest.lock
	@touch $@

# Explores: random tests with fresh seeds, which it prints. `make fuzz FUZZ_MINUTES=60`, or FUZZ_SEED=… to repeat one.
fuzz: setup
	@$(BIN)/python -m tests.fuzz --minutes $(FUZZ_MINUTES) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

# Writes the kept plans of tests/plans anew; the diff shows what a change of the planner does.
plans: setup
	@$(BIN)/python -m tests.plans

# Writes the pages of docs/reference anew, from the source; a test fails while they are not what it would write.
reference: setup
	@$(BIN)/python -m tools.reference

# The documentation site, in build/site. MkDocs has a lock and an environment of its own.
docs: .venv-docs/.done
	@NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict
	@echo "the site is in build/site"

.venv-docs/.done: requirements-docs.lock
	@test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps -r requirements-docs.lock
	@touch $@

# dbt for the tests of integrations/dbt-pgtrickle, with a lock and an environment of its own.
.venv-dbt/.done: requirements-dbt.lock
	@test -x .venv-dbt/bin/python || $(PYTHON) -m venv .venv-dbt
	@.venv-dbt/bin/python -m pip --disable-pip-version-check --quiet install --require-hashes --no-deps --only-binary :all: -r requirements-dbt.lock
	@touch $@

check: setup
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/hadolint Containerfile

format: setup
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: setup
	@$(BIN)/python -m bench

# Needs uv on the PATH; the locks hold versions and hashes, no addresses.
lock:
	@echo 'setuptools>=77,<83' | $(UV_COMPILE) --upgrade --output-file requirements-build.lock -
	@$(UV_COMPILE) --upgrade --extra embedded --extra dev --output-file requirements.lock pyproject.toml
	@$(UV_COMPILE) --extra binary --extra java --constraint requirements.lock --output-file requirements-image.lock pyproject.toml
	@echo 'pyspark==4.0.0' | $(UV_COMPILE) --upgrade --output-file requirements-lowest.lock -
	@printf 'mkdocs>=1.6,<2\nmkdocs-material>=9.6,<10\n' | $(UV_COMPILE) --upgrade --output-file requirements-docs.lock -
	@printf 'dbt-core>=1.10,<1.12\ndbt-postgres>=1.9,<2\npsycopg2-binary>=2.9,<3\n' | $(UV_COMPILE) --upgrade --output-file requirements-dbt.lock -

clean:
	rm -rf $(VENV) .venv-docs .venv-dbt .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist src/*.egg-info
	find src tests bench -name __pycache__ -type d -prune -exec rm -rf {} +
