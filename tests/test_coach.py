"""The coach as a plugin: rubrics, flags, who gets the label, and what becomes of verdicts that are
missing."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from openai_server import Reply, openai_server, verdict
from refusals import refused
from simulated import credit, make_trajectory

from marl_plugins import coach as plugin
from marl_plugins.asking.askers import Askers
from marl_plugins.asking.prompts import prompt_fields, shorten
from marl_plugins.coach.model import read_prompt
from marl_plugins.coach.rubric import Criterion, RubricCoach, load_rubric
from marl_plugins.coach.state import CoachState
from marl_plugins.coach.verdict import Verdict
from marl_plugins.core.credit import rewards_from_scores, sum_over_scope
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.rows import rows_of
from marl_plugins.core.scoring import Seen, SeenLast
from marl_plugins.core.trajectory import File, ToolResult
from marl_plugins.engine.plan.build import build_plan

SECRET = "the-label-42"
ROOT = Path(__file__).parent.parent
TINY = ["--recipe", "recipes/mathchat/tiny.yaml"]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def asker_of(run):
    return run.state(Askers).first


def last_of(seen):
    return SeenLast(**vars(seen), label=SECRET, answer="an answer")


def judge(criteria, action, seen):
    return asyncio.run(RubricCoach({"solver": criteria}).judge(action, seen))


def test_a_score_is_the_share_of_the_points_that_apply(action, seen):
    criteria = (
        Criterion("holds", 3, lambda a, s: True),
        Criterion("half", 2, lambda a, s: 0.5),
        Criterion("right", 5, lambda a, s: s.label == SECRET, needs_label=True),
    )
    verdict = judge(criteria, action, seen)
    assert verdict.share == pytest.approx(4 / 5)
    assert verdict.explanation == "holds 3/3; half 1/2"
    verdict = judge(criteria, action, last_of(seen))
    assert verdict.share == pytest.approx(9 / 10)
    assert verdict.criteria == {"holds": 10, "half": 5, "right": 10}


def test_a_criterion_that_reads_the_label_without_saying_so_has_none_to_read(action, seen):
    with pytest.raises(AttributeError, match="label"):
        judge([Criterion("cheats", 1, lambda a, s: a.text == s.label)], action, seen)


def test_mistakes_in_a_rubric_are_reported_together(tmp_path):
    file = tmp_path / "rubric.py"
    file.write_text(
        "from marl_plugins.coach.rubric import Criterion\n"
        "RUBRIC = {'sovler': [], 'coder': [Criterion('x', 0, bool)], 'judge': [Criterion('y', 1, "
        "bool, needs_label=True)]}\n"
    )
    codes = ["rubric.role", "rubric.no_criteria", "rubric.points", "rubric.label"]
    with refused(*((code, "rubric.py") for code in codes)):
        load_rubric(file, ["solver", "coder", "judge"])
    other = tmp_path / "other.py"
    other.write_text("RUBRIC = {'solver': [3]}\n")
    with refused(("rubric.kind", "other.py")):
        load_rubric(other, ["solver"])


def test_placeholders_of_a_prompt_are_checked(tmp_path):
    file = tmp_path / "prompt.md"
    file.write_text("{action} {fence} {form} {label} {tsak}")
    place = ("coach prompt", "prompt.md")
    with refused(("prompt.label", *place), ("prompt.placeholder", *place)):
        read_prompt(file, with_label=False)
    file.write_text("{action} {form}")
    with refused(("prompt.missing", "coach prompt", "prompt.md")):
        read_prompt(file, with_label=False)
    file.write_text("{action:{label}} {fence} {form}")
    with refused(("prompt.braces", "coach prompt", "prompt.md")):
        read_prompt(file, with_label=False)


def test_a_coach_reads_what_the_agent_saw_with_heads_and_tails_and_never_the_label(action, seen):
    earlier = make_trajectory({"planner": []}).actions[0]
    earlier.tool_results = (
        ToolResult(
            "python", "p", "Traceback\n" + "x" * 9000 + "\nKeyError: 3", False, files=("a.csv",)
        ),
    )
    action.tool_results = (ToolResult("python", "p", "12", True, files=("b.csv",)),)
    seen = Seen(**{**vars(seen), "before": (earlier,)})
    fields = prompt_fields(action, seen, "Solve {problem}")
    assert "label" not in fields and "answer" not in fields
    assert fields["before"].startswith("<planner> x\n<tools of planner> failed: Traceback")
    assert fields["before"].endswith("KeyError: 3")
    assert (fields["tools"], fields["files"]) == ("ok: 12", "a.csv, b.csv")
    assert len(shorten("y" * 10**6)) < 5000
    files = [
        File(name, 1200, "", writer)
        for name, writer in (("c", ""), ("a", earlier.path), ("b", action.path), ("x", "other"))
    ]
    shown = prompt_fields(action, replace(seen, files=tuple(files)), "")["files"].splitlines()
    assert shown == [
        "c (1,200 bytes), written by nobody of the team",
        "a (1,200 bytes), written by planner in turn 1",
        "b (1,200 bytes), written by this step",
    ]
    assert prompt_fields(action, last_of(seen), "")["label"] == SECRET


def test_an_endpoint_that_is_down_is_reported_at_start_and_not_asked_by_a_dry_run(tmp_path):
    words = [*TINY, "--coach.model", "m", "--coach.base_url", "http://127.0.0.1:9/v1"]
    plan = build_plan([*words, "--coach.cache", str(tmp_path / "c.jsonl"), "--dry-run"])
    assert not list(tmp_path.iterdir())
    with pytest.raises(ConfigurationError, match="cannot be reached"):
        during(plan, nothing)
    assert asker_of(plan.run).cache.kept.files == []  # also closed where the start fails


async def nothing():
    pass


def during(plan, work, purpose="train"):
    """Run `work()` while the plan's plugins take part."""

    async def whole():
        async with plan.plugins.started(plan.run, purpose):
            return await work()

    return asyncio.run(whole())


class Scripted:
    """A coach that answers what it is told to, in order; None for an unavailable verdict."""

    def __init__(self, shares):
        self.shares = list(shares)
        self.asked = []

    async def judge(self, action, seen):
        self.asked.append(seen)
        share = self.shares.pop(0)
        if share is None:
            raise InfrastructureFailure("coach_busy", "HTTP 429 after 6 repeats")
        return Verdict(score=10 * share)


def step(shares, run_words=(), outcomes=(1.0, 0.0), parts=((0, 1),)):
    """Score two trajectories of two roles by a scripted coach, as the workflow does, and give the
    step its credit.

    Args:
        parts: Numbers of the trajectories that are credited together, in the order in which they
            are.
    """
    run = build_plan([*TINY, "--dry-run", *run_words]).run
    run.state(CoachState).coach = coach = Scripted(shares)
    trajectories = [
        make_trajectory({"solver": [], "verifier": ["solver"]}, task=t) for t in ("a", "b")
    ]
    trajectories[0].task.metadata["type"] = "plus"
    for trajectory, outcome in zip(trajectories, outcomes, strict=True):
        trajectory.outcome, trajectory.actions_scored = outcome, True
        for action in trajectory.actions:
            seen = Seen.of(trajectory, action)
            seen = last_of(seen) if action.role == "verifier" else seen
            try:
                action.score = asyncio.run(plugin._score(run, action, seen))
            except InfrastructureFailure as failure:
                action.unscored = failure.kind
    rewards_from_scores(trajectories)
    for part in parts:
        plugin.marl_credit([trajectories[n] for n in part], run)
    if plugin.looks_at_whole_steps(run):
        plugin.marl_credit_step(trajectories, run)
    sum_over_scope(trajectories, "action")
    rows = rows_of(trajectories, frozenset({"p"}))
    metrics = {}
    plugin.marl_log(run, metrics)
    assert run.state(CoachState).verdicts == {}
    return trajectories, rows, Ledger.of(1, trajectories, rows), metrics, coach


def test_verdicts_are_counted_by_role_and_type_and_held_against_the_verifier():
    _, rows, _, metrics, _ = step([0.2, 0.9, 0.6, 0.8])
    assert len(rows) == 4
    assert metrics["coach/solver/score"] == pytest.approx(0.4)
    assert metrics["coach/solver/spread"] == pytest.approx(0.2)
    assert metrics["coach/solver/plus/score"] == pytest.approx(0.2)
    assert metrics["coach/agreement"] == 0.5  # it found the second answer good, which is wrong
    assert metrics["coach/missing"] == 0.0


@pytest.mark.parametrize("parts", [((1,), (0,)), ((0,), (1,), ())])
def test_a_step_that_is_credited_in_parts_is_measured_as_one(parts):
    words, shares = ["--coach.max_missing", "1"], [0.2, 0.9, None, 0.8]
    whole, in_parts = step(shares, words), step(shares, words, parts=parts)
    assert in_parts[3] == whole[3]
    assert [(row.name, row.reward) for row in in_parts[1]] == [
        (row.name, row.reward) for row in whole[1]
    ]


def test_a_missing_verdict_is_left_out_with_its_reason_and_nothing_is_put_in_its_place():
    trajectories, rows, ledger, metrics, _ = step(
        [0.2, 0.9, None, 0.8], ["--coach.max_missing", "0.5"]
    )
    assert len(rows) == 3
    assert ledger.left_out == {"solver": {"infrastructure:coach_busy": 1}}
    assert trajectories[1].actions[0].reward is None
    assert "429" in trajectories[1].actions[0].explanation
    assert (metrics["coach/solver/missing"], metrics["coach/missing"]) == (0.5, 0.25)


def test_a_step_with_too_many_missing_is_left_out_whole():
    _, rows, ledger, metrics, _ = step([0.2, 0.9, None, 0.8])
    assert rows == []
    assert ledger.left_out["solver"] == {
        "infrastructure:coach_step_left_out": 1,
        "infrastructure:coach_busy": 1,
    }
    assert ledger.left_out["verifier"] == {"infrastructure:coach_step_left_out": 2}
    assert metrics["coach/step_left_out"] == 1.0


def test_without_ground_truth_nobody_gets_the_label():
    *_, coach = step([0.2, 0.9, 0.5, 0.8], ["--coach.ground_truth", "none"])
    assert not any(isinstance(seen, SeenLast) for seen in coach.asked)


def test_a_spent_budget_ends_the_run_with_its_state_and_is_counted_on_after_a_resume(tmp_path):
    """Also where the run was killed, because the account is a separate file."""
    with openai_server(lambda body, n: Reply(verdict(body, 6), tokens=(90, 10))) as (url, _):
        words = [
            "--coach.model",
            "m",
            "--coach.base_url",
            url,
            "--coach.budget_tokens",
            "350",
            "--ckpt.output_dir",
            str(tmp_path),
        ]
        trajectory = make_trajectory({"solver": [], "coder": [], "verifier": []})
        trajectory.actions_scored = True

        def start(*more):
            run = (plan := build_plan([*TINY, *words, *more])).run

            async def score():
                return [
                    await plugin.marl_score_action(run, a, Seen.of(trajectory, a))
                    for a in trajectory.actions
                ]

            return run, lambda: during(plan, score)

        run, score = start()  # the probe takes 100
        assert score() == [0.6, 0.6, 0.6]
        assert credit(plugin, [trajectory], run) == [trajectory]  # all that was asked was answered
        run, score = start("--ckpt.load_enable")
        with pytest.raises(InfrastructureFailure, match="spent"):
            score()
        with pytest.raises(
            RunPaused, match=r"budget is spent: 500 tokens of --coach\.budget_tokens 350"
        ):
            credit(plugin, [trajectory], run)
        run, score = start()  # another run begins with nothing spent
        assert score() == [0.6, 0.6, 0.6]


def test_scores_that_did_not_come_in_time_count_as_missing():
    async def too_slow():
        task = asyncio.create_task(
            plugin._score(run, trajectory.actions[0], Seen.of(trajectory, trajectory.actions[0]))
        )
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    class Sleeping:
        async def judge(self, action, seen):
            await asyncio.sleep(60)

    run = build_plan([*TINY, "--dry-run"]).run
    run.state(CoachState).coach = Sleeping()
    trajectory = make_trajectory({"solver": []})
    asyncio.run(too_slow())
    credit(plugin, [trajectory], run)
    metrics = {}
    plugin.marl_log(run, metrics)
    assert metrics["coach/missing"] == 1.0
