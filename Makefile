# make install   what runs need, into .venv (once; seconds when nothing has changed)
# make tools     the same with what tests, lint and docs need; `make test` and the like do it themselves
# make demo      three roles on three policies learn to solve word problems, through the real engines: 20 steps, after which
#                held-out success has risen beyond its interval
# make demo-long the same to the end of its 62 steps, as in the picture of README
# make test      lint, types, all tests, and upstream's own with our plugins loaded; the slowest thirty are named
# make unit      the tests that start no engine, on all cores
# make unit-fast   core, plan, credit and records of these: two minutes of CPU
# make mcp-sdks  tests of MCP tools with the oldest SDK of each generation, in environments of their own
# make cluster   machines of namespaces, a Ray and a real Slurm on them; root, and ten minutes (docs/slurm.md)
# make docs      the docs site, into build/site
# make bench     the benchmarks of docs/benchmarks.md
# make bench-demo   the demo over five seeds beside its controls; two hours
# make gpu       the first hour on GPUs: what works there, in ten minutes, as a table (docs/gpu.md)
# make rehearse  the same on a stand-in for GPUs, all rows; `make test` has other whole runs on it (tests/gpu)
# make bench-dsbench   does a coach help where success is rare: five arms over three seeds; two hours and more

PY := .venv/bin/python
PYTEST := $(PY) -m pytest -q --dist loadfile --durations 30
DEMO := runs/demo
DEMONSTRATE := .venv/bin/openrlhf train --recipe recipes/mathchat/tiny.yaml --ckpt.output_dir $(DEMO) \
	--ckpt.path $(DEMO)/checkpoints --ckpt.save_steps 20 --ckpt.max_num 1 --logger.tensorboard_dir $(DEMO)/tensorboard

# Every test process and every command that it starts would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

# The docs site into build/site, without network; a broken link fails it.
docs: tools
	$(PY) .ci/site

.PHONY: install tools browser docs demo demo-long test suite beside cluster unit unit-fast mcp-sdks lint bench bench-demo bench-dsbench gpu rehearse
install:
	@bash .ci/install runs
tools:
	@bash .ci/install tests

demo: install
	@rm -rf $(DEMO)
	$(DEMONSTRATE) --max_steps 20

demo-long: install
	@rm -rf $(DEMO)
	$(DEMONSTRATE)

lint: tools
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

unit: tools
	$(PYTEST) -n auto -m "not engines and not cluster"

FAST := trajectory_builder layout rows credit loading plan workflow steps rewards groups estimate refusals problems seats \
	sequences rollout trajectory_record conversation continues resume checkpoints graphs coach reward_backprop records metrics \
	plugins grading swarm replay curriculum returns scoring advantages reasons

unit-fast: tools
	$(PYTEST) -n 2 -m "not engines" $(FAST:%=tests/test_%.py)

mcp-sdks: tools
	for version in 1.30.0 2.0.0; do \
		env=build/mcp-$$version && .venv/bin/uv venv -q --clear --python $(PY) $$env && \
		.venv/bin/uv pip install -q --python $$env -e '.[mcp]' mcp==$$version pytest pytest-xdist pytest-timeout hypothesis && \
		$$env/bin/python -m pytest -q -n 2 tests/test_mcp.py || exit 1; \
	done

# Types and upstream's own tests beside ours: one of them leaves a core idle.
test: tools browser
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	@$(MAKE) --no-print-directory --jobs 2 suite beside

# What the tests of pages need: Debian's headless Chromium; where it cannot be installed they say so and are skipped, in CI they fail.
browser:
	@command -v chromium-headless-shell >/dev/null || command -v chromium >/dev/null || bash .ci/browser

# One worker more than cores, because whoever waits for an engine needs none; in order, so that engines come first (tests/engines/conftest.py).
suite:
	$(PYTEST) -n $$(($$(nproc) + 1)) --no-loadscope-reorder -m "not cluster"
beside:
	$(PY) -m mypy
	.venv/bin/openrlhf compat $$($(PY) -c 'from marl_plugins.engine.hosts.releases import TRAINED; print(TRAINED)') --tests

# A cluster of several machines, made here: one test at a time, because each takes all cores.
cluster: tools
	$(PYTEST) -n 0 tests/cluster

bench: install
	$(PY) -m benchmarks.run

bench-demo: install
	$(PY) -m benchmarks.demo

bench-dsbench: install
	$(PY) -m benchmarks.dsbench

# With the Python that has upstream's own requirements for GPUs, which `install` does not bring.
gpu:
	$${PYTHON:-python3} -m benchmarks.gpu $(GPU)

rehearse: install
	$(PY) -m benchmarks.gpu --rehearse 3
