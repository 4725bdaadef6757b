"""Reward backpropagation: contributions add up to the outcome's value, blame finds its way, and
nothing is made up."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import nonce_in, openai_server
from planned_once import plan_of
from refusals import refused
from simulated import make_trajectory
from simulated_session import fresh

from marl_plugins import reward_backprop as plugin
from marl_plugins.core.credit import rewards_from_scores
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.core.trajectory import ToolResult
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.records.trajectory_record import from_record, to_record
from marl_plugins.reward_backprop import BackpropState
from marl_plugins.reward_backprop.backward import Attribution, backward, conserve
from marl_plugins.reward_backprop.model import parse
from marl_plugins.reward_backprop.rules import Rules

CHAIN = {"a": [], "b": ["a"], "c": ["b"]}
DIAMOND = {"a": [], "b": ["a"], "c": ["a"], "d": ["b", "c"]}
SPLIT = {"a": [], "b": ["a"], "x": []}
real = st.floats(-1, 1)


class Told:
    """An attributor that contributes what it is told to, as a share of what reaches it; remembers
    what it was asked."""

    def __init__(self, shares=None, to=None):
        self.shares, self.to, self.asked = shares or {}, to or {}, []

    async def attribute(self, action, seen, residual):
        self.asked.append((action.path, residual))
        share = self.shares.get(action.path, 0.0)
        return Attribution(
            share * residual.left, f"from {action.path}", "told to", self.to.get(action.path, {})
        )


def attributions(edges, value, attributor):
    return asyncio.run(backward(make_trajectory(edges), "0 of 1", value, attributor))


@given(st.lists(real, min_size=1, max_size=8), real)
def test_contributions_add_up_to_the_value_and_keep_their_order(contributions, value):
    """So the most blamed never becomes the most credited, and no contribution outgrows what was
    lacking."""
    done = conserve(dict(enumerate(contributions)), value)
    gap = value - sum(contributions)
    assert sum(done.values()) == pytest.approx(value, abs=1e-9)
    for a, before in enumerate(contributions):
        assert abs(done[a] - before) <= abs(gap) + 1e-9
        assert all(
            done[a] <= done[b] + 1e-9 for b, other in enumerate(contributions) if before <= other
        )


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 1), st.sampled_from([-1, 1])
)
def test_contributions_of_the_values_sign_are_rescaled_and_who_did_not_matter_stays_at_0(
    sizes, value, sign
):
    done = conserve({n: sign * c for n, c in enumerate(sizes)}, sign * value)
    if not any(sizes):
        assert list(done.values()) == pytest.approx([sign * value / len(sizes)] * len(sizes))
        return
    assert list(done.values()) == pytest.approx([sign * value * (c / sum(sizes)) for c in sizes])
    assert all(done[n] == 0.0 for n, c in enumerate(sizes) if c == 0.0)


@pytest.mark.parametrize(
    ("given_", "value", "expected"),
    [
        ([0.0, 0.0], -1.0, [-0.5, -0.5]),
        ([0.5, -0.5], -1.0, [0.0, -1.0]),
        ([1e-300, -1e-300], 1.0, [0.5, 0.5]),
        ([-0.5, 0.0, 0.0], 1.0, [0.0, 0.5, 0.5]),  # blame in a success: it stays the least
        ([0.3, 0.0], -1.0, [-0.35, -0.65]),
        ([1.0], 0.0, [0.0]),
    ],
)
def test_nothing_is_divided_by_a_sum_that_cancels(given_, value, expected):
    assert list(conserve(dict(enumerate(given_)), value).values()) == pytest.approx(expected)


@given(st.data())
def test_what_reaches_the_roots_and_what_was_explained_is_the_value(data):
    """On any graph: the residual is passed on without loss."""
    count = data.draw(st.integers(1, 7))
    edges = {str(n): [str(p) for p in range(n) if data.draw(st.booleans())] for n in range(count)}
    value = data.draw(real)
    told = Told({path: data.draw(st.floats(0, 1)) for path in edges})
    found = attributions(edges, value, told)
    left = {path: residual.left for path, residual in told.asked}
    at_roots = sum(left[p] - found[p].contribution for p, parents in edges.items() if not parents)
    assert sum(a.contribution for a in found.values()) + at_roots == pytest.approx(value, abs=1e-9)


def test_an_action_is_asked_about_after_all_that_used_its_output_and_hears_what_they_passed_on():
    told = Told()
    attributions(DIAMOND, -1.0, told)
    order = [path for path, _ in told.asked]
    assert order[0] == "d" and order[-1] == "a"
    residuals = dict(told.asked)
    assert residuals["b"].left == residuals["c"].left == -0.5
    assert residuals["a"].left == -1.0
    assert sorted(residuals["a"].notes) == [("b", "from b"), ("c", "from c")]
    assert residuals["d"].notes == ()


def test_an_attributor_may_say_to_whom_the_rest_goes():
    told = Told({"b": 1.0, "c": 1.0}, to={"d": {"c": 1.0, "stranger": 3.0}})
    found = attributions(DIAMOND, -1.0, told)
    assert {p: a.contribution for p, a in found.items()} == {
        "a": 0.0,
        "b": 0.0,
        "c": -1.0,
        "d": 0.0,
    }


def test_every_sink_starts_with_its_part():
    told = Told()
    attributions(SPLIT, 1.0, told)
    assert {path: residual.left for path, residual in told.asked} == {"b": 0.5, "x": 0.5, "a": 0.5}


# The rules

DUTIES = {
    "loader": "Read the data and save the table to table.csv.",
    "modeller": "Load table.csv, write a program in a ```python block and fit a model.",
    "reporter": "Give the number as \\boxed{}.",
}
PIPELINE = {"loader": [], "modeller": ["loader"], "reporter": ["modeller"]}


def pipeline():
    """A pipeline in which everybody did their part."""
    t = make_trajectory(PIPELINE)
    loader, modeller, reporter = t.actions
    loader.text, loader.tool_results = (
        "Saved.",
        (ToolResult("python", "", "100 rows", True, files=("table.csv",)),),
    )
    modeller.text = "```python\nfit('table.csv')\n```"
    modeller.tool_results = (ToolResult("python", "", "RMSE 3.25", True),)
    reporter.text = "The error is \\boxed{3.25}"
    return t, loader, modeller, reporter


def blame(trajectory, value=-1.0):
    found = asyncio.run(backward(trajectory, "0 of 1", value, Rules(DUTIES)))
    return conserve({p: a.contribution for p, a in found.items()}, value)


def test_a_success_is_shared_by_those_who_did_their_part():
    t, *_ = pipeline()
    assert blame(t, 1.0) == pytest.approx({"loader": 1 / 3, "modeller": 1 / 3, "reporter": 1 / 3})
    t.actions[1].generation = t.actions[1].generation.__class__((), (), "length", "p", 0)
    assert blame(t, 1.0)["modeller"] == 0.0


def test_a_missing_file_is_its_producers_fault_and_not_that_of_who_looked_for_it():
    t, loader, modeller, reporter = pipeline()
    reporter.text = "There is none: \\boxed{}"
    loader.tool_results = (ToolResult("python", "", "100 rows", True),)
    modeller.tool_results = (
        ToolResult(
            "python",
            "",
            "FileNotFoundError: [Errno 2] No such file or directory: 'table.csv'",
            False,
        ),
    )
    assert blame(t) == pytest.approx({"loader": -1.0, "modeller": 0.0, "reporter": 0.0})


def test_a_file_that_nobody_was_to_make_is_the_fault_of_who_looked_for_it():
    t, _, modeller, reporter = pipeline()
    reporter.text = "There is none: \\boxed{}"
    modeller.tool_results = (
        ToolResult("python", "", "No such file or directory: 'made_up.csv'", False),
    )
    assert min(blame(t), key=blame(t).get) == "modeller"


@pytest.mark.parametrize(
    ("guilty", "text", "tools"),
    [
        ("loader", "", ()),
        (
            "loader",
            "Done.",
            (ToolResult("python", "", "KeyError: 'x'", False, files=("table.csv",)),),
        ),
        ("modeller", "I would fit a tree.", ()),
        ("modeller", "```python\nfit(", ()),
        ("reporter", "The error is 3.25", ()),
        ("reporter", "The error is \\boxed{5.23}", ()),
    ],
)
def test_a_fault_that_can_be_seen_is_blamed(guilty, text, tools):
    t, *_ = pipeline()
    action = next(a for a in t.actions if a.role == guilty)
    t.actions[2].text = "There is none: \\boxed{}"
    action.text, action.tool_results = text, tools
    found = blame(t)
    assert min(found, key=found.get) == guilty
    assert sum(found.values()) == pytest.approx(-1.0)


def test_a_number_beside_the_result_that_is_passed_on_is_no_fault():
    t, _, _, reporter = pipeline()
    reporter.text = "The error is \\boxed{3.25}. I checked it in 7 ways."
    assert blame(t) == pytest.approx(dict.fromkeys(DUTIES, -1 / 3))


def test_a_fixed_program_and_a_form_that_a_later_turn_has_are_no_faults():
    t = make_trajectory(
        {"modeller": [], "modeller2": ["modeller"], "reporter": ["modeller2"]},
        roles={"modeller2": "modeller"},
    )
    first, second, reporter = t.actions
    first.text = second.text = "```python\nfit('table.csv')\n```"
    first.tool_results = (ToolResult("python", "", "NameError: fit", False),)
    second.before, second.tool_results = first, (ToolResult("python", "", "RMSE 3.25", True),)
    reporter.text = "It is 3.25"
    assert blame(t) == pytest.approx({"modeller": 0.0, "modeller2": 0.0, "reporter": -1.0})
    second.tool_results = (ToolResult("python", "", "NameError: fit", False),)
    reporter.text = "There is none: \\boxed{}"
    found = blame(t)
    assert found["modeller"] < 0 and found["modeller2"] < 0


def test_a_success_is_shared_alike_also_where_paths_meet():
    t = make_trajectory({"solver": [], "coder": ["solver"], "verifier": ["solver", "coder"]})
    found = asyncio.run(
        backward(t, "1 of 1", 1.0, Rules(dict.fromkeys(("solver", "coder", "verifier"), "Do it.")))
    )
    assert list(
        conserve({p: a.contribution for p, a in found.items()}, 1.0).values()
    ) == pytest.approx([1 / 3] * 3)


# The plugin


def credited(trajectories, words=(), attributor=None):
    recipe = [
        "--recipe",
        "recipes/mathchat/tiny.yaml",
        "--plugin",
        "marl_plugins.reward_backprop",
        "--dry-run",
    ]
    run = fresh(plan_of(*recipe, *words)).run
    run.state(BackpropState).attributor = attributor or Told({"c": 0.5, "b": 0.5})
    rewards_from_scores(trajectories)
    asyncio.run(plugin.marl_credit_step(trajectories, run))
    metrics = {}
    plugin.marl_log(run, metrics)
    return metrics


def contribution(action):
    return action.notes["reward_backprop"]["contribution"]


def scored(outcome, scores, edges=None):
    t = make_trajectory(edges or CHAIN)
    t.outcome, t.actions_scored = outcome, True
    for action, score in zip(t.actions, scores, strict=True):
        action.score = score
    return t


def test_a_reward_joins_the_score_with_the_contribution():
    t = scored(0.0, [0.8, 0.6, None])
    said = t.actions[1].explanation = "the coach's words"
    metrics = credited([t], ["--reward_backprop.alpha", "0.5", "--reward_backprop.beta", "2"])
    # c takes a half of -1, b a half of the rest; all of one sign, they are rescaled to -1.
    deltas = {"a": 0.0, "b": -1 / 3, "c": -2 / 3}
    assert {a.path: contribution(a) for a in t.actions} == pytest.approx(deltas)
    assert [a.reward for a in t.actions[:2]] == pytest.approx(
        [0.5 * 0.8, 0.5 * 0.6 + 2 * deltas["b"]]
    )
    assert t.actions[2].reward is None  # its own verdict is missing
    assert t.actions[1].terms == pytest.approx(
        {"process": 0.5 * 0.6, "contribution": 2 * deltas["b"]}
    )
    assert [sum(a.terms.values()) for a in t.actions[:2]] == [a.reward for a in t.actions[:2]]
    assert t.actions[2].terms == {}
    assert t.actions[1].notes == {
        "reward_backprop": {
            "contribution": pytest.approx(deltas["b"]),
            "why": "told to",
            "passed_on": "from b",
        }
    }
    assert to_record(from_record(json.loads(json.dumps(to_record(t))))) == to_record(t)
    assert t.actions[1].explanation == said  # the coach's own: a judge is taught by it
    assert metrics["backprop/gap"] == pytest.approx(0.25)


def test_an_unavailable_attribution_leaves_its_trajectory_out():
    class Down:
        async def attribute(self, action, seen, residual):
            if action.path == "b":
                raise InfrastructureFailure("coach_busy", "429")
            return Attribution(0.0)

    lost, none = scored(1.0, [0.5, 0.5, 0.5]), scored(None, [0.5, 0.5, 0.5])
    metrics = credited([lost, none], ["--coach.max_missing", "1"], attributor=Down())
    assert {(a.reward, a.unscored) for a in lost.actions} == {(None, "coach_busy")}
    assert {a.reward for a in none.actions} == {None}
    assert metrics["backprop/missing"] == 0.5
    kept = scored(1.0, [0.5, 0.5, 0.5], {"a": [], "c": ["a"]} | {"d": ["c"]})
    credited([scored(1.0, [0.5, 0.5, 0.5]), kept], attributor=Down())
    assert {(a.reward, a.unscored) for a in kept.actions} == {(None, "coach_step_left_out")}
    assert [a.terms for a in kept.actions] == [{}] * 3


def test_an_outcome_of_several_parts_is_weighed():
    t = scored(0.5, [0.0, 0.0, 0.0])
    t.outcome_parts = {"accuracy": 1.0, "f1": 0.25, "speed": 0.0}
    words = ["--reward_backprop.weights", json.dumps({"accuracy": 3, "f1": 1})]
    credited([t], words)
    assert sum(contribution(a) for a in t.actions) == pytest.approx((3 * 1.0 + 1 * -0.5) / 4)
    failed = scored(0.0, [0.0, 0.0, 0.0])
    failed.agent_failure = "no_answer"
    credited([failed], words)
    assert sum(contribution(a) for a in failed.actions) == pytest.approx(-1.0)
    t.outcome_parts = {"accuracy": 1.0}
    with refused(("reward_backprop.no_part", "reward_backprop.weights", "t")):
        credited([t], words)


# The model


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ("It broke it.\nPASSED_ON n1: the plan\nCONTRIBUTION n1: -3", "text", -3),
        ("**CONTRIBUTION n1:** +2.5/10", "text", 2.5),
        ("CONTRIBUTION n1: -11", "text", None),
        ("CONTRIBUTION n1: -3\nCONTRIBUTION n1: 3", "text", None),
        ('{"nonce": "n1", "explanation": "x", "passed_on": "y", "contribution": -10}', "json", -10),
        ('{"nonce": "n1", "contribution": -10.1}', "json", None),
        ('{"contribution": -1}', "json", None),
    ],
)
def test_an_attribution_is_read_as_strictly_as_a_verdict(text, form, expected):
    found = parse(text, "n1", form)
    assert (found and found["contribution"]) == expected


def test_the_models_attributor_asks_backwards_through_the_coachs_client(tmp_path):
    def answer(body, n):
        prompt = body["messages"][-1]["content"]
        nonce = nonce_in(body)
        if "This tries out" in prompt:
            return json.dumps({"nonce": nonce, "explanation": "", "criteria": [], "score": 7})
        blamed = "The member: coder" in prompt
        return json.dumps(
            {
                "nonce": nonce,
                "explanation": "Traced.",
                "passed_on": "a wrong plan",
                "contribution": -8 if blamed else 0,
            }
        )

    t = make_trajectory({"solver": [], "coder": ["solver"], "verifier": ["coder"]})
    t.outcome = 0.0
    with openai_server(answer) as (url, bodies):
        words = [
            "--coach.model",
            "m",
            "--coach.base_url",
            url,
            "--reward_backprop.attributor",
            "model",
        ]
        words += ["--ckpt.output_dir", str(tmp_path)]
        plan = build_plan(
            [
                "--recipe",
                "recipes/mathchat/tiny.yaml",
                "--plugin",
                "marl_plugins.reward_backprop",
                *words,
            ]
        )

        async def credit():
            async with plan.plugins.started(plan.run, "train"):
                rewards_from_scores([t])
                await plugin.marl_credit_step([t], plan.run)

        asyncio.run(credit())
    prompts = [b["messages"][0]["content"] for b in bodies[1:]]
    assert [
        next(r for r in ("solver", "coder", "verifier") if f"The member: {r}" in p) for p in prompts
    ] == [
        "verifier",
        "coder",
        "solver",
    ]
    assert (
        "it is worth -10.0" in prompts[0]
        and "-10.0 of it has reached" in prompts[1]
        and "-2.0 of it" in prompts[2]
    )
    assert "<coder> a wrong plan" in prompts[2]
    assert not any("label" in p for p in prompts)
    assert {a.role: contribution(a) for a in t.actions} == pytest.approx(
        {"solver": 0.0, "coder": -1.0, "verifier": 0.0}
    )


# Outcomes per role


def test_an_action_is_credited_with_its_part_in_its_own_roles_outcome():
    t = make_trajectory(
        {"a": [], "b": ["a"], "c": ["b"]}, roles={"a": "pro", "b": "con", "c": "judge"}
    )
    t.outcomes, t.outcome = {"pro": 1.0, "con": 0.0}, 0.5  # the judge has none
    credited([t], attributor=Told({"a": 0.5, "b": 0.5}))
    one, other = (
        make_trajectory({"a": [], "b": ["a"], "c": ["b"]}),
        make_trajectory({"a": [], "b": ["a"], "c": ["b"]}),
    )
    one.outcome, other.outcome = 1.0, 0.0
    credited([one, other], attributor=Told({"a": 0.5, "b": 0.5}))
    assert [a.reward for a in t.actions] == [one.actions[0].reward, other.actions[1].reward, None]
    assert t.actions[0].reward > 0 > t.actions[1].reward


def test_parts_of_an_outcome_are_the_teams():
    t = scored(0.5, [0.0, 0.0, 0.0])
    t.outcomes, t.outcome_parts = {"a": 1.0, "b": 0.0, "c": 0.5}, {"f1": 1.0}
    with refused(("reward_backprop.per_role", "reward_backprop.weights", "t")):
        credited([t], ["--reward_backprop.weights", '{"f1": 1}'])
