"""Checks that need not import the release."""

import pytest

from marl_plugins.commands.compat import check_release
from marl_plugins.core.findings import all_good
from marl_plugins.engine.hosts.trees import SourceTree


@pytest.mark.parametrize("what", ["seams", "flags", "validation"])
def test_everything_that_we_depend_on_is_there(tree: SourceTree, what: str) -> None:
    findings = [finding for finding in check_release(tree) if finding.what == what]
    assert findings
    assert all_good(findings), findings
