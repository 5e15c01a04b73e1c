# `make demo` and `make test` do all their own set-up; nothing else is needed but Python 3.11 to 3.13.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
LOWEST := .venv-lowest

# Files of tests at once: for all tests more than two cores need, because some mostly wait for other programs.
WORKERS      ?= 4
FAST_WORKERS ?= 2

# Threads that wait must not spin: they would keep other threads from working (docs/speed.md).
export OMP_WAIT_POLICY ?= PASSIVE

# Every process that the tests start would compile the package again.
unexport PYTHONDONTWRITEBYTECODE

# Run pytest with $(1) workers and options $(2) while basedpyright checks the types; its findings are shown at the end.
define test_and_check_types
$(BIN)/basedpyright >$(VENV)/types.log 2>&1 & types=$$!; trap "kill $$types" INT TERM; \
$(BIN)/python -m pytest -n $(1) --dist loadfile --no-loadscope-reorder $(2); tests=$$?; \
wait $$types; types=$$?; cat $(VENV)/types.log; [ $$tests -eq 0 ] && [ $$types -eq 0 ]
endef

.PHONY: demo test check soak lowest lint style format docs bench clean

demo: $(READY)
	$(BIN)/feduhb demo --out demo

# Everything: style, types and all tests, in about 10 minutes on two cores.
test: style
	@$(call test_and_check_types,$(WORKERS))

# What to run while you work: style, types and the fast tests, in at most 2 minutes on two cores.
check: style
	@$(call test_and_check_types,$(FAST_WORKERS),-m "not slow and not deployment")

# Every damaged file, kill, link and odd value, in about ten minutes on two cores; SOAK="--minutes 10 --seed 1" for less,
# SOAK=--more for every combination of them, which takes hours.
soak: $(READY)
	PYTHONPATH=tests $(BIN)/python -m hardening.soak $(SOAK)

# The fast tests with the lowest versions that pyproject.toml allows, in an environment of their own.
lowest:
	$(PYTHON) -m venv $(LOWEST)
	grep -viE "^($$(sed -n 's/==.*//p' constraints-lowest.txt | paste -sd'|'))==" constraints.txt | cat - constraints-lowest.txt >$(LOWEST)/constraints.txt
	$(LOWEST)/bin/pip install --quiet --disable-pip-version-check -c $(LOWEST)/constraints.txt -e '.[dev]' -e ./reproduction
	$(LOWEST)/bin/python -m pytest -n $(FAST_WORKERS) --dist loadfile -W default -m "not slow and not deployment"

lint: style
	$(BIN)/basedpyright

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(READY)
	$(BIN)/python docs/generate.py
	$(BIN)/python docs/notebook.py
	$(BIN)/python -m feduhb_reproduction.pages
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

bench: $(READY)
	$(BIN)/python benchmarks/side_by_side.py --json results/benchmarks/side-by-side.json
	$(BIN)/python benchmarks/growth.py --json results/benchmarks/growth.json
	$(BIN)/python benchmarks/to_target.py --json results/benchmarks/to-target.json
	$(BIN)/python benchmarks/tables.py

$(READY): pyproject.toml reproduction/pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev]' -e ./reproduction
	$(BIN)/python -m compileall -qq -j 0 -x '/(tests?|testing)/' $(VENV)/lib || true  # pip would use one core; some files are for other Pythons
	touch $(READY)

clean:
	rm -rf $(VENV) $(LOWEST) demo site .pytest_cache .ruff_cache .hypothesis
