# Every target creates the virtual environment .venv if it does not exist.
PYTHON ?= python3
BIN := .venv/bin
# One process per core, at most four. Each file runs in one of them, so that its fixtures are made once.
PARALLEL := -n auto --maxprocesses 4 --dist loadfile

.PHONY: test lint docs wheel demo bench audit lowest clean

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev,docs,lite]"
	touch $@

test: .venv/ready
	$(BIN)/python -m pytest -q $(PARALLEL)

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

docs: .venv/ready
	OMP_NUM_THREADS=1 $(BIN)/python -m sphinx -W --keep-going -j 2 -q docs docs/_build/html

wheel: .venv/ready
	rm -rf dist
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python .ci/check_wheel.py dist

demo: .venv/ready
	$(BIN)/spml quickstart --out demo

bench: .venv/ready
	$(BIN)/python benchmarks/average_precision.py

# Known vulnerabilities in the installed packages.
audit: .venv/ready
	$(BIN)/pip install --quiet --disable-pip-version-check pip-audit
	$(BIN)/pip-audit --skip-editable

# The tests with the lowest versions that pyproject.toml allows, in an environment of their own.
lowest:
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check uv
	.venv-lowest/bin/uv pip install --python .venv-lowest/bin/python --resolution lowest-direct -e ".[dev,lite]"
	.venv-lowest/bin/python -m pytest -q $(PARALLEL)

clean:
	rm -rf .venv .venv-lowest build dist docs/_build docs/api
