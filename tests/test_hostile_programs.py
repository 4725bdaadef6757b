"""Whatever a program does is an answer: nothing is raised, nothing is left, nobody else is hurt."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
from hostile_programs import LIMITS, NAP, PROGRAMS, files_left, processes_left, run_answer

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.recipe import PythonToolConfig
from marl_plugins.tools import supervisor
from marl_plugins.tools.python import Report, find_programs, python_tool, run_program

BLOCKED = "the program has ended or blocked the process that supervises it"
SAYS = {
    "removes its folder": (True, ""),
    "replaces its folder by a file": (True, ""),
    "a disk full of files": (False, "stopped: its files took more than 50 MB"),
    "a child in a session of its own": (True, ""),
    "40 of them": (True, ""),
    "a daemon without environment": (True, ""),
    "a bomb of sessions": (False, "stopped"),
    "children with the memory": (False, "stopped: its 4 processes took more than 192 MB of memory together"),
    "kills its parent": (False, BLOCKED),
    "kills its parent, leaves a daemon": (False, BLOCKED),
    "stops its parent": (False, "stopped after 0.5 s"),
    "stops itself": (False, "stopped after 0.5 s"),
    "kills itself": (False, "killed by SIGKILL"),
    "200 MB of output": (True, "bytes left out"),
    "floods the report": (False, ""),
    "a loop without end": (False, "stopped after 0.5 s"),
    "a number without end": (False, "stopped after 0.5 s"),
    "a null pointer": (False, "killed by SIGSEGV"),
    "ends at once, without a word": (True, ""),
    "ends with a text": (False, "no"),
    "breaks the end": (True, "done"),
    "a destructor without end": (False, "stopped after 0.5 s"),
    "no program": (True, ""),
    "50,000 lines": (True, "1"),
}
"""What comes of some of them: whether it went well, and a part of the output."""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where programs have their folders; at the end nothing is left of them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr("marl_plugins.tools.python.LATE", 1.0)
    yield tmp_path
    assert (files_left(tmp_path), processes_left(tmp_path)) == ([], [])


@pytest.mark.parametrize("name", PROGRAMS)
def test_whatever_a_program_does_is_an_answer(name, folder):
    ok, said = SAYS.get(name, (None, ""))
    ends = ok or said.startswith(("stopped: ", "killed by"))  # by itself or another limit, however slow the machine is
    limits = LIMITS.model_copy(update={"seconds": 30.0}) if ends else LIMITS
    got = asyncio.run(run_answer([PROGRAMS[name]], python_tool(limits)))
    assert (got.agent_failure, got.infrastructure_failure) == (None, None)
    (result,) = got.actions[0].tool_results
    assert len(result.output) < LIMITS.output_chars + 200
    assert ok in (None, result.ok) and said in result.output, result.output
    json.dumps([result.output, result.files], ensure_ascii=False).encode()  # as records and requests are written


def test_names_of_files_are_bounded_and_can_be_shown(folder):
    got = asyncio.run(run_program("open(b'\\xff', 'w'); open('a\\nb\\x1b', 'w'); open('\\u00e9t\\u00e9', 'w')", LIMITS))
    assert sorted(got.files) == ["\\xff", "a\\nb\\x1b", "\u00e9t\u00e9"]
    got = asyncio.run(run_program(PROGRAMS["50 of the longest names"], LIMITS))
    assert 0 < sum(map(len, got.files)) <= supervisor.NAMES


def test_cleaning_follows_no_link(folder, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept").write_text("x")
    outside.chmod(0o500)
    program = f"import os; os.symlink({str(outside)!r}, 'a'); os.mkdir('b'); os.symlink({str(outside)!r}, 'b/c')"
    assert asyncio.run(run_program(program, LIMITS)).ok
    assert (outside / "kept").read_text() == "x"
    assert outside.stat().st_mode & 0o777 == 0o500
    replaced = f"import os; d = os.getcwd(); os.rmdir(d); os.symlink({str(outside)!r}, d)"
    assert asyncio.run(run_program(replaced, LIMITS)).ok
    assert (outside / "kept").read_text() == "x"


def test_whoever_may_not_read_a_folder_of_his_can_remove_it(tmp_path):
    """As nobody where the tests run as root, whom no rights stop."""
    script = f"""
        import os, sys
        sys.path.insert(0, {str(Path(supervisor.__file__).parent)!r})
        import supervisor
        if os.getuid() == 0:
            os.setgid(65534); os.setuid(65534)
        os.makedirs("x/a/b/c")
        for name in ("x/a/b/file", "x/file"):
            open(name, "w").close()
        for name in ("x/a/b/c", "x/a/b", "x/a", "x"):
            os.chmod(name, 0)
        supervisor.remove("x")
        assert os.listdir(".") == [], os.listdir(".")
    """
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        done = subprocess.run(
            [sys.executable, "-IS", "-c", textwrap.dedent(script)], cwd=place, capture_output=True, text=True
        )
    assert done.returncode == 0, done.stderr


def test_the_rest_of_the_output_is_read_after_a_short_while(folder):
    program = (
        "import os, time\nprint('parent', flush=True)\nif os.fork() == 0:\n    time.sleep(0.1); print('child', flush=True)"
    )
    got = asyncio.run(run_program(program, LIMITS))
    assert (got.output, got.ok) == ("parent\nchild", True)


def wait_for_processes(folder):
    until = time.monotonic() + 30
    while len(processes_left(folder)) < 2 and time.monotonic() < until:
        time.sleep(0.05)


def test_a_cancelled_call_leaves_nothing(folder):
    async def cancelled():
        running = asyncio.create_task(
            run_program(f"import os\nos.fork()\nos.execv('/bin/sleep', ['sleep', '{NAP}'])", LIMITS)
        )
        await asyncio.to_thread(wait_for_processes, folder)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())


@pytest.mark.parametrize("program", ["a daemon by two forks", "stops its parent", "a bomb"])
def test_programs_end_with_whoever_runs_them(program, folder):
    script = f"""
        import asyncio, os, sys, tempfile
        tempfile.tempdir = {str(folder)!r}
        from marl_plugins.core.recipe import PythonToolConfig
        from marl_plugins.tools.python import run_program
        program = {PROGRAMS[program]!r} + "\\nimport time; time.sleep(99)"
        asyncio.run(run_program(program, PythonToolConfig(seconds=99, packages=False)))
    """
    driver = subprocess.Popen([sys.executable, "-c", textwrap.dedent(script)])
    wait_for_processes(folder)
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    until = time.monotonic() + 30
    while (files_left(folder) or processes_left(folder)) and time.monotonic() < until:
        time.sleep(0.05)


def test_without_room_for_a_folder_nobody_is_to_blame(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(InfrastructureFailure, match="cannot make a folder"):
        asyncio.run(run_program("print(1)", LIMITS))


def test_a_supervisor_that_fails_itself_is_no_fault_of_the_program(folder, monkeypatch):
    monkeypatch.setattr("marl_plugins.tools.python.SUPERVISE", "import gone")
    with pytest.raises(InfrastructureFailure, match=r"(?s)supervisor failed: .*No module named 'gone'"):
        asyncio.run(run_program("print(1)", LIMITS))


@pytest.mark.parametrize(
    "said", [b"", b"\x000", b"\0x\0\0000\0", b"\x000\0\0001\0", b"\x000\0\0-1\0a", b"\x000\0\xff\0000\0", b"\0" * 9]
)
def test_what_is_no_report_is_none(said):
    assert Report.parse(said) is None


def test_complaints_of_the_interpreters_are_no_part_of_a_report():
    assert Report.parse(b"warning\n\x000\0\x001\0a\0b\0c") == Report(0, "", ("a",), "b\0c")


def test_an_answer_with_40_endless_programs_is_the_agents_and_not_lost(folder):
    limits = LIMITS.model_copy(update={"seconds": 0.2, "calls_per_answer": 3})
    got = asyncio.run(run_answer(["while 1:0"] * 40, python_tool(limits), seconds=20))
    assert (got.agent_failure, got.infrastructure_failure) == (None, None)
    *stopped, last = got.actions[0].tool_results
    assert [r.output for r in stopped] == ["stopped after 0.2 s"] * 3
    assert (last.output, last.ok) == ("37 of 40 calls of python were not run: at most 3 per answer are", False)
    assert last.output in got.actions[0].tool_output


def test_the_programs_of_a_trajectory_share_its_seconds(folder):
    limits = LIMITS.model_copy(update={"seconds": 0.2, "seconds_per_trajectory": 0.5})
    got = asyncio.run(run_answer(["while 1:0"] * 40, python_tool(limits), seconds=20))
    assert got.infrastructure_failure is None
    *stopped, last = got.actions[0].tool_results
    assert 1 <= len(stopped) <= 3
    assert last.output.startswith(
        f"{40 - len(stopped)} of 40 calls of python were not run: this trajectory's calls have taken"
    )
    assert last.output.endswith("s of 0.5 s")


def test_a_recipes_limits_reach_the_tool():
    tool = python_tool(PythonToolConfig(calls_per_answer=2, seconds_per_trajectory=7))
    assert (tool.calls_per_answer, tool.seconds_per_trajectory) == (2, 7)


@pytest.mark.parametrize("answer", ["```python" + "\n" * 300_000, "```python" + " " * 300_000, "```py\n" * 50_000])
def test_no_answer_makes_looking_for_programs_slow(answer):
    """With time that grows with the square of the length this would take minutes."""
    assert all("```" not in program for program in find_programs(answer))
