# Every target does its own set-up on a fresh machine with Python 3.11+ and a C++ compiler.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
OUT := out/demo
# Of the tests marked slow each runs in one of 48 seeds, short ones in one of fewer, long ones of 96 (tests/in_turn.py);
# SLOW=all runs all of them, SLOW=0 none.
SLOW ?= 1
SEED ?= 0
PYTEST_ARGS ?=
# Where the surroundings keep Python from writing bytecode, every process compiles the sources anew: collecting the tests
# takes four times as long, and a command of the tests six times as long to start.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo speak test lint types docs lock clean

# Python compiles what is imported when it is: to compile all that is installed takes as long as to install it.
$(VENV)/demo.stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -e '.[verify,models]'
	touch $@

$(VENV)/test.stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[test,dev]'
	touch $@

$(VENV)/docs.stamp: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[docs]'
	touch $@

demo: $(VENV)/demo.stamp
	@mkdir -p $(OUT)
	@$(BIN)/loom warmup chips
	@$(BIN)/loom warmup --background
	@echo "== GPT-2, from its config.json, on the edge NPU: prefill of 1024 tokens"
	@$(BIN)/loom sim npu-edge-int8 workloads/library/gpt2.config.json --set workload.sequence=1024 \
	  --report $(OUT)/gpt2-prefill.html --trace $(OUT)/gpt2-prefill.trace.json --json $(OUT)/gpt2-prefill.json
	@echo "== GPT-2 on the edge NPU: one token at a context of 1024"
	@$(BIN)/loom sim npu-edge-int8 workloads/library/gpt2.config.json --set workload.phase=decode --set workload.context=1024 \
	  --report $(OUT)/gpt2-decode.html --trace $(OUT)/gpt2-decode.trace.json --json $(OUT)/gpt2-decode.json
	@echo "== Llama-3-8B on the datacentre NPU: prefill of 2048 tokens"
	@$(BIN)/loom sim npu-datacenter llama3-8b --set workload.sequence=2048 \
	  --report $(OUT)/llama3-prefill.html --trace $(OUT)/llama3-prefill.trace.json --json $(OUT)/llama3-prefill.json
	@echo "== Llama-3-8B on the datacentre NPU: one token at a context of 4096"
	@$(BIN)/loom sim npu-datacenter llama3-8b --set workload.phase=decode --set workload.context=4096 \
	  --report $(OUT)/llama3-decode.html --trace $(OUT)/llama3-decode.trace.json --json $(OUT)/llama3-decode.json
	@echo "== The same on the balanced datacentre NPU: 256 FLOP a byte instead of 16, so traffic shows"
	@$(BIN)/loom sim npu-balanced llama3-8b --set workload.sequence=2048 \
	  --report $(OUT)/balanced-prefill.html --json $(OUT)/balanced-prefill.json
	@$(BIN)/loom sim npu-balanced llama3-8b --set workload.phase=decode --set workload.context=4096 \
	  --report $(OUT)/balanced-decode.html --json $(OUT)/balanced-decode.json
	@echo "== 120 designs of an edge NPU for a layer of Llama-3-8B: time, energy, area"
	@$(BIN)/loom sweep examples/array-sweep.yaml --results $(OUT)/array-sweep.sqlite --report $(OUT)/array-sweep.html
	@echo "== The Verilog of the edge NPU"
	@$(BIN)/loom rtl npu-edge-int8 -o $(OUT)/rtl
	@echo
	@echo "== Programs on that Verilog, on the simulator and on the golden model"
	@$(BIN)/loom verify npu-edge-int8 --seed 7
	@echo
	@echo "== A language model on an edge NPU in bf16: values by the golden model, times by the simulator"
	@if $(BIN)/loom models get smollm2-135m; then \
	  $(BIN)/loom run npu-edge smollm2-135m --prompt "What is the capital of France?" --tokens 12; \
	else echo "without the model's weights nothing answers here"; fi
	@echo
	@echo "Where to look:"
	@echo "  reports  $(OUT)/*.html (open in a browser)"
	@echo "  traces   $(OUT)/*.trace.json (open in https://ui.perfetto.dev)"
	@echo "  results  $(OUT)/*.json"
	@echo "  Verilog  $(OUT)/rtl (start with its README.md)"

# A model of 135 M parameters that answers on the edge NPU; downloads 93 MB the first time.
speak: $(VENV)/demo.stamp
	@$(BIN)/loom models get smollm2-135m
	@$(BIN)/loom run npu-edge smollm2-135m --prompt "What is the capital of France?" --tokens 12

# Icarus and Chromium come from the system's packages; without them their tests are reported as skipped.
test: $(VENV)/test.stamp
	@command -v iverilog >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && { apt-get install -y -q iverilog >/dev/null 2>&1 || { apt-get update -q >/dev/null 2>&1 \
	  && apt-get install -y -q iverilog >/dev/null 2>&1; }; }; } || echo "no Icarus: its benches will be skipped"
	@command -v chromium >/dev/null || { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null \
	  && { apt-get install -y -q chromium >/dev/null 2>&1 || { apt-get update -q >/dev/null 2>&1 \
	  && apt-get install -y -q chromium >/dev/null 2>&1; }; }; } || echo "no Chromium: pages will not be looked at"
	$(BIN)/loom warmup
	$(BIN)/python -m pytest -n 2 --dist worksteal --hypothesis-seed=$(SEED) \
	  $(if $(filter 0,$(SLOW)),-m "not slow") $(if $(filter 1,$(SLOW)),--slow-share 48) $(PYTEST_ARGS)

lint: $(VENV)/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/test.stamp
	$(BIN)/mypy

# Versions of all that tests, checks and the site were last run with: pip install -r requirements-dev.lock
lock: $(VENV)/test.stamp
	$(BIN)/python -m pip install --quiet 'pip-tools>=7.5'
	$(BIN)/python -m piptools compile --quiet --strip-extras --no-header --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host --no-emit-options --no-annotate \
	  --extra test --extra dev --extra fit --output-file requirements-dev.lock pyproject.toml
	@sed -i '/^siliconloom /d' requirements-dev.lock

# The site: documents and pages made from the code. Nothing is fetched once Sphinx is there, and warnings are errors.
docs: $(VENV)/docs.stamp
	@rm -rf out/docs
	@$(BIN)/python docs/_site/assemble.py out/docs-source
	@$(BIN)/python -m sphinx -W --keep-going -q -j auto -c docs/_site out/docs-source out/docs
	@echo "the site: out/docs/index.html"

clean:
	rm -rf $(VENV) out build dist src/*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
