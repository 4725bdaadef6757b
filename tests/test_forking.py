"""A recorded trajectory said again, and forked: over simulated engines, without processes."""

import asyncio
import dataclasses
import json
import random
from statistics import fmean, stdev
from types import SimpleNamespace

import pytest
from simulated import CharacterChat, simulated_engine
from simulated_run import simulated_trainer

from marl_plugins.commands.fork.effects import effect_of
from marl_plugins.core.steps import StepPart
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Generation, Task, ToolResult
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

    def __init__(self, workflow, names, tools=(), turns=1, chat=None, outcome=None):
        engine, self.noise, self.asked = simulated_engine(), random.Random(3), []

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
        t = await self.rollout.one(TASK, 0, sample, 1, self.rollout.score_action)
        return from_record(json.loads(json.dumps(to_record(t))))

    def original(self, trajectory):
        return Original(self.rollout, trajectory, TASK, self.rollout.cast(TASK, trajectory.step, 0))


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
        self.step, self.tasks = step, list(step.tasks)
        self.seen, self.completions = arrived, []

    def source(self):
        return self.groups()

    async def groups(self):
        for place, task in enumerate(self.tasks):
            group = [await self.step.trajectory(task, place, sample) for sample in range(2)]
            forks = [
                await self.step.fork(t, t.actions[-1].path, n)
                for t in list(group)
                for n in range(2)
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
        for sample in range(4):
            t = await world.play(sample)
            assert await said_again(world.original(t)) is None
            for action in t.actions:
                one = await fork(world.original(t), action.path, 0)
                assert not one.infrastructure_failure

    asyncio.run(work())


class Shifted(CharacterChat):
    """Another tokenizer: the same ids are other characters."""

    def text(self, ids):
        return super().text([i + 1 if i != ord("^") else i for i in ids])


class OtherPrompt(CharacterChat):
    """Another prompt file, as far as a role sees it."""

    def opening(self, messages):
        return super().opening([{**m, "content": f"Please: {m['content']}"} for m in messages])


async def race(task, roles, tools):
    """Whoever answers first goes on."""
    votes = [asyncio.ensure_future(roles.voter(q=task.prompt, k=k)) for k in range(3)]
    done, _ = await asyncio.wait(votes, return_when=asyncio.FIRST_COMPLETED)
    return await roles.judge(a=next(v for v in votes if v in done).result())


def dice():
    draw = random.Random(5)

    async def work(task, roles, tools):
        first = await roles.voter(q=task.prompt)
        return await roles.judge(a=first, n=draw.randrange(4))

    return work


def remembering():
    seen = {}

    async def work(task, roles, tools):
        first = await roles.voter(q=task.prompt)
        seen[str(first)] = seen.get(str(first), 0) + 1
        return await roles.judge(a=first, n=seen[str(first)])

    return work


def clock():
    ticks = iter(range(1_000_000))

    async def run(call):
        return ToolResult("clock", call.text, str(next(ticks)), ok=True)

    return Tool("clock", run, find=lambda text: [text[:1]] if text else [])


def changed(record):
    """One id of the first answer is another one."""
    record["actions"][0]["ids"][0] += 1
    return record


OUTCOMES = {"other": lambda t: asyncio.sleep(0, 1.0 - float((t.answer or "z")[0] < "8"))}
SABOTEURS = {
    "a tool that tells the time": lambda: [World(timed, VOTERS, [clock()], turns=2)] * 2,
    "random numbers in the workflow": lambda: [World(dice(), VOTERS)] * 2,
    "a race": lambda: [World(race, VOTERS)] * 2,
    "a workflow that remembers": lambda: [World(remembering(), VOTERS)] * 2,
    "another prompt": lambda: [World(timed, VOTERS), World(timed, VOTERS, chat=OtherPrompt())],
    "another tokenizer": lambda: [World(timed, VOTERS), World(timed, VOTERS, chat=Shifted())],
    "another grader": lambda: [
        World(timed, VOTERS),
        World(timed, VOTERS, outcome=OUTCOMES["other"]),
    ],
    "another sample's tool": lambda: [World(timed, VOTERS, [seeded()], turns=2)] * 2,
    "an id changed by one": lambda: [World(timed, VOTERS)] * 2,
}


@pytest.mark.parametrize("name", SABOTEURS)
def test_what_depends_on_more_than_words_gives_no_number(name):
    then, now = SABOTEURS[name]()

    async def work():
        for sample in range(6):
            t = await then.play(sample)
            if name == "an id changed by one":
                t = from_record(changed(to_record(t)))
            if name == "another sample's tool":
                t.sample += 1
            why = await said_again(now.original(t))
            if why is None:  # by chance
                for action in t.actions:
                    effect = await effect_of(now.original(t), action, 8, None, asyncio.Semaphore(8))
                    assert effect.refused
            else:
                assert "differ" in why or "was" in why or "asks" in why

    asyncio.run(work())


# A game of known chances, played through the workflow: what forks measure is Q - V.

SAYS = {"planner": {"a": 0.5, "b": 0.3, "c": 0.2}}
"""Chances of the planner's words; the solver's depend on the plan, and the lazy role's on nothing."""
SOLVES = {"a": 0.9, "b": 0.4, "c": 0.1}


async def game(task, roles, tools):
    plan = await roles.planner(q=task.prompt)
    lazy = await roles.lazy(q=plan)
    answer = await roles.solver(q=plan, l=lazy)
    return await roles.writer(q=answer)


def player():
    """A world whose engines draw from the tables by the request's seed; 2 of 10 right answers are
    lost on the way to paper."""
    world = World(game, ("planner", "lazy", "solver", "writer"))

    async def generate(call):
        draw, shown = random.Random(call.seed), CharacterChat().text(call.context_ids)
        word = {
            "planner": lambda: draw.choices(*zip(*SAYS["planner"].items(), strict=True))[0],
            "lazy": lambda: draw.choice("xy"),
            "solver": lambda: "0" if draw.random() < SOLVES[shown[4]] else "9",
            "writer": lambda: shown[4] if draw.random() < 0.8 else "9",
        }[call.role]()
        ids = (*CharacterChat.encode(word), ord("^"))
        return Generation(ids, (-0.5, -0.5), "stop", call.policy, 0)

    world.rollout.generate = generate
    return world


def exact(trajectory, action):
    """Q - V of an action: the expected outcome after its words, less that before them."""
    said = {a.role: a.text for a in trajectory.actions}
    if action.role == "planner":
        value = {plan: 0.8 * chance for plan, chance in SOLVES.items()}
        return value[action.text] - sum(p * value[w] for w, p in SAYS["planner"].items())
    if action.role == "solver":
        return 0.8 * ((action.text == "0") - SOLVES[said["planner"]])
    if action.role == "writer":
        return float(action.text == "0") - 0.8 * (said["solver"] == "0")
    return 0.0


def test_forks_measure_what_an_action_causes():
    async def work():
        world, errors, covered, roles = player(), [], [], []
        for sample in range(16):
            t = await world.play(sample)
            for action in t.actions:
                effect = await effect_of(world.original(t), action, 12, None, asyncio.Semaphore(64))
                truth, (low, high) = exact(t, action), effect.interval()
                errors.append(effect.value - truth)
                covered.append(low - 1e-9 <= truth <= high + 1e-9)
                roles.append(action.role)
                assert effect.arms[0].fixed == (action.role == "writer")
        assert abs(fmean(errors)) < 3 * stdev(errors) / len(errors) ** 0.5
        assert fmean(covered) > 0.93 and len(errors) == 64

    asyncio.run(work())


def test_pairs_vary_less_and_own_words_are_the_recorded_arm():
    async def work():
        world = player()
        t = await world.play(3)
        plan = t.actions[0]
        again = dataclasses.replace(plan.generation)
        effect = await effect_of(world.original(t), plan, 20, again, asyncio.Semaphore(64))
        first, second = (arm.forks for arm in effect.arms)
        assert [to_ids(f) for f in first] == [to_ids(f) for f in second]
        assert len({f.forked for f in (*first, *second)}) == 40
        assert effect.value == 0 and effect.arms[1].name == "as said"
        low, high = effect.paired
        assert low <= 0 <= high and high - low < effect.interval()[1] - effect.interval()[0]

    asyncio.run(work())
