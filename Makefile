# `make demo` sets up and shows the main job; `make test` sets up and runs every gating test.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.setup
# Measure what a busy neighbour does, and the gaps between ticks of a clock: nothing may run beside them.
ALONE := tests/cpu/backend/test_contention.py tests/cpu/engine/test_front_loop.py

.PHONY: setup demo test lint fast bench clean

setup: $(SETUP)

$(SETUP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[test]'
	touch $@

demo: setup
	$(BIN)/python benchmarks/demo.py

lint: setup
	$(BIN)/ruff check .
	$(BIN)/mypy

fast: lint
	$(BIN)/python -m pytest -q tests/unit tests/render/test_render.py

test: lint
	$(BIN)/python -m pytest -q -n 2 $(addprefix --ignore=,$(ALONE))
	$(BIN)/python -m pytest -q $(ALONE)

# Ratios, kept and compared with the last runs; of one real size against the peers that STEPFORGE_PEER_* name.
bench: setup
	$(BIN)/python -m pytest -q benchmarks/speed --benchmark-columns=median,iqr,rounds
	-$(BIN)/python -m benchmarks.peers --model mamba2-130m --rounds 3

clean:
	rm -rf build .pytest_cache .mypy_cache .ruff_cache
