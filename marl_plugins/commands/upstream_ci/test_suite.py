"""Upstream's own tests have the same results with our plugins loaded as without."""

import pytest

from marl_plugins.commands.upstream_ci.suite import run_suite
from marl_plugins.engine.hosts.trees import SourceTree


@pytest.fixture(scope="module")
def without(tree: SourceTree, environment: dict[str, str]) -> dict[str, str]:
    assert tree.tests, f"{tree.root} contains no tests of upstream's"
    return run_suite(tree.root, environment)


def test_upstreams_tests_pass_here(without: dict[str, str]) -> None:
    assert without, "no test was found"
    assert {name: outcome for name, outcome in without.items() if outcome == "failed"} == {}


def test_they_have_the_same_results_with_our_plugins(
    tree: SourceTree, environment: dict[str, str], without: dict[str, str]
) -> None:
    assert (
        run_suite(tree.root, environment, "-p", "marl_plugins.commands.upstream_ci.with_plugins")
        == without
    )
