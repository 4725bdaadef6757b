"""Every two plugins, and each with every estimator: a run works, or is refused before it starts
with codes and fixes."""

import pytest
from plugin_pairs import (
    PAGE,
    outcomes,
    pairs,
    parts,
    refused_by,
    table,
    written,
)

from marl_plugins.core.plugin_names import BUILTINS, SHIPPED


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    return outcomes(tmp_path_factory.mktemp("pairs"), refused_by(PAGE.read_text()))


def test_there_is_no_third_case(found):
    wrong = [f"{a} and {b}: {outcome.wrong}" for (a, b), outcome in found.items() if outcome.wrong]
    assert not wrong, "\n".join(wrong)


def test_nothing_shipped_is_missing(found):
    assert {part.plugin for part in parts().values()} - {None} == set(SHIPPED) - set(BUILTINS)
    assert list(found) == pairs()


def test_the_page_is_current(found):
    """`python tests/plugin_pairs.py` writes it anew."""
    assert PAGE.read_text() == written(PAGE.read_text(), table(found))
