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
from hostile_programs import (
    ENDS,
    LEVELS,
    LIMITS,
    NAP,
    OUTPUT,
    PROGRAMS,
    files_left,
    processes_left,
    run_answer,
)

from marl_plugins.builtin.tools.python import (
    find_programs,
    python_tool,
    run_program,
)
from marl_plugins.sandbox import OnDemandSandbox, remote, removal
from marl_plugins.sandbox.section import SandboxConfig

SAYS = {
    "a disk full of files": (False, "stopped: its files took more than 50 MB"),
    "a child in a session of its own": (True, ""),
    "40 of them": (True, ""),
    "a daemon without environment": (True, ""),
    "a bomb of sessions": (False, "stopped"),
    "children with the memory": (
        False,
        "stopped: its processes took more than 192 MB of memory together",
    ),
    "kills its parent": (False, ""),
    "kills its parent, leaves a daemon": (False, ""),
    "stops its parent": (False, ""),
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
OWN_FOLDER = ("removes its", "renames its", "replaces its")
"""Begin the names of those that do something to their folder itself, which only the level `process`
lets them."""
TRIED = sorted({LEVELS[0], LEVELS[-1]})


SAME = {**OUTPUT, **ENDS}.keys() - {"forges a report", "floods the report", "raises its limits"}
"""Programs that end or print as they do, whatever they may reach: one level is enough."""


def levels_of(name):
    return LEVELS[-1:] if name in SAME else TRIED


@pytest.fixture(scope="module")
def loop():
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module", params=TRIED)
def sandbox(request, loop, tmp_path_factory):
    """A sandbox of each level for all tests; once it is closed nothing is left of it."""
    place = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tempfile, "tempdir", str(place))
        opened = OnDemandSandbox(
            SandboxConfig(isolation=request.param), packages=False, concurrency=2
        )
        assert loop.run(run(opened, "print(1)")).output == "1"
        opened.place, opened.level = place, request.param
        yield opened
        loop.run(opened.close())
    assert (os.listdir(place), processes_left(place)) == ([], [])


@pytest.fixture
def clean(sandbox):
    """After the test, nothing is left of its programs."""
    before = processes_left(sandbox.place)
    yield
    assert sorted(processes_left(sandbox.place)) == sorted(before)
    assert files_left(sandbox.place) == []


async def run(sandbox, program, limits=LIMITS):
    return await run_program(program, limits, sandbox.sandbox)


@pytest.mark.parametrize(
    ("sandbox", "name"),
    [(level, name) for level in TRIED for name in PROGRAMS if level in levels_of(name)],
    indirect=["sandbox"],
)
@pytest.mark.usefixtures("clean")
def test_whatever_a_program_does_is_an_answer(name, sandbox, loop):
    ok, said = SAYS.get(name, (None, ""))
    if name.startswith(OWN_FOLDER):
        ok = sandbox.level == "process"
    ends = ok or said.startswith(
        ("stopped: ", "killed by")
    )  # by itself or another limit, however slow the machine is
    limits = LIMITS.model_copy(update={"seconds": 30.0}) if ends else LIMITS
    got = loop.run(run_answer([PROGRAMS[name]], python_tool(limits, sandbox), seconds=120))
    assert (got.agent_failure, got.infrastructure_failure) == (None, None)
    (result,) = got.actions[0].tool_results
    assert len(result.output) < LIMITS.output_chars + 200
    assert ok in (None, result.ok) and said in result.output, result.output
    json.dumps(
        [result.output, result.files], ensure_ascii=False
    ).encode()  # as records and requests are written


@pytest.mark.usefixtures("clean")
def test_names_of_files_are_bounded_and_can_be_shown(sandbox, loop):
    got = loop.run(
        run(sandbox, "open(b'\\xff', 'w'); open('a\\nb\\x1b', 'w'); open('\\u00e9t\\u00e9', 'w')")
    )
    assert sorted(got.files) == ["\\xff", "a\\nb\\x1b", "\u00e9t\u00e9"]
    got = loop.run(run(sandbox, PROGRAMS["50 of the longest names"]))
    assert len(got.files) == remote.MAX_FILE_NAMES


@pytest.mark.usefixtures("clean")
def test_cleaning_follows_no_link(sandbox, loop, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "kept").write_text("x")
    outside.chmod(0o500)
    program = (
        f"import os; os.symlink({str(outside)!r}, 'a'); os.mkdir('b'); "
        f"os.symlink({str(outside)!r}, 'b/c')"
    )
    assert loop.run(run(sandbox, program)).ok
    replaced = f"import os; d = os.getcwd(); os.rmdir(d); os.symlink({str(outside)!r}, d)"
    loop.run(run(sandbox, replaced))
    assert files_left(sandbox.place) == []
    assert (outside / "kept").read_text() == "x"
    assert outside.stat().st_mode & 0o777 == 0o500


def test_whoever_may_not_read_a_folder_of_his_can_remove_it():
    """As nobody where the tests run as root, whom no rights stop."""
    script = f"""
        import os, sys
        sys.path.insert(0, {str(Path(removal.__file__).parent)!r})
        import removal
        if os.getuid() == 0:
            os.setgid(65534); os.setuid(65534)
        os.makedirs("x/a/b/c")
        for name in ("x/a/b/file", "x/file"):
            open(name, "w").close()
        for name in ("x/a/b/c", "x/a/b", "x/a", "x"):
            os.chmod(name, 0)
        removal.remove("x")
        assert os.listdir(".") == [], os.listdir(".")
    """
    with tempfile.TemporaryDirectory() as place:
        os.chmod(place, 0o777)
        done = subprocess.run(
            [sys.executable, "-IS", "-c", textwrap.dedent(script)],
            cwd=place,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("clean")
def test_the_rest_of_the_output_is_read_after_a_short_while(sandbox, loop):
    program = (
        "import os, time\nprint('parent', flush=True)\nif os.fork() == 0:\n    "
        "time.sleep(0.1); print('child', flush=True)"
    )
    got = loop.run(run(sandbox, program))
    assert (got.output, got.ok) == ("parent\nchild", True)


def wait_for_processes(folder, number):
    until = time.monotonic() + 30
    while len(processes_left(folder)) < number and time.monotonic() < until:
        time.sleep(0.02)


@pytest.mark.usefixtures("clean")
def test_a_cancelled_call_leaves_nothing(sandbox, loop):
    async def cancelled():
        before = len(processes_left(sandbox.place))
        running = asyncio.create_task(
            run(sandbox, f"import os\nos.fork()\nos.execv('/bin/sleep', ['sleep', '{NAP}'])")
        )
        await asyncio.to_thread(wait_for_processes, sandbox.place, before + 2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    loop.run(cancelled())


@pytest.mark.parametrize("level", TRIED)
@pytest.mark.parametrize("program", ["a daemon by two forks", "stops its parent"])
def test_programs_end_with_whoever_runs_them(program, level, tmp_path):
    script = f"""
        import asyncio, tempfile
        tempfile.tempdir = {str(tmp_path)!r}
        from marl_plugins.sandbox.section import SandboxConfig
        from marl_plugins.sandbox import Limits, Program, open_sandbox
        program = {PROGRAMS[program]!r} + "\\nimport time; time.sleep(99)"
        async def main():
            async with open_sandbox(SandboxConfig(isolation={level!r}), packages=False) as sandbox:
                print("opened", flush=True)
                input()
                await asyncio.gather(*[sandbox.run(Program(p, limits=Limits(seconds=99))) for p in (program, "while 1: 0")])
        asyncio.run(main())
    """
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as owner:
        assert owner.stdout.readline() == b"opened\n"
        before = len(processes_left(tmp_path))
        owner.stdin.write(b"\n")
        owner.stdin.flush()
        wait_for_processes(tmp_path, before + 1)
        owner.send_signal(signal.SIGKILL)
    until = time.monotonic() + 30
    while (os.listdir(tmp_path) or processes_left(tmp_path)) and time.monotonic() < until:
        time.sleep(0.05)
    assert (os.listdir(tmp_path), processes_left(tmp_path)) == ([], [])


def test_an_answer_with_40_endless_programs_is_the_agents_and_not_lost(sandbox, loop):
    limits = LIMITS.model_copy(update={"seconds": 0.2, "calls_per_answer": 3})
    got = loop.run(run_answer(["while 1:0"] * 40, python_tool(limits, sandbox), seconds=20))
    assert (got.agent_failure, got.infrastructure_failure) == (None, None)
    *stopped, last = got.actions[0].tool_results
    assert [r.output for r in stopped] == ["stopped after 0.2 s"] * 3
    assert last.output.startswith("37 of 40 calls ") and not last.ok
    assert last.output in got.actions[0].tool_output


def test_the_programs_of_a_trajectory_share_its_seconds(sandbox, loop):
    limits = LIMITS.model_copy(update={"seconds": 0.2, "seconds_per_trajectory": 0.5})
    got = loop.run(run_answer(["while 1:0"] * 40, python_tool(limits, sandbox), seconds=20))
    assert got.infrastructure_failure is None
    *stopped, last = got.actions[0].tool_results
    assert 1 <= len(stopped) <= 3
    assert last.output.startswith(
        f"{40 - len(stopped)} of 40 calls of python were not run: this trajectory's calls have "
        "taken"
    )
    assert last.output.endswith("s of 0.5 s")


@pytest.mark.parametrize("answer", ["```python" + "\n" * 300_000, "```py\n" * 50_000])
def test_no_answer_makes_looking_for_programs_slow(answer):
    """With time that grows with the square of the length this would take minutes."""
    assert all("```" not in program for program in find_programs(answer))
