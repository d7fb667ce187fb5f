# Needs only git, make and Python; everything else is installed into .venv. `make help` lists the targets.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
ifndef DEVICE
DEVICE := $(shell if [ -e /proc/driver/nvidia/version ] || command -v nvidia-smi >/dev/null; then echo gpu; else echo cpu; fi)
endif
ifneq ($(DEVICE),cpu)
ifneq ($(DEVICE),gpu)
$(error DEVICE is '$(DEVICE)'; expected cpu or gpu)
endif
endif

REQUIREMENTS := $(if $(filter gpu,$(DEVICE)),requirements.txt,requirements-cpu.txt)
RUN := .venv/bin/python
RUN26 := .venv-paddle26/bin/python
# READY exists if the virtual environment is complete. Make rebuilds the environment if one of the INPUTS changes.
READY := .venv/ready-$(DEVICE)
READY26 := .venv-paddle26/ready
INPUTS := requirements-common.txt requirements-dev.txt requirements-reference.txt pyproject.toml

# $(call install,VENV,REQUIREMENTS) creates a virtual environment with the requirements and ppcls itself.
# compileall uses all cores, pip only one. It fails at files that are templates or for other Python versions.
define install
@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null || { \
	echo "make: expected Python 3.10 to 3.12, but '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1 | tail -1);" \
		"choose another one, for example: make setup PYTHON=python3.11" >&2; exit 1; }
@echo "$(1): new virtual environment, $$("$(PYTHON)" --version)"
@"$(PYTHON)" -m venv --clear $(1)
@echo "$(1): installing $(2) and requirements-dev.txt (a few minutes the first time)"
@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile -r $(2) -r requirements-dev.txt
@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements-reference.txt
@$(1)/bin/python -m compileall -qq -j 0 $(1)/lib || true
@$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
@touch $@
@echo "$(1): ready"
endef

.PHONY: help setup quickstart visualdl test test-slow test-models test-reliability test-hostile fuzz lint test-gpu test-paddle26 docs requirements wheel clean

help: ## list the targets
	@echo "make TARGET [PYTHON=python3.11] [DEVICE=cpu|gpu]   (now: PYTHON=$(PYTHON) DEVICE=$(DEVICE))"
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1|\2/p' Makefile | while IFS='|' read -r goal text; do \
		printf '  %-17s %s\n' "$$goal" "$$text"; done

setup: $(READY) ## create .venv with Paddle, DALI, ppcls and the development tools

$(READY): $(REQUIREMENTS) $(INPUTS)
	$(call install,.venv,$(REQUIREMENTS))

$(READY26): requirements.txt $(INPUTS)
	$(call install,.venv-paddle26,requirements.txt)

# The tests start hundreds of processes, which would otherwise compile the code again.
unexport PYTHONDONTWRITEBYTECODE

# All tests of a file run in one process, because some of them start several ranks.
PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder

QUICKSTART := output/quickstart
BEST := -c configs/quickstart.yaml -o Global.pretrained_model=$(QUICKSTART)/best_model

quickstart: setup ## train on 1,797 real digits, evaluate and predict (a few minutes on two CPU cores)
	$(RUN) tools/dataset.py digits
	$(RUN) tools/train.py -c configs/quickstart.yaml -o Global.checkpoints=auto
	$(RUN) tools/eval.py $(BEST)
	@rm -rf $(QUICKSTART)/samples && mkdir -p $(QUICKSTART)/samples
	@awk 'NR % 75 == 1' dataset/digits/val_list.txt | while read -r path label; do \
		cp "dataset/digits/$$path" "$(QUICKSTART)/samples/digit-$$label-$$(basename "$$path")"; done
	$(RUN) tools/infer.py $(BEST) -o Infer.infer_imgs=$(QUICKSTART)/samples
	@printf '\n%-12s %s\n' 'Report' '$(QUICKSTART)/report.html' 'Log' '$(QUICKSTART)/train.log' 'Curves' '$(QUICKSTART)/curves.png' \
		'Records' '$(QUICKSTART)/metrics.jsonl' \
		'VisualDL' 'make visualdl' \
		'Checkpoints' '$(QUICKSTART)/' 'Activate' 'source .venv/bin/activate   # before the ppcls commands above' | sed '/^$$/d'

visualdl: setup ## show the run of the quick start in VisualDL on http://localhost:8040
	@[ -d $(QUICKSTART)/visualdl ] || { echo "make: $(QUICKSTART) has no run yet; run 'make quickstart' first" >&2; exit 1; }
	.venv/bin/visualdl --logdir $(QUICKSTART) --port 8040

test: setup ## run the tests that need no GPU
	$(RUN) -m pytest -m "not gpu and not slow and not reliability and not table" $(PARALLEL)

test-slow: setup ## run the slow tests, for example of several processes, kills and a lost machine
	$(RUN) -m pytest -m "slow and not gpu" $(PARALLEL)

test-models: setup ## compare all models with PaddleClas's names, costs, initial states and logits (four minutes)
	$(RUN) -m pytest -m "table" tests/arch tests/test_zoo.py

RELIABILITY := tests/reliability tests/engine/test_stop.py tests/runtime/test_watchdog.py

test-reliability: setup ## run the fault tests and write output/reliability.txt (15 minutes)
	$(RUN) -m pytest -m "not gpu" $(PARALLEL) --figures output/reliability.txt $(RELIABILITY)

test-hostile: setup ## test runs and the server with hostile files, requests and terminals (five minutes)
	$(RUN) -m pytest -m "hostile and not gpu" $(PARALLEL)

MINUTES ?= 60
JOBS ?= 1

fuzz: setup ## fuzz the readers of files and requests; MINUTES=60 per target, JOBS=2 at once, results in output/fuzz
	@$(RUN) -m pip install --quiet --disable-pip-version-check "atheris>=3,<4"
	$(RUN) tests/reliability/fuzz/run.py --minutes $(MINUTES) --jobs $(JOBS) $(TARGETS)

lint: setup ## check style, types, imports, folders, names and words
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	.venv/bin/lint-imports
	.venv/bin/hadolint Dockerfile
	.venv/bin/proselint check *.md docs/*.md
	$(RUN) .ci/check_source.py

test-gpu: setup ## run the tests that need an NVIDIA GPU
	$(RUN) -m pytest -m gpu

test-paddle26: $(READY26) ## run the tests that need no GPU with PaddlePaddle 2.6.2, installed in .venv-paddle26
	$(RUN26) -m pytest -m "not gpu and not reliability and not table" $(PARALLEL)

docs: setup ## write docs/config.md and docs/models.md, and build the website; a broken link is an error
	$(RUN) -m ppcls.config.reference docs/config.md
	@$(RUN) -m pip install --quiet --disable-pip-version-check -r requirements-docs.txt
	@$(RUN) .ci/docs_source.py
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet
	@echo "site/index.html"

requirements: ## write requirements*.txt from pyproject.toml
	@"$(PYTHON)" .ci/requirements.py

wheel: setup ## build the package: dist/*.whl and dist/*.tar.gz
	$(RUN) -m build

clean: ## remove virtual environments and caches, but not dataset/ and output/
	rm -rf .venv .venv-paddle26 .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist site *.egg-info
	find ppcls tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
