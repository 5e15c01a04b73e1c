# `make demo` and `make test` do all their own set-up; nothing else is needed but Python 3.11 to 3.13.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready

# Files of tests at once. Two more than two cores, for some tests mostly wait for other programs.
WORKERS ?= 4

# Threads that wait shall not spin: they would take the cores from whoever could work (docs/speed.md).
export OMP_WAIT_POLICY ?= PASSIVE

.PHONY: demo test lint format docs bench clean

demo: $(READY)
	$(BIN)/feduhb demo --out demo

test: lint
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)
	$(BIN)/python docs/generate.py
	$(BIN)/python -m feduhb_reproduction.pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)
	$(BIN)/python benchmarks/side_by_side.py --json results/benchmarks/side-by-side.json
	$(BIN)/python benchmarks/growth.py --json results/benchmarks/growth.json
	$(BIN)/python benchmarks/to_target.py --json results/benchmarks/to-target.json
	$(BIN)/python benchmarks/tables.py

$(READY): pyproject.toml reproduction/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e ./reproduction
	touch $(READY)

clean:
	rm -rf $(VENV) demo site .pytest_cache .ruff_cache .hypothesis
