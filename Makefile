# Two commands do everything: make demo, make test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Threads that wait for each other spin for microseconds, then sleep: as fast on a free machine, and
# up to ten times faster where another program keeps a core busy.
export GOMP_SPINCOUNT ?= 20000

.PHONY: demo test lint bench docs clean

demo: $(READY)
	$(BIN)/topocaps demo --out runs/demo

test: $(READY)
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 4

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

# The site: into runs/docs, from its own pages and the docstrings.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "runs/docs/index.html, or with its search: python3 -m http.server -d runs/docs"

$(VENV)/.docs: $(READY) docs/tools/constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
		--constraint docs/tools/constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) runs
