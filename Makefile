# One command each; the set-up is in .ci/setup. PYTHON=... and INSTALLER=uv, given to make, reach it.
.DEFAULT_GOAL := help
.PHONY: help demo test lint clean

help:
	@echo 'make demo    set up and run the gate on the CPU engine      ARGS="..." goes to: python -m harness run'
	@echo 'make test    set up and run all tests                       ARGS="..." goes to: python -m pytest'
	@echo 'make lint    set up and check style, format and types       (ruff, mypy)'
	@echo 'make clean   remove .venv and the caches, nothing else'
	@echo 'make help    this list                                      set-up: PYTHON=/path/to/python3.11 INSTALLER=pip|uv'

demo:
	@.ci/setup demo
	@.venv/bin/python -m harness run $(ARGS)

test:
	@.ci/setup test
	@.venv/bin/python -m pytest $(ARGS)

lint:
	@.ci/setup lint
	@.venv/bin/ruff check
	@.venv/bin/ruff format --check
	@.venv/bin/mypy

clean:
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache
	@find harness tests -name __pycache__ -prune -exec rm -rf {} +
