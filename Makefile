# `make run` and `make test` work on a fresh clone: scripts/setup brings what is missing.
.DEFAULT_GOAL := help
.PHONY: help setup run test check bench lock clean

python := .venv/bin/python

help:  ## what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1  \2/p' $(MAKEFILE_LIST)

setup:  ## .venv, packages, Java; quick when nothing is missing
	@scripts/setup

run: setup  ## a window join of two streams on local Spark for a minute, then a summary
	@rm -rf out/id-id-join .tidegate/id-id-join
	@$(python) -m tidegate.cli.main run examples/id_id_join.py --for "60 seconds" --checkpoint .tidegate/id-id-join

test: setup  ## all tests
	@$(python) -m pytest tests

check: setup  ## lint, format, types, doc examples
	@$(python) -m ruff check .
	@$(python) -m ruff format --check .
	@$(python) -m mypy
	@$(python) -m pytest -q --doctest-modules src/tidegate
	@$(python) scripts/check_docs.py
	@$(python) scripts/check_lock.py

bench: setup  ## ours against plain Structured Streaming and its stateful operators
	@$(python) -m benchmarks.passthrough
	@$(python) -m benchmarks.state

lock:  ## requirements.lock anew from pyproject.toml (needs uv)
	@scripts/lock

clean:  ## remove outputs, checkpoints and caches; .venv stays
	@rm -rf out .tidegate artifacts build dist spark-warehouse metastore_db derby.log \
	  .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests benchmarks examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +
