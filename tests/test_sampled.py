"""What was sampled is trained on as it was: every plugin is held to it, in runs, right after it."""

import asyncio
import copy
import json
from dataclasses import fields

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import make_trajectory
from simulated_run import simulated_trainer

from marl_plugins.core.failures import RunEnded, RunPaused
from marl_plugins.core.sampled import SampledActions
from marl_plugins.core.trajectory import Action, Generation, SampledAction

HEAD = """
import copy, dataclasses
from marl_plugins import hookimpl
from marl_plugins.core.rows import Row
from marl_plugins.core.steps import StepPart
"""
CREDIT = (
    HEAD
    + """
@hookimpl
def {hook}(trajectories):
    t = trajectories[1]
    if t.step == 3:
        {body}
    return trajectories
"""
)
LATER = (
    HEAD
    + """
@hookimpl
def marl_credit_step(trajectories):
    assert trajectories[0].step < 3, "asked, although the plugin before is refused"
    return trajectories
"""
)
IDS = "dataclasses.replace(t.actions[0].generation, ids=(9,) * len(t.actions[0].generation.ids))"
CHANGES = {
    "removes an action": "t.actions = t.actions[1:]",
    "has an action twice": "t.actions += (t.actions[0],)",
    "replaces an action by its copy": "t.actions = (copy.copy(t.actions[0]), *t.actions[1:])",
    "moves an action to another trajectory": "trajectories[0].actions += (t.actions[0],)",
    "replaces ids": f"t.actions[0].generation = {IDS}",
    "returns fewer": "return trajectories[1:]",
    "returns one twice": "return [*trajectories, t]",
    "returns a copy": "return [copy.copy(t), *trajectories[:1], *trajectories[2:]]",
    "returns a generator": "return (t for t in trajectories)",
    "returns something else": "return [*trajectories, 1]",
    "changes the list in place": "trajectories.pop(1)",
}


def run_with(folder, *codes, steps=4, **more):
    """The trainer of a run with plugins of this code, after what it raised; and what it raised."""
    files = []
    for number, code in enumerate(codes):
        files.append(folder / f"plugin{number}.py")
        files[-1].write_text(code)
    trainer = simulated_trainer(
        folder / "run",
        lambda t: 1.0,
        steps=steps,
        eval_steps=-1,
        plugins=list(map(str, files)),
        **more,
    )
    with pytest.raises(RunEnded) as raised:
        asyncio.run(trainer.fit(0))
    return trainer, raised.value


def lines(trainer, name):
    return [json.loads(line) for line in (trainer.records.folder / name).read_text().splitlines()]


def check_paused(trainer, error, plugin, hook, done):
    """Paused and saved after a step, with the plugin's name."""
    assert f"{plugin}: {hook}" in str(error)
    check_saved(trainer, error, done)


def check_saved(trainer, error, done):
    """Paused and saved after a step; what is recorded is what was trained."""
    assert isinstance(error, RunPaused)
    assert trainer.session.policies["p"].saved == [done]
    ledger = lines(trainer, "ledger.jsonl")
    assert [line["step"] for line in ledger] == list(range(1, done + 1))
    assert all(
        line["roles"]["a"] == {"generated": 8, "trained": 8, "left_out": {}} for line in ledger
    )


@pytest.mark.parametrize(
    ("hook", "change"),
    [
        *(("marl_credit", change) for change in CHANGES),
        *(("marl_credit_step", change) for change in ("removes an action", "returns fewer")),
    ],
)
def test_what_credit_changes_of_what_was_sampled_pauses_the_run(tmp_path, hook, change):
    trainer, error = run_with(tmp_path, CREDIT.format(hook=hook, body=CHANGES[change]), LATER)
    check_paused(trainer, error, "plugin0.py", hook, done=2)
    if not change.startswith(("returns a ", "returns something")):
        named = any(f"t{n}/{s}" in str(error) for n in range(99) for s in (0, 1))
        assert named or "of action a." in str(error)


SELECT = (
    HEAD
    + """
@hookimpl
def marl_select(rows):
    row = rows[1]
    if row.trajectory.step == 3:
        {body}
    return rows
"""
)
CHOICES = {
    "gives one twice": "return [*rows, row]",
    "makes a row": "return [*rows, Row(row.trajectory, row.action, 1.0)]",
    "replaces a row": "return [Row(r.trajectory, r.action, r.reward) for r in rows]",
    "gives another action": "row.action = copy.copy(row.action)",
    "gives another trajectory": "row.trajectory = copy.copy(row.trajectory)",
    "gives no number": "row.reward = float('nan')",
    "removes the action of a row": "row.trajectory.actions.remove(row.action)",
    "returns a generator": "return (row for row in rows)",
}


@pytest.mark.parametrize("choice", CHOICES)
def test_a_selection_that_is_not_of_the_rows_pauses_the_run(tmp_path, choice):
    trainer, error = run_with(tmp_path, SELECT.format(body=CHOICES[choice]))
    check_paused(trainer, error, "plugin0.py", "marl_select", done=2)


@pytest.mark.parametrize("body", ["return rows[1:]", "rows.pop()", "row.action.left_out = 'mine'"])
def test_rows_that_are_dropped_without_a_reason_or_kept_with_one_pause_the_run(tmp_path, body):
    trainer, error = run_with(tmp_path, SELECT.format(body=body))
    assert "has to set `action.left_out`" in str(error)
    check_saved(trainer, error, done=2)


def test_what_selecting_and_crediting_may_do_goes_on(tmp_path):
    code = (
        HEAD + "@hookimpl\ndef marl_credit(trajectories):\n    for t in trajectories:\n        "
        "t.actions[0].add_reward('mine', 0.5)\n"
        "        t.actions[0].notes['n'] = 1\n    return trajectories[::-1]\n"
        "@hookimpl\ndef marl_select(rows):\n    rows[0].action.left_out = 'mine'\n    return "
        "rows[1:]\n"
    )
    (tmp_path / "fine.py").write_text(code)
    trainer = simulated_trainer(
        tmp_path / "run", lambda t: 1.0, steps=2, eval_steps=-1, plugins=[str(tmp_path / "fine.py")]
    )
    assert asyncio.run(trainer.fit(0)) == 2
    role = {"generated": 8, "trained": 7, "left_out": {"mine": 1}}
    assert [line["roles"]["a"] for line in lines(trainer, "ledger.jsonl")] == [role, role]
    assert [row["sample"] for row in lines(trainer, "trajectories.jsonl")] == [
        0,
        1,
    ] * 8  # in the order of the step


PART = (
    HEAD
    + """
@hookimpl
def marl_step(step):
    class Part(StepPart):
        {method}
    return Part() if step.number == 3 else None
"""
)
PARTS = {
    "arrived removes": "def arrived(self, trajectory): trajectory.actions.pop()",
    "rollout removes": "async def during_rollout(self): await step.ended.wait(); "
    "step.trajectories[0].actions.clear()",
    "rows rewards": "async def rows(self, rows): rows[0].reward = float('inf')",
    "rows removes": "async def rows(self, rows): rows[0].trajectory.actions.pop()",
    "prepared drops": "async def prepared(self, p): return []",
    "prepared drops a row": "async def prepared(self, p): return [dataclasses.replace(p[0], "
    "rows=p[0].rows[1:])]",
    "prepared adds a row": "async def prepared(self, p): return [dataclasses.replace(p[0], "
    "rows=[*p[0].rows, p[0].rows[0]])]",
    "prepared returns a generator": "async def prepared(self, p): return (x for x in p)",
}


@pytest.mark.parametrize("method", PARTS)
def test_a_part_of_the_step_that_changes_what_was_sampled_pauses_the_run(tmp_path, method):
    trainer, error = run_with(tmp_path, PART.format(method=PARTS[method]))
    check_paused(trainer, error, "plugin0.py", "marl_step", done=2)


def test_a_part_may_change_advantages_and_the_list_of_rows_that_it_sees(tmp_path):
    method = (
        "async def rows(self, rows): rows.clear()\n"
        "        async def prepared(self, p): p[0].items[0].advantages.zero_(); return p"
    )
    (tmp_path / "fine.py").write_text(PART.format(method=method))
    trainer = simulated_trainer(
        tmp_path / "run", lambda t: 1.0, steps=4, eval_steps=-1, plugins=[str(tmp_path / "fine.py")]
    )
    assert asyncio.run(trainer.fit(0)) == 4


def test_a_scorer_that_changes_what_was_sampled_pauses_the_run(tmp_path):
    body = "action.generation = None"
    code = HEAD + f"@hookimpl\nasync def marl_score_action(action):\n    {body}\n    return 0.5\n"
    trainer, error = run_with(tmp_path, code)
    assert isinstance(error, RunPaused)
    assert "t" in str(error)
    assert not (trainer.records.folder / "ledger.jsonl").exists() or not lines(
        trainer, "ledger.jsonl"
    )


# --- what is sampled
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [field.name for field in fields(SampledAction)])
def test_what_was_sampled_cannot_be_set_again(name):
    action = Action("a.1", "a", "p", 0, (1,), Generation((2,), (-0.5,), "stop", "p", 0), "x")
    before = getattr(action, name)
    with pytest.raises(AttributeError, match=rf"^{name} of action a\.1 cannot be changed"):
        setattr(action, name, object())
    assert getattr(action, name) is before


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_every_action_that_comes_or_goes_is_found_and_nothing_else(data):
    """Random trajectories; the actions of one are others, or only what credit may write is."""
    sampled, trajectories = SampledActions(), []
    for number in range(data.draw(st.integers(1, 4))):
        trajectory = make_trajectory({"a": [], "b": ["a"], "c": ["a", "b"]}, task=f"t{number}")
        sampled.arrived(trajectory)
        trajectories.append(trajectory)
    trajectory = data.draw(st.sampled_from(trajectories))
    action = data.draw(st.sampled_from(trajectory.actions))
    action.reward, action.returns, action.score, action.explanation, action.notes = (
        1.0,
        2.0,
        0.5,
        "why",
        {"x": 1},
    )
    action.left_out, action.advantage = "mine", 0.25
    sampled.check("p", "marl_credit")
    trajectory.actions = data.draw(
        st.sampled_from(
            [
                trajectory.actions[1:],
                (*trajectory.actions, action),
                (copy.copy(action), *trajectory.actions[1:]),
                trajectory.actions[::-1],
            ]
        )
    )
    with pytest.raises(RunPaused, match=trajectory.name):
        sampled.check("p", "marl_credit")
