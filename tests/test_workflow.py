"""Workflows on a simulated engine: graphs, seeds, tools, failures. The real engines are in
tests/engines."""

import asyncio
import contextlib
import gc
import time
from types import SimpleNamespace

import pytest
from simulated import simulated_engine, without_seconds

from marl_plugins.core.failures import AgentFailure, InfrastructureFailure, RunPaused
from marl_plugins.core.scoring import SeenLast
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Task, ToolResult
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.records.trajectory_record import to_record

TASK = Task("t1", "2+2", "4")


@pytest.fixture(scope="module", autouse=True)
def small_heap():
    """Many tests here look for garbage, and need not look at what is there before them."""
    gc.collect()
    gc.freeze()


def spec(chat, name, **settings):
    sampling = Sampling(1.0, 1.0, settings.pop("max_new_tokens", 16), settings.pop("max_len", 2000))
    return RoleSpec(
        name,
        settings.pop("policy", name),
        lambda f: [{"role": "user", "content": "|".join(f.values())}],
        chat,
        sampling,
        **settings,
    )


def run(workflow, chat, generate=None, roles=("a", "b", "c"), sample=0, seconds=60.0, **more):
    specs = {
        r if isinstance(r, str) else r.name: spec(chat, r) if isinstance(r, str) else r
        for r in roles
    }
    return asyncio.run(
        run_workflow(
            workflow,
            TASK,
            sample,
            step=3,
            run_seed=11,
            roles=specs,
            tools=more.pop("tools", {}),
            generate=generate or simulated_engine(),
            seconds=seconds,
            **more,
        )
    )


async def diamond(task, roles, tools):
    first = await roles.a(q=task.prompt)
    left, right = await asyncio.gather(roles.b(q=first), roles.c(q=first))
    return await roles.a(q="join", left=left, right=right)


async def looping(task, roles, tools):
    answer = await roles.a(q=task.prompt)
    for _ in range(3):
        answer = await roles.b(q=answer)
        if str(answer).startswith("0"):
            break
    return answer


async def branching(task, roles, tools):
    answer = await roles.a(q=task.prompt)
    return await (roles.b if ord(str(answer)[0]) % 2 else roles.c)(q=answer)


def edges(trajectory):
    names = {a.path: f"{a.role}{n}" for n, a in enumerate(trajectory.actions)}
    return {names[a.path]: sorted(names[p] for p in a.parents) for a in trajectory.actions}


def test_a_parallel_workflow_records_its_graph(chat):
    got = run(diamond, chat)
    assert edges(got) == {"a0": [], "b1": ["a0"], "c2": ["a0"], "a3": ["b1", "c2"]}
    assert got.answer == got.actions[-1].text


@pytest.mark.parametrize("workflow", [diamond, looping, branching])
def test_results_do_not_depend_on_arrival_order(chat, workflow):
    calm = without_seconds(to_record(run(workflow, chat)))
    for _ in range(5):
        assert (
            without_seconds(to_record(run(workflow, chat, simulated_engine(delays=True)))) == calm
        )


def test_samples_and_actions_get_their_own_seeds(chat):
    calls = []

    async def keep(call):
        calls.append(call)
        return await simulated_engine()(call)

    run(diamond, chat, keep, sample=0)
    run(diamond, chat, keep, sample=1)
    assert len({c.seed for c in calls}) == len(calls) == 8


def shouting(calls_for=99):
    """A tool that is called in every turn, at most so many times."""
    left = [calls_for]

    def find(text):
        left[0] -= 1
        return [text] if left[0] >= 0 else []

    async def answer(call):
        return ToolResult("shout", call.text, call.text.upper() + "!", ok=True)

    return Tool("shout", answer, find)


@pytest.mark.parametrize("joined", [list, tuple])
def test_a_list_of_actions_and_texts_is_joined_and_its_actions_are_dependencies(chat, joined):
    async def listing(task, roles, tools):
        left, right = await asyncio.gather(roles.a(q="1"), roles.a(q="2"))
        return [left, "and", await roles.b(q=joined([left, "or", right]))]

    got = run(listing, chat)
    left, right = sorted(got.actions[:2], key=lambda a: a.shown)
    assert got.actions[2].shown == (("user", f"{left}\n\nor\n\n{right}"),)
    assert set(got.actions[2].parents) == {left.path, right.path}
    assert got.answer == f"{left}\n\nand\n\n{got.actions[2]}" and got.returned is None


@pytest.mark.parametrize(
    ("wrap", "kind"),
    [
        (lambda a: {"said": a}, "dict"),
        (lambda a: [[a]], "list"),
        (lambda a: SimpleNamespace(said=(a,)), "SimpleNamespace"),
    ],
)
def test_an_action_in_another_container_is_refused_as_a_field_and_as_an_answer(chat, wrap, kind):
    async def shows(task, roles, tools):
        return await roles.b(q=wrap(await roles.a(q="x")))

    async def returns(task, roles, tools):
        return wrap(await roles.a(q="x"))

    with pytest.raises(
        TypeError, match=rf"test_workflow\.py:\d+: role 'b', field 'q': a {kind} that holds actions"
    ):
        run(shows, chat)
    with pytest.raises(TypeError, match=rf"^what run returns: a {kind} that holds actions"):
        run(returns, chat)


@pytest.mark.parametrize("use", [str, lambda call: [call], lambda call: None])
def test_a_call_that_nobody_awaits_ends_the_run_with_its_place(chat, use, recwarn):
    async def forgets(task, roles, tools):
        use(roles.b(q="forgotten"))
        return await roles.a(q="x")

    line = forgets.__code__.co_firstlineno + 1
    with pytest.raises(TypeError, match=rf"test_workflow\.py:{line}: role 'b' .* nobody awaits it"):
        run(forgets, chat)
    gc.collect()
    assert not recwarn


async def one(task, roles, tools):
    return await roles.a(q=task.prompt)


def test_turns_extend_each_other_token_for_token(chat):
    shown = []

    async def keep(call):
        shown.append(call.context_ids)
        return await simulated_engine()(call)

    got = run(one, chat, keep, roles=[spec(chat, "a", tools=(shouting(2),), max_turns=5)])
    assert [a.turn for a in got.actions] == [0, 1, 2]
    for action, context in zip(got.actions, shown, strict=True):
        assert action.context_ids == context  # what is trained on is what was shown
    for last, action in zip(got.actions, got.actions[1:], strict=False):
        assert action.before is last
        assert action.context_ids[: len(last.context_ids)] == last.context_ids
        assert (
            action.context_ids[len(last.context_ids) :][: len(last.generation.ids)]
            == last.generation.ids
        )
        assert chat.text(action.shown_ids).startswith(f"u:{last.text.upper()}!")
    assert got.actions[-1].tool_results == ()


def test_or_the_workflow_goes_on_with_its_last_turn(chat):
    got = run(
        one,
        chat,
        roles=[spec(chat, "a", tools=(shouting(),), max_turns=3, endless_tools_fail=False)],
    )
    assert got.agent_failure is None
    assert got.answer == got.actions[-1].text


def test_a_prompt_over_the_context_is_the_agents_failure(chat):
    got = run(one, chat, roles=[spec(chat, "a", max_len=4)])
    assert got.agent_failure == "context"
    assert "room in 4" in got.detail


def test_generation_is_cut_to_the_context(chat):
    limits = []

    async def keep(call):
        limits.append(call.max_tokens)
        return await simulated_engine()(call)

    run(one, chat, keep, roles=[spec(chat, "a", max_len=15, max_new_tokens=100)])
    assert limits == [15 - len(chat.opening([{"role": "user", "content": "2+2"}]))]


async def dead(call):
    raise InfrastructureFailure("engine", "no engine left")


def test_a_dead_engine_loses_the_trajectory_and_scores_nothing(chat):
    got = run(one, chat, dead)
    assert (got.infrastructure_failure, got.agent_failure, got.outcome) == ("engine", None, None)


def test_a_deadline_loses_the_trajectory(chat):
    async def slow(call):
        await asyncio.sleep(600)

    started = time.monotonic()
    got = run(one, chat, slow, seconds=0.05)
    assert got.infrastructure_failure == "deadline"
    assert time.monotonic() - started < 60


def test_a_time_out_of_the_recipes_own_is_not_taken_for_the_deadline(chat):
    async def impatient(task, roles, tools):
        async with asyncio.timeout(0.01):
            await asyncio.sleep(1)

    with pytest.raises(TimeoutError):
        run(impatient, chat)


@pytest.mark.parametrize("delays", [False, True])
def test_when_one_branch_fails_the_others_end_on_their_own(chat, delays):
    async def fails_in_one_branch(task, roles, tools):
        async def bad():
            await roles.a(q="x")
            raise AgentFailure("no_answer", "none")

        async def long():
            answer = await roles.b(q="x")
            for _ in range(3):
                answer = await roles.b(q=answer)

        await asyncio.gather(bad(), long())

    got = run(fails_in_one_branch, chat, simulated_engine(delays))
    assert got.agent_failure == "no_answer"
    assert [a.role for a in got.actions].count("b") == 4  # whatever the timing


def test_scoring_overlaps_with_the_rollout_and_sees_a_frozen_past(chat):
    seen_at_scoring = {}

    async def score(action, seen):
        await asyncio.sleep(0.01)
        seen_at_scoring[action.path] = [a.path for a in seen.before]
        assert not hasattr(seen, "label")
        return 0.5

    got = run(diamond, chat, score_action=score)
    assert all(a.score == 0.5 for a in got.actions)
    first, last = got.actions[0], got.actions[-1]
    assert seen_at_scoring[first.path] == []
    assert len(seen_at_scoring[last.path]) == 3


def test_a_score_out_of_range_is_a_bug_of_the_scorer(chat):
    async def score(action, seen):
        return 8.0

    with pytest.raises(ValueError, match=r"is 8\.0; scores lie in \[0, 1\]"):
        run(one, chat, score_action=score)


def test_a_verdict_that_cannot_be_had_is_missing(chat):
    async def score(action, seen):
        raise InfrastructureFailure("coach", "down")

    got = run(one, chat, score_action=score)
    assert got.actions[0].score is None
    assert got.infrastructure_failure is None


def test_a_branch_that_the_workflow_has_handled_is_not_raised_later(chat):
    async def handles(task, roles, tools):
        async def wrong():
            await roles.a(q="x")
            raise ValueError("handled")

        async def slow():
            await roles.b(q="y")
            await asyncio.sleep(5)

        await asyncio.gather(wrong(), return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(slow(), 0.02)
        raise AgentFailure("no_answer", "none")

    got = run(handles, chat)
    assert got.agent_failure == "no_answer"


async def never(task, roles):
    asyncio.create_task(roles.b(q="left"))  # noqa: RUF006


async def never_but_over(task, roles):
    await asyncio.wait([asyncio.create_task(roles.b(q="left"))])


async def asked(task, roles):
    (done,), _ = await asyncio.wait([asyncio.create_task(roles.b(q="left"))])
    assert done.exception()


async def gathered(task, roles):
    with contextlib.suppress(AgentFailure):
        await asyncio.gather(roles.c(q="fails at once"), roles.b(q="left"))


async def cancelled(task, roles):
    asyncio.create_task(roles.b(q="left")).cancel()


@pytest.mark.parametrize(
    ("leave", "heard"),
    [(never, False), (never_but_over, False), (asked, True), (gathered, True), (cancelled, True)],
)
@pytest.mark.parametrize("seconds", [0.0, 0.02])
@pytest.mark.parametrize(
    "failure",
    [AgentFailure("context", "full"), InfrastructureFailure("engine", "dead"), ValueError("bug")],
)
def test_what_a_task_raises_that_nobody_asks_is_the_trajectorys_own(
    chat, caplog, leave, heard, seconds, failure
):
    """Whether it fails before or after the workflow has ended."""
    simulated = simulated_engine()

    async def generate(call):
        if call.role == "c":
            raise AgentFailure("context", "full")
        if call.role == "b":
            await asyncio.sleep(seconds)
            raise failure
        return await simulated(call)

    async def work(task, roles, tools):
        first = await roles.a(q=task.prompt)
        await leave(task, roles)
        return first

    if not heard and isinstance(failure, ValueError):
        with pytest.raises(ValueError, match="bug"):
            run(work, chat, generate)
    else:
        got = run(work, chat, generate)
        assert got.agent_failure == (
            None if heard or not isinstance(failure, AgentFailure) else "context"
        )
        assert got.infrastructure_failure == (
            None if heard or isinstance(failure, AgentFailure) else "engine"
        )
    gc.collect()
    assert not caplog.records


def test_a_task_that_is_left_running_comes_to_its_own_end(chat):
    """Which of its actions exist is no matter of timing."""
    simulated = simulated_engine()

    async def generate(call):
        await asyncio.sleep(0.02 if call.role == "b" else 0)
        return await simulated(call)

    async def twice(roles):
        await roles.b(q=await roles.b(q="left"))

    async def work(task, roles, tools):
        task = asyncio.create_task(twice(roles))
        first = await roles.a(q="x")
        return first if task else None

    assert [action.role for action in run(work, chat, generate).actions] == ["a", "b", "b"]


@pytest.mark.parametrize(
    ("raised", "agent", "infrastructure"),
    [
        (AgentFailure("no_answer", "none"), "no_answer", None),
        (InfrastructureFailure("engine", "gone"), None, "engine"),
    ],
)
def test_failures_inside_a_task_group_are_failures(chat, raised, agent, infrastructure):
    async def grouped(task, roles, tools):
        async def branch():
            await roles.a(q="x")
            raise raised

        async with asyncio.TaskGroup() as group:
            group.create_task(branch())
            group.create_task(roles.b(q="x"))

    got = run(grouped, chat)
    assert (got.agent_failure, got.infrastructure_failure) == (agent, infrastructure)


def test_what_ends_the_run_does_so_from_inside_a_task_group(chat):
    """A policy's process that died, found by one branch of several: the run ends in a state that
    can be resumed."""

    async def died(call):
        raise RunPaused("the key is refused")

    async def grouped(task, roles, tools):
        async with asyncio.TaskGroup() as group:
            for q in "xy":
                group.create_task(roles.a(q=q))

    with pytest.raises(RunPaused, match="the key is refused"):
        run(grouped, chat, died)


def test_parallel_calls_that_differ_are_named_by_what_they_saw_not_by_who_was_first(chat):
    def workflow(waits):
        async def run(task, roles, tools):
            async def branch(i):
                await asyncio.sleep(waits[i])
                return await roles.b(q=f"item {i}")

            await asyncio.gather(branch(0), branch(1))

        return run

    one, other = run(workflow([0, 0.02]), chat), run(workflow([0.02, 0]), chat)
    assert [(a.path, a.text) for a in one.actions] == [(a.path, a.text) for a in other.actions]
    assert len({a.path for a in one.actions}) == 2


def test_no_branch_outlives_its_trajectory(chat):
    late = []

    async def slow(call):
        await asyncio.sleep(0.05)
        return ToolResult("slow", call, "", ok=True)

    async def workflow(task, roles, tools):
        async def branch():
            await asyncio.sleep(0.05)  # nobody knows of it yet
            try:
                late.append(await roles.b(q="late"))
            except asyncio.CancelledError:
                late.append("cancelled")
                raise

        async def fail():
            raise AgentFailure("no_answer", "x")

        await asyncio.gather(branch(), fail())

    async def main():
        specs = {"b": spec(chat, "b")}
        got = await run_workflow(
            workflow,
            TASK,
            0,
            step=1,
            run_seed=1,
            roles=specs,
            tools={},
            generate=simulated_engine(),
            seconds=60,
        )
        await asyncio.sleep(0.1)
        return got

    got = asyncio.run(main())
    assert got.agent_failure == "no_answer"
    assert not got.actions and late == ["cancelled"]


def test_what_is_lost_to_infrastructure_is_not_also_the_agents_failure(chat):
    async def down(call):
        await asyncio.sleep(0.02)
        raise InfrastructureFailure("tool", "is down")

    async def workflow(task, roles, tools):
        async def fail():
            raise AgentFailure("no_answer", "x")

        async def branch():
            await roles.a(q="x")
            await tools.down("y")

        await asyncio.gather(branch(), fail())

    got = run(workflow, chat, tools={"down": Tool("down", down, lambda text: [])})
    assert (got.infrastructure_failure, got.agent_failure) == ("tool", None)


def test_only_the_last_action_of_the_last_role_is_scored_with_the_label(chat):
    seen_by = {}

    async def score(action, seen):
        seen_by[action.path] = seen
        return 0.5

    async def workflow(task, roles, tools):
        for _ in range(2):
            draft = await roles.a(q=task.prompt)
            verdict = await roles.b(q=draft)
        return verdict

    got = run(workflow, chat, score_action=score, last_role="b", roles=("a", "b"))
    with_label = [path for path, seen in seen_by.items() if hasattr(seen, "label")]
    last = [a for a in got.actions if a.role == "b" and str(a) == got.answer][-1]
    assert with_label == [last.path]
    assert isinstance(seen_by[last.path], SeenLast) and seen_by[last.path].label == TASK.label
    assert len(seen_by) == 4 and all(a.score == 0.5 for a in got.actions)


def test_a_scorer_sees_what_the_action_depended_on_whatever_runs_beside_it(chat):
    """The same past however long the branches take: no scores, tools' answers included."""

    def views(delays):
        seen_by = {}

        async def score(action, seen):
            await asyncio.sleep(0.01)
            seen_by[action.path] = [(a.path, a.score, a.text) for a in seen.before]
            return 1.0

        for _ in range(3):
            run(diamond, chat, simulated_engine(delays), score_action=score)
        return {path: sorted(before) for path, before in seen_by.items()}

    assert views(False) == views(True)
    assert all(score is None for before in views(False).values() for _, score, _ in before)


def test_a_score_that_does_not_come_in_time_is_missing_and_takes_no_other_with_it(chat):
    async def score(action, seen):
        await asyncio.sleep(30 if action.role == "b" else 0)
        return 0.5

    async def workflow(task, roles, tools):
        return await roles.b(q=await roles.a(q=task.prompt))

    got = run(workflow, chat, score_action=score, seconds=2.0)
    assert got.infrastructure_failure is None
    assert [(a.role, a.score, a.unscored) for a in got.actions] == [
        ("a", 0.5, ""),
        ("b", None, "deadline"),
    ]
