"""The small shipped recipes `vote`, `tool_user` and `coder_tester`: whole trajectories through a
simulated engine, scored."""

import asyncio
import random

import pytest
from refusals import refused
from simulated import CharacterChat

from marl_plugins.core.credit import rewards_from_scores
from marl_plugins.core.recipe.prompts import prompt_renderer
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.scoring import score_outcome
from marl_plugins.core.trajectory import Generation
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.plan.build import build_plan

NAMES = ("vote", "tool_user", "coder_tester")
FILES = [f"{name}/{file}" for name in NAMES for file in ("recipe.yaml", "tiny.yaml")]


def planned(file):
    """The plan; on any machine for the devices that the file is for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_PLUGINS_DEVICE", "cpu" if file.endswith("tiny.yaml") else "cuda")
        return build_plan(["--recipe", str(recipes_root() / file)])


@pytest.mark.parametrize("file", FILES)
def test_its_plan_has_no_warning(file):
    assert planned(file).run.warnings == ()


@pytest.mark.parametrize("name", NAMES)
def test_its_splits_share_no_task(name):
    plan = planned(f"{name}/tiny.yaml")
    train, held_out = plan.tasks("train"), plan.tasks("eval")
    assert len(train) >= 100 and len(held_out) >= 20
    assert not {t.prompt for t in train} & {t.prompt for t in held_out}


@pytest.mark.parametrize("name", NAMES)
def test_what_its_demonstrators_are_shown_is_what_its_prompts_need(name):
    run, rng = (plan := planned(f"{name}/tiny.yaml")).run, random.Random(0)
    roles = set()
    for task in plan.tasks("train")[:50]:
        for shown in run.demonstrations_module.demonstrate(task, rng):
            prompt_renderer(run.prompt(shown.role), run.system(shown.role))(shown.fields)
            longest = max(len(text) for text in shown.said)
            assert longest < (run.role(shown.role).max_new_tokens or 0), (
                "one byte is one token of a tiny model"
            )
            roles.add(shown.role)
    assert roles == set(run.recipe.roles)


def played(plan, task, says):
    """A scored trajectory in which `says(role, prompt)` answers, prompts being everything shown so
    far."""
    run, chat = plan.run, CharacterChat()
    tools = {
        tool.name: tool for answer in plan.plugins.hook.marl_tools(run=run) for tool in answer or ()
    }

    async def generate(call):
        ids = (*chat.encode(says(call.role, chat.text(call.context_ids))), ord("^"))
        return Generation(ids, tuple(-0.5 for _ in ids), "stop", call.policy, 0)

    def role(name, config):
        render = prompt_renderer(run.prompt(name), run.system(name))
        own = tuple(tools[t] for t in config.tools)
        return RoleSpec(
            name, name, render, chat, Sampling(1.0, 1.0, None, 9000), own, config.max_turns
        )

    async def play():
        roles = {name: role(name, config) for name, config in run.recipe.roles.items()}
        trajectory = await run_workflow(
            run.workflow_module.run,
            task,
            0,
            step=1,
            run_seed=0,
            roles=roles,
            tools=tools,
            generate=generate,
            seconds=60,
        )
        await score_outcome(
            trajectory,
            lambda t: plan.plugins.hook.marl_score_outcome(run=run, trajectory=t),
            60,
            roles,
        )
        rewards_from_scores([trajectory])
        await plan.plugins.chain("marl_credit", [trajectory], run=run)
        return trajectory

    return asyncio.run(play())


@pytest.mark.parametrize("wrong", [0, 2, 5])
def test_voters_are_rewarded_for_their_own_answers_and_the_decider_for_the_decision(wrong):
    plan = planned("vote/recipe.yaml")
    task = plan.tasks("train")[0]
    other = {"A": "B", "B": "A"}[task.label]
    votes = iter([other] * wrong + [task.label] * (5 - wrong))

    def says(role, prompt):
        assert task.prompt in prompt
        if role == "voter":
            return f"I think\n{next(votes)}"
        shown = prompt.partition("independently:")[2]
        assert shown.count(other) - shown.count(task.label) == 2 * wrong - 5
        return other if wrong > 2 else task.label

    trajectory = played(plan, task, says)
    voters = [a for a in trajectory.actions if a.role == "voter"]
    (decider,) = [a for a in trajectory.actions if a.role == "decider"]
    assert sorted(a.reward for a in voters) == [0.0] * wrong + [1.0] * (5 - wrong)
    assert decider.reward == trajectory.outcome == float(wrong < 3)
    assert set(decider.parents) == {a.path for a in voters}


def test_the_clerk_looks_up_every_price_and_is_told_what_is_not_sold():
    plan = planned("tool_user/recipe.yaml")
    task = next(t for t in plan.tasks("train") if len(t.metadata["things"]) == 2)
    one, two = task.metadata["things"]
    turns = iter(
        [
            f"<price>{one}</price>",
            "<price>moon</price>",
            f"<price>{two}</price>",
            f"Answer: {task.label}",
        ]
    )
    trajectory = played(plan, task, lambda role, prompt: next(turns))
    outputs = [a.tool_output for a in sorted(trajectory.actions, key=lambda a: a.turn)]
    first, second = task.metadata["prices"]
    assert outputs == [f"{one}: {first}", "moon is not sold here", f"{two}: {second}", ""]
    assert [r.ok for a in trajectory.actions for r in a.tool_results].count(False) == 1
    assert trajectory.outcome == 1.0
    lazy = played(plan, task, lambda role, prompt: f"Answer: {int(task.label) + 1}")
    assert lazy.outcome == 0.0


def test_the_clerk_has_its_prices_also_where_the_tasks_come_from_a_file(tmp_path):
    file = tmp_path / "orders.jsonl"
    file.write_text('{"prompt": "pen, cup: how much?", "answer": "7"}\n')
    words = [
        "--recipe",
        str(recipes_root() / "tool_user"),
        "--data.prompt_dataset",
        str(file),
        "--rollout.batch_size",
        "1",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_PLUGINS_DEVICE", "cuda")
        plan = build_plan([*words, "--train.batch_size", "4"])
    turns = iter(["<price>cup</price>", "<price>pen</price>", "Answer: 7"])
    trajectory = played(plan, plan.tasks("train")[0], lambda role, prompt: next(turns))
    assert [a.tool_output for a in sorted(trajectory.actions, key=lambda a: a.turn)] == [
        "cup: 5",
        "pen: 2",
        "",
    ]
    assert trajectory.outcome == 1.0


def test_tasks_for_which_there_are_no_demonstrations_are_told_what_to_do(tmp_path):
    file = tmp_path / "sums.jsonl"
    file.write_text('{"prompt": "1 + 2", "answer": "3"}\n')
    words = [
        "--recipe",
        str(recipes_root() / "coder_tester" / "tiny.yaml"),
        "--data.prompt_dataset",
        str(file),
    ]
    with refused(("rehearsal.demonstration", "demonstrations.py:13")):
        build_plan(
            [
                *words,
                "--rollout.batch_size",
                "1",
                "--train.batch_size",
                "1",
                "--rollout.n_samples_per_prompt",
                "1",
            ]
        )


@pytest.mark.parametrize(
    ("first", "tests", "second", "outcomes"),
    [
        ("right", "right", None, {"coder": 1.0, "tester": 1.0}),
        ("wrong", "right", "right", {"coder": 1.0, "tester": 1.0}),
        ("wrong", "right", "wrong", {"coder": 0.0, "tester": 1.0}),
        ("right", "wrong", "right", {"coder": 1.0, "tester": 0.0}),
        ("wrong", "nothing", None, {"coder": 0.0, "tester": 0.0}),
    ],
)
def test_the_coder_is_scored_by_the_hidden_asserts_and_the_tester_by_being_right(
    first, tests, second, outcomes
):
    plan = planned("coder_tester/tiny.yaml")
    task = plan.tasks("train")[0]
    expression = task.metadata["expression"]
    value = eval(expression, {"x": 4, "max": max, "min": min})
    programs = {
        "right": f"```python\ndef f(x):\n    return {expression}\n```",
        "wrong": "def f(x):\n    return -1",
    }
    asserts = {
        "right": f"assert f(4) == {value}",
        "wrong": f"assert f(4) == {value + 1}",
        "nothing": "pass",
    }
    tries = iter([programs[first], programs.get(second)])

    def says(role, prompt):
        return asserts[tests] if role == "tester" else next(tries)

    trajectory = played(plan, task, says)
    assert trajectory.outcomes == outcomes
    coders = [a for a in trajectory.actions if a.role == "coder"]
    assert len(coders) == (1 if second is None else 2)
    assert {a.role: a.reward for a in trajectory.actions} == outcomes
    if second is not None:
        assert "AssertionError" in coders[-1].shown[0][1] and len(coders[-1].parents) == 2
