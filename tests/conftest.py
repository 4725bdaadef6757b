"""Shared by all tests: a CPU process, and the rule that CI may not skip."""

import gc
import os
import sys

os.environ["MARL_PLUGINS_DEVICE"] = "cpu"
os.environ.setdefault("TQDM_DISABLE", "1")

import pytest
from hypothesis import settings
from simulated import CharacterChat, make_trajectory

from marl_plugins.core.scoring import Seen

gc.disable()  # until all test files are imported, of which next to nothing is garbage

settings.register_profile("marl", deadline=None, print_blob=True)
settings.load_profile("marl")

os.fsync = lambda descriptor: None
"""No test cuts the power, and waiting for a disk was most of the time of those that save at every
step. Real runs wait: they are processes of their own."""


def pytest_collection_finish():
    """What the tests import stays to their end: hundreds of thousands of objects that no collection
    has to visit again."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(
        20_000, 20, 50
    )  # a twentieth of the time of tests went into looking for garbage


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """In CI a skipped test is a failed one, unless it is marked gpu."""
    report = yield
    if (
        report.skipped
        and os.environ.get("CI")
        and "gpu" not in item.keywords
        and not hasattr(report, "wasxfail")
    ):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, which only tests marked gpu may be: {report.longrepr}"
    return report


EXIT = os._exit


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item):
    """A test that leaves `os._exit` replaced breaks whoever forks later: the fork would go on as a
    second test process."""
    yield
    if os._exit is not EXIT:
        os._exit = EXIT
        pytest.fail("os._exit was replaced and not put back")


def pytest_runtest_logreport(report):
    """A failure is named when it happens: a run that is cut off has said what failed."""
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:
        reason = getattr(getattr(report.longrepr, "reprcrash", None), "message", "") or str(
            report.longrepr
        )
        print(
            f"\n{report.when} of {report.nodeid} failed: "
            f"{reason.strip().splitlines()[0][:300] if reason.strip() else ''}",
            file=sys.__stderr__,
        )


@pytest.fixture(scope="session")
def template(tmp_path_factory):
    """What forks runs (engines/template.py), one for all processes of a session."""
    from engines.template import Template

    folder = tmp_path_factory.getbasetemp()
    return Template(folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder)


@pytest.fixture
def chat():
    return CharacterChat()


@pytest.fixture
def action():
    return make_trajectory({"solver": []}).actions[0]


@pytest.fixture
def seen():
    return Seen("t", "What is it?", "solver", (("user", "What is it?"),), ())
