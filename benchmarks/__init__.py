"""Benchmarks of docs/benchmarks.md; `python -m benchmarks.run` runs them all, each also alone."""
