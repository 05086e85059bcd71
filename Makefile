# Each target sets itself up in .venv from nothing.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: test lint demo bench clean

.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev,lite]"
	touch $@

test: .venv/ready
	$(BIN)/python -m pytest -q

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: .venv/ready
	$(BIN)/spml quickstart --out demo

bench: .venv/ready
	$(BIN)/python benchmarks/average_precision.py

clean:
	rm -rf .venv build dist
