"""Whatever a plugin's hook raises in a run pauses it, saved, with plugin and hook named; a person's
Ctrl-C passes."""

import asyncio
import gc
import signal

import pytest
from simulated_run import simulated_trainer

from marl_plugins.core.failures import (
    ConfigurationError,
    InfrastructureFailure,
    RunEnded,
    RunPaused,
)
from marl_plugins.engine.hook_faults import HookFaults
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.runtime.lifetime import run_until_terminated


@pytest.fixture(scope="module", autouse=True)
def collected():
    """Coroutines that nobody has awaited end here: ended in a later file, their warnings parse
    source in the middle of its `ast.parse`, which Python 3.11 answers with a SystemError."""
    yield
    gc.collect()


RAISED = {
    "SystemExit": "sys.exit(0)",
    "CancelledError": "raise asyncio.CancelledError",
    "StopIteration": "next(iter([]))",
    "StopAsyncIteration": "raise StopAsyncIteration",
    "GeneratorExit": "raise GeneratorExit",
    "KeyboardInterrupt": "raise KeyboardInterrupt",
    "ValueError": "int('x')",
    "InfrastructureFailure": "raise InfrastructureFailure('tool', 'down')",
    "MemoryError": "raise MemoryError",
    "a class of its own": "raise type('Own', (BaseException,), {})",
    "a group": "raise BaseExceptionGroup('several', [SystemExit(0), ValueError('x')])",
    "a text that fails": "raise type('Own', (Exception,), {'__str__': lambda self: 1 / 0})",
}
CODE = """
import asyncio, sys
from marl_plugins import hookimpl
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.steps import StepPart

def fault(step):
    if step == 3:
        {raised}
"""
HOOKS = {
    "marl_batch": "def marl_batch(tasks, step): fault(step); return tasks",
    "marl_credit": "def marl_credit(trajectories): fault(trajectories[0].step); return "
    "trajectories",
    "marl_credit_step": "async def marl_credit_step(trajectories): fault(trajectories[0].step); "
    "return trajectories",
    "marl_credit, later": (
        "async def marl_credit(trajectories): await asyncio.sleep(0); fault(trajectories[0].step); "
        "return trajectories"
    ),
    "marl_select": "def marl_select(rows): fault(rows[0].trajectory.step); return rows",
    "marl_step": "def marl_step(step): fault(step.number)",
    "marl_log": "def marl_log(step): fault(step)",
}
PARTS = {
    "source, later": "async def given(number):\n    fault(number)\n    yield ()\ndef source(self): "
    "return given(3) if self.number == 3 else None",
    "completed": "def completed(self, trajectories): fault(self.number); return ()",
    "arrived": "def arrived(self, trajectory): fault(trajectory.step)",
    "during_rollout": "async def during_rollout(self): fault(self.number)",
    "during_rollout, later": "async def during_rollout(self): await asyncio.sleep(0.001); "
    "fault(self.number)",
    "rows": "async def rows(self, rows): fault(self.number)",
    "prepared": "async def prepared(self, prepared): fault(self.number); return prepared",
    "ledger": "def ledger(self): fault(self.number)",
    "metrics": "def metrics(self): fault(self.number); return {}",
}
MADE = (
    "def marl_step(step):\n    part = type('Part', (StepPart,), {'number': step.number, "
    "'METHOD': METHOD})()\n    return part"
)
SCORERS = {
    "marl_score_outcome": "def marl_score_outcome(trajectory): fault(trajectory.step); return 1.0",
    "marl_score_outcome, later": (
        "async def marl_score_outcome(trajectory): await asyncio.sleep(0); fault(trajectory.step); "
        "return 1.0"
    ),
    "marl_score_action": "async def marl_score_action(run, action): await asyncio.sleep(0); "
    "fault(3); return 1.0",
}
AFTER_UPDATE = ("marl_log", "metrics")


def crossed(places, raised, whole):
    """What each place raises: everything where `whole` names it, else what is no `Exception`."""
    common = ("SystemExit", "CancelledError")
    return [(p, r) for p in places for r in sorted(raised) if p in whole or r in common]


def code_of(place):
    if place in PARTS:
        return (
            f"{PARTS[place]}\n@hookimpl\n{MADE.replace('METHOD', place.partition(',')[0])}",
            "marl_step",
        )
    return f"@hookimpl\n{(HOOKS | SCORERS)[place]}", place.partition(",")[0]


def ended(folder, code):
    (folder / "mine.py").write_text(code)
    trainer = simulated_trainer(
        folder / "run", lambda t: 1.0, steps=4, eval_steps=-1, plugins=[str(folder / "mine.py")]
    )
    with pytest.raises(RunEnded) as raised:
        asyncio.run(trainer.fit(0))
    return trainer, raised.value


@pytest.mark.parametrize(
    ("place", "raised"), crossed([*HOOKS, *PARTS], RAISED, {"marl_credit", "during_rollout, later"})
)
def test_whatever_a_hook_raises_pauses_the_run_saved(tmp_path, place, raised):
    code, hook = code_of(place)
    trainer, error = ended(tmp_path, CODE.format(raised=RAISED[raised]) + code)
    assert isinstance(error, RunPaused)
    assert f"mine.py: {hook}" in str(error)
    done = 3 if place in AFTER_UPDATE else 2
    assert trainer.session.policies["p"].saved == [done]
    assert len((trainer.records.folder / "ledger.jsonl").read_text().splitlines()) == done
    if raised not in ("StopIteration", "a group", "a text that fails"):
        assert "mine.py:" in str(error).partition("raised")[2]  # the line


@pytest.mark.parametrize("hook", ["marl_update", "marl_sync"])
@pytest.mark.parametrize("group", [False, True])
def test_a_pause_while_weights_change_is_an_end_before_which_nothing_is_saved(hook, group):
    """A budget that is spent there leaves weights of the step after the one whose state is kept."""
    paused = RunPaused("the budget is spent")
    with pytest.raises(RunEnded, match="budget") as raised, HookFaults("mine.py", hook):
        raise ExceptionGroup("several", [paused]) if group else paused
    assert not isinstance(raised.value, RunPaused)


@pytest.mark.parametrize(
    ("place", "raised"),
    crossed(SCORERS, RAISED.keys() - {"InfrastructureFailure"}, {"marl_score_outcome, later"}),
)
def test_whatever_a_scorer_raises_pauses_the_run(tmp_path, place, raised):
    code, hook = code_of(place)
    _, error = ended(tmp_path, CODE.format(raised=RAISED[raised]) + code)
    assert isinstance(error, RunPaused)
    assert f"mine.py: {hook}" in str(error)


# --- what comes from outside passes
# ---------------------------------------------------------------------------------------


def plugin(folder, body):
    (folder / "mine.py").write_text(
        f"import asyncio, signal, time\nfrom marl_plugins import hookimpl\n@hookimpl\n{body}\n"
    )
    return Plugins([str(folder / "mine.py")])


def test_a_cancelled_run_is_cancelled(tmp_path):
    plugins = plugin(
        tmp_path, "async def marl_credit(trajectories): return await asyncio.sleep(60)"
    )

    async def work():
        task = asyncio.create_task(plugins.chain("marl_credit", [], run=None))
        await asyncio.sleep(0)
        task.cancel()
        await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(work())


def test_a_deadline_around_a_hook_is_a_deadline(tmp_path):
    plugins = plugin(
        tmp_path, "async def marl_credit(trajectories): return await asyncio.sleep(60)"
    )

    async def work():
        async with asyncio.timeout(0.01):
            await plugins.chain("marl_credit", [], run=None)

    with pytest.raises(TimeoutError):
        asyncio.run(work())


@pytest.fixture
def interruptible():
    """A process that Ctrl-C interrupts; one that a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("body", ["", "signal.raise_signal(signal.SIGINT); "])
def test_ctrl_c_is_the_persons(tmp_path, body):
    """While a hook waits, and in the middle of its code."""
    plugins = plugin(
        tmp_path, f"async def marl_credit(trajectories): {body}return await asyncio.sleep(60)"
    )

    async def work():
        asyncio.get_running_loop().call_later(0.01, signal.raise_signal, signal.SIGINT)
        await plugins.chain("marl_credit", [], run=None)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(work())


@pytest.mark.usefixtures("interruptible")
def test_a_second_ctrl_c_in_the_middle_of_a_hook_is_the_persons_too(tmp_path):
    twice = (
        "signal.raise_signal(signal.SIGINT)\n    signal.raise_signal(signal.SIGINT)\n    "
        "return trajectories"
    )
    plugins = plugin(tmp_path, f"def marl_credit(trajectories):\n    {twice}")
    with pytest.raises(KeyboardInterrupt):
        asyncio.run(plugins.chain("marl_credit", [], run=None))


@pytest.mark.parametrize(
    "error", [RunPaused("budget"), RunEnded("gone"), ConfigurationError("key")]
)
def test_what_hooks_are_documented_to_raise_passes(error):
    with pytest.raises(type(error)) as raised, HookFaults("mine.py", "marl_credit"):
        raise error
    assert raised.value is error


def test_a_pause_inside_a_group_is_the_pause():
    paused = RunPaused("budget")
    with pytest.raises(RunPaused) as raised, HookFaults("mine.py", "marl_credit"):
        raise ExceptionGroup("of a TaskGroup", [ValueError("x"), paused])
    assert raised.value is paused


def test_only_what_samples_may_fail_as_infrastructure():
    down = InfrastructureFailure("engine", "down")
    with pytest.raises(InfrastructureFailure), HookFaults("mine.py", "marl_generate"):
        raise down
    with pytest.raises(RunPaused), HookFaults("mine.py", "marl_credit"):
        raise down


def test_weights_that_may_have_changed_in_part_are_not_saved():
    with pytest.raises(RunEnded) as raised, HookFaults("mine.py", "marl_update"):
        raise SystemExit(0)
    assert not isinstance(raised.value, RunPaused)


@pytest.mark.parametrize(
    ("kind", "where"),
    [("wrapper", "before"), ("hookwrapper", "after"), ("wrapper", "while it is awaited")],
)
def test_a_wrapper_is_named_too(tmp_path, kind, where):
    before, after = (
        "raise SystemExit(0)" if where == place else "pass" for place in ("before", "after")
    )
    inside = "raise SystemExit(0)" if where == "while it is awaited" else "pass"
    body = f"""
async def marl_generate(call): return call

@hookimpl({kind}=True)
def marl_sync():
    {before}
    inner = yield
    {after}
    async def more():
        {inside}
        return True
    {"return more()" if kind == "wrapper" else "inner.force_result(more())"}
"""
    (tmp_path / "inner.py").write_text(
        "from marl_plugins import hookimpl\n@hookimpl\nasync def marl_sync(version): return True\n"
    )
    plugin(tmp_path, body)
    plugins = Plugins([str(tmp_path / "inner.py"), str(tmp_path / "mine.py")])

    async def sync():
        return await plugins.hook.marl_sync(run=None, policy=None, version=1)

    with pytest.raises(RunEnded, match=r"mine\.py: marl_sync raised SystemExit"):
        asyncio.run(sync())


# --- code that is no hook
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["workflow", "branch", "forgotten task"])
def test_sys_exit_of_a_recipe_ends_a_run_with_an_error(tmp_path, place):
    """In the workflow itself, in a task of it, and in one that nobody awaits, which stops the event
    loop."""

    async def leave():
        await asyncio.sleep(0)
        raise SystemExit(0)

    async def workflow(task, roles, tools):
        if place == "workflow":
            raise SystemExit(0)
        branch = asyncio.create_task(leave())
        if place == "branch":
            await branch
        else:
            await asyncio.sleep(0.05)
        return await roles.a(q=task.prompt)

    trainer = simulated_trainer(tmp_path, lambda t: 1.0, steps=2, eval_steps=-1, workflow=workflow)
    killed = []
    trainer.session.kill = lambda: killed.append(True)
    with (
        asyncio.Runner() as loop,
        pytest.raises(RunEnded, match=r"SystemExit.*test_hook_faults\.py:\d+"),
    ):
        run_until_terminated(loop, trainer.session, trainer.fit(0))
    assert killed
