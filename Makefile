# make demo: a first result; make test: the default suite. Both make the environment first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# two processes that rewrite assertions of the tests alone, not of the plug-ins that happen to be installed, and keep
# what they have compiled
PYTEST := PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --disable-plugin-autoload -p xdist -n 2 --dist worksteal

.PHONY: demo test test-all test-slow fuzz browser docs lint format clean

demo: $(STAMP)
	$(BIN)/evergraph compare digits --methods finetune,curvature,auto,joint --seeds 3 --label-scope seen --weight-decay 0 \
		--set curvature.strength=10 --set curvature.nodes=means --set curvature.ema=0

test: $(STAMP) lint browser
	$(PYTEST)

# what the default suite leaves out: long runs on real data, and the rest of the product of methods, models and settings
test-slow: $(STAMP)
	$(PYTEST) -m "slow or paper"

test-all: test test-slow

# twenty times as many made-up bad inputs as the default suite, other ones every time
fuzz: $(STAMP)
	EVERGRAPH_FUZZ=20 $(PYTEST) tests/test_bad_input.py tests/test_hardening.py

# The report's tests open it in a real Chromium: installed where that can be done, else those tests are skipped.
browser:
	@if command -v chromium >/dev/null && command -v chromedriver >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
		echo "installing chromium for the report's tests"; export DEBIAN_FRONTEND=noninteractive; \
		{ apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium chromium-driver; } >/dev/null 2>&1 \
		|| echo "chromium could not be installed: the report's tests in a browser will be skipped"; \
	else echo "no chromium and chromedriver here: the report's tests in a browser will be skipped"; fi

docs: $(STAMP)
	$(BIN)/mkdocs build --strict

lint: $(STAMP)
	$(BIN)/ruff check src tests benchmarks
	$(BIN)/ruff format --check src tests benchmarks
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo --no-cache

format: $(STAMP)
	$(BIN)/ruff check --fix src tests benchmarks
	$(BIN)/ruff format src tests benchmarks

# torch first and pinned, so that nothing that follows pulls another build of it. curvlinops, the tests'
# reference for Fisher products, comes without its dependencies: they include torchvision, which is not
# used and would pull the CUDA packages; the ones it does need are in the test extra.
$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("evergraph needs Python 3.11 or newer, this is " + sys.version) if sys.version_info < (3, 11) else 0'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt torch
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[test]'
	$(BIN)/python -m pip install --quiet --no-deps --constraint constraints.txt curvlinops-for-pytorch backpack-for-pytorch unfoldNd
	touch $(STAMP)

clean:
	rm -rf $(VENV) runs .pytest_cache .mypy_cache .ruff_cache
