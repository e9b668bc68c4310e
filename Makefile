# Everything a newcomer needs: make demo, make test. Each makes the virtual environment it needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
# Tests run in as many processes as there are processors, each with one thread
JOBS   ?= $(shell $(PYTHON) -c 'import os; print(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())')

.PHONY: demo test check bench figures clean

# Threads wait awake for a moment only: for long (as by default), a step takes many times as long where other work shares
# the processors; not at all (OMP_WAIT_POLICY=PASSIVE), two threads are no faster than one on a model this small
demo: $(VENV)/ready
	GOMP_SPINCOUNT=5000 $(BIN)/cosformer demo --out runs/demo

test: check
	$(BIN)/pytest -q -n $(JOBS)

check: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/pytest -q tests/test_layering.py tests/test_comparing.py

bench: $(VENV)/ready
	$(BIN)/cosformer bench attention --memory

figures: $(VENV)/ready
	$(BIN)/python docs/figures.py

# An interrupted install leaves no `ready`, so the next call takes it up again
$(VENV)/ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf $(VENV) runs build *.egg-info .pytest_cache .ruff_cache .hypothesis
