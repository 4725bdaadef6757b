"""What a run counts and writes: losses beside the means, tokens, signal, evaluations, the circuit
breaker."""

import asyncio
import json
import math
import re
from collections import Counter
from types import SimpleNamespace

import pytest
import torch
from simulated import make_trajectory

from marl_plugins.core.estimators import Estimator
from marl_plugins.core.failures import AgentFailure, InfrastructureFailure, RunEnded, RunPaused
from marl_plugins.core.ledger import Ledger, lost_trajectories, unscored_actions
from marl_plugins.core.rows import Row
from marl_plugins.core.sequences import sequences_of
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import ToolResult
from marl_plugins.engine.records.trajectory_record import from_record
from marl_plugins.engine.records.write import KEPT_TASKS, cut_back
from marl_plugins.engine.runtime.circuit_breaker import CircuitBreaker
from marl_plugins.engine.runtime.metrics import held_out, remarks, signal, summary, update_metrics

simulated = pytest.importorskip("simulated_run")
from marl_plugins.engine.processes.weighing_trainer import without_fill  # noqa: E402
from marl_plugins.engine.runtime.experience import estimate, forwarded, sequence_experience  # noqa: E402

from openrlhf.models.loss import PolicyLoss  # noqa: E402  # isort: skip  # after the host support


def right(trajectory):
    return float(int(trajectory.actions[0].text[0], 16) % 2)


def down(trajectory):
    raise InfrastructureFailure("calculator", "Connection refused")


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def evaluated(*outcomes, task="t"):
    """Trajectories of tasks with one sample each; None is lost."""
    made = []
    for n, outcome in enumerate(outcomes):
        t = make_trajectory({"a": []}, task=f"{task}{n}")
        t.outcome = outcome
        if outcome is None:
            t.lose("calculator", "Connection refused")
        made.append(t)
    return made


# --- evaluations
# --------------------------------------------------------------------------------------------------


def test_lost_trajectories_are_in_no_mean():
    got = held_out(evaluated(1.0, 1.0, None, 0.0))
    assert got["eval/outcome"] == pytest.approx(2 / 3)
    assert (got["eval/tasks"], got["eval/answered"], got["eval/lost"], got["eval/binary"]) == (
        4,
        3,
        1,
        1,
    )
    alone = held_out(evaluated(1.0, 1.0, 0.0))
    assert (got["eval/low"], got["eval/high"]) == (alone["eval/low"], alone["eval/high"])


def test_the_interval_is_over_tasks_and_not_over_samples():
    once, often = (
        evaluated(1.0, 0.0, 0.0, 1.0),
        [t for _ in range(8) for t in evaluated(1.0, 0.0, 0.0, 1.0)],
    )
    got = {name: value for name, value in held_out(often).items() if "@" not in name}
    assert got == held_out(once)


def test_what_no_grader_scored_is_counted_apart():
    found = evaluated(1.0, 0.5)
    found[1].outcome = None
    got = held_out(found)
    assert (got["eval/outcome"], got["eval/lost"], got["eval/unscored"]) == (1.0, 0, 1)


def test_partial_scores_are_no_successes():
    got = held_out(evaluated(*[1.0, 0.5, 0.25] * 4))
    assert (
        got["eval/binary"] == 0
        and 0 < got["eval/low"] < got["eval/outcome"] < got["eval/high"] <= 1
    )


def game(*outcomes):
    """Trajectories with an outcome per role; None: the agents failed."""
    made = []
    for n, scores in enumerate(outcomes):
        t = make_trajectory({"pro": [], "con": []}, task=f"t{n}")
        t.outcomes = scores or {}
        t.outcome = sum(scores.values()) / 2 if scores else 0.0
        t.agent_failure = None if scores else "no_answer"
        made.append(t)
    return made


def test_in_a_zero_sum_game_each_role_has_a_mean_and_the_team_has_none():
    got = held_out(
        game({"pro": 1.0, "con": 0.0}, {"pro": 0.5, "con": 0.5}, {"pro": 1.0, "con": 0.0}, None)
    )
    assert got["eval/outcome/pro"] == 0.625 and got["eval/outcome/con"] == 0.125
    assert "eval/outcome" not in got and got["eval/answered"] == 4
    found = game({"pro": 1.0, "con": 0.0}, {"pro": 0.0, "con": 1.0})
    got = summary(found, Ledger(1))
    assert got["outcome/pro"] == got["outcome/con"] == 0.5 and "outcome/mean" not in got


def test_a_team_of_which_one_is_always_right_and_one_never_has_a_mean():
    found = game(*[{"reader": 1.0, "router": 0.0}] * 3)
    assert held_out(found)["eval/outcome"] == summary(found, Ledger(1))["outcome/mean"] == 0.5


# --- a step
# --------------------------------------------------------------------------------------------------


def test_tokens_count_what_was_generated_and_what_was_trained_on():
    found = evaluated(1.0, None)
    found[0].actions[0].left_out = None
    found[1].actions[0].left_out = "infrastructure:calculator"
    rows = [Row(found[0], found[0].actions[0], 1.0)]
    got = summary(found, Ledger.of(1, found, rows))
    assert (got["tokens/sampled"], got["tokens/trained"], got["trajectories/lost"]) == (4, 2, 1)
    assert got["role/a/actions"] == 1


def rows(*rewards, advantage=0.0):
    """One row per sample of each task: `rewards` are those of its samples."""
    made = []
    for task, samples in enumerate(rewards):
        for sample, reward in enumerate(samples):
            t = make_trajectory({"a": []}, task=f"t{task}", sample=sample)
            t.actions[0].advantages = (advantage, -advantage)
            made.append(Row(t, t.actions[0], reward))
    return made


def test_tasks_without_spread_are_a_share_of_those_with_several_samples():
    assert (
        signal(rows((1.0, 1.0), (0.0, 1.0), (0.0, 0.0), (0.3, 0.3)), None)["signal/flat_tasks"]
        == 0.75
    )
    assert signal(rows((1.0, 1.0), (0.5,)), "task+role")["signal/flat_tasks"] == 1.0
    assert "signal/flat_tasks" not in signal(rows((1.0,), (0.0,)), None)
    assert signal([], None) == {}


def test_there_is_no_signal_where_every_advantage_is_zero():
    assert signal(rows((1.0, 1.0)), None)["signal/none"] == 1
    assert (
        signal(rows((1.0, 1.0), advantage=0.5), None)["signal/none"] == 0
    )  # the mean of a row's is 0, and each is not


# --- causes and the circuit breaker
# ---------------------------------------------------------------------------------------


def test_losses_are_grouped_by_cause_with_the_most_frequent_reason():
    found = evaluated(*[None] * 5, 1.0)
    found[0].lose("engine", "gone")
    found[1].lose("calculator", "timed\nout")
    first, second = lost_trajectories(found)
    assert (first.kind, first.count, first.detail) == (
        "calculator",
        4,
        "Connection refused (3; 1 other reasons)",
    )
    assert (second.kind, second.count, second.detail) == ("engine", 1, "gone")
    found[5].actions[0].unscored = "coach_busy"
    assert [(loss.kind, loss.count) for loss in unscored_actions(found)] == [("coach_busy", 1)]


def ledger(step, found, trained=0):
    made = Ledger(step, trajectories=len(found))
    made.lost.update(t.infrastructure_failure for t in found if t.infrastructure_failure)
    made.trained["a"] = trained
    return made


LOST, ANSWERED = evaluated(None, None), evaluated(1.0, None)


def test_three_lost_steps_in_a_row_pause_the_run_with_the_cause():
    breaker = CircuitBreaker(3)
    for step in (1, 2, 3, 4, 5):
        breaker.step(ledger(step, LOST, trained=step == 2), LOST)
        if step < 5:
            breaker.check()
    with pytest.raises(RunPaused, match=r"to calculator in 3 consecutive steps, .* step 5;"):
        breaker.check()


def test_a_judge_that_is_trained_does_not_hide_that_no_agent_is():
    """Its answers without a verdict are rows too. Where all agents are frozen, its rows count."""
    breaker, frozen = CircuitBreaker(3), CircuitBreaker(3)
    for step in (1, 2, 3):
        frozen.check()
        for one, reason in ((breaker, "verdicts missing"), (frozen, "frozen")):
            made = ledger(step, ANSWERED)
            made.left_out["a"] = Counter({reason: 2, "infrastructure:calculator": 2})
            made.lost["calculator"] = 1
            made.auxiliary.append(ledger(step, [], trained=16))
            one.step(made, ANSWERED)
    frozen.check()
    with pytest.raises(RunPaused, match="no row to train on"):
        breaker.check()


def test_steps_and_evaluations_are_added_where_the_cause_is_the_same():
    breaker = CircuitBreaker(3)
    breaker.step(ledger(1, LOST), LOST)
    breaker.evaluation(1, LOST)
    breaker.check()
    breaker.step(ledger(2, LOST), LOST)
    with pytest.raises(
        RunPaused, match=r"in 2 consecutive steps .* 1 consecutive evaluation, .* step 2"
    ):
        breaker.check()


def test_they_are_not_added_where_it_differs():
    breaker = CircuitBreaker(3)
    for step in (1, 2):
        breaker.step(ledger(step, ANSWERED), ANSWERED)  # nothing trained, for another reason
        breaker.evaluation(step, LOST)
    breaker.check()


def test_good_steps_do_not_hide_that_every_evaluation_is_lost():
    breaker = CircuitBreaker(3)
    for step in (1, 2, 3):
        breaker.step(ledger(step, ANSWERED, trained=1), ANSWERED)
        breaker.evaluation(step, evaluated(None, None, 1.0))
    with pytest.raises(
        RunPaused, match=r"in 3 consecutive evaluations, .* step 3; .*: Connection refused"
    ):
        breaker.check()
    half = CircuitBreaker(3)
    for step in (1, 2, 3, 4):
        half.evaluation(step, ANSWERED)  # half of it is answered
    half.check()


def called(tool="lookup", failure=None, trained=True):
    """A trajectory with one call of a tool."""
    (made,) = evaluated(1.0 if trained else None)
    made.tool_results = (
        ToolResult(
            tool, "x", "unable to open database file", failure is None, failure=failure or ""
        ),
    )
    return made


def test_a_tool_of_one_branch_that_loses_every_call_pauses_the_run_though_others_are_trained():
    breaker = CircuitBreaker(3)
    branch, other = (
        [called(failure="database", trained=False)] * 2,
        [called("python"), called("python", failure="cancelled")],
    )
    for step in (1, 2):
        breaker.step(ledger(step, branch + other, trained=2), branch + other)
    breaker.step(ledger(3, other, trained=2), other)  # it is not called: this says nothing
    breaker.check()
    breaker.step(ledger(4, branch + other, trained=2), branch + other)
    with pytest.raises(RunPaused, match=r"'lookup' .* up to step 4; .*: unable to open"):
        breaker.check()


# --- runs ---------------------------------------------------------------------------------------


def test_a_run_that_trains_nothing_says_why_and_is_no_success(tmp_path, capsys):
    """Two steps, of which three would pause it."""

    def answer(call):
        raise AgentFailure("no_answer", "the route is no JSON")

    trainer = simulated.simulated_trainer(tmp_path, right, answer, steps=2, eval_steps=-1)
    with pytest.raises(RunPaused, match=r"any of 2 steps; .*no_answer"):
        asyncio.run(trainer.fit(0))
    said = capsys.readouterr().out
    for step in (1, 2):
        assert re.search(rf"^step {step}: no row .*: 8 of 8 .*no_answer: the route", said, re.M)
    assert trainer.session.policies["p"].saved == [2]


def test_a_branch_whose_tool_is_dead_is_said_in_every_step_and_pauses_the_run_after_it_is_saved(
    tmp_path, capsys
):
    async def lookup(call):
        raise InfrastructureFailure("database", "unable to open database file")

    async def branch(task, roles, tools):
        answer = await roles.a(q=task.prompt)
        if task.id in first:
            await tools.lookup(str(answer))
        return answer

    trainer = simulated.simulated_trainer(
        tmp_path,
        right,
        workflow=branch,
        tools={"lookup": Tool("lookup", lookup, lambda text: [])},
        eval_steps=-1,
    )
    first = {tasks[0].id for _, _, tasks in trainer.schedule()}
    with pytest.raises(RunPaused, match=r"'lookup' .* up to step 3; .*: unable to open"):
        asyncio.run(trainer.fit(0))
    said = capsys.readouterr().out
    assert len(re.findall(r"^step \d: tool 'lookup' lost .* 2 calls: unable to", said, re.M)) == 3
    assert trainer.session.policies["p"].saved == [3]


def test_a_tool_that_dies_is_said_and_pauses_the_run_saved(tmp_path, capsys):
    """It dies in step 3: evaluated after steps 3 and 4, trained on in neither; the third loss is
    evaluation 4's."""

    def answer(call):
        if call.step >= 3 or (call.step < 0 and trainer.breaker.in_a_row):
            raise InfrastructureFailure("calculator", "Connection refused")

    trainer = simulated.simulated_trainer(tmp_path, right, answer)
    with pytest.raises(
        RunPaused, match=r"calculator in 2 consecutive steps .* 1 consecutive evaluation, .* step 4"
    ):
        asyncio.run(trainer.fit(0))
    said = capsys.readouterr().out
    assert "step 3: 8 of 8 trajectories lost: calculator: " in said
    assert "after step 3: 10 of 10 trajectories lost: calculator: " in said
    assert "on 0 of 10 tasks, 10 lost" in said
    assert trainer.session.policies["p"].saved == [3]
    written = lines(tmp_path, "metrics.jsonl")
    assert [m["step"] for m in written] == [0, 1, 2, 3]
    assert (
        written[2]["eval/answered"] == 10
        and "eval/outcome" not in written[3]
        and written[3]["eval/lost"] == 10
    )


def test_a_dead_verifier_of_evaluations_pauses_the_run_after_the_step(tmp_path):
    def outcome(trajectory):
        return down(trajectory) if trajectory.task.id.startswith("e") else right(trajectory)

    trainer = simulated.simulated_trainer(tmp_path, outcome)
    with pytest.raises(RunPaused, match=r"in 3 consecutive evaluations, .* step 2"):
        asyncio.run(trainer.fit(0))
    assert trainer.saving.last == 2 and trainer.session.policies["p"].saved == [2]
    assert [m["step"] for m in lines(tmp_path, "metrics.jsonl")] == [0, 1, 2]
    assert all(m["rows/trained"] for m in lines(tmp_path, "metrics.jsonl")[1:])


def test_evaluations_are_kept_whole_first_and_last_and_in_part_between(tmp_path):
    simulated.simulated_run(tmp_path, right, steps=4)
    kept, last = lines(tmp_path, "evaluations.jsonl"), lines(tmp_path, "evaluation-last.jsonl")
    tasks = {step: {r["task"] for r in kept if r["step"] == step} for step in range(5)}
    assert (
        len(tasks[0]) == 10
        and all(tasks[step] == tasks[1] for step in (2, 3, 4))
        and len(tasks[1]) == KEPT_TASKS
    )
    assert {r["step"] for r in last} == {4} and len(last) == 10
    assert from_record(kept[0]).actions[0].text
    cut_back(tmp_path, 2)
    assert {r["step"] for r in lines(tmp_path, "evaluations.jsonl")} == {0, 1, 2}
    assert not lines(tmp_path, "evaluation-last.jsonl")


# --- what upstream clips, filters, or fills up
# ------------------------------------------------------------------------------


def rows_forwarded(rewards, clip_range):
    trajectories = [make_trajectory({"a": []}, task=f"t{n}") for n in range(len(rewards))]
    rows = [Row(t, t.actions[0], reward) for t, reward in zip(trajectories, rewards, strict=True)]
    return after_forward(rows, clip_range)


def after_forward(rows, clip_range=None):
    """The rows as if the trainer's log-probs were the engine's."""
    found = []
    for sequence in sequences_of(rows):
        experience = sequence_experience(sequence)
        experience.kl = torch.zeros_like(experience.rollout_log_probs)
        experience.action_log_probs = experience.rollout_log_probs
        experience.info["logprobs_diff"] = torch.zeros(1)
        found.append(([sequence], experience))
    return forwarded("p", rows, found, clip_range=clip_range)


def test_a_row_that_is_selected_twice_is_trained_twice():
    once = rows_forwarded([1.0, 3.0], None)
    (alone,) = estimate([once], Estimator())
    wanted = [item.advantages.clone() for item in alone.items]
    rows = [once.rows[0], once.rows[1], once.rows[0]]
    (twice,) = estimate([after_forward(rows)], Estimator())
    assert [item.prompts for item in twice.items].count(["t0/0/a"]) == 2
    for item in twice.items:
        assert torch.equal(item.advantages, wanted[item.prompts == ["t1/0/a"]])


def test_clipped_returns_are_counted_and_said():
    (prepared,) = estimate(
        [rows_forwarded([9.0, 10.0, 10.5, 24.0, -11.0], [-10, 10])],
        Estimator(return_scope="trajectory"),
    )
    assert prepared.clipped == 3
    assert update_metrics([prepared], {"p": {}})["rows/clipped"] == 3.0
    policy = SimpleNamespace(engines=SimpleNamespace(remarks=["engine replaced"]))
    said, engine = remarks([prepared], [policy], "trajectory")
    assert said.startswith("3 of 5 returns ") and "--reward.clip_range" in said
    assert engine == "engine replaced" and not policy.engines.remarks
    (whole,) = estimate([rows_forwarded([24.0, -11.0], None)], Estimator())
    assert whole.clipped == 0 and remarks([whole], [], "trajectory") == []


def test_advantages_that_are_not_finite_name_the_row():
    with pytest.raises(RunEnded, match=r"Estimator: 1 rows .* t1/0/a, .* inf"):
        estimate([rows_forwarded([1.0, math.inf, 2.0], None)], Estimator())


@pytest.mark.parametrize("fill", [0, 3])
@pytest.mark.parametrize("gating", ["ratio", "binary_kl", "tv"])
def test_rows_that_fill_a_batch_are_not_filtered_rows(fill, gating):
    """Upstream's own loss on two real rows, of which one is filtered, and on weightless ones."""
    threshold = [0.5, 5.0] if gating == "ratio" else [0.0, 0.1]
    loss = PolicyLoss(
        is_correction_level="seq", is_correction_gating=gating, is_correction_threshold=threshold
    )
    trained = torch.log(torch.tensor([[0.9, 0.8], [0.01, 0.02], *[[0.5, 0.5]] * fill]))
    engine = torch.log(torch.tensor([[0.9, 0.8], [0.9, 0.9], *[[0.5, 0.5]] * fill]))
    mask = torch.tensor([[1, 1], [1, 1], *[[0, 0]] * fill])
    share = loss(
        trained, trained, torch.ones_like(trained), action_mask=mask, rollout_log_probs=engine
    )[-1]
    assert share.item() == pytest.approx((1 + fill) / (2 + fill))
    assert without_fill(share, 2.0, fill).item() == pytest.approx(0.5)
