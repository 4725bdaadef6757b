"""Twins in parallel branches are the same in every run, however long each answer takes; all else
keeps the path that it had."""

import asyncio
import random

import pytest
from simulated import simulated_engine

from marl_plugins.core.failures import AgentFailure
from marl_plugins.core.roles import RoleSpec, Sampling
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Task, ToolResult
from marl_plugins.core.workflow import run_workflow

TASK = Task("t1", "2+2", "4")
RUNS = 15


class Timing:
    """Delays of answers and tools: none at all, not even a turn of the event loop, for the number
    0; else up to 4 ms."""

    def __init__(self, number):
        self.draw = random.Random(number) if number else None

    async def wait(self):
        if self.draw is not None:
            await asyncio.sleep(self.draw.choice((0, self.draw.random() * 0.004)))


async def played(workflow, chat, number=0):
    """The trajectory of one run, and the seed of every path."""
    timing, engine, seeds = Timing(number), simulated_engine(), {}

    async def generate(call):
        seeds[call.path] = call.seed
        await timing.wait()
        return await engine(call)

    async def loud(call):
        await timing.wait()
        return ToolResult("loud", call.text, f"{call.text.upper()}!", ok=True)

    def render(fields):
        return [{"role": "user", "content": "|".join(fields.values())}]

    def role(name, **more):
        return RoleSpec(name, name, render, chat, Sampling(1.0, 1.0, 16, 500), **more)

    tool = Tool("loud", loud, lambda text: [text])
    roles = {name: role(name) for name in ("voter", "critic", "judge")}
    roles["coder"] = role("coder", tools=(tool,), max_turns=2, endless_tools_fail=False)
    settings = {
        "step": 3,
        "run_seed": 11,
        "roles": roles,
        "tools": {"loud": tool},
        "generate": generate,
    }
    return await run_workflow(workflow, TASK, 1, **settings), seeds


def said(trajectory):
    return [(action.path, action.text, action.parents) for action in trajectory.actions]


async def branch(roles, k):
    """Its second call is the same in every branch."""
    await roles.voter(q=str(k))
    return await roles.critic(q="why?")


async def in_gather(task, roles, tools):
    return await roles.judge(all=await asyncio.gather(*(branch(roles, k) for k in range(3))))


async def as_completed(task, roles, tools):
    """The tasks are created in any order, as `as_completed` makes a set of them."""
    asked = [branch(roles, k) for k in range(5)]
    found = [await done for done in asyncio.as_completed(asked)]
    return await roles.judge(all=sorted(found, key=str))


async def follow_ups(task, roles, tools):
    """Tasks are created as answers come in."""

    async def follow(answer):
        await roles.critic(q=answer)
        return await roles.critic(q="why?")

    asked = [
        asyncio.create_task(follow(await done))
        for done in asyncio.as_completed([roles.voter(q=k) for k in "abcd"])
    ]
    return await roles.judge(all=sorted(await asyncio.gather(*asked), key=str))


async def equal_branches(task, roles, tools):
    """The branches are told apart by nothing but their order in the program."""
    return await roles.judge(all=await asyncio.gather(*(branch(roles, "same") for _ in range(4))))


async def nested(task, roles, tools):
    """Teams of members; what their judges are asked shows nothing of either."""

    async def team(k):
        await asyncio.gather(*(branch(roles, f"{k}{member}") for member in range(2)))
        await roles.judge(q="who was right?")
        await asyncio.gather(*(roles.critic(q="why?") for _ in range(2)))
        return await roles.judge(q="who was right?")

    return await roles.judge(all=await asyncio.gather(*(team(k) for k in range(3))))


async def after_a_failure(task, roles, tools):
    async def of(k):
        try:
            await roles.voter(q=str(k), long="x" * 600 * (k % 2))
        except AgentFailure:
            await tools.loud(str(k))
        return await roles.critic(q="why?")

    return await roles.judge(all=await asyncio.gather(*(of(k) for k in range(4))))


async def behind_a_semaphore(task, roles, tools):
    two = asyncio.Semaphore(2)

    async def of(k):
        async with two:
            return await branch(roles, k)

    return await roles.judge(all=await asyncio.gather(*(of(k) for k in range(5))))


WORKFLOWS = [
    in_gather,
    as_completed,
    follow_ups,
    equal_branches,
    nested,
    after_a_failure,
    behind_a_semaphore,
]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda workflow: workflow.__name__)
def test_a_run_is_repeated_however_long_each_answer_takes(chat, workflow):
    async def all_of_them():
        return await asyncio.gather(*(played(workflow, chat, number) for number in range(RUNS)))

    runs = asyncio.run(all_of_them())
    first, seeds = runs[0]
    assert len({action.path for action in first.actions}) == len(first.actions) == len(seeds)
    for trajectory, again in runs[1:]:
        assert said(trajectory) == said(first) and again == seeds


def tree(draw, depth=0):
    """A random program: a list of what is done in turn, each a call, a tool's call, or programs
    side by side."""
    kinds = ["ask"] * 4 + ["show", "tool"] + ["gather", "group", "wait_for"] * (depth < 3)
    return [
        (
            kind,
            [tree(draw, depth + 1) for _ in range(1 if kind == "wait_for" else draw.randint(1, 3))],
        )
        if (kind := draw.choice(kinds)) in ("gather", "group", "wait_for")
        else (kind, draw.choice("pq"))
        for _ in range(draw.randint(1, 3))
    ]


async def done(program, at, roles, tools, found, before=()):
    """Does a program; `found` gets the path of each call of a role, by its place in the program."""
    for number, (kind, what) in enumerate(program):
        here = (*at, number)
        if kind == "tool":
            await tools.loud(what)
        elif kind in ("ask", "show"):
            action = await roles.voter(q=what, shown=list(before) if kind == "show" else "")
            found[here] = action.path
            before = (action,)
        else:
            below = [
                done(each, (*here, n), roles, tools, found, before) for n, each in enumerate(what)
            ]
            if kind == "gather":
                await asyncio.gather(*below)
            elif kind == "group":
                async with asyncio.TaskGroup() as group:
                    for work in below:
                        group.create_task(work)
            else:
                await asyncio.wait_for(below[0], 60)


@pytest.mark.parametrize("number", range(12))
def test_random_trees_of_branches_are_the_same_in_every_run(chat, number):
    program = [("gather", [tree(random.Random(f"{number}/{n}")) for n in range(3)]), ("ask", "p")]

    async def once(timing):
        found = {}

        async def workflow(task, roles, tools):
            await done(program, (), roles, tools, found)

        await played(workflow, chat, timing)
        return found

    async def all_of_them():
        return await asyncio.gather(*(once(timing) for timing in range(6)))

    runs = asyncio.run(all_of_them())
    assert runs.count(runs[0]) == len(runs)


# --- what keeps its path --------------------------------------------------------------------------


async def in_turn(task, roles, tools):
    await roles.voter(q=task.prompt)
    await roles.voter(q=task.prompt)
    result = await tools.loud("x")
    await roles.coder(q=result.output)
    return await asyncio.wait_for(at_the_end(roles), 60)


async def at_the_end(roles):
    await roles.coder(q="end")
    return await roles.judge(q="end")


async def votes(task, roles, tools):
    asked = await asyncio.gather(*(roles.voter(q="same") for _ in range(3)))
    asked += await asyncio.gather(*(roles.voter(q="same") for _ in range(2)))
    return await roles.judge(q=asked)


async def shown_their_own(task, roles, tools):
    """Branches whose calls show what the branch has done: nothing else has to tell them apart."""

    async def of(k):
        first = await roles.voter(q=str(k))
        second = await roles.coder(q=first)
        return await roles.voter(q="again", continues=first, after=[second])

    return await roles.judge(q=await asyncio.gather(of(1), of(2)))


RECORDED = [
    (
        in_turn,
        {
            "voter.98681d9a": 731060477,
            "voter.98681d9a+1": 463588288,
            "coder.df508adc": 2107937203,
            "coder.87ee7264": 698020283,
            "coder.dc4b31e7": 1901273315,
            "coder.14978360": 1369424917,
            "judge.dc4b31e7": 988186524,
        },
    ),
    (
        votes,
        {
            "voter.bc30c1d0": 1371835455,
            "voter.bc30c1d0+1": 256126568,
            "voter.bc30c1d0+2": 1994301108,
            "voter.bc30c1d0+3": 446935554,
            "voter.bc30c1d0+4": 1596231019,
            "judge.303fa3cd": 1898749847,
        },
    ),
    (
        shown_their_own,
        {
            "voter.b68e7bc9": 508933363,
            "voter.9d46b98a": 1144322207,
            "coder.c9c0a185": 1771563102,
            "coder.b7527a24": 1944244971,
            "coder.4037a0c6": 1588558317,
            "coder.5e95f73d": 1489754319,
            "voter.5be51e8d": 1641295481,
            "voter.cf3ffeaa": 80549830,
            "judge.27c4597d": 978889050,
        },
    ),
]


@pytest.mark.parametrize(
    ("workflow", "seeds"), RECORDED, ids=lambda value: getattr(value, "__name__", "")
)
def test_paths_and_seeds_are_those_of_older_runs(chat, workflow, seeds):
    """Recorded before branches were told apart. A path that changes is another seed."""
    assert asyncio.run(played(workflow, chat, 1))[1] == seeds


def test_what_a_server_asks_for_is_in_no_branch(chat):
    """Not even where the workflow has started it in a branch: its handlers answer whichever
    trajectory a client belongs to."""

    async def workflow(task, roles, tools):
        async def handle(reader, writer):
            await asyncio.create_task(branch(roles, (await reader.readline()).decode()))
            writer.close()

        async def client(k):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(f"{k}\n".encode())
            await reader.read()
            writer.close()

        async def started():
            await roles.voter(q="begin")
            return await asyncio.start_server(handle, "127.0.0.1", 0)

        async with await asyncio.create_task(started()) as server:
            await asyncio.gather(*(client(k) for k in range(3)))

    trajectory, _ = asyncio.run(played(workflow, chat, 1))
    twins = [action.path for action in trajectory.actions if action.role == "critic"]
    assert twins == [twins[0], f"{twins[0]}+1", f"{twins[0]}+2"]
