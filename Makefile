# Two commands: `make run` and `make test`. Everything lands in $(VENV) and out/; `make clean` removes both.
VENV ?= .venv
TORCH ?= cpu
PYTHON ?= python3
NAME ?=
RESULT ?=

PY := $(VENV)/bin/python
INPUTS := pyproject.toml constraints-cpu.txt
QUICKSTART := notebooks/01_quickstart.ipynb
# Whole files go to two workers, the longest first. Much of a test's time is waiting for ranks, Slurm and a browser.
WORKERS ?= 2
LONGEST := $(wildcard tests/notebooks tests/slurm tests/browser tests/kit/ranks tests/kit/step)
SUITE := $(LONGEST) $(filter-out $(LONGEST) %/conftest.py %/__pycache__,$(wildcard tests/kit/* tests/widgets tests/gpu tests/test_*.py))
BENCHES := $(basename $(notdir $(wildcard tests/bench/[a-z]*.py)))
ROOT_FLAG := $(if $(filter 0,$(shell id -u)),--allow-root)

.DEFAULT_GOAL := help
.PHONY: run lab test bench lint help clean python

run: $(VENV)/.kit-run-$(strip $(TORCH)) ## install, run the quickstart on 2 ranks, say what it found
	@$(PY) -m kit.run_notebook $(QUICKSTART) --out out

lab: $(VENV)/.kit-run-$(strip $(TORCH)) ## install, open the quickstart in JupyterLab
	@$(PY) -m jupyterlab $(QUICKSTART) --KernelManager.transport=ipc $(ROOT_FLAG)

test: $(VENV)/.kit-test-$(strip $(TORCH)) ## install what tests need, run all that a CPU machine can
	@$(PY) -m kit.preflight test
	@$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(SUITE)

bench: $(VENV)/.kit-bench-$(strip $(TORCH)) ## measure beside others: NAME=ranks (no NAME: list them), RESULT=file.json
	@if [ -n "$(NAME)" ]; then $(PY) tests/bench/$(NAME).py $(if $(RESULT),--out $(RESULT)); \
	  else echo "make bench NAME=..., one of: $(BENCHES)"; fi

lint: $(VENV)/.kit-test-$(strip $(TORCH)) ## ruff check, ruff format --check, mypy --strict
	@$(PY) -m ruff check .
	@$(PY) -m ruff format --check .
	@$(PY) -m mypy --strict

help: ## show this
	@echo "static-graph-kit: make TARGET [VENV=$(VENV)] [TORCH=cpu|own] [PYTHON=$(PYTHON)]"
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' Makefile | column -t -s '|' 2>/dev/null \
	  || sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1  \2/p' Makefile
	@echo "TORCH=cpu takes the CPU wheel of constraints-cpu.txt; TORCH=own keeps the torch that PYTHON (or VENV) has."

clean: ## remove the environment, outputs and caches
	@if [ -e $(VENV)/kit-torch.txt ]; then rm -rf $(VENV); \
	  elif [ -e $(VENV) ]; then echo "$(VENV) was not made by make: left as it is"; fi
	@rm -rf out dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find kit widgets tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Asked in shell, because kit itself cannot be read by an older Python.
python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "PYTHON=$(PYTHON) is $$($(PYTHON) --version 2>&1 | tail -n 1); expected Python 3.11 or newer."; \
	  echo "Install it:  apt-get install -y python3 python3-venv   or name another:  make PYTHON=python3.12 ..."; \
	  exit 1; }

$(VENV)/.kit-run-$(strip $(TORCH)): $(INPUTS) | python
	@$(PYTHON) -m kit.environment --venv $(VENV) --torch $(strip $(TORCH)) && touch $@

$(VENV)/.kit-test-$(strip $(TORCH)): $(INPUTS) | python
	@$(PYTHON) -m kit.environment --venv $(VENV) --torch $(strip $(TORCH)) --extra test && touch $@ $(VENV)/.kit-run-$(strip $(TORCH))

$(VENV)/.kit-bench-$(strip $(TORCH)): $(INPUTS) | python
	@$(PYTHON) -m kit.environment --venv $(VENV) --torch $(strip $(TORCH)) --extra test,bench && touch $@
