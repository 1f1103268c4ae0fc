.PHONY: setup check fast format

setup:  ## the environment, with what the tests need
	bash scripts/setup.sh --dev

check:  ## format, lint, layers, types, every test
	bash scripts/test.sh

fast:  ## the same without the tests that start real engines
	FLASHEDGE_FAST=1 bash scripts/test.sh

format:
	.venv/bin/ruff format . && .venv/bin/ruff check --fix .
