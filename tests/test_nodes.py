"""What nodes say of themselves, and what is made of it; on machines of their own:
tests/cluster/test_nodes.py."""

import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.processes.nodes import (
    NodeProcess,
    content_of,
    cut_off_from,
    probes,
    problems_of,
    remarks_on,
)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    (folder / "config.json").write_text("{}")
    return NodeProcess().facts({"a model": str(folder)}, [])


@pytest.mark.parametrize(
    ("changed", "problems", "remarks"),
    [
        ({}, [], 0),
        ({"versions": {"ray": "2.0"}}, ["nodes.versions"], 0),
        ({"folders": {"a model": "No such file or directory"}}, ["nodes.folder"], 0),
        ({"cut_off": "10.0.0.1:7: timed out"}, ["nodes.cut_off"], 0),
        ({"clock": 3600.0}, [], 1),
        ({"shared_memory": 0}, [], 1),
        ({"own_name": "127.0.1.1"}, [], 1),
        ({"address": "10.0.0.1"}, ["nodes.twice"], 0),
    ],
)
def test_what_differs_is_named_once(here, changed, problems, remarks):
    one = replace(here, address="10.0.0.1", own_name="10.0.0.1", shared_memory=2**40, devices=2)
    other = replace(one, host="m2", address="10.0.0.2")
    if "versions" in changed:
        changed = {"versions": {**one.versions, **changed["versions"]}}
    other = replace(other, **changed)
    found = problems_of([one, other])
    assert [problem.code for problem in found] == problems
    assert all(other.address in problem.got for problem in found)
    assert [str(other) in remark for remark in remarks_on([one, other])] == [True] * remarks


def test_the_content_of_a_folder_is_names_and_sizes(tmp_path):
    (tmp_path / "a").write_text("1")
    before = content_of(str(tmp_path))
    (tmp_path / "a").write_text("2")
    assert content_of(str(tmp_path)) == before
    (tmp_path / "b").touch()
    assert content_of(str(tmp_path)) != before
    assert content_of(str(tmp_path / "none")) == os.strerror(2)


def test_the_first_node_that_is_not_reached_is_named():
    with socket.create_server(("127.0.0.1", 0)) as open_:
        with socket.create_server(("127.0.0.1", 0)) as closed:
            port = closed.getsockname()[1]
        reached = open_.getsockname()
        assert cut_off_from([reached]) == ""
        assert cut_off_from([reached, ("127.0.0.1", port)]).startswith(f"127.0.0.1:{port}: ")


def test_a_probe_lies_where_a_folder_will_be_and_leaves_nothing(tmp_path):
    with probes([tmp_path / "runs" / "mine"]) as made:
        ((name, probe),) = made.items()
        assert name == str(tmp_path / "runs" / "mine")
        assert len(os.listdir(probe)) == 1
    assert not os.listdir(tmp_path)


def test_a_folder_that_cannot_be_written_is_named():
    with (
        pytest.raises(ConfigurationError, match="/proc cannot be written"),
        probes([Path("/proc/runs")]),
    ):
        pass
