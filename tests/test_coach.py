"""The coach as a plugin: rubrics, flags, who gets the label, and what becomes of verdicts that are missing."""

import asyncio
from pathlib import Path

import pytest
from openai_server import Reply, openai_server, verdict
from simulated import make_trajectory

from marl_plugins import coach as plugin
from marl_plugins.coach.model import read_prompt, shorten, shown
from marl_plugins.coach.rubric import Criterion, RubricCoach, load_rubric
from marl_plugins.coach.verdict import Verdict
from marl_plugins.core.credit import rewards_from_scores, sum_over_scope
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused
from marl_plugins.core.ledger import Ledger
from marl_plugins.core.rows import rows_of
from marl_plugins.core.trajectory import ToolResult
from marl_plugins.core.workflow import Seen, SeenLast
from marl_plugins.plan.build import build_run

SECRET = "the-label-42"
ROOT = Path(__file__).parent.parent
TINY = ["--recipe", "recipes/mathchat/tiny.yaml"]


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


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


@pytest.mark.parametrize("points", [(0.2, 0.7), (0.1, 0.2, 0.3), (1.1, 2.2, 3.3), (3, 7)])
def test_all_points_held_are_a_score_of_10(points, action, seen):
    assert judge([Criterion(str(p), p, lambda a, s: True) for p in points], action, seen).score == 10


def test_mistakes_in_a_rubric_are_reported_together(tmp_path):
    file = tmp_path / "rubric.py"
    file.write_text(
        "from marl_plugins.coach.rubric import Criterion\n"
        "RUBRIC = {'sovler': [], 'coder': [Criterion('x', 0, bool)], 'judge': [Criterion('y', 1, bool, needs_label=True)]}\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        load_rubric(file, ["solver", "coder", "judge"])
    text = "\n".join(caught.value.problems)
    for part in (
        "no role 'sovler'; did you mean 'solver'?",
        "no criteria for role 'solver'",
        "'x' has 0 points",
        "'judge'",
    ):
        assert part in text


def test_placeholders_of_a_prompt_are_checked(tmp_path):
    file = tmp_path / "prompt.md"
    file.write_text("{action} {fence} {form} {label} {tsak}")
    with pytest.raises(ConfigurationError) as caught:
        read_prompt(file, with_label=False)
    assert "{label} is forbidden here: it may stand in --coach.last_prompt only" in str(caught.value)
    assert "no placeholder {tsak}; did you mean 'task'?" in str(caught.value)
    file.write_text("{action} {form}")
    with pytest.raises(ConfigurationError, match=r"\{fence\} is missing; without it .* where the agent's text ends"):
        read_prompt(file, with_label=False)
    file.write_text("{action:{label}} {fence} {form}")
    with pytest.raises(ConfigurationError, match="has a format, and stands for a text"):
        read_prompt(file, with_label=False)
    file.write_text("{action")
    with pytest.raises(ConfigurationError, match=r"write {{ and }} for braces"):
        read_prompt(file, with_label=False)


def test_a_coach_reads_what_the_agent_saw_with_heads_and_tails_and_never_the_label(action, seen):
    earlier = make_trajectory({"planner": []}).actions[0]
    earlier.tool_results = (
        ToolResult("python", "p", "Traceback\n" + "x" * 9000 + "\nKeyError: 3", False, files=("a.csv",)),
    )
    action.tool_results = (ToolResult("python", "p", "12", True, files=("b.csv",)),)
    seen = Seen(**{**vars(seen), "before": (earlier,)})
    fields = shown(action, seen, "Solve {problem}")
    assert "label" not in fields and "answer" not in fields
    assert fields["before"].startswith("<planner> x\n<tools of planner> failed: Traceback")
    assert fields["before"].endswith("KeyError: 3")
    assert (fields["tools"], fields["files"]) == ("ok: 12", "a.csv, b.csv")
    assert len(shorten("y" * 10**6)) < 5000
    assert shown(action, last_of(seen), "")["label"] == SECRET


def test_the_coach_needs_one_of_three_and_the_command_line_beats_the_recipe():
    with pytest.raises(ConfigurationError, match=r"--coach\.model NAME and --coach\.policy NAME, got none"):
        build_run(["--recipe", "tests/recipes/sums/tiny.yaml", "--plugin", "marl_plugins.coach", "--dry-run"])
    with pytest.raises(ConfigurationError, match=r"got --coach\.rubric and --coach\.model"):
        build_run([*TINY, "--dry-run", "--coach.model", "m", "--coach.rubric", "recipes/mathchat/tiny_rubric.py"])
    build_run([*TINY, "--dry-run", "--coach.model", "m"])


def test_what_is_wrong_with_the_flags_is_said_together():
    words = ["--coach.model", "m", "--coach.timeout", "0", "--coach.budget", "5", "--coach.body", "[1]"]
    words += ["--coach.max_missing", "2", "--coach.replay", "x", "--coach.record", "y"]
    with pytest.raises(ConfigurationError) as caught:
        build_run([*TINY, "--dry-run", *words])
    text = str(caught.value)
    for part in (
        "--coach.timeout 0: expected more than 0",
        "--coach.budget counts dollars and needs --coach.price_in",
        "--coach.body '[1]': expected an object",
        "--coach.max_missing 2: expected a share",
        "--coach.replay answers from a recording",
    ):
        assert part in text
    with pytest.raises(
        ConfigurationError, match=r"--coach\.timeout is about a model's verdicts, and this coach is a rubric"
    ):
        build_run([*TINY, "--dry-run", "--coach.timeout", "3"])
    nobody = ["--coach.ground_truth", "none", "--coach.last_prompt", "recipes/mathchat/prompts/solver.md"]
    with pytest.raises(ConfigurationError, match=r"judged with the label, and --coach\.ground_truth is none"):
        build_run([*TINY, "--dry-run", "--coach.model", "m", *nobody])
    with pytest.raises(ConfigurationError, match=r"holds no verdicts; --coach\.record FILE keeps those"):
        build_run([*TINY, "--dry-run", "--coach.model", "m", "--coach.replay", "nowhere.jsonl"])


def test_a_limit_at_which_verdicts_cannot_come_in_time_is_said():
    slow = build_run([*TINY, "--dry-run", "--coach.model", "m", "--coach.per_minute", "60"])[0].warnings
    assert [w for w in slow if "300 verdicts within --coach.deadline 300 s, and a step has some 384 actions" in w] == slow
    fast = build_run([*TINY, "--dry-run", "--coach.model", "m", "--coach.per_minute", "600"])[0].warnings
    assert fast == []


def test_an_endpoint_that_is_down_is_said_at_start_and_not_asked_by_a_dry_run(tmp_path):
    words = [*TINY, "--coach.model", "m", "--coach.base_url", "http://127.0.0.1:9/v1"]
    build_run([*words, "--coach.cache", str(tmp_path / "c.jsonl"), "--dry-run"])
    assert not list(tmp_path.iterdir())
    run, _ = build_run(words)
    with pytest.raises(ConfigurationError, match="cannot be reached"):
        run.plugins.hook.marl_start(run=run)


class Scripted:
    """A coach that says what it is told to, in order; None for a verdict that cannot be had."""

    def __init__(self, shares):
        self.shares = list(shares)
        self.asked = []

    async def judge(self, action, seen):
        self.asked.append(seen)
        share = self.shares.pop(0)
        if share is None:
            raise InfrastructureFailure("coach_busy", "HTTP 429 after 6 repeats")
        return Verdict(score=10 * share)


def step(shares, run_words=(), outcomes=(1.0, 0.0)):
    """Score two trajectories of two roles by a scripted coach, as the workflow does, and give the step its credit."""
    build_run([*TINY, "--dry-run", *run_words])
    plugin._state.coach = Scripted(shares)
    trajectories = [make_trajectory({"solver": [], "verifier": ["solver"]}, task=t) for t in ("a", "b")]
    trajectories[0].task.metadata["type"] = "plus"
    for trajectory, outcome in zip(trajectories, outcomes, strict=True):
        trajectory.outcome, trajectory.actions_scored = outcome, True
        for action in trajectory.actions:
            seen = Seen.of(trajectory, action)
            seen = last_of(seen) if action.role == "verifier" else seen
            try:
                action.score = asyncio.run(plugin._score(action, seen))
            except InfrastructureFailure as failure:
                action.unscored = failure.kind
    rewards_from_scores(trajectories)
    plugin.marl_credit(trajectories)
    sum_over_scope(trajectories, "action")
    rows = rows_of(trajectories, frozenset({"p"}))
    metrics = {}
    plugin.marl_log(1, metrics)
    return trajectories, rows, Ledger.of(1, trajectories, rows), metrics


def test_verdicts_are_counted_by_role_and_type_and_held_against_the_verifier():
    _, rows, _, metrics = step([0.2, 0.9, 0.6, 0.8])
    assert len(rows) == 4
    assert metrics["coach/solver/score"] == pytest.approx(0.4)
    assert metrics["coach/solver/spread"] == pytest.approx(0.2)
    assert metrics["coach/solver/plus/score"] == pytest.approx(0.2)
    assert metrics["coach/agreement"] == 0.5  # it found the second answer good, which is wrong
    assert metrics["coach/missing"] == 0.0


def test_a_missing_verdict_is_left_out_with_its_reason_and_nothing_is_put_in_its_place():
    trajectories, rows, ledger, metrics = step([0.2, 0.9, None, 0.8], ["--coach.max_missing", "0.5"])
    assert len(rows) == 3
    assert ledger.left_out == {"solver": {"infrastructure:coach_busy": 1}}
    assert trajectories[1].actions[0].reward is None
    assert "429" in trajectories[1].actions[0].explanation
    assert (metrics["coach/solver/missing"], metrics["coach/missing"]) == (0.5, 0.25)


def test_a_step_with_too_many_missing_is_left_out_whole():
    _, rows, ledger, metrics = step([0.2, 0.9, None, 0.8])
    assert rows == []
    assert ledger.left_out["solver"] == {"infrastructure:coach_step_left_out": 1, "infrastructure:coach_busy": 1}
    assert ledger.left_out["verifier"] == {"infrastructure:coach_step_left_out": 2}
    assert metrics["coach/step_left_out"] == 1.0


def test_without_ground_truth_nobody_gets_the_label():
    step([0.2, 0.9, 0.5, 0.8], ["--coach.ground_truth", "none"])
    assert not any(isinstance(seen, SeenLast) for seen in plugin._state.coach.asked)
    step([0.2, 0.9, 0.5, 0.8])
    assert sum(isinstance(seen, SeenLast) for seen in plugin._state.coach.asked) == 2


def test_a_spent_budget_ends_the_run_with_its_state_and_is_counted_on_after_a_resume(tmp_path):
    """Also where the run was killed, for the account is a file of its own."""
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

        async def score():
            return [await plugin.marl_score_action(a, Seen.of(trajectory, a)) for a in trajectory.actions]

        run, _ = build_run([*TINY, *words])
        run.plugins.hook.marl_start(run=run)  # the probe takes 100
        assert asyncio.run(score()) == [0.6, 0.6, 0.6]
        assert plugin.marl_credit([trajectory]) == [trajectory]  # all that was asked was had
        run, _ = build_run([*TINY, *words, "--ckpt.load_enable"])
        run.plugins.hook.marl_start(run=run)
        with pytest.raises(InfrastructureFailure, match="spent"):
            asyncio.run(score())
        with pytest.raises(RunPaused, match=r"budget is spent: 500 tokens of --coach\.budget_tokens 350"):
            plugin.marl_credit([trajectory])
        run, _ = build_run([*TINY, *words])
        run.plugins.hook.marl_start(run=run)  # a run of its own begins with nothing spent
        assert asyncio.run(score()) == [0.6, 0.6, 0.6]


def test_scores_that_did_not_come_in_time_count_as_missing():
    async def too_slow():
        task = asyncio.create_task(plugin._score(trajectory.actions[0], Seen.of(trajectory, trajectory.actions[0])))
        await asyncio.sleep(0.01)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    class Sleeping:
        async def judge(self, action, seen):
            await asyncio.sleep(60)

    build_run([*TINY, "--dry-run"])
    plugin._state.coach = Sleeping()
    trajectory = make_trajectory({"solver": []})
    asyncio.run(too_slow())
    plugin.marl_credit([trajectory])
    metrics = {}
    plugin.marl_log(1, metrics)
    assert metrics["coach/missing"] == 1.0
