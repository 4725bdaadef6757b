"""The beginning and the end of a run, without engines."""

import asyncio
import os
import signal
import textwrap

import pytest

from marl_plugins.core.failures import RunEnded
from marl_plugins.engine.plan.build import build_plan

lifetime = pytest.importorskip("marl_plugins.engine.runtime.lifetime")

PLUGIN = """
    import asyncio
    from marl_plugins import hookimpl

    @hookimpl
    async def marl_start(run, purpose):
        run.state(list).append(("start", purpose, id(asyncio.get_running_loop())))

    @hookimpl
    async def marl_stop(run):
        run.state(list).append(("stop", id(asyncio.get_running_loop())))
        {more}
"""


def started(tmp_path, inside, more=""):
    """What a plugin noted around `inside(loop)`, in the place of a run."""
    (tmp_path / "service.py").write_text(textwrap.dedent(PLUGIN.format(more=more)))
    plan = build_plan(
        ["--recipe", "kuhn_poker/tiny.yaml", "--plugin", str(tmp_path / "service.py")]
    )
    notes = plan.run.state(list)
    with asyncio.Runner() as loop:
        try:
            with lifetime.plugins_started(loop, plan, "train"):
                inside(loop)
        except BaseException as error:
            return notes, error
    return notes, None


def test_plugins_start_and_stop_in_the_loop_of_the_run(tmp_path):
    loops = []

    async def work():
        loops.append(id(asyncio.get_running_loop()))

    notes, error = started(tmp_path, lambda loop: loop.run(work()))
    assert error is None
    assert notes == [("start", "train", loops[0]), ("stop", loops[0])]


@pytest.mark.parametrize("error", [RunEnded("a process died"), KeyboardInterrupt()])
def test_plugins_are_stopped_whatever_ends_the_run(tmp_path, error):
    def fail(loop):
        raise error

    notes, raised = started(tmp_path, fail)
    assert raised is error
    assert [note[0] for note in notes] == ["start", "stop"]


def test_what_ended_the_run_is_reported_also_when_a_plugin_cannot_stop(tmp_path, capsys):
    def fail(loop):
        raise RunEnded("a process died; step 3 is saved")

    _, raised = started(tmp_path, fail, more="1 / 0")
    assert str(raised) == "a process died; step 3 is saved"
    assert "marl_stop raised ZeroDivisionError" in capsys.readouterr().err


class Session:
    """Stands for the processes of a run."""

    killed = False

    def kill(self):
        self.killed = True


async def background(name, ended):
    try:
        await asyncio.sleep(60)
    finally:
        ended.append(name)


def test_a_task_that_a_training_left_is_ended_and_a_plugins_own_is_not():
    ended, session = [], Session()

    async def train():
        left.append(asyncio.create_task(background("left by the training", ended)))
        await asyncio.sleep(0)
        return 3

    async def start():
        task = asyncio.create_task(background("a plugin's", ended))
        await asyncio.sleep(0)
        return task

    left = []
    with asyncio.Runner() as loop:
        own = loop.run(start())
        assert lifetime.run_until_terminated(loop, session, train()) == 3
        assert ended == ["left by the training"] and not own.done() and not session.killed


@pytest.fixture
def ctrl_c():
    """Ctrl-C interrupts, also where the shell that started the tests has them ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_end_a_training_and_its_processes(number):
    """And once it has ended, SIGTERM still ends what is left of the run, instead of the whole
    process."""
    session, before = Session(), signal.getsignal(signal.SIGTERM)

    async def train():
        os.kill(os.getpid(), number)
        await asyncio.sleep(60)

    with lifetime.terminated_like_interrupted():
        inner = signal.getsignal(signal.SIGTERM)
        with asyncio.Runner() as loop, pytest.raises(KeyboardInterrupt):
            lifetime.run_until_terminated(loop, session, train())
        assert session.killed and signal.getsignal(signal.SIGTERM) is inner
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("error", [RunEnded("a process died"), ZeroDivisionError()])
def test_a_training_that_fails_ends_its_processes(error):
    session = Session()

    async def train():
        raise error

    with asyncio.Runner() as loop, pytest.raises(type(error)):
        lifetime.run_until_terminated(loop, session, train())
    assert session.killed


def test_a_cancellation_that_is_nobodys_is_no_interruption():
    async def train():
        task = asyncio.create_task(asyncio.sleep(60))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with (
        asyncio.Runner() as loop,
        pytest.raises(RuntimeError, match="cancelled in this run that nobody interrupted"),
    ):
        lifetime.run_until_terminated(loop, Session(), train())
