"""Upstream's own tests pass with our plugins loaded."""

from marl_plugins.commands.upstream_ci.suite import run_suite
from marl_plugins.engine.hosts.trees import SourceTree


def test_upstreams_tests_pass_with_our_plugins(
    tree: SourceTree, environment: dict[str, str]
) -> None:
    assert tree.tests, f"{tree.root} contains no tests of upstream's"
    plugins = "marl_plugins.commands.upstream_ci.with_plugins"
    outcomes = run_suite(tree.root, environment, "-p", plugins)
    assert outcomes, "no test was found"
    unwell = {name: outcome for name, outcome in outcomes.items() if outcome != "passed"}
    without = run_suite(tree.root, environment) if unwell else outcomes
    assert unwell == {name: without.get(name) for name in unwell}
    assert "failed" not in unwell.values()
