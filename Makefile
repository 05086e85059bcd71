# Every target creates the virtual environment .venv if it does not exist.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test lint docs wheel demo bench clean

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev,docs,lite]"
	touch $@

test: .venv/ready
	$(BIN)/python -m pytest -q

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

clean:
	rm -rf .venv build dist docs/_build docs/api
