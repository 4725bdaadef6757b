"""A pytest plugin: the release under test, and how to import it in place of the installed one."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from marl_plugins.hosts import cpu, upstream_cli
from marl_plugins.hosts.trees import Tree, open_tree


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--openrlhf", metavar="PATH|VERSION", help="the release of OpenRLHF to test; default: the installed one"
    )


@pytest.fixture(scope="session")
def tree(request: pytest.FixtureRequest) -> Iterator[Tree]:
    """The release, unpacked."""
    source = request.config.getoption("--openrlhf", None)
    if source is None:
        package = upstream_cli.upstream_root()
        yield Tree(package.parent, upstream_cli.upstream_version(), "installed")
    else:
        with open_tree(source) as found:
            yield found


@pytest.fixture(scope="session")
def environment(tree: Tree) -> dict[str, str]:
    """Environment of a process that imports the release in place of the installed one, and this very package."""
    ours = str(Path(__file__).resolve().parents[2])
    on_cpu = cpu.environment() if cpu.device() == "cpu" else {}
    path = os.pathsep.join([str(tree.root), ours, *filter(None, [os.environ.get("PYTHONPATH")])])
    return {**os.environ, **on_cpu, "PYTHONPATH": path}
