"""A pytest plugin: the release under test, and an environment that imports it instead of the
installed one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from marl_plugins.engine.hosts import cpu, upstream_cli
from marl_plugins.engine.hosts.trees import SourceTree, open_tree


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--openrlhf",
        metavar="PATH|VERSION",
        help="the release of OpenRLHF to test; default: the installed one",
    )


@pytest.fixture(scope="session")
def tree(request: pytest.FixtureRequest) -> Iterator[SourceTree]:
    """Yields the release, unpacked."""
    source = request.config.getoption("--openrlhf", None)
    if source is None:
        package = upstream_cli.upstream_root()
        yield SourceTree(package.parent, upstream_cli.upstream_version(), "installed")
    else:
        with open_tree(source) as opened:
            yield opened


@pytest.fixture(scope="session")
def environment(tree: SourceTree) -> dict[str, str]:
    """Returns the environment of a process that imports the release instead of the installed one,
    and this copy of the package."""
    ours = str(Path(__file__).resolve().parents[3])
    on_cpu = cpu.environment() if cpu.device() == "cpu" else {}
    path = os.pathsep.join([str(tree.root), ours, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **on_cpu, "PYTHONPATH": path}
