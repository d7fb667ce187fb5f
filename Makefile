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
# READY exists if the virtual environment has what users need, READY_DEV if it also has the tools for tests and checks.
# Make installs again if one of the inputs changes.
READY := .venv/ready-$(DEVICE)
READY_DEV := .venv/ready-$(DEVICE)-dev
READY26 := .venv-paddle26/ready
DEV_INPUTS := requirements-dev.txt requirements-reference.txt

# $(call create,VENV) creates an empty virtual environment. uv creates and fills it faster than pip; it is optional.
# $(call install,VENV,ARGUMENTS) installs packages, and prints the progress. $(call compile,VENV) compiles them, except
# tests and packages of which little is imported. compileall uses all cores, pip only one; it fails at files that are
# templates or for other Python versions.
UV := $(shell command -v uv)
# Of pip's hundreds of lines, shows the downloads above 1 MB, the installation, and everything that is not routine.
SHORTEN := /^ *(Collecting|Processing|Requirement|Looking|Obtaining|Using|Preparing|Installing build|Getting|Checking if|Building|Created|Stored|Attempting|Found existing|Uninstalling|Successfully|WARNING: Location)/ {next} \
	/^ *Downloading/ && !/ MB\)/ {next} \
	/^Installing collected/ {$$0 = "Installing " NF - 3 " packages"} \
	{print; fflush()}
define create
@"$(PYTHON)" -c 'import sys; sys.exit(not (3, 10) <= sys.version_info < (3, 13))' 2>/dev/null || { \
	echo "make: expected Python 3.10 to 3.12, but '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1 | tail -1);" \
		"choose another one, for example: make setup PYTHON=python3.11" >&2; exit 1; }
@echo "$(1): new virtual environment, $$("$(PYTHON)" --version)"
@"$(PYTHON)" -m venv --clear $(1)
endef
ifneq ($(UV),)
install = "$(UV)" pip install --python $(1)/bin/python $(2)
else
install = $(1)/bin/python -m pip install --disable-pip-version-check --no-compile --progress-bar off $(2) 2>&1 | awk '$(SHORTEN)'
endif
compile = $(1)/bin/python -m compileall -qq -j 0 -x 'site-packages/(.*/tests?|databricks|moto|sympy)/' $(1)/lib || true

.PHONY: help setup setup-dev quickstart visualdl test test-slow test-models test-reliability test-hostile test-runners fuzz soak lint test-gpu test-paddle26 docs requirements lock sbom wheel clean

help: ## list the targets
	@echo "make TARGET [PYTHON=python3.11] [DEVICE=cpu|gpu]   (now: PYTHON=$(PYTHON) DEVICE=$(DEVICE))"
	@sed -n 's/^\([a-z0-9-]*\):.*## \(.*\)/  \1|\2/p' Makefile | while IFS='|' read -r goal text; do \
		printf '  %-17s %s\n' "$$goal" "$$text"; done

setup: $(READY) ## create .venv with Paddle, DALI and ppcls: all that users need

setup-dev: $(READY_DEV) ## also install the tools for tests and checks (about twice the size)

$(READY): $(REQUIREMENTS) pyproject.toml
	$(call create,.venv)
	@echo ".venv: installing $(REQUIREMENTS) (two minutes and 2.5 GB the first time)"
	@$(call install,.venv,-r $(REQUIREMENTS))
	@$(call compile,.venv)
	@$(call install,.venv,--no-deps --editable .)
	@touch $@
	@echo ".venv: ready; activate it with: source .venv/bin/activate"

$(READY_DEV): $(READY) $(DEV_INPUTS)
	@echo ".venv: installing requirements-dev.txt (two minutes the first time)"
	@$(call install,.venv,-r $(REQUIREMENTS) -r requirements-dev.txt)
	@$(call install,.venv,--no-deps -r requirements-reference.txt)
	@$(call compile,.venv)
	@touch $@
	@echo ".venv: ready for tests and checks"

$(READY26): requirements.txt $(DEV_INPUTS) pyproject.toml
	$(call create,.venv-paddle26)
	@$(call install,.venv-paddle26,-r requirements.txt -r requirements-dev.txt)
	@$(call install,.venv-paddle26,--no-deps -r requirements-reference.txt)
	@$(call compile,.venv-paddle26)
	@$(call install,.venv-paddle26,--no-deps --editable .)
	@touch $@

# The tests start hundreds of processes, which would otherwise compile the code again.
unexport PYTHONDONTWRITEBYTECODE

# All tests of a file run in one process, because some of them start several ranks. Five processes are not faster on two
# cores: each collects all tests.
PARALLEL := -n 4 --dist loadfile --no-loadscope-reorder

QUICKSTART := output/quickstart
BEST := -c configs/quickstart.yaml -o Global.pretrained_model=$(QUICKSTART)/best_model

quickstart: setup ## train on 1,797 real digits, evaluate and predict (about a minute on two CPU cores)
	$(RUN) tools/dataset.py digits
	$(RUN) tools/train.py -c configs/quickstart.yaml -o Global.checkpoints=auto 'Global.target={top1: 0.97}'
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

test: setup-dev ## run the tests that need no GPU
	$(RUN) -m pytest -m "not gpu and not slow and not reliability and not table" $(PARALLEL)

test-slow: setup-dev ## run the slow tests, for example of several processes, kills and a lost machine
	$(RUN) -m pytest -m "slow and not gpu" $(PARALLEL)

test-models: setup-dev ## compare models (names, costs, states, logits) and learning rates with PaddleClas's (four minutes)
	$(RUN) -m pytest -m "table" tests/arch tests/optimizer tests/test_zoo.py

RELIABILITY := tests/reliability tests/engine/test_stop.py tests/runtime/test_watchdog.py

test-reliability: setup-dev ## run the fault tests and write output/reliability.txt (15 minutes)
	$(RUN) -m pytest -m "not gpu" $(PARALLEL) --figures output/reliability.txt $(RELIABILITY)

test-hostile: setup-dev ## test runs and the server with hostile files, requests and terminals (ten minutes)
	$(RUN) -m pytest -m "hostile and not gpu" $(PARALLEL)

# The Python package pyserini contains the classes and libraries of com.microsoft.onnxruntime for Java.
JAVA_LIBRARY := output/java/onnxruntime.jar
GSON ?= /usr/share/java/gson.jar

$(JAVA_LIBRARY):
	@echo "$@: downloading 165 MB"
	@mkdir -p $(@D)
	@$(RUN) -m pip download --quiet --disable-pip-version-check --no-deps --dest $(@D) pyserini==1.6.0
	@tar --extract --gzip --to-stdout --wildcards --file $(@D)/pyserini-1.6.0.tar.gz '*/anserini-*-fatjar.jar' > $@.part
	@rm $(@D)/pyserini-1.6.0.tar.gz
	@mv $@.part $@

test-runners: setup-dev $(if $(shell command -v javac),$(JAVA_LIBRARY)) ## build the programs of bundles and verify a bundle with each; needs the packages in CONTRIBUTING.md
	@$(RUN) -m pip install --quiet --disable-pip-version-check "openvino>=2025.0,<2027"
	JAVA_CLASSPATH=$(CURDIR)/$(JAVA_LIBRARY):$(GSON) $(RUN) -m pytest -m "slow" -rs tests/deploy/bundle/test_runners.py

MINUTES ?= 60
JOBS ?= 1

fuzz: setup-dev ## fuzz the readers of files and requests; MINUTES=60 per target, JOBS=2 at once, results in output/fuzz
	@$(RUN) -m pip install --quiet --disable-pip-version-check "atheris>=3,<4"
	$(RUN) tests/reliability/fuzz/run.py --minutes $(MINUTES) --jobs $(JOBS) $(TARGETS)

soak: setup-dev ## train on two processes while faults end them again and again; MINUTES=60 in all, results in output/soak
	$(RUN) tests/reliability/soak.py --minutes $(MINUTES)

lint: setup-dev ## check style, types, imports, folders, names and words
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	.venv/bin/lint-imports
	.venv/bin/hadolint Dockerfile
	.venv/bin/proselint check *.md docs/*.md
	$(RUN) .ci/check_source.py

test-gpu: setup-dev ## run the tests that need an NVIDIA GPU
	$(RUN) -m pytest -m gpu

test-paddle26: $(READY26) ## run the tests that need no GPU with PaddlePaddle 2.6.2, installed in .venv-paddle26
	$(RUN26) -m pytest -m "not gpu and not reliability and not table" $(PARALLEL)

docs: setup-dev ## write docs/config.md, docs/models.md and configs/schema.json, and build the website; a broken link is an error
	$(RUN) -m ppcls.recipe.reference docs/config.md
	$(RUN) -m ppcls.recipe.json_schema configs/schema.json
	@$(call install,.venv,--quiet -r requirements-docs.txt)
	@$(RUN) .ci/docs_source.py
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --quiet
	@echo "site/index.html"

requirements: ## write requirements*.txt from pyproject.toml
	@test -x $(RUN) || $(MAKE) setup # not a prerequisite: pyproject.toml is newer, and the old files would be installed
	@$(RUN) .ci/requirements.py

lock: ## write requirements-*.lock, with the hash of each package (needs uv and a network)
	@for kind in cpu gpu; do \
		if [ $$kind = cpu ]; then from=requirements-cpu.txt version=3.11; else from=requirements.txt version=3.10; fi; \
		rm -f requirements-$$kind.lock; \
		uv pip compile $$from --generate-hashes --no-header --quiet --python-version $$version \
			--python-platform x86_64-manylinux_2_28 --output-file requirements-$$kind.lock >/dev/null || exit 1; \
		sed -i "1i # Written by \`make lock\` from $$from, for Python $$version on Linux x86-64; edit pyproject.toml." \
			requirements-$$kind.lock; \
	done

sbom: ## write dist/sbom-*.cdx.json, the packages of the lock files in CycloneDX's format (needs uv and a network)
	@mkdir -p dist
	@for kind in cpu gpu; do \
		uv tool run --from 'cyclonedx-bom>=7.5,<8' cyclonedx-py requirements requirements-$$kind.lock --output-reproducible \
			--of JSON --output-file dist/sbom-$$kind.cdx.json || exit 1; \
	done

wheel: setup-dev ## build the package: dist/*.whl and dist/*.tar.gz
	$(RUN) -m build

clean: ## remove virtual environments and caches, but not dataset/ and output/
	rm -rf .venv .venv-paddle26 .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist site *.egg-info
	find ppcls benchmarks tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
