"""A coach that is trained, in the real trainer over simulated engines: its verdicts reach its
policy as rows in every N-th step."""

import asyncio
import json
from types import MethodType, SimpleNamespace

import numpy
import pytest
from openai_server import verdict
from simulated import CharacterChat, make_trajectory
from simulated_run import SimulatedPolicy, simulated_trainer

from marl_plugins import coach
from marl_plugins.asking.asker import policy_asker
from marl_plugins.asking.askers import Askers
from marl_plugins.coach.lessons import JudgeTraining
from marl_plugins.coach.model import PROMPTS, Questions, read_prompt
from marl_plugins.coach.state import CoachState
from marl_plugins.coach.training import JudgeAnswer, TrainedCoach, rewards
from marl_plugins.core.failures import RunPaused
from marl_plugins.core.run import Answer, EngineConnection, Run
from marl_plugins.core.trajectory import Generation
from marl_plugins.core.workflow import Sampling
from marl_plugins.engine.runtime.questions import make_ask
from marl_plugins.engine.runtime.waiting import save_waiting


def judged_trainer(folder, say, every, samples=2, workflow=None, **more):
    """A trainer whose coach is the trained policy `judge`; `say(prompt, version)` is what that
    answers.

    What is handed to updates is in `trainer.updates`, by step.
    """
    outcome = lambda t: float(t.sample % 2 == 0)  # noqa: E731
    settings = {"workflow": workflow} if workflow else {}
    trainer = simulated_trainer(folder, outcome, eval_steps=0, samples=samples, **settings, **more)
    run, hook, chat = trainer.run, trainer.plugins.hook, CharacterChat()
    judge = trainer.session.policies["judge"] = SimulatedPolicy("judge", train_every=every)
    trainer.session.rollout.pools["judge"] = None
    run.args.coach = SimpleNamespace(ground_truth="last", debias=False, max_missing=1.0)
    run.sample, run._answer = MethodType(Run.sample, run), MethodType(Run._answer, run)
    state, agents = run.state(CoachState), hook.marl_generate

    async def generate(run, call, engines):
        if call.policy != "judge":
            return await agents(run, call, engines)
        assert call.sampling.temperature == 0.7
        ids = CharacterChat.encode(say("".join(map(chr, call.context_ids)), judge.version))
        return Generation(ids, tuple(-0.25 for _ in ids), "stop", "judge", judge.version)

    async def update(run, policy, prepared, steps, step):
        trainer.updates.setdefault(step, {})[policy.name] = prepared
        return {"optimiser_steps": 1.0}

    async def chain(name, value, check=None, **arguments):
        return (
            getattr(coach, name)(value, run)
            if name in ("marl_credit", "marl_credit_step")
            else value
        )

    samplings = {"judge": Sampling(0.7, 1.0, None, 8192)}
    run.state(EngineConnection).ask = make_ask(
        trainer.session.rollout.generate, {"judge": chat}, samplings, 1
    )
    asker = policy_asker(run, "judge", prefix="coach", max_tokens=512, deadline=60.0)
    prompts = tuple(
        read_prompt(PROMPTS / f"{n}.md", with_label=n != "action")
        for n in ("action", "last_action")
    )
    state.coach = TrainedCoach(asker, Questions(prompts, {"a": ""}), "judge", state.said)
    run.state(Askers).by_member[""] = asker
    trainer.updates = {}
    hook.marl_generate, hook.marl_update, trainer.plugins.chain = generate, update, chain
    hook.marl_score_action = lambda run, action, seen: coach.marl_score_action(run, action, seen)
    trainer.plugins.parts.append(lambda step: JudgeTraining(state, step))
    hook.marl_log = lambda run, step, metrics: coach.marl_log(run, metrics)
    return trainer


def opinion(prompt, version):
    """A verdict that depends on what is judged, and on the version."""
    said = prompt.rpartition("SCORE ")[0]
    return verdict({"messages": [{"content": prompt}]}, (sum(map(ord, said)) + 3 * version) % 11)


def lines(folder, name):
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text().splitlines()]


def whitened(values, tokens):
    """Independently: of rows of so many tokens, as REINFORCE++ has it."""
    each = numpy.repeat(values, tokens)
    return (numpy.array(values) - each.mean()) / numpy.sqrt(max(each.var(), 1e-8))


def test_verdicts_reach_the_judges_policy_with_their_advantages_in_every_nth_step(tmp_path):
    trainer = judged_trainer(tmp_path, opinion, every=2)
    asyncio.run(trainer.fit(0))
    assert {step: sorted(policies) for step, policies in trainer.updates.items()} == {
        n: ["judge", "p"] if n % 2 == 0 else ["p"] for n in range(1, 7)
    }
    assert (
        trainer.session.policies["judge"].version == 3
        and trainer.session.policies["p"].version == 6
    )
    records = lines(tmp_path, "trajectories")
    for step in (2, 4, 6):
        prepared = trainer.updates[step]["judge"]
        mine = [r for r in records if r["step"] == step]
        wanted = rewards([(a["score"], r["outcome"]) for r in mine for a in r["actions"]])
        assert [row.reward for row in prepared.rows] == pytest.approx(wanted)
        assert {row.action.generation.version for row in prepared.rows} == {step // 2 - 1}
        tokens = [len(row.action.generation.ids) for row in prepared.rows]
        assert [row.action.advantage for row in prepared.rows] == pytest.approx(
            whitened(wanted, tokens), rel=1e-4
        )
        for row, item in zip(prepared.rows, prepared.items, strict=True):
            assert (
                tuple(item.sequences.tolist()) == row.action.shown_ids + row.action.generation.ids
            )
            trained = item.advantages[item.action_mask.bool()]
            assert len(trained) == len(row.action.generation.ids) and trained.tolist() == list(
                row.action.advantages
            )


def test_the_agents_learn_what_they_would_with_a_frozen_judge(tmp_path):
    """The judge's rows are in none of their statistics, and its version is that of the whole
    step."""
    found = {}
    for every in (1, 100):
        folder = tmp_path / str(every)
        trainer = judged_trainer(folder, lambda prompt, version: opinion(prompt, 0), every)
        asyncio.run(trainer.fit(0))
        found[every] = [
            [a["advantage"] for r in lines(folder, "trajectories") for a in r["actions"]]
        ]
    assert found[1] == found[100]


def test_the_ledger_and_the_metrics_are_those_of_any_policy(tmp_path):
    trainer = judged_trainer(tmp_path, opinion, every=3, steps=3)
    asyncio.run(trainer.fit(0))
    ledger, metrics = lines(tmp_path, "ledger"), lines(tmp_path, "metrics")
    frozen = {"judge/a": {"generated": 8, "trained": 0, "left_out": {"frozen": 8}}}
    assert [entry["auxiliary"] for entry in ledger[:2]] == [frozen, frozen]
    assert ledger[2]["auxiliary"]["judge/a"]["trained"] == 8
    assert all(set(entry["roles"]) == {"a"} for entry in ledger)
    assert [m.get("policy/judge/optimiser_steps") for m in metrics] == [None, None, 1.0]
    assert all(m["rows/trained"] == 8 for m in metrics)
    for m, entry in zip(
        metrics, zip(*[iter(lines(tmp_path, "trajectories"))] * 8, strict=True), strict=True
    ):
        scores = [(r["actions"][0]["score"], r["outcome"]) for r in entry]
        assert m["coach/trained/judge/a/brier"] == pytest.approx(
            numpy.mean([(s - o) ** 2 for s, o in scores])
        )
        assert m["coach/trained/judge/a/reward"] == pytest.approx(numpy.mean(rewards(scores)))


def test_a_resumed_run_trains_the_judge_in_the_same_steps(tmp_path):
    trainer = judged_trainer(tmp_path, opinion, every=2)
    trainer.session.policies["p"].version, trainer.session.policies["judge"].version = 3, 1
    asyncio.run(trainer.fit(3))
    assert {step: sorted(policies) for step, policies in trainer.updates.items()} == {
        4: ["judge", "p"],
        5: ["p"],
        6: ["judge", "p"],
    }
    whole = judged_trainer(tmp_path / "whole", opinion, every=2)
    asyncio.run(whole.fit(0))
    for step in (4, 6):
        rows = [
            [(r.name, r.reward, r.action.generation) for r in t.updates[step]["judge"].rows]
            for t in (trainer, whole)
        ]
        assert rows[0] == rows[1]


def test_answers_without_a_verdict_are_trained_on_and_infrastructure_is_not(tmp_path):
    """The first question's answer is of no use, the second's is; a step without any verdict teaches
    the judge nothing."""

    def mumbles(prompt, version):
        return opinion(prompt, version) if "That holds no verdict" in prompt else "Hm."

    trainer = judged_trainer(tmp_path, mumbles, every=1, steps=1)
    asyncio.run(trainer.fit(0))
    rows = trainer.updates[1]["judge"].rows
    assert len(rows) == 16 and [row.reward for row in rows if row.action.text == "Hm."] == [0.0] * 8
    assert all(row.reward > 0 for row in rows if row.action.text != "Hm.")
    (metrics,) = lines(tmp_path, "metrics")
    assert metrics["coach/trained/judge/a/unreadable"] == 0.5 and metrics["coach/missing"] == 0.0
    trainer = judged_trainer(tmp_path / "never", lambda prompt, version: "Hm.", every=1, steps=1)
    with pytest.raises(RunPaused, match="infrastructure:coach_verdict"):  # of any agent
        asyncio.run(trainer.fit(0))
    assert "p" not in trainer.updates[1]
    judge = trainer.updates[1]["judge"].rows
    assert {row.reward for row in judge} == {0.0} and max(
        abs(row.action.advantage) for row in judge
    ) < 1e-6


def test_identical_questions_are_one_row(tmp_path):
    """All samples give the same answer, so the judge is asked, and says, the same."""

    async def same(task, roles, tools):
        return await roles.a(q="the same")

    trainer = judged_trainer(tmp_path, opinion, every=1, steps=1, workflow=same, tasks=1, samples=6)
    agents = trainer.plugins.hook.marl_generate

    async def generate(run, call, engines):
        g = await agents(run, call, engines)
        return (
            g
            if call.policy == "judge"
            else Generation((120, 94), (-0.5, -0.5), "stop", "p", g.version)
        )

    trainer.plugins.hook.marl_generate = generate
    asyncio.run(trainer.fit(0))
    (row,) = trainer.updates[1]["judge"].rows
    score = lines(tmp_path, "trajectories")[0]["actions"][0]["score"]
    assert row.reward == pytest.approx(numpy.mean(rewards([(score, o) for o in (1.0, 0.0) * 3])))
    assert lines(tmp_path, "ledger")[0]["auxiliary"]["judge/a"]["left_out"] == {"repeated": 5}


def test_what_a_judge_has_said_waits_with_its_rollout_in_a_saved_step_too(tmp_path):
    """Rollouts during updates: the judge learns from the same verdicts, in a run that is resumed as
    well."""
    whole = judged_trainer(tmp_path / "whole", opinion, 1, queue=1)
    asyncio.run(whole.fit(0))
    assert {
        step: {row.action.generation.version for row in of["judge"].rows}
        for step, of in whole.updates.items()
    } == {step: {max(0, step - 2)} for step in range(1, 7)}
    first = judged_trainer(tmp_path / "cut", opinion, 1, queue=1, max_steps=3)
    first.rollouts.last = 6
    asyncio.run(first.fit(0))
    (path,) = save_waiting(tmp_path, 3, first.rollouts.waiting)
    second = judged_trainer(tmp_path / "cut", opinion, 1, queue=1)
    for policy in second.session.policies.values():
        policy.version = 3
    second.saving.checkpoints = SimpleNamespace(folder=tmp_path)
    second.restore(3, {str(path.relative_to(tmp_path))})
    assert second.rollouts.waiting.keys() == {4} and second.run.state(CoachState).verdicts
    asyncio.run(second.fit(3))

    def trained(trainer, policy):
        rows = [row for step in (4, 5, 6) for row in trainer.updates[step][policy].rows]
        return [(row.name, row.reward, row.action.generation) for row in rows]

    assert trained(second, "p") == trained(whole, "p") and trained(second, "judge") == trained(
        whole, "judge"
    )
    judged = [
        f"coach/{name}" for name in ("a/score", "a/spread", "agreement", "trained/judge/a/brier")
    ]
    told, again = (lines(tmp_path / name, "metrics") for name in ("whole", "cut"))
    assert [[m[name] for name in judged] for m in again] == [
        [m[name] for name in judged] for m in told
    ]
    assert not second.run.state(CoachState).verdicts and not second.run.state(CoachState).said


def test_what_a_judge_said_too_many_versions_ago_is_left_out(tmp_path):
    trainer = judged_trainer(tmp_path, opinion, 1, queue=1)
    state = trainer.run.state(CoachState)
    trainer.plugins.parts[:] = [lambda step: JudgeTraining(state, step, lag=0)]
    asyncio.run(trainer.fit(0))
    left = [line["auxiliary"]["judge/a"]["left_out"] for line in lines(tmp_path, "ledger")]
    assert {step for step, of in trainer.updates.items() if "judge" in of} == {1, 3, 5}
    assert ["stale" in reasons for reasons in left] == [False, True] * 3


def test_what_was_said_of_a_fork_is_read_again():
    """A fork has the place, sample and paths of its original."""
    original, fork = (make_trajectory({"a": ()}) for _ in range(2))
    fork.forked = ("a", 1)
    state, step = CoachState(), SimpleNamespace(trajectories=[original, fork])
    training = JudgeTraining(state, step)
    for _, action in training.actions:
        answer = Answer((1,), Generation((2,), (-0.5,), "stop", "judge", 3), "said")
        state.said[action] = [JudgeAnswer("judge", action, answer, 0.5)]
    before, record = dict(state.said), json.loads(json.dumps(training.record()))
    state.said.clear()
    training.restore(record)
    assert state.said == before and len(before) == 2
