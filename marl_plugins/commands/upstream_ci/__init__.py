"""Compatibility tests for a release of upstream: `openrlhf compat PATH | VERSION --tests`, or with
pytest's own options

    pytest -p marl_plugins.commands.upstream_ci.fixtures --pyargs marl_plugins.commands.upstream_ci
    --openrlhf PATH | VERSION

Upstream's CI can run them on every change (`workflow.yml` in this folder is ready to be adopted),
ours runs them on all supported releases. Without `--openrlhf` the installed release is tested. They
require the stack (Ray, DeepSpeed, vLLM), no GPU and no network, and take a minute:

    test_release.py  every seam, flag and validation that this project depends on
    test_adapter.py  a policy and its critic are trained by our subclasses of upstream's actors
    test_suite.py    upstream's own tests pass with our plugins loaded
"""
