"""Clusters on one machine: its parts have a network, a host name, /tmp and processes of their own
(machines.py). `make cluster` runs them."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if Path(__file__).parent in Path(item.fspath).parents:
            item.add_marker(pytest.mark.cluster)


@pytest.fixture(autouse=True, scope="session")
def _possible():
    from cluster.machines import missing

    if reason := missing():
        pytest.skip(reason)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """The file system that the machines share."""
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def net(shared):
    """Three machines."""
    from cluster.machines import network

    with network(3, kept=[shared]) as made:
        yield made
