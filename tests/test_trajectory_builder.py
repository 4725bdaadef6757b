"""A trajectory is what its roles were shown and said, whoever asked them: a workflow's
`roles.x(...)`, or code with messages."""

import asyncio

import pytest
from simulated import content, simulated_engine, without_seconds

from marl_plugins.core.failures import AgentFailure
from marl_plugins.core.fields import InvalidCall
from marl_plugins.core.roles import NotInRecipe, RoleSpec, Sampling
from marl_plugins.core.rows import Row
from marl_plugins.core.tools import RequestedCall, Tool
from marl_plugins.core.trajectory import (
    Action,
    Generation,
    Task,
    ToolResult,
    path_order,
)
from marl_plugins.core.trajectory_builder import TrajectoryBuilder
from marl_plugins.core.workflow import builder_of, run_workflow
from marl_plugins.engine.records.trajectory_record import from_record, to_record

TASK = Task("t1", "2+2", "4")


def said(text):
    return {"role": "user", "content": text}


async def loud(call):
    return ToolResult("loud", call.text, f"{call.text.upper()}!", ok=True)


LOUD = Tool(
    "loud", loud, lambda text: [text] if text[0] in "0123456789abcdef" and len(text) == 6 else []
)


@pytest.fixture
def settings(chat):
    """Three roles of two policies, one with a tool for as many as three turns; scores that depend
    on what was seen."""

    def role(name, policy, **more):
        return RoleSpec(
            name,
            policy,
            lambda f: [said("|".join(f.values()))],
            chat,
            Sampling(1.0, 1.0, 16, 2000),
            **more,
        )

    def score(action, seen):
        async def judged():
            return (
                (
                    len(seen.before)
                    + len(action.text)
                    + sum(map(ord, "".join(m[1] for m in seen.messages)))
                )
                % 11
                / 10
            )

        return judged()

    return {
        "step": 3,
        "run_seed": 11,
        "roles": {
            "a": role("a", "p"),
            "b": role("b", "q"),
            "c": role("c", "p", tools=(LOUD,), max_turns=3, endless_tools_fail=False),
        },
        "tools": {"loud": LOUD},
        "generate": simulated_engine(delays=True),
        "score_action": score,
        "last_role": "c",
    }


async def by_roles(task, roles, tools):
    """Parallel twins, a tool of the workflow's, a conversation that is continued, and turns with
    tools."""
    first = await roles.a(q=task.prompt)
    left, right = await asyncio.gather(roles.b(q=first), roles.b(q=first))
    result = await tools.loud(str(left))
    again = await roles.a(q=result.output, continues=first, after=[right])
    return await roles.c(q=again, both=[left, right])


async def by_messages(builder, task):
    """The same, without any field."""
    first = await builder.answer("a", [said(task.prompt)])
    twins = (builder.answer("b", [said(first.text)], parents=[first]) for _ in range(2))
    left, right = await asyncio.gather(*twins)
    result = await builder.call_tool(RequestedCall("loud", left.text, LOUD))
    again = await builder.answer("a", [said(result.output)], continues=first, parents=[right])
    shown = f"{again}|{left}\n\n{right}"
    return await builder.answer("c", [said(shown)], parents=[again, left, right])


def test_a_workflow_and_code_with_messages_build_the_same_trajectory(settings):
    workflow = asyncio.run(run_workflow(by_roles, TASK, 1, seconds=60.0, **settings))
    builder = TrajectoryBuilder(TASK, 1, **settings)
    built = asyncio.run(builder.build(lambda: by_messages(builder, TASK), seconds=60.0))

    async def handed_over(task, roles, tools):
        return await by_messages(builder_of(roles), task)

    inside = asyncio.run(run_workflow(handed_over, TASK, 1, seconds=60.0, **settings))
    assert (
        len(workflow.actions) == 7
        and workflow.tool_results
        and all(a.score is not None for a in workflow.actions)
    )
    record = without_seconds(to_record(workflow))
    assert without_seconds(to_record(built)) == record
    assert without_seconds(to_record(inside)) == record
    assert content(from_record(to_record(built))) == content(built)


def test_what_is_no_call_is_refused(settings):
    builder = TrajectoryBuilder(TASK, 0, **settings)
    other = Action("a.0", "a", "p", 0, (), Generation((1,), (0.0,), "stop", "p", 0), "")

    async def work():
        with pytest.raises(NotInRecipe, match="'d'; valid: a, b, c"):
            await builder.answer("d", [said("")])
        with pytest.raises(
            InvalidCall, match="continues takes an action of this trajectory, got one of another"
        ):
            await builder.answer("a", [said("")], continues=other)
        mine = await builder.answer("a", [said("")])
        with pytest.raises(
            InvalidCall, match="role 'b' cannot continue a conversation of role 'a'"
        ):
            await builder.answer("b", [said("")], continues=mine)
        raise AgentFailure("no_answer", "nothing came of it")

    trajectory = asyncio.run(builder.build(work))
    assert trajectory.agent_failure == "no_answer" and trajectory.detail == "nothing came of it"
    assert len(trajectory.actions) == 1


def test_nobody_is_answered_once_the_trajectory_has_ended(settings):
    builder = TrajectoryBuilder(TASK, 0, **settings)

    async def late():
        await builder.build(lambda: builder.answer("a", [said("")]))
        with pytest.raises(asyncio.CancelledError):
            await builder.answer("a", [said("")])

    asyncio.run(late())
    assert len(builder.trajectory.actions) == 1


# --- twins
# --------------------------------------------------------------------------------------------------


def test_twelve_twins_stand_in_the_order_of_their_numbers_everywhere(settings):
    settings["generate"] = simulated_engine()  # they arrive in the order in which they are asked

    async def votes(task, roles, tools):
        asked = await asyncio.gather(*(roles.a(q="the same") for _ in range(12)))
        return await roles.b(q=asked)

    trajectory = asyncio.run(run_workflow(votes, TASK, 0, **settings))
    twins = [action for action in trajectory.actions if action.role == "a"]
    numbers = ["", *(f"+{n}" for n in range(1, 12))]
    assert [action.path.removeprefix(twins[0].path) for action in twins] == numbers
    last = trajectory.actions[-1]
    assert trajectory.ancestors(last.path) == twins and list(last.parents) == [
        action.path for action in twins
    ]
    rows = [Row(trajectory, action, 0.0) for action in reversed(twins)]
    assert [row.action for row in sorted(rows, key=lambda row: row.order)] == twins
    again = from_record(to_record(trajectory))
    ordered = sorted(again.actions, key=lambda action: path_order(action.path))
    assert [a.path for a in ordered] == [a.path for a in trajectory.actions]
