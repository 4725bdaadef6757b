"""Upstream's own tests have the same results with our plugins loaded as without."""

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from marl_plugins.hosts.trees import Tree


def run_suite(tree: Tree, environment: dict[str, str], report: Path, *words: str) -> dict[str, str]:
    """Result of each of a release's own tests by its name: `passed`, `failure`, `error` or `skipped`."""
    assert tree.tests, f"{tree.root} holds no tests of upstream's"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tree.root), *words]
    command += [f"--junitxml={report}", str(tree.tests)]
    done = subprocess.run(command, env=environment, cwd=tree.root, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
    results = {}
    for case in ET.parse(report).iter("testcase"):
        outcomes = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        results[f"{case.get('classname')}::{case.get('name')}"] = outcomes[0] if outcomes else "passed"
    return results


@pytest.fixture(scope="module")
def without(tree: Tree, environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return run_suite(tree, environment, tmp_path_factory.mktemp("without") / "report.xml")


def test_the_same_results_with_our_plugins(
    tree: Tree, environment: dict[str, str], without: dict[str, str], tmp_path: Path
) -> None:
    loaded = run_suite(tree, environment, tmp_path / "report.xml", "-p", "marl_plugins.upstream_ci.with_plugins")
    assert without, "no test was found"
    assert loaded == without


def test_upstreams_tests_pass_here(without: dict[str, str]) -> None:
    assert {name: result for name, result in without.items() if result not in ("passed", "skipped")} == {}
