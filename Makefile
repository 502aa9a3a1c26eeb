# Every command builds the environment it needs in .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PEERS := .venv-peers
MIN := .venv-min
NETWORKS := .venv-networks
WHEEL := .venv-wheel
OUT ?= demo_output

# Idle OpenMP threads must sleep, not spin: spinning starves whatever else runs on the machine.
export OMP_WAIT_POLICY := PASSIVE
export MPLBACKEND := Agg
# A test that hangs shows where, and fails: it must not hold up all others.
HANGS := -o faulthandler_timeout=900 -o faulthandler_exit_on_timeout=true
# Hypothesis draws the same cases in every run; "make fuzz" draws others each time.
SAME := --hypothesis-profile=ci

.PHONY: demo test test-slow test-networks pin fuzz test-min coverage lint docs bench results bench-networks check-peers dist clean

demo: $(VENV)/.installed-plots
	$(BIN)/python examples/demo.py --out $(OUT)

test: export OMP_NUM_THREADS := 1
test: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 $(HANGS) $(SAME) -m "not slow and not lint"

# What takes long for a single test; continuous integration runs both.
test-slow: export OMP_NUM_THREADS := 1
test-slow: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 $(HANGS) $(SAME) -m slow tests

# Writes the numbers anew that tests/test_pinned.py holds on to: for changes that are meant.
pin: export OMP_NUM_THREADS := 1
pin: $(VENV)/.installed-test
	$(BIN)/python -m tests.pin

# Whatever users may pass in, 1,000 cases of each kind; "make test" tries 15.
fuzz: export OMP_NUM_THREADS := 1
fuzz: export FUZZ_CASES := 1000
fuzz: $(VENV)/.installed-test
	$(BIN)/python -m pytest tests/fuzz

# The same with the lowest versions that setup.cfg allows. What old versions warn about is no error.
test-min: export OMP_NUM_THREADS := 1
test-min: $(MIN)/.installed
	$(MIN)/bin/python -m pytest -n 2 $(SAME) --override-ini=filterwarnings= --disable-warnings

# Networks of transformers, peft, timm, torchvision and lightning, in an environment of their own.
test-networks: export OMP_NUM_THREADS := 1
test-networks: $(NETWORKS)/.installed
	$(NETWORKS)/bin/python -m pytest -n 2 $(HANGS) -c tests/real/pytest.ini --rootdir . tests/real

# What a row costs with these networks, against their heads alone.
bench-networks: export OMP_NUM_THREADS := 1
bench-networks: $(NETWORKS)/.installed
	$(NETWORKS)/bin/python -m benchmarks.network_heads

# What the tests do not reach; slower than the tests alone.
coverage: export OMP_NUM_THREADS := 1
coverage: $(VENV)/.installed-test
	$(BIN)/python -m pytest -n 2 $(SAME) --cov --cov-report=term

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest --quiet -m lint tests/test_rooms.py tests/test_docstrings.py

docs: $(VENV)/.installed-docs
	$(BIN)/sphinx-build -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html

bench: $(VENV)/.installed-plots
	$(BIN)/python -m benchmarks.baselines

# Measures what is stale (benchmarks/earlier.json), the most important first, goes on where it was
# interrupted, and writes tables and figures; DATA=DIR is the folder of the data.
results: export OMP_NUM_THREADS := 1
results: $(VENV)/.installed-plots
	$(BIN)/python -m benchmarks.results --data "$(DATA)" $(ARGS)

# Independent implementations of the same numerics, in an environment of their own; with DATA=DIR, a
# folder with MNIST, also on images and side by side in speed.
check-peers: export OMP_NUM_THREADS := 1
check-peers: $(PEERS)/.installed
	$(PEERS)/bin/python -m benchmarks.check_peers
	$(if $(DATA),$(PEERS)/bin/python -m benchmarks.peers_on_mnist --data "$(DATA)")

# Builds what is uploaded, and tries the wheel in an environment that has nothing else of the project:
# it runs isolated (-I) and elsewhere, so that the source tree is not on its path.
dist: export OMP_NUM_THREADS := 1
dist: $(VENV)/.installed-release
	rm -rf build dist $(WHEEL)
	$(BIN)/python -m build --outdir dist
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python .ci/check_dist.py dist
	$(PYTHON) -m venv $(WHEEL)
	wheel=$$(echo dist/*.whl) && $(WHEEL)/bin/python -m pip install --quiet \
		--constraint constraints.txt "$$wheel[plots]" pytest
	$(WHEEL)/bin/python -I .ci/smoke.py
	cd / && "$(CURDIR)/$(WHEEL)/bin/python" -I -m pytest -c /dev/null --rootdir "$(CURDIR)/$(WHEEL)" \
		-p no:cacheprovider --quiet --disable-warnings --doctest-modules \
		-o doctest_optionflags="NORMALIZE_WHITESPACE ELLIPSIS" --pyargs sklearn_quam

clean:
	rm -rf $(VENV) $(PEERS) $(MIN) $(NETWORKS) $(WHEEL) $(OUT) build dist docs/_build docs/api docs/generated docs/gallery docs/sg_execution_times.rst .coverage .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# One stamp per extra of setup.cfg: "make test" installs the package with [test], and so on.
$(VENV)/.installed-%: setup.cfg pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable ".[$*]"
	touch $@

$(MIN)/.installed: setup.cfg pyproject.toml constraints-min.txt
	$(PYTHON) -m venv --clear $(MIN)
	$(MIN)/bin/python -m pip install --quiet --constraint constraints-min.txt --editable ".[test]"
	touch $@

$(NETWORKS)/.installed: setup.cfg pyproject.toml constraints.txt
	$(PYTHON) -m venv $(NETWORKS)
	$(NETWORKS)/bin/python -m pip install --quiet --no-compile --constraint constraints.txt \
		--editable ".[networks]" pytest pytest-xdist
	touch $@

# --no-deps: the peers ask for torchvision, which would bring another build of torch along.
$(PEERS)/.installed: setup.cfg pyproject.toml constraints.txt benchmarks/peers-requirements.txt
	$(PYTHON) -m venv $(PEERS)
	$(PEERS)/bin/python -m pip install --quiet --constraint constraints.txt --editable .
	$(PEERS)/bin/python -m pip install --quiet --no-deps --requirement benchmarks/peers-requirements.txt
	touch $@
