# Two commands do everything: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Threads that wait for each other spin for microseconds, then sleep: as fast on a free machine, and
# up to ten times faster where another program keeps a core busy.
export GOMP_SPINCOUNT ?= 20000

.PHONY: demo test lint bench clean

demo: $(READY)
	$(BIN)/topocaps demo --out runs/demo

test: $(READY)
	$(BIN)/python -m pytest

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: $(READY)
	$(BIN)/python benchmarks/pool.py
	$(BIN)/topocaps bench

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) runs
