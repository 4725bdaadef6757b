"""Several coaches as one: how scores are joined, members that are down, disagreement, what can be
wrong in a recipe."""

import asyncio
import json
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import Reply, openai_server, verdict
from refusals import briefs
from simulated import credit, make_trajectory

from marl_plugins import coach as plugin
from marl_plugins.coach.ensemble import Ensemble, weigh_by_agreement
from marl_plugins.coach.metrics import JudgedAction
from marl_plugins.coach.section import CoachConfig
from marl_plugins.coach.state import CoachState
from marl_plugins.coach.verdict import JointVerdict, Verdict
from marl_plugins.core.credit import rewards_from_scores
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.scoring import Seen
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.fingerprint import fingerprint
from marl_plugins.engine.records.run_folder import _named

ROOT = Path(__file__).resolve().parent.parent
ANSWERS = st.dictionaries(
    st.sampled_from("abcdef"),
    st.tuples(st.floats(0, 10), st.floats(0.1, 5), st.booleans()),
    min_size=1,
)
SOME = ANSWERS.filter(lambda answers: any(down is False for *_, down in answers.values()))


def ensemble(weights, **config):
    members = {name: {"rubric": "r.py", "weight": weight} for name, weight in weights.items()}
    return Ensemble({}, CoachConfig(members=members, **config))


def joint(answers, combine):
    """The joint verdict of (score, weight, down) by name."""
    given = {
        name: InfrastructureFailure("coach_timeout", "late") if down else Verdict(score=score)
        for name, (score, _, down) in answers.items()
    }
    return ensemble(
        {name: weight for name, (_, weight, _) in answers.items()}, combine=combine
    ).joint(given)


@given(SOME, st.sampled_from(["mean", "median", "worst"]))
def test_the_joint_score_is_numpys_over_those_that_answered(answers, combine):
    up = [(score, weight) for score, weight, down in answers.values() if not down]
    scores, weights = map(np.array, zip(*up, strict=True))
    expected = {
        "mean": np.average(scores, weights=weights),
        "median": np.median(scores),
        "worst": scores.min(),
    }
    found = joint(answers, combine)
    assert found.score == pytest.approx(expected[combine])
    assert (
        found.disagreement == pytest.approx(np.std(scores / 10), abs=1e-9)
        and found.disagreement <= 0.5
    )
    assert found.failed == {name: "coach_timeout" for name, (*_, down) in answers.items() if down}
    without = {name: answer for name, answer in answers.items() if not answer[2]}
    assert (
        found.score == joint(without, combine).score
    )  # a member that is down might as well not be there
    assert found.score == pytest.approx(joint(dict(reversed(answers.items())), combine).score)


def test_without_a_member_that_answers_there_is_no_verdict():
    down = {
        name: InfrastructureFailure(kind, "x")
        for name, kind in (("a", "coach_busy"), ("b", "coach_busy"))
    }
    with pytest.raises(InfrastructureFailure, match="a: x; b: x") as caught:
        ensemble({"a": 1, "b": 1}).joint(down)
    assert caught.value.kind == "coach_busy"
    with pytest.raises(InfrastructureFailure) as caught:
        ensemble({"a": 1, "b": 1}).joint(down | {"b": InfrastructureFailure("coach_timeout", "y")})
    assert caught.value.kind == "coach_members"


@pytest.mark.parametrize(
    ("claims", "most", "worst"),
    [
        ((True, True, False), True, False),
        ((True, False), None, False),
        ((False, None), False, False),
        ((None,), None, None),
    ],
)
def test_whether_the_answer_is_right_is_the_majoritys_word_and_the_worst_ones_is_a_no(
    claims, most, worst
):
    answers = {str(n): Verdict(score=5.0, correct=claim) for n, claim in enumerate(claims)}
    for combine, expected in (("mean", most), ("median", most), ("worst", worst)):
        assert (
            ensemble(dict.fromkeys(answers, 1.0), combine=combine).joint(answers).correct
            is expected
        )


def test_of_corrections_the_first_members_is_kept_that_has_one():
    answers = {
        "a": Verdict(score=1.0),
        "b": Verdict(score=2.0, correction="7"),
        "c": Verdict(score=3.0, correction="8"),
    }
    assert ensemble(dict.fromkeys(answers, 1.0)).joint(answers).correction == "7"
    assert ensemble({"a": 1.0}).joint({"a": answers["a"]}).correction is None


def judged(scores, role="a"):
    """Actions that were judged, from their members' scores in [0, 1]."""
    found = []
    for n, shares in enumerate(scores):
        action = make_trajectory({role: []}, sample=n).actions[0]
        given = {str(m): share for m, share in enumerate(shares)}
        action.score = action.reward = statistics.fmean(shares)
        found.append(
            JudgedAction(
                action, JointVerdict(score=10 * action.score, members=given, failed={}), False
            )
        )
    return found


@given(st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=4), min_size=1, max_size=8))
def test_disagreement_brings_a_score_closer_to_its_roles_mean(scores):
    step = judged(scores)
    weigh_by_agreement(step)
    before = np.array([np.mean(shares) for shares in scores])
    weight = 1 - 2 * np.array([np.std(shares) for shares in scores])
    expected = before.mean() + weight * (before - before.mean())
    for one, old, new in zip(step, before, expected, strict=True):
        assert (
            one.action.score == pytest.approx(new, abs=1e-9)
            and -1e-9 <= one.action.score <= 1 + 1e-9
        )
        assert one.action.reward == pytest.approx(one.action.score)
        assert one.action.terms.get("disagreement", 0.0) == pytest.approx(new - old, abs=1e-9)


# --- in a run
# --------------------------------------------------------------------------------------------------

RUBRIC = """
from marl_plugins.coach.rubric import Criterion

RUBRIC = {role: [Criterion("is there", 1, lambda action, seen: %s)] for role in ("solver", "coder", "verifier")}
"""


@pytest.fixture
def recipe(tmp_path):
    """A function from the text of `coach:` to a recipe that has it, and two rubrics."""
    folder = tmp_path / "sums"
    shutil.copytree(ROOT / "tests" / "recipes" / "sums", folder)
    for name, value in (("good", 0.8), ("bad", 0.2)):
        (folder / f"{name}.py").write_text(RUBRIC % value)

    (tmp_path / "out").mkdir()

    def write(coach, more="extends: tiny.yaml\nplugins: [marl_plugins.coach]\n"):
        (folder / "many.yaml").write_text(f"{more}coach:\n{coach}")
        return ["--recipe", str(folder / "many.yaml"), "--ckpt.output_dir", str(tmp_path / "out")]

    return write


def problems(words):
    with pytest.raises(ConfigurationError) as caught:
        build_plan([*words, "--dry-run"])
    return briefs(caught.value.problems)


def scored(run, trajectories):
    """Score every action, and give the step its credit; the metrics."""

    async def score(action, seen):
        try:
            action.score = await plugin.marl_score_action(run, action, seen)
        except InfrastructureFailure as failure:
            action.unscored = failure.kind

    async def every():
        await asyncio.gather(*(score(a, Seen.of(t, a)) for t in trajectories for a in t.actions))

    async def whole():
        await every()
        rewards_from_scores(trajectories)
        credit(plugin, trajectories, run)

    for trajectory in trajectories:
        trajectory.actions_scored = True
    metrics = {}
    asyncio.run(whole())
    plugin.marl_log(run, metrics)
    return metrics


def some():
    return [make_trajectory({"solver": [], "verifier": ["solver"]}, task=task) for task in "ab"]


def test_rubrics_endpoints_and_one_that_is_down_judge_together(recipe):
    """The endpoint that fails answers the question at the start, and nothing after it."""
    with (
        openai_server(lambda body, n: verdict(body, 5)) as (up, asked),
        openai_server(lambda body, n: verdict(body, 9) if n < 2 else Reply(status=500)) as (
            down,
            _,
        ),
    ):
        words = recipe(
            f"  members:\n    rules: {{rubric: good.py, weight: 3}}\n    up: {{model: m, flags: "
            f"{{base_url: '{up}'}}}}\n"
            f"    down: {{model: n, flags: {{base_url: '{down}', retries: 0, max_tokens: 77}}}}\n"
        )
        plan, trajectories = build_plan(words), some()

        async def probe():
            async with plan.plugins.started(plan.run, "train"):
                pass

        asyncio.run(probe())
        found = scored(plan.run, trajectories)
    assert len(asked) == 3  # one before the start, and what both trajectories ask is asked once
    for action in (a for t in trajectories for a in t.actions):
        assert action.score == pytest.approx((3 * 0.8 + 0.5) / 4)
        note = action.notes["coach"]
        assert note["members"] == {"rules": 0.8, "up": 0.5} and note["failed"] == {
            "down": "coach_server"
        }
        assert note["score"] == pytest.approx(7.25)
        assert (
            "down: no verdict" in action.explanation and "rules 8: is there" in action.explanation
        )
    assert found["coach/member/down/missing"] == 1.0 and found["coach/member/up/missing"] == 0.0
    assert (
        found["coach/member/rules/score"] == pytest.approx(0.8)
        and "coach/member/down/score" not in found
    )
    assert found["coach/disagreement"] == found["coach/solver/disagreement"] == pytest.approx(0.15)
    assert found["coach/missing"] == 0.0 and found["coach/member/up/requests"] == 2


class ByText:
    """Scores by what was said."""

    def __init__(self, **scores):
        self.scores = scores

    async def judge(self, action, seen):
        return Verdict(score=self.scores[action.text])


@pytest.mark.parametrize("weigh", [False, True])
def test_disagreement_weighs_where_the_recipe_says_so(recipe, weigh):
    text = "  members:\n    one: {rubric: good.py}\n    two: {rubric: bad.py}\n  combine: worst\n"
    run = build_plan(recipe(text + ("  disagreement: weigh\n" if weigh else ""))).run
    run.state(CoachState).coach.members = {
        "one": ByText(x=10.0, y=10.0),
        "two": ByText(x=8.0, y=4.0),
    }
    trajectories = some()
    trajectories[1].actions[0].text = "y"
    scored(run, trajectories)
    first, second = (t.actions[0] for t in trajectories)
    assert (
        "disagreement" in first.terms
    ) is weigh  # the scores' mean is 0.6, their standard deviations 0.1 and 0.3
    assert (first.score, second.score) == pytest.approx(
        (0.6 + 0.8 * 0.2, 0.6 - 0.4 * 0.2) if weigh else (0.8, 0.4)
    )


def test_a_coach_on_the_command_line_replaces_the_ensemble(recipe):
    words = recipe("  members:\n    one: {rubric: good.py}\n    judge: {policy: judge}\n", POLICY)
    run = build_plan(words).run
    assert isinstance(run.state(CoachState).coach, Ensemble) and "judge" in [
        p.name for p in run.policies
    ]
    run = build_plan([*words, "--coach.rubric", str(Path(words[1]).parent / "bad.py")]).run
    assert not isinstance(run.state(CoachState).coach, Ensemble) and "judge" not in [
        p.name for p in run.policies
    ]


POLICY = """extends: tiny.yaml
plugins: [marl_plugins.coach]
policies:
  judge: {model: "tiny:seed=9,positions=8192", trainable: false, flags: {data.max_len: 8192}}
"""


def test_what_would_be_ignored_is_refused(recipe):
    one = "  members: {a: {rubric: good.py}}\n"
    assert "coach.members_and_flags" in {
        code
        for code, *_ in problems(
            recipe(
                one,
                "extends: tiny.yaml\nplugins: [marl_plugins.coach]\nflags: {coach.rubric: good.py}\n",
            )
        )
    }
    unread = problems(recipe(one, "extends: tiny.yaml\n"))
    assert ("recipe.unknown_key", "coach") in {
        (code, places[-1]) for code, *places in unread if places
    }
    idle = problems([*recipe(one), "--coach.timeout", "5"])
    assert ("coach.irrelevant", "many.yaml:4", "coach.members", "coach.timeout") in idle
    two = "  members: {a: {model: m}, b: {model: n}}\n"
    found = problems([*recipe(two), "--coach.budget_tokens", "5"])
    assert "coach.budget_of_members" in {code for code, *_ in found}
    sums = "rewards: {terms: [{kind: score}]}\n"
    begin = "extends: tiny.yaml\nplugins: [marl_plugins.coach, marl_plugins.rewards]\n" + sums
    late = problems(recipe(one + "  disagreement: weigh\n", begin))
    assert [code for code, *_ in late] == ["coach.changed_late"]


def test_a_slow_member_that_could_cost_the_others_verdicts_is_named(recipe):
    two = "  members: {a: {rubric: good.py}, b: {model: m}}\n"
    begin = "extends: tiny.yaml\nplugins: [marl_plugins.coach]\n"
    for seconds, codes in ((300, ["coach.late"]), (301, [])):
        limits = f"limits: {{task_seconds: {seconds}}}\n"
        warned = build_plan(recipe(two, begin + limits)).run.warnings
        assert [p.code for p in warned if p.code.startswith("coach.")] == codes


def test_a_resumed_run_has_the_same_members_and_no_secret_is_kept(recipe):
    coach = (
        "  members:\n    a: {rubric: good.py, weight: 2}\n"
        "    b: {model: m, flags: {base_url: 'http://me:secretsecret@h:1/v1', max_tokens: 9}}\n"
    )
    words = recipe(coach)
    plan = build_plan(words)
    found = fingerprint(plan)
    assert found["recipe"]["coach.members.a.weight"] == 2.0
    assert found["recipe"]["coach.members.b.flags.max_tokens"] == 9
    assert "secretsecret" not in json.dumps(found)
    assert not any("base_url" in key for key in found["recipe"])  # where a model answers may change
    assert found["files"]["rubric of coach a"][0] == "good.py"
    assert "good.py" in list(_named(plan, Path(words[1]).parent))
