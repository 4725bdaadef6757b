"""What can be seen without importing the release."""

import pytest

from marl_plugins.compat import look
from marl_plugins.hosts.trees import Tree


@pytest.mark.parametrize("what", ["seams", "flags", "validation"])
def test_everything_that_is_relied_on_is_there(tree: Tree, what: str) -> None:
    areas = {area.what: area for area in look(tree)}
    assert what in areas, areas
    assert not areas[what].problems
