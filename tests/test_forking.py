"""A recorded trajectory said again, and forked: over simulated engines, without processes."""

import asyncio
import json
import random
from types import SimpleNamespace

import pytest
from simulated import CharacterChat, simulated_engine
from simulated_run import simulated_trainer

from marl_plugins.core.steps import StepPart
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Task, ToolResult
from marl_plugins.core.workflow import RoleSpec, Sampling
from marl_plugins.engine.records.trajectory_record import from_record, to_record
from marl_plugins.engine.runtime.forking import Original, fork, said_again
from marl_plugins.engine.runtime.roles import Cast
from marl_plugins.engine.runtime.rollout import Rollout

TASK = Task("t", "p", "l")


class World:
    """A system of a Python workflow, as a session would have it; its engines answer after a while.

    Its outcome is 1 where the workflow's answer begins with one of the letters `0` to `7`.
    """

    def __init__(self, workflow, names, tools=(), turns=1, chat=None, task=TASK, outcome=None):
        engine, self.noise, self.asked, self.task = simulated_engine(), random.Random(3), [], task

        async def generate(run, call, engines):
            self.asked.append(call)
            await asyncio.sleep(self.noise.random() * 0.004)
            return await engine(call)

        async def score(trajectory):
            return float((trajectory.answer or "z")[0] < "8")

        async def judge(action):
            self.judged.append(action.path)
            return 0.25

        self.judged = []
        hook = SimpleNamespace(
            marl_generate=generate,
            marl_score_action=lambda run, action, seen: judge(action),
            marl_score_outcome=lambda run, trajectory: (outcome or score)(trajectory),
        )
        roles = {
            name: RoleSpec(
                name=name,
                policy=name,
                render=lambda f: [
                    {"role": "user", "content": " ".join(f"{k}={v}" for k, v in f.items())}
                ],
                chat=chat or CharacterChat(),
                sampling=Sampling(1.0, 1.0, 8, 4000),
                tools=tuple(tools) if number == 0 else (),
                max_turns=turns if number == 0 else 1,
                endless_tools_fail=False,
            )
            for number, name in enumerate(names)
        }
        run = SimpleNamespace(
            recipe=SimpleNamespace(limits=SimpleNamespace(task_seconds=60.0)),
            args=SimpleNamespace(train=SimpleNamespace(seed=7)),
        )
        pools = dict.fromkeys(names)
        cast = Cast({name: [role] for name, role in roles.items()})
        self.rollout = Rollout(run, SimpleNamespace(hook=hook), workflow, cast, {}, pools)

    async def play(self, sample=0):
        """A trajectory as its record says it."""
        t = await self.rollout.one(self.task, 0, sample, 1, self.rollout.score_action)
        return from_record(json.loads(json.dumps(to_record(t))))

    def original(self, trajectory):
        return Original(
            self.rollout, trajectory, self.task, self.rollout.cast(self.task, trajectory.step, 0)
        )


async def chain(task, roles, tools):
    plan = await roles.planner(q=task.prompt)
    votes = await asyncio.gather(*(roles.voter(plan=plan, k=k % 2) for k in range(4)))
    return await roles.judge(**{f"v{k}": vote for k, vote in enumerate(votes)})


ROLES = ("planner", "voter", "judge")


def test_a_record_is_said_again_and_a_fork_goes_on_live_from_one_action():
    world = World(chain, ROLES)

    async def work():
        t = await world.play()
        assert await said_again(world.original(t)) is None
        for target in t.actions:
            world.asked.clear(), world.judged.clear()
            forks = [
                await fork(
                    world.original(t), target.path, n, score_action=world.rollout.score_action
                )
                for n in (0, 0, 1)
            ]
            first, same, other = forks
            assert to_ids(first) == to_ids(same) != to_ids(other)
            assert first.forked == (target.path, 0) and first.sample == t.sample
            live = t.descendants(target.path)
            before = {a.path: a for a in t.actions if a.path not in live}
            for each in forks:
                replayed = {a.path: a for a in each.actions if a.replayed}
                assert replayed.keys() == before.keys()
                assert all(a.score == 0.25 for a in each.actions)
                assert [a.generation for a in replayed.values()] == [
                    before[path].generation for path in replayed
                ]
                assert target.path in {a.path for a in each.actions}
            assert not before.keys() & {*world.judged} and len(world.judged) == 3 * len(live)
            assert not before.keys() & {call.path for call in world.asked}
            assert {call.sample for call in world.asked} == {t.sample}
            assert not {call.seed for call in world.asked} & seeds_of(t)

    def seeds_of(t):
        from marl_plugins.core.seeds import derive_seed

        return {derive_seed(7, 1, t.task.id, t.sample, a.path) for a in t.actions}

    asyncio.run(work())


def to_ids(trajectory):
    return {a.path: a.generation.ids for a in trajectory.actions}


def test_given_words_are_said_and_what_follows_is_live():
    world = World(chain, ROLES)

    async def work():
        t = await world.play()
        planner, *_ = t.actions
        again = await fork(world.original(t), planner.path, 0, planner.generation)
        assert again.actions[0].generation == planner.generation and again.actions[0].replayed
        assert to_ids(again).keys() > {planner.path} and to_ids(again) != to_ids(t)
        assert not any(a.replayed for a in again.actions[1:])
        other = await fork(world.original(t), planner.path, 0)
        words = other.actions[0].generation
        said = await fork(world.original(t), planner.path, 1, words)
        assert said.actions[0].text == other.actions[0].text != planner.text

    asyncio.run(work())


def test_the_record_of_a_fork_is_read_back_and_that_of_others_says_nothing_of_forks():
    world = World(chain, ROLES)

    async def work():
        t = await world.play()
        assert "forked" not in to_record(t) and "replayed" not in json.dumps(to_record(t))
        one = await fork(world.original(t), t.actions[-1].path, 5)
        read = from_record(json.loads(json.dumps(to_record(one))))
        assert read.forked == one.forked
        assert [a.replayed for a in read.actions] == [a.replayed for a in one.actions]
        assert read.name.endswith(f"/{one.actions[-1].path}:5")
        with pytest.raises(ValueError, match="not sampled as a whole"):
            world.original(read)
        with pytest.raises(ValueError, match="no action"):
            await fork(world.original(t), "nobody.1", 0)

    asyncio.run(work())


class Forks(StepPart):
    """Yields every sample of a task with two forks of its last action."""

    def __init__(self, step, arrived):
        self.step, self.seen, self.completions = step, arrived, []

    def source(self):
        return self.groups()

    async def groups(self):
        for place, task in enumerate(self.step.planned(self.step.number)):
            group = [await self.step.trajectory(task, place, sample) for sample in range(2)]
            forks = [
                await self.step.fork(t, t.actions[1].path, n) for t in list(group) for n in range(2)
            ]
            group += forks
            yield group[::-1]

    def completed(self, trajectories):
        self.completions.append([(t.task.id, t.sample, t.forked) for t in trajectories])
        return ()

    def metrics(self):
        self.seen += [self]
        return {}


def test_a_running_step_forks_its_trajectories_which_train_and_count_apart(tmp_path):
    async def two_calls(task, roles, tools):
        first = await roles.a(q=task.prompt)
        return await roles.a(q=first)

    parts, played = [], set()

    def outcome(t):
        """The originals' mean is 0.5, and every fork fails."""
        first = (t.task.id, t.sample) not in played
        played.add((t.task.id, t.sample))
        return float(first and t.sample)

    trainer = simulated_trainer(
        tmp_path,
        outcome,
        steps=1,
        eval_steps=-1,
        tasks=3,
        samples=2,
        workflow=two_calls,
    )
    trainer.plugins.parts.append(lambda step: Forks(step, parts))
    asyncio.run(trainer.fit(0))
    lines = list(map(json.loads, (tmp_path / "trajectories.jsonl").read_text().splitlines()))
    forks = [t for t in lines if "forked" in t]
    assert len(lines) == 18 and len(forks) == 12
    for place in range(3):
        keys = [(t["sample"], t.get("forked", ["", 0])) for t in lines[6 * place :][:6]]
        assert keys == sorted(keys)
        assert len({t["task"] for t in lines[6 * place :][:6]}) == 1
    (part,) = parts
    assert [len(done) for done in part.completions] == [2, 2, 2]
    assert not any(forked for done in part.completions for *_, forked in done)
    metrics = json.loads((tmp_path / "metrics.jsonl").read_text())
    assert metrics["outcome/mean"] == metrics["role/a/outcome"] == 0.5
    ledger = json.loads((tmp_path / "ledger.jsonl").read_text())
    assert ledger["roles"]["a"] == {"generated": 36, "trained": 24, "left_out": {"replayed": 12}}


# What cannot be said again. Each saboteur is a system that depends on more than on words.


def twins(after):
    """Branches that reach the same question after a wait."""

    async def work(task, roles, tools):
        async def branch(k):
            vote = await roles.voter(q=task.prompt, k=k)
            return await roles.critic(q=task.prompt, **({"after": [vote]} if after else {}))

        answers = await asyncio.gather(*(branch(k) for k in range(3)))
        return await roles.judge(a=answers[0], b=answers[1], c=answers[2])

    return work


async def hidden(task, roles, tools):
    """Whose words decide who is asked, and are shown to nobody."""
    first = await roles.voter(q=task.prompt)
    return await (roles.critic if str(first)[0] < "8" else roles.judge)(q=task.prompt)


def seeded():
    async def run(call):
        said = random.Random(f"{call.task}/{call.sample}/{call.step}").random()
        return ToolResult("env", call.text, str(said)[:6], ok=True)

    return Tool("env", run, find=lambda text: [text[:1]] if text else [])


async def timed(task, roles, tools):
    first = await roles.voter(q=task.prompt)
    return await roles.judge(a=first)


VOTERS = ("voter", "critic", "judge")


@pytest.mark.parametrize(
    "make",
    [
        lambda: World(twins(False), VOTERS),
        lambda: World(twins(True), VOTERS),
        lambda: World(hidden, VOTERS),
        lambda: World(timed, VOTERS, [seeded()], turns=2),
    ],
    ids=["twins", "twins with after=", "control by words", "a tool seeded by the sample"],
)
def test_what_depends_on_words_alone_is_said_again(make):
    world = make()

    async def work():
        for sample in range(10):
            t = await world.play(sample)
            assert await said_again(world.original(t)) is None
            for action in t.actions:
                one = await fork(world.original(t), action.path, 0)
                assert not one.infrastructure_failure

    asyncio.run(work())
