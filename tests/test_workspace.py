"""Workspaces: files that stay between the calls of one trajectory, and who wrote them."""

import asyncio
import contextlib
import errno
import hashlib
import os
import shutil
import threading
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import simulated_engine

from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import File, Task, ToolResult
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.records.trajectory_record import from_record, to_record
from marl_plugins.sandbox.workspace import Workspaces


def writing(work):
    """A tool whose calls are `work(folder)`, each after an answer of a role."""

    async def run(call):
        told = work(call.workspace, call)
        return ToolResult("write", call.text, str(told), True)

    return Tool("write", run, lambda text: ["call"], in_workspace=True)


def player(chat, name, *tools):
    return RoleSpec(
        name,
        name,
        lambda f: [{"role": "user", "content": "go"}],
        chat,
        Sampling(1.0, 1.0, 4, 999),
        tools,
        endless_tools_fail=False,
    )


def play(chat, workflow, roles, task, tools=(), score=None):
    async def main():
        workspaces = Workspaces()
        async with workspaces.of(task) as workspace:
            trajectory = await run_workflow(
                workflow,
                task,
                0,
                step=1,
                run_seed=1,
                roles={name: player(chat, name, *given) for name, given in roles.items()},
                tools={tool.name: tool for tool in tools},
                generate=simulated_engine(),
                score=score,
                workspace=workspace,
                seconds=60,
            )
        workspaces.close()
        return trajectory

    return asyncio.run(main())


@pytest.fixture
def workspace():
    workspaces = Workspaces()
    yield workspaces.of(Task("t", "p"))
    workspaces.close()


def sha(data):
    return hashlib.sha256(data).hexdigest()


def test_files_stay_between_calls_and_know_their_writers(chat, tmp_path):
    source = tmp_path / "train.csv"
    source.write_bytes(b"id,x\n1,2\n")
    told = []

    def work(folder, call):
        told.append((call.action, sorted(os.listdir(folder))))
        match len(told):
            case 1:
                (folder / "model").write_bytes(b"one")
                (folder / "deep" / "er").mkdir(parents=True)
                (folder / "deep" / "er" / "a").write_bytes(b"")
            case 2:
                (folder / "model").write_bytes(b"two")
                (folder / "data" / "train.csv").touch()  # the same content: still the task's
            case 3:
                (folder / "deep" / "er" / "a").unlink()
                os.symlink("/etc/passwd", folder / "link")
                (folder / "model").write_bytes(b"two")

    async def workflow(task, roles, tools):
        await roles.a()
        await roles.b()
        await tools.write("by hand")
        return "done"

    seen = []

    async def score(trajectory):
        seen.append((trajectory.workspace, sorted(os.listdir(trajectory.workspace))))

    tool = writing(work)
    task = Task("t", "p", files={"data/train.csv": str(source)})
    got = play(chat, workflow, {"a": [tool], "b": [tool]}, task, [tool], score)
    a, b = (next(x for x in got.actions if x.role == name) for name in "ab")
    assert told == [
        (a.path, ["data"]),
        (b.path, ["data", "deep", "model"]),
        ("", ["data", "deep", "model"]),
    ]
    assert a.tool_results[0].files == ("deep/er/a", "model")
    assert b.tool_results[0].files == ("model",)
    assert got.files == (
        File("data/train.csv", 9, sha(b"id,x\n1,2\n"), ""),
        File("model", 3, sha(b"two"), b.path),
    )
    ((folder, there),) = seen
    assert there == ["data", "deep", "link", "model"]
    assert got.workspace is None
    assert not folder.exists()
    assert source.read_bytes() == b"id,x\n1,2\n"
    assert from_record(to_record(got)).files == got.files


def test_calls_at_the_same_time_take_turns_and_keep_their_files_apart(chat):
    running = []

    async def run(call):
        running.append(call.action)
        assert len(running) == 1
        (call.workspace / f"by {call.action}").write_text("x")
        await asyncio.sleep(0.001)
        running.pop()
        return ToolResult("write", call.text, "", True)

    tool = Tool("write", run, lambda text: ["one", "two"], in_workspace=True)

    async def workflow(task, roles, tools):
        return await asyncio.gather(*(roles.a() for _ in range(5)))

    got = play(chat, workflow, {"a": [tool]}, Task("t", "p"))
    assert {f.path: f.writer for f in got.files} == {f"by {a.path}": a.path for a in got.actions}
    assert len(got.files) == 5


def test_a_forged_time_hides_nothing(workspace):
    """A program may set the times of the content back; those of the entry are the kernel's."""

    async def main():
        async with workspace:
            folder = await workspace.opened()
            (folder / "x").write_bytes(b"old")
            assert await workspace.note("first") == ("x",)
            times = os.stat(folder / "x")
            (folder / "x").write_bytes(b"new")
            os.utime(folder / "x", ns=(times.st_atime_ns, times.st_mtime_ns))
            assert await workspace.note("second") == ("x",)
            assert workspace.files == (File("x", 3, sha(b"new"), "second"),)

    asyncio.run(main())


@pytest.mark.parametrize("where", ["wide", "deep"])
def test_too_many_files_fail_the_call_and_no_other(chat, where, monkeypatch):
    turns = []
    # 2,000 files take seconds on a disk that is busy with other tests' checkpoints.
    most = 20
    monkeypatch.setattr("marl_plugins.sandbox.workspace.MAX_WORKSPACE_FILES", most)

    def work(folder, call):
        turns.append(call)
        if len(turns) == 2:
            deepest = folder
            for n in range(most + 5):
                if where == "deep":
                    deepest = deepest / str(n)
                    deepest.mkdir()
                else:
                    (folder / str(n)).touch()
        elif len(turns) == 3:
            for made in set(folder.iterdir()) - {folder / "kept"}:
                shutil.rmtree(made) if made.is_dir() else made.unlink()
        else:
            (folder / "kept").touch()

    tool = writing(work)

    async def workflow(task, roles, tools):
        return [await roles.a(), await roles.a(), await roles.a()]

    got = play(chat, workflow, {"a": [tool]}, Task("t", "p"))
    assert [a.tool_results[0].ok for a in sorted(got.actions, key=lambda a: len(a.path))] == [
        True,
        False,
        True,
    ]
    assert f"more than {most} files" in next(
        r.output for a in got.actions for r in a.tool_results if not r.ok
    )
    assert [f.path for f in got.files] == ["kept"]


def test_what_a_call_has_left_that_was_given_up_is_its_own(chat):
    begun = asyncio.Event()

    async def run(call):
        (call.workspace / call.action).touch()
        if call.role == "a":
            begun.set()
            await asyncio.sleep(600)
        return ToolResult("write", call.text, "", True)

    tool = Tool("write", run, lambda text: ["call"], in_workspace=True)

    async def workflow(task, roles, tools):
        given_up = asyncio.ensure_future(roles.a())
        await begun.wait()
        given_up.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await given_up
        return await roles.b()

    got = play(chat, workflow, {"a": [tool], "b": [tool]}, Task("t", "p"))
    assert len(got.files) == 2
    assert all(file.path == file.writer for file in got.files)


def test_a_call_that_is_given_up_while_files_are_copied_leaves_them_to_the_next(
    tmp_path, monkeypatch
):
    """And they are the task's, whichever call they were copied for."""
    go, copied = threading.Event(), []

    def copyfile(source, target):
        copied.append(target)
        go.wait(60)
        Path(target).write_bytes(Path(source).read_bytes())

    monkeypatch.setattr("shutil.copyfile", copyfile)
    source = tmp_path / "x"
    source.write_text("x")

    async def main():
        workspaces = Workspaces()
        async with workspaces.of(Task("t", "p", files={"x": str(source)})) as workspace:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(workspace.opened(), 0.2)
            go.set()
            folder = await workspace.opened()
            assert (len(copied), workspace.files) == (1, (File("x", 1, sha(b"x"), ""),))
        assert not folder.exists()
        go.clear()
        async with workspaces.of(Task("t", "p", files={"x": str(source)})) as workspace:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(workspace.opened(), 0.2)
        go.set()  # nobody waits any more
        while os.listdir(workspaces.root):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        workspaces.close()

    asyncio.run(main())


def test_files_that_cannot_be_read_for_want_of_descriptors_are_not_gone(workspace, monkeypatch):
    async def main():
        async with workspace:
            folder = await workspace.opened()
            (folder / "x").touch()
            await workspace.note("a")
            (folder / "x").write_text("y")
            for name in ("open", "scandir"):
                with monkeypatch.context() as patch:
                    patch.setattr(os, name, refused)
                    with pytest.raises(InfrastructureFailure, match="Too many open files"):
                        await workspace.note("b")
                    assert [file.writer for file in workspace.files] == ["a"]
            assert await workspace.note("b") == ("x",)

    def refused(*words, **more):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    asyncio.run(main())


def test_a_hostile_tree_is_removed(workspace):
    async def main():
        async with workspace:
            folder = await workspace.opened()
            here = os.open(folder, os.O_RDONLY)
            for _ in range(1500):
                os.mkdir("d", dir_fd=here)
                below = os.open("d", os.O_RDONLY, dir_fd=here)
                os.close(here)
                here = below
            os.close(here)
            os.mkfifo(folder / "pipe")
            (folder / b"\xff\n".decode(errors="surrogateescape")).touch()
            (folder / "locked").mkdir()
            (folder / "locked" / "x").touch()
            (folder / "locked").chmod(0)
            await workspace.note("a")
            return folder

    assert not asyncio.run(main()).exists()


def test_a_file_of_the_task_that_is_gone_is_infrastructure(chat, tmp_path):
    async def workflow(task, roles, tools):
        return await roles.a()

    tool = writing(lambda folder, call: "")
    got = play(chat, workflow, {"a": [tool]}, Task("t", "p", files={"x": str(tmp_path / "none")}))
    assert got.infrastructure_failure == "workspace"
    assert str(tmp_path / "none") in got.detail


def test_a_session_is_opened_once_per_trajectory_and_left_after_the_score(chat):
    told = []

    @asynccontextmanager
    async def opened(task, sample, step):
        told.append(("open", task, sample, step))
        yield f"session of {task}"
        told.append("left")

    async def run(call):
        told.append(call.session)
        return ToolResult("talk", call.text, "", True)

    tool = Tool("talk", run, lambda text: ["x"], open=opened)

    async def workflow(task, roles, tools):
        return await asyncio.gather(*(roles.a() for _ in range(3)))

    async def score(trajectory):
        told.append("scored")

    play(chat, workflow, {"a": [tool]}, Task("t", "p"), score=score)
    assert told == [("open", "t", 0, 1), *["session of t"] * 3, "scored", "left"]


def test_a_session_that_cannot_be_opened_loses_the_trajectory(chat):
    @asynccontextmanager
    async def opened(task, sample, step):
        raise InfrastructureFailure("tool", "no such server")
        yield

    async def workflow(task, roles, tools):
        return await roles.a()

    tool = Tool("talk", writing(lambda *_: "").run, lambda text: ["x"], open=opened)
    got = play(chat, workflow, {"a": [tool]}, Task("t", "p"))
    assert (got.infrastructure_failure, got.detail) == ("tool", "no such server")


names = st.sampled_from(["a", "b", "c/d", "c/e"])
steps = st.lists(
    st.dictionaries(names, st.one_of(st.none(), st.binary(max_size=2)), max_size=4), max_size=6
)


@settings(max_examples=40)
@given(steps)
def test_the_last_writer_of_a_content_is_its_writer(history):
    """Against a dictionary: a file belongs to the last call that changed its content; removed and
    written anew is new."""

    def change(folder, number, changes, expected):
        for name, content in changes.items():
            place = Path(folder, name)
            if content is None:
                place.unlink(missing_ok=True)
                expected.pop(name, None)
                continue
            place.parent.mkdir(exist_ok=True)
            place.write_bytes(content)
            if expected.get(name, (None,))[0] != content:
                expected[name] = (content, f"call {number}")

    async def main():
        expected, workspaces = {}, Workspaces()
        async with workspaces.of(Task("t", "p")) as workspace:
            folder = await workspace.opened()
            for number, changes in enumerate(history):
                change(folder, number, changes, expected)
                await workspace.note(f"call {number}")
            workspaces.close()
            return {f.path: (f.sha256, f.writer) for f in workspace.files}, expected

    got, expected = asyncio.run(main())
    assert got == {name: (sha(content), writer) for name, (content, writer) in expected.items()}
