# `make run` and `make test` work on a fresh clone: scripts/setup brings what is missing.
.DEFAULT_GOAL := help
.PHONY: help setup run test soak check bench lock clean

python := .venv/bin/python

help:  ## what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1  \2/p' $(MAKEFILE_LIST)

setup:  ## .venv, packages, Java; quick when nothing is missing
	@scripts/setup

run: setup  ## a surge and a rescale in mid-stream on local Spark for a minute, then a summary and a picture
	@rm -rf out/surge .tidegate/surge
	@$(python) -m tidegate.cli.main run examples/surge.py --for "60 seconds" --checkpoint .tidegate/surge \
	  --at "30 seconds: nodes=4" --plot out/surge.png

test: setup  ## all tests, what takes long as a sample (TIDEGATE_SEED=... repeats one); args="-k word" picks some
	@$(python) -m pytest -n 3 --dist loadfile --no-loadscope-reorder --durations=15 $(args)

soak: setup  ## everything that takes long, in one to two hours; figures in artifacts/soak.json
	@$(python) scripts/soak.py

check: setup  ## lint, format, types, who imports whom, doc examples
	@$(python) -m ruff check .
	@$(python) -m ruff format --check .
	@$(python) -m mypy
	@.venv/bin/lint-imports --no-logo --no-cache
	@$(python) scripts/check_tree.py
	@$(python) -m pytest -q --doctest-modules src/tidegate
	@$(python) scripts/check_docs.py
	@$(python) scripts/check_lock.py

bench: setup  ## ours against plain Structured Streaming and its stateful operators
	@$(python) -m benchmarks.passthrough
	@$(python) -m benchmarks.state
	@$(python) -m benchmarks.rescale
	@$(python) -m benchmarks.start

lock:  ## requirements.lock anew from pyproject.toml (needs uv)
	@scripts/lock

clean:  ## remove outputs, checkpoints and caches; .venv stays
	@rm -rf out .tidegate artifacts build dist spark-warehouse metastore_db derby.log \
	  .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests benchmarks examples scripts -name __pycache__ -type d -prune -exec rm -rf {} +
