"""Rewards that are sums of terms: UnityMAS-O's four workflows, and what is refused."""

import asyncio
import itertools
import random
import shutil
from types import SimpleNamespace

import pytest
from random_graphs import compiled, played
from simulated import CharacterChat, make_trajectory

from marl_plugins import rewards as plugin
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.ledger import Ledger, unscored_actions
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.trajectory import Generation
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.records.report import summarise, table
from marl_plugins.engine.runtime.metrics import held_out, summary
from marl_plugins.rewards.section import RewardsConfig


def noted(edges, rounds=None, legal=None, roles=None):
    """A trajectory whose actions have a graph's notes: the round of each, and whether it was
    legal."""
    trajectory = make_trajectory(edges, roles=roles)
    for action in trajectory.actions:
        number = (rounds or {}).get(action.path)
        note = {
            "node": action.path,
            "round": number,
            "legal": (legal or {}).get(action.path, True),
        }
        if number is not None:
            note["within"] = [["rounds", "round", number]]
        action.notes, action.reward = {"graph": note}, 0.7
    return trajectory


def credited(trajectory, terms, values=None, folder=None, **config):
    """Rewards by path."""

    async def value(action, task):
        assert task is trajectory.task
        return values[action.path]

    section = RewardsConfig.model_validate({"terms": terms, **config})
    run = SimpleNamespace(
        section=lambda kind: section, grader_module=SimpleNamespace(value=value), folder=folder
    )
    asyncio.run(plugin.marl_credit([trajectory], run))
    return {a.path: a.reward for a in trajectory.actions}


def test_search_pays_the_outcome_to_all_with_format():
    trajectory = noted({"ask": [], "answer": ["ask"]}, legal={"ask": False})
    trajectory.outcome = 0.5
    assert credited(trajectory, [{"kind": "outcome"}, {"kind": "format"}]) == {
        "ask": -0.5,
        "answer": 0.5,
    }
    assert [a.terms for a in trajectory.actions] == [
        {"outcome": 0.5, "format": -1.0},
        {"outcome": 0.5, "format": 0.0},
    ]
    split = [{"kind": "outcome", "share": "split", "weight": 2}]
    assert credited(trajectory, split) == {"ask": 0.5, "answer": 0.5}
    assert credited(trajectory, [*split, {"kind": "format", "roles": ["answer"]}]) == {
        "ask": 0.5,
        "answer": 0.5,
    }


def test_outcomes_may_be_roles_own():
    trajectory = noted({"a": [], "b": ["a"]})
    trajectory.outcomes = {"a": 1.0, "b": 0.0}
    assert credited(trajectory, [{"kind": "outcome"}]) == {"a": 1.0, "b": 0.0}


def test_iterative_search_pays_gains():
    """The first answer is outside of the loop; each round's work is paid by what its answer
    gains."""
    edges, rounds, roles = {"plan": []}, {}, {}
    before = "plan"
    for t in range(2):
        edges |= {f"search{t}": [before], f"answer{t}": [f"search{t}"]}
        rounds |= {f"search{t}": t, f"answer{t}": t}
        roles |= {f"search{t}": "search", f"answer{t}": "answer"}
        before = f"answer{t}"
    trajectory = noted(edges, rounds, roles=roles)
    values = {"plan": 0.2, "answer0": 0.5, "answer1": 0.4}
    terms = [
        {"kind": "value", "of": ["plan", "answer"], "roles": ["plan", "answer"]},
        {"kind": "gain", "of": ["plan", "answer"], "roles": ["search"]},
    ]
    found = credited(trajectory, terms, values)
    assert found == pytest.approx(
        {"plan": 0.2, "search0": 0.3, "answer0": 0.5, "search1": -0.1, "answer1": 0.4}
    )


def test_reflective_code_pays_the_reflector_for_the_round_after_it():
    """The vector of UnityMAS-O's own tests: values 0.25 and 0.75, and a coder who is illegal
    once."""
    edges = {
        "plan0": [],
        "code0": ["plan0"],
        "think0": ["code0"],
        "plan1": ["think0"],
        "code1": ["plan1"],
        "think1": ["code1"],
    }
    rounds, roles = {path: int(path[-1]) for path in edges}, {path: path[:-1] for path in edges}
    trajectory = noted(edges, rounds, {"code0": False}, roles)
    terms = [
        {"kind": "gain", "of": ["code"], "roles": ["plan", "code"]},
        {"kind": "gain", "of": ["code"], "roles": ["think"], "delay": 1},
        {"kind": "format"},
    ]
    found = credited(trajectory, terms, {"code0": 0.25, "code1": 0.75})
    assert found == {
        "plan0": 0.25,
        "code0": -0.75,
        "think0": 0.5,
        "plan1": 0.5,
        "code1": 0.5,
        "think1": 0.0,
    }
    assert trajectory.actions[2].terms == {"gain": 0.5, "format": 0.0}


NESTED = """
nodes:
  draft: {role: b, with: {q: "'draft'"}}
  outer:
    loop:
      most: 2
      nodes:
        items:
          map:
            over: "[0, 1, 2]"
            as: item
            nodes:
              inner:
                loop:
                  most: 3
                  nodes:
                    plan: {role: a, with: {q: "[str(item), draft.text]"}}
                    code:
                      role: b
                      with: {q: plan}
                      when: "lower(plan.text) < 'b'"
                  give: first(code, plan)
            give: inner
        review: {role: chooser, with: {q: "join(items)", options: "''"}}
      give: review
give: outer
"""


@pytest.mark.parametrize("seed", range(6))
def test_rounds_of_a_loop_in_a_map_in_a_loop_are_told_apart(tmp_path, seed):
    """The reference is the sentence of docs/recipes.md as loops: an item's value grows from round
    to round, wherever it was last known, and some rounds have none."""
    workflow, problems = compiled(tmp_path, NESTED)
    assert not problems
    draw = random.Random(seed)

    async def generate(call):
        word = draw.choice("abc") + str(draw.randrange(10**6))
        ids = (*CharacterChat.encode(word), ord("^"))
        return Generation(ids, tuple(-0.5 for _ in ids), "stop", call.policy, 0)

    trajectory = asyncio.run(played(workflow, generate))
    values = {a.path: draw.random() for a in trajectory.actions}
    known = [values[a.path] for a in trajectory.actions if a.notes["graph"]["node"] == "draft"] * 3
    acted = {}
    for action in trajectory.actions:
        note = action.notes["graph"]
        numbers = tuple(number for _, _, number in note.get("within", ()))
        acted[note["node"].rpartition(".")[2], *numbers] = action
    gains = {}
    for outer in range(2):
        for item in range(3):
            for inner in range(3):
                gains[acted["plan", outer, item, inner].path] = 0.0
                if code := acted.get(("code", outer, item, inner)):
                    value = values[code.path]
                    gains[acted["plan", outer, item, inner].path] = value - known[item]
                    known[item] = value
    # Of an outer round the review sees the last value, whichever item's that is.
    coded = [a.path for a in trajectory.actions if a.notes["graph"]["node"].endswith("code")]
    outer_of = {a.path: n[1] for n, a in acted.items() if n[0] == "code"}
    for outer in range(2):
        last = [path for path in coded if outer_of[path] == outer]
        review = acted["review", outer].path
        gains[review] = values[last[-1]] if last else 0.0
    terms = [
        {"kind": "gain", "of": ["b"], "roles": ["a"]},
        {"kind": "value", "of": ["b"], "roles": ["chooser"]},
    ]
    found = credited(trajectory, terms, values)
    assert {path: found[path] for path in gains} == pytest.approx(gains)


def test_a_gain_counts_from_the_last_value_that_there_is():
    """Round 1 was not answered."""
    edges = {"think0": [], "code0": ["think0"], "think1": ["code0"], "think2": ["think1"]}
    edges["code2"] = ["think2"]
    roles, rounds = {p: p[:-1] for p in edges}, {p: int(p[-1]) for p in edges}
    gain = [{"kind": "gain", "of": ["code"]}]
    found = credited(noted(edges, rounds, roles=roles), gain, {"code0": 0.6, "code2": 0.7})
    assert found == pytest.approx(
        {"think0": 0.6, "code0": 0.6, "think1": 0.0, "think2": 0.1, "code2": 0.1}
    )


def test_an_answer_after_the_rounds_gains_from_the_last_and_no_earlier_one_from_it():
    edges = {"draft": [], "search0": ["draft"], "answer0": ["search0"], "search1": ["answer0"]}
    edges |= {
        "answer1": ["search1"],
        "judge": ["answer1"],
        "answer2": ["judge"],
        "aside": ["draft"],
    }
    rounds = {path: int(path[-1]) for path in edges if path[-1] in "01"}
    trajectory = noted(edges, rounds, roles={p: "answer" for p in edges if p[:-1] == "answer"})
    values = {"draft": 0.2, "answer0": 0.5, "answer1": 0.4, "answer2": 0.9}
    found = credited(trajectory, [{"kind": "gain", "of": ["draft", "answer"]}], values)
    assert found == pytest.approx(
        {
            **{"draft": 0.2, "aside": 0.2, "search0": 0.3, "answer0": 0.3},
            **{"search1": -0.1, "answer1": -0.1, "judge": 0.5, "answer2": 0.5},
        }
    )
    late = [{"kind": "value", "of": ["answer"], "roles": ["search1"], "delay": 1}]
    assert credited(trajectory, late, values)["search1"] == 0.9


def test_an_answer_after_a_map_of_loops_gains_from_the_last_of_all(tmp_path):
    graph = NESTED.replace("give: outer", "  end: {role: b, with: {q: outer}}\ngive: end")
    workflow, problems = compiled(tmp_path, graph)
    assert not problems
    count = itertools.count()

    async def generate(call):
        ids = (*CharacterChat.encode(f"a{next(count)}"), ord("^"))
        return Generation(ids, tuple(-0.5 for _ in ids), "stop", call.policy, 0)

    trajectory = asyncio.run(played(workflow, generate))
    answers = [a for a in trajectory.actions if a.role == "b"]
    values = {a.path: n / 100 for n, a in enumerate(answers)}
    found = credited(trajectory, [{"kind": "gain", "of": ["b"]}], values)
    draft, *inner, end = answers
    last = [a for a in inner if a.notes["graph"]["within"][0] == ["outer", "round", 1]][-1]
    assert found[draft.path] == values[draft.path]
    assert found[end.path] == pytest.approx(values[end.path] - values[last.path])


def test_each_value_is_asked_once_and_all_at_once():
    edges = {"plan0": [], "code0": ["plan0"], "plan1": ["code0"], "code1": ["plan1"]}
    rounds, roles = {p: int(p[-1]) for p in edges}, {p: p[:-1] for p in edges}
    trajectories = [noted(edges, rounds, roles=roles) for _ in range(3)]
    asked, all_asked = [], asyncio.Event()

    async def value(action, task):
        asked.append(action)
        if len(asked) == 6:
            all_asked.set()
        await all_asked.wait()
        return 0.5

    terms = [{"kind": kind, "of": ["code"]} for kind in ("gain", "value")]
    section = RewardsConfig.model_validate({"terms": terms})
    run = SimpleNamespace(
        section=lambda kind: section, grader_module=SimpleNamespace(value=value), folder=None
    )
    asyncio.run(asyncio.wait_for(plugin.marl_credit(trajectories, run), 10))
    assert [a.reward for a in trajectories[0].actions] == [1.0, 1.0, 0.5, 0.5]


@pytest.mark.parametrize(("unscored", "reward"), [("leave_out", None), ("zero", 0.0)])
def test_a_missing_score_leaves_out_or_counts_zero(unscored, reward):
    trajectory = noted({"a": [], "b": ["a"], "c": ["b"]})
    trajectory.actions[0].score = 0.75
    terms = [{"kind": "score", "roles": ["a", "b"]}]
    assert credited(trajectory, terms, unscored=unscored) == {"a": 0.75, "b": reward, "c": reward}
    assert not list(unscored_actions([trajectory]))  # which are infrastructure's


def test_a_lost_trajectory_is_left_alone():
    trajectory = noted({"a": []})
    trajectory.infrastructure_failure = "tool"
    assert credited(trajectory, [{"kind": "format"}]) == {"a": 0.7}


@pytest.mark.parametrize(
    ("section", "code"),
    [
        ("{terms: [{kind: outcome, roles: [solvr]}]}", "rewards.role"),
        ("{terms: [{kind: gain, of: [verifier]}]}", "rewards.no_value"),
        ("{terms: [{kind: gain}]}", "rewards.of"),
        ("{terms: [{kind: format, delay: 1}]}", "rewards.of"),
        ("{terms: [{kind: format, share: split}]}", "rewards.share"),
        ("{terms: [{kind: fomat}]}", "recipe.value"),
        ("{terms: []}", "rewards.none"),
        ("{file: grader.py}", "rewards.no_function"),
    ],
)
def test_what_is_wrong_with_the_section_is_named_with_its_line(tmp_path, section, code):
    shutil.copytree(recipes_root() / "mathchat", tmp_path / "mine")
    recipe = tmp_path / "mine" / "mine.yaml"
    recipe.write_text(f"extends: tiny.yaml\nplugins: [marl_plugins.rewards]\nrewards: {section}\n")
    with pytest.raises(ConfigurationError) as caught:
        build_plan(["--recipe", str(recipe)])
    found = [p for p in caught.value.problems if p.code == code]
    assert found and f"{recipe}:3" in found[0].names("line")


def test_calls_rounds_and_legality_are_metrics_and_in_the_report():
    edges = {"code0": [], "code1": ["code0"], "other": []}
    trajectory = noted(
        edges, {"code0": 0, "code1": 1}, {"code1": False}, {"code0": "code", "code1": "code"}
    )
    found = summary([trajectory], Ledger(1))
    assert (
        found["role/code/calls"] == 2.0
        and found["role/code/legal"] == 0.5
        and found["trajectories/rounds"] == 2.0
    )
    trajectory.outcome, trajectory.outcome_parts = 0.5, {"f1": 0.5}
    held = held_out([trajectory, make_trajectory({"other": []})])
    assert (
        held["eval/part/f1"] == 0.5
        and held["eval/role/code/calls"] == 1.0
        and held["eval/role/code/legal"] == 0.5
    )
    assert held["eval/rounds"] == 2.0
    credited(trajectory, [{"kind": "format"}])
    steps = [{"step": n, **summary([trajectory], Ledger(1))} for n in (1, 2)]
    _, rows = table(summarise(steps, ["code"]))
    shown = {row[0]: row[1:] for row in rows}
    assert ["2.00", "2.00"] in shown.values() and shown["code: reward, format"] == [
        "-0.500",
        "-0.500",
    ]
