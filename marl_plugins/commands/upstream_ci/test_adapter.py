"""Our subclasses of the release's actors train a policy and its critic in one process."""

import json
import math
import subprocess
import sys
from typing import Any

import pytest

from marl_plugins.engine.hosts import releases
from marl_plugins.engine.hosts.trees import SourceTree


@pytest.fixture(scope="module")
def answer(tree: SourceTree, environment: dict[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "marl_plugins.commands.upstream_ci.adapter"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    report: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert report["openrlhf"] == [str(tree.package)]
    return report


@pytest.mark.parametrize("model", ["actor", "critic"])
def test_a_window_is_one_optimiser_step(answer: dict[str, Any], model: str) -> None:
    assert [fit["optimiser_steps"] for fit in answer[model]] == [1, 1]


@pytest.mark.parametrize("model", ["actor", "critic"])
def test_a_weightless_row_changes_no_gradient(
    tree: SourceTree, answer: dict[str, Any], model: str
) -> None:
    """Checks that a weightless row changes no gradient, except in a release that is refused for
    this reason: there the gradient is not a number."""
    without, filled = answer[model]
    assert without["gradient"] > 0
    if releases.refusal(tree.version):
        assert math.isnan(filled["gradient"])
    else:
        assert filled["gradient"] == pytest.approx(without["gradient"], rel=1e-3)
        assert not without["not_finite"]
        assert not filled["not_finite"]


def test_the_whole_state_leaves_the_process(answer: dict[str, Any]) -> None:
    assert answer["state_bytes"] > 4 * 10**5
