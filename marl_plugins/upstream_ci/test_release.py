"""What can be seen without importing the release."""

import pytest

from marl_plugins.commands.compat import look
from marl_plugins.core.findings import all_good
from marl_plugins.hosts.trees import Tree


@pytest.mark.parametrize("what", ["seams", "flags", "validation"])
def test_everything_that_is_relied_on_is_there(tree: Tree, what: str) -> None:
    findings = [finding for finding in look(tree) if finding.what == what]
    assert findings
    assert all_good(findings), findings
