# make install   everything into .venv (once; seconds when nothing has changed)
# make demo      three roles on three policies, trained for a few steps through the real engines
# make test      lint, types and all tests
# make unit      the tests that start no engine, under a minute
# make bench     the benchmarks of docs/benchmarks.md

PY := .venv/bin/python
DEMO := runs/demo

.PHONY: install demo test unit lint bench
install:
	@bash .ci/install

demo: install
	@rm -rf $(DEMO)
	.venv/bin/openrlhf train --recipe recipes/mathchat/tiny.yaml --max_steps 8 --ckpt.output_dir $(DEMO) --ckpt.path $(DEMO)/checkpoints --ckpt.save_steps 4

lint: install
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

unit: install
	$(PY) -m pytest -q -m "not engines"

test: lint
	$(PY) -m pytest -q

bench: install
	$(PY) -m benchmarks.run
