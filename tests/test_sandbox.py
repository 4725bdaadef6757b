"""The sandbox with real processes: every level that this machine has, what it refuses, and what
comes of what breaks."""

import asyncio
import errno
import itertools
import os
import resource
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

import pytest
from hostile_programs import LEVELS, processes_left
from hypothesis import given, settings
from hypothesis import strategies as st
from reading import load
from refusals import briefs, refused
from sandbox_contract import SandboxContract

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.trajectory import Task
from marl_plugins.core.workspace import read_files
from marl_plugins.engine.plan.problems import Problems
from marl_plugins.sandbox import (
    Limits,
    Program,
    confine,
    levels,
    local,
    open_sandbox,
)
from marl_plugins.sandbox.checks import check_sandbox, describe_sandbox
from marl_plugins.sandbox.files import write_files
from marl_plugins.sandbox.local import LocalSandbox
from marl_plugins.sandbox.section import Level, SandboxConfig
from marl_plugins.sandbox.workspace import Workspaces

LONG = Limits(seconds=60.0)
ENDS = LEVELS[::2]
"""The levels whose processes are arranged in another way: `landlock` has those of `process`."""


class Local(SandboxContract):
    isolation: Level

    @classmethod
    def open(cls, workspaces):
        return open_sandbox(
            SandboxConfig(isolation=cls.isolation), concurrency=8, workspaces=workspaces
        )


class TestProcess(Local):
    isolation = "process"


if "landlock" in LEVELS:

    class TestLandlock(Local):
        isolation = "landlock"


if "namespaces" in LEVELS:

    class TestNamespaces(Local):
        isolation = "namespaces"


# --- levels
# --------------------------------------------------------------------------------------------------


def machine(**missing):
    return levels.Machine(7, True, "/usr/bin/bwrap", missing)


LEVEL = ("sandbox.level", "tools.sandbox.isolation")


@pytest.mark.parametrize(
    ("missing", "strongest"),
    [
        ({}, "namespaces"),
        ({"namespaces": "no bwrap"}, "landlock"),
        ({"namespaces": "old kernel", "landlock": "old kernel"}, "process"),
    ],
)
def test_auto_is_the_strongest_and_nothing_else_is_downgraded(missing, strongest):
    here = machine(**missing)
    assert levels.choose("auto", here) == strongest
    for level in levels.LEVELS:
        if level in missing:
            with refused(LEVEL) as caught:
                levels.choose(level, here)
            assert (
                missing[level] in caught.value.problems[0].got
                and strongest in caught.value.problems[0].fix
            )
        else:
            assert levels.choose(level, here) == level


@pytest.fixture(autouse=True)
def examined_anew():
    """The machine is examined once in a process; a test may change what it has."""
    levels.examine.cache_clear()
    yield
    levels.examine.cache_clear()


def test_every_level_that_this_machine_lacks_is_refused():
    here = levels.examine()
    for level in here.missing:
        with refused(LEVEL):
            LocalSandbox(SandboxConfig(isolation=level))
    assert LocalSandbox(SandboxConfig()).isolation == here.strongest == LEVELS[-1]


def test_without_landlock_both_levels_above_are_missing(monkeypatch):
    def refuse():
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(confine, "landlock_abi", refuse)
    here = levels.examine()
    assert here.missing.keys() == {"landlock", "namespaces"} and here.strongest == "process"
    assert describe_sandbox(SandboxConfig()).startswith("process; landlock ")


def recipe_with(folder, text):
    (folder / "recipe.yaml").write_text(
        f"name: mine\nroles: {{a: {{prompt: p.md}}}}\nworkflow: w.py\n{text}\n"
    )
    _, sections, origins = load(folder / "recipe.yaml")
    found = check_sandbox(sections["tools.sandbox"], folder, sections["tools.python"].packages)
    return Problems(found).placed(origins)


def test_a_recipes_sandbox_is_checked_before_anything_starts(tmp_path, monkeypatch):
    assert recipe_with(tmp_path, "tools: {sandbox: {imports: [json, xml.dom]}}") == []
    monkeypatch.setattr(levels, "find_bubblewrap", lambda: "")
    found = recipe_with(tmp_path, "tools:\n  sandbox:\n    isolation: namespaces")
    assert briefs(found) == [("sandbox.level", "recipe.yaml:6", "tools.sandbox.isolation")]
    with refused(("recipe.value", "recipe.yaml:4", "tools.sandbox.isolation")):
        recipe_with(tmp_path, "tools: {sandbox: {isolation: docker}}")
    with refused(("recipe.unknown_key", "recipe.yaml:4", "tools.sandbox.import")):
        recipe_with(tmp_path, "tools: {sandbox: {import: [json]}}")


def opened(work, **settings):
    """What an async function makes of a sandbox."""

    async def run():
        async with open_sandbox(SandboxConfig(**settings.pop("config", {})), **settings) as sandbox:
            return await work(sandbox)

    return asyncio.run(run())


def test_what_a_warm_up_has_done_every_program_finds(tmp_path):
    (tmp_path / "warm.py").write_text("import decimal\ndecimal.number = [1]\n")
    config = {"imports": ["json"], "warm_up": str(tmp_path / "warm.py")}
    source = (
        "import sys; decimal = sys.modules['decimal']; decimal.number[0] += 1; "
        "print(decimal.number, 'warm' in dir())"
    )

    async def work(sandbox):
        return [(await sandbox.run(Program(source, limits=LONG))).stdout for _ in range(2)]

    assert opened(work, config=config) == ["[2] False\n"] * 2


# --- what breaks
# --------------------------------------------------------------------------------------------------


def fork_server_of(place):
    """The process that forks, found by its code; below bubblewrap there is one that only carries
    its words."""
    found = [
        p
        for p in pids_of(place)
        if b"sandbox.fork_server import" in words_of(p)
        and b"sandbox.supervisor import" not in words_of(p)
    ]
    return next(p for p in found if words_of(p).startswith(os.fsencode(sys.executable)))


def pids_of(place):
    return [
        int(p.name)
        for p in Path("/proc").glob("[0-9]*")
        if f"{place}/marl-sandbox-".encode() in words_of(p.name)
    ]


def words_of(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Where a sandbox has its folders; at the end nothing is left of it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    yield tmp_path
    assert (os.listdir(tmp_path), processes_left(tmp_path)) == ([], [])


@pytest.mark.parametrize("level", ENDS)
@pytest.mark.parametrize("victim", ["fork server", "supervisor"])
def test_what_ran_when_a_process_of_the_sandbox_was_killed_is_infrastructures(victim, level, place):
    async def work(sandbox):
        running = asyncio.create_task(
            sandbox.run(Program("open('begun', 'w')\nwhile True: pass", limits=LONG))
        )
        while not list(place.glob("*/*/workspace/begun")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        supervisors = [p for p in pids_of(place) if b"sandbox.supervisor import" in words_of(p)]
        os.kill(
            fork_server_of(place) if victim == "fork server" else supervisors[0], signal.SIGKILL
        )
        with pytest.raises(InfrastructureFailure, match="while the program ran") as failure:
            await running
        assert failure.value.kind == "sandbox"
        return await sandbox.run(Program("print('again')", limits=LONG))

    assert opened(work, config={"isolation": level}).stdout == "again\n"


def test_a_program_that_has_not_begun_is_run_again(place):
    async def work(sandbox):
        server = fork_server_of(place)
        os.kill(server, signal.SIGSTOP)
        waiting = [
            asyncio.create_task(sandbox.run(Program(f"print({n})", limits=LONG))) for n in range(3)
        ]
        await asyncio.sleep(0.2)
        os.kill(server, signal.SIGKILL)
        return await asyncio.gather(*waiting)

    assert [got.stdout for got in opened(work, concurrency=4)] == ["0\n", "1\n", "2\n"]


def test_a_program_that_ends_in_time_while_the_loop_is_busy_has_finished(place):
    async def work(sandbox):
        short = "open('begun', 'w')\nimport time\ntime.sleep(0.2)\nprint('done')"
        running = asyncio.create_task(sandbox.run(Program(short, limits=Limits(seconds=5.0))))
        while not list(place.glob("*/*/workspace/begun")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        time.sleep(5.2)  # noqa: ASYNC251
        return await running

    got = opened(work)
    assert (got.status, got.code, got.stdout) == ("finished", 0, "done\n")


def test_programs_at_a_time_are_as_many_as_this_process_has_cores():
    async def work(sandbox):
        now = "import time\nprint(time.monotonic())\ntime.sleep(0.1)\nprint(time.monotonic())"
        ran = await asyncio.gather(*(sandbox.run(Program(now, limits=LONG)) for _ in range(3)))
        return sorted(tuple(map(float, got.stdout.split())) for got in ran)

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        times = opened(work)
    finally:
        os.sched_setaffinity(0, cores)
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(times))


def test_what_takes_too_much_and_cannot_be_ended_ends_with_its_fork_server(place, monkeypatch):
    monkeypatch.setattr(local, "LATE_SECONDS", 0.3)

    async def work(sandbox):
        endless = Program("open('begun', 'w')\nwhile True: pass", limits=Limits(seconds=1.0))
        running = asyncio.create_task(sandbox.run(endless))
        while not list(place.glob("*/*/workspace/begun")):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        os.kill(fork_server_of(place), signal.SIGSTOP)
        return await running

    got = opened(work, config={"isolation": "process"})
    assert (got.status, got.reason) == ("time", "stopped after 1 s")


@pytest.mark.usefixtures("place")
def test_a_sandbox_that_cannot_start_says_why(monkeypatch):
    monkeypatch.setattr("marl_plugins.sandbox.pool_owner.BOOT", "import gone")
    with pytest.raises(
        InfrastructureFailure, match=r"(?s)could not be started: .*No module named 'gone'"
    ):
        opened(None)


def test_without_room_for_a_folder_nobody_is_to_blame(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(InfrastructureFailure, match="cannot make a folder"):
        opened(None)


@pytest.fixture
def few_descriptors():
    """A function that leaves this process so many file descriptors, until it is called with
    None."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def leave(room):
        taken = {int(name) for name in os.listdir("/proc/self/fd")}
        few = (
            soft
            if room is None
            else next(n for n in range(soft) if n - sum(fd < n for fd in taken) > room)
        )
        resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))

    yield leave
    leave(None)


@pytest.mark.usefixtures("place")
def test_without_file_descriptors_nobody_is_to_blame(few_descriptors):
    async def start(room):
        sandbox = LocalSandbox(SandboxConfig(isolation="process"), packages=False)
        few_descriptors(room)
        try:
            await sandbox.start()
        finally:
            few_descriptors(None)
            await sandbox.close()

    said = []
    for room in range(20):
        try:
            asyncio.run(start(room))
            break
        except InfrastructureFailure as failure:
            said.append((failure.kind, "Too many open files" in str(failure)))
    assert 3 < room < 19 and said == [("sandbox", True)] * room


@pytest.mark.parametrize("level", LEVELS[1:2])
@pytest.mark.usefixtures("place")
def test_a_program_that_cannot_be_confined_is_not_run(level, monkeypatch, tmp_path_factory):
    loop = tmp_path_factory.mktemp("links") / "loop"
    loop.symlink_to(loop)
    read = levels.readable(level)
    monkeypatch.setattr(levels, "readable", lambda _: [*read, str(loop)])

    async def work(sandbox):
        with pytest.raises(InfrastructureFailure, match="Too many levels of symbolic links"):
            await sandbox.run(Program("print('ran')"))

    opened(work, config={"isolation": level})


DEEP = """
import os
here = len(os.getcwd())
while here < 4000:
    name = "d" * min(200, 4090 - here)
    os.mkdir(name); os.chdir(name)
    here += len(name) + 1
open("f" * 200, "w").write("x")
"""
"""A file whose folder has a path, and which has none."""


@pytest.mark.parametrize("level", ENDS)
def test_a_file_beyond_the_longest_path_fails_nobody(level):
    spaces = Workspaces()

    async def work(sandbox):
        async with spaces.of(Task("t", "p")) as workspace:
            folder, said = await workspace.opened(), []
            for program in (DEEP, "print('again')"):
                said.append(await sandbox.run(Program(program, limits=LONG), folder))
                await workspace.note("a")
            return said

    try:
        said = opened(work, config={"isolation": level}, workspaces=spaces.root)
    finally:
        spaces.close()
    for got, out in zip(
        said, ("", "again\n"), strict=True
    ):  # whoever is slow is looked at, and stopped
        assert (got.status, got.stdout) == ("finished", out) or got.reason.endswith(
            "or a path that is too long"
        ), got


# --- much ---------------------------------------------------------------------------------------


def test_much_output_takes_no_memory():
    source = "import os\nchunk = b'x' * 2**20\nfor n in range(256): os.write(1, chunk)"

    async def work(sandbox):
        await sandbox.run(Program("print(1)"))
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        got = await sandbox.run(Program(source, limits=LONG))
        return got, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before

    got, grown = opened(work, packages=False)
    assert got.status == "finished" and "bytes left out" in got.stdout
    assert grown < 20_000  # KB


def test_what_nobody_closes_ends_with_a_process_that_is_killed(tmp_path):
    """With messages that nobody has read any more, because the event loop had ended."""
    script = f"""
        import asyncio, os, tempfile
        tempfile.tempdir = {str(tmp_path)!r}
        from marl_plugins.builtin.tools.python import PythonToolConfig
        from marl_plugins.core.workflow import ToolCall
        from marl_plugins.builtin.tools.python import python_tool
        run = python_tool(PythonToolConfig(packages=False)).run
        async def many():
            await asyncio.gather(*[run(ToolCall("print(1)", "t", 0, 1)) for n in range(8)])
        for n in range(2):
            asyncio.run(many())
        os.kill(os.getpid(), 9)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)])
    until = time.monotonic() + 30
    while (os.listdir(tmp_path) or processes_left(tmp_path)) and time.monotonic() < until:
        time.sleep(0.05)
    assert (os.listdir(tmp_path), processes_left(tmp_path)) == ([], [])


# --- files
# --------------------------------------------------------------------------------------------------


@settings(max_examples=30)
@given(
    st.dictionaries(
        st.sampled_from(["a", "d/a", "d/e/a", "link/a", "f/x"]),
        st.binary(max_size=2000),
        max_size=5,
    )
)
def test_files_come_back_and_links_lead_nowhere(files):
    with tempfile.TemporaryDirectory() as place:
        workspace, outside = Path(place, "w"), Path(place, "outside")
        workspace.mkdir()
        outside.mkdir()
        (outside / "a").write_text("kept")
        (workspace / "link").symlink_to(outside)
        (workspace / "a").symlink_to(outside / "a")
        refused = "link/a" in files
        try:
            write_files(workspace, files)
            assert not refused
        except OSError:
            assert refused
        if not refused:
            assert read_files(workspace, files, 10**6) == files
        assert read_files(workspace, ["link/a"], 10**6) == {}
        assert (outside / "a").read_text() == "kept" and os.listdir(outside) == ["a"]
