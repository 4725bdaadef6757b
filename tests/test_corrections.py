"""Better actions: asked of the coach, kept with the records, and made into data sets in TRL's
formats."""

import asyncio
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import nonce_in, openai_server
from simulated import DraftAction, make_trajectory

from marl_plugins.cli import main
from marl_plugins.coach import correcting, verdict
from marl_plugins.coach.corrections import leaks, why_refused
from marl_plugins.coach.notes import NOTES
from marl_plugins.core.scoring import score_trajectory
from marl_plugins.core.trajectory import (
    Generation,
    Task,
    ToolResult,
    Trajectory,
)
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.records.trajectory_record import from_record, to_record

ROOT = Path(__file__).resolve().parent.parent
RECIPE = str(ROOT / "recipes" / "mathchat" / "tiny.yaml")
NONCE = "9f31c2aa"

# --- reading
# --------------------------------------------------------------------------------------------------


@given(
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\r")), st.text(), st.text()
)
def test_what_stands_between_the_marks_is_the_correction_and_no_part_of_the_verdict(
    better, before, after
):
    better = better.replace(NONCE, "")
    answer = f"fine\nCORRECTION {NONCE}\n{better}\nEND {NONCE}\nSCORE {NONCE}: 7"
    rest, found = correcting.taken_out(answer, NONCE)
    assert (rest, found) == (f"fine\nSCORE {NONCE}: 7", better)
    scored = f"CORRECTION {NONCE}\nSCORE {NONCE}: 10\nEND {NONCE}\nSCORE {NONCE}: 2"
    assert verdict.parse(correcting.taken_out(scored, NONCE)[0], NONCE, "text", False).score == 2
    others = f"{before}\n{after}".replace(NONCE, "")  # who does not know the word marks nothing
    assert correcting.taken_out(others, NONCE) == (others, None)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (f"**CORRECTION {NONCE}**:\na\n\nb\n- END {NONCE}", "a\n\nb"),
        (f"CORRECTION {NONCE}\r\na\r\nEND {NONCE}\r", "a"),
        (f"CORRECTION {NONCE}\nEND {NONCE}", ""),
        (f"CORRECTION {NONCE}\na", None),
        (f"END {NONCE}\na\nCORRECTION {NONCE}", None),
        (f"CORRECTION {NONCE}\na\nCORRECTION {NONCE}\nb\nEND {NONCE}", None),
        (f"CORRECTION {NONCE} a END {NONCE}", None),
        ("CORRECTION 9f31c2ab\na\nEND 9f31c2ab", None),
        ("", None),
    ],
)
def test_marks_that_are_not_one_pair_are_none(answer, expected):
    assert correcting.taken_out(answer, NONCE)[1] == expected


# --- asking
# --------------------------------------------------------------------------------------------------


def answered(body, better):
    """What a coach answers in the form that it is asked for, with a correction."""
    prompt = body["messages"][-1]["content"]
    if "response_format" in body:
        fields = body["response_format"]["json_schema"]["schema"]["properties"]
        given = {"nonce": nonce_in(body), "explanation": "so", "criteria": [], "score": 4}
        given |= {"correct": False} if "correct" in fields else {}
        return json.dumps(given | ({"correction": better} if "correction" in fields else {}))
    nonce = nonce_in(body)
    said = (
        f"CORRECTION {nonce}\n{better}\nEND {nonce}\n"
        if better is not None and f"CORRECTION {nonce}" in prompt
        else ""
    )
    return f"so\n{said}CORRECT {nonce}: no\nSCORE {nonce}: 4"


def judged(server, *words):
    """The actions of a trajectory that a run's coach has judged, and the plan."""
    plan = build_plan(
        ["--recipe", RECIPE, "--coach.model", "m", "--coach.base_url", server, *words]
    )
    trajectory = make_trajectory({"solver": [], "coder": ["solver"], "verifier": ["coder"]})

    async def score():
        async with plan.plugins.started(plan.run, "judge"):
            hook = plan.plugins.hook.marl_score_action
            scorer = lambda action, seen: hook(run=plan.run, action=action, seen=seen)  # noqa: E731
            await score_trajectory(trajectory, scorer, None, roles=list(plan.run.recipe.roles))

    asyncio.run(score())
    return trajectory.actions, plan


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize("better", ["one\n\ntwo: ```x```", None])
def test_a_model_is_asked_for_a_better_action_and_it_is_kept(form, better, tmp_path):
    words = ["--coach.form", form, "--coach.corrections", "--ckpt.output_dir", str(tmp_path)]
    with openai_server(lambda body, count: answered(body, better)) as (url, bodies):
        actions, _ = judged(url, *words)
    assert [a.score for a in actions] == [0.4] * 3
    kept = [a.notes[NOTES] for a in actions]
    if better is None:
        assert not any("correction" in note for note in kept)
    else:
        assert [note["correction"] for note in kept] == [better] * 3
        assert [note["knew_the_label"] for note in kept] == [False, False, True]
    assert all("must not be in it" in body["messages"][-1]["content"] for body in bodies[1:])


@pytest.mark.parametrize("form", ["text", "json"])
def test_without_the_flag_nobody_is_asked_and_nothing_is_kept(form, tmp_path):
    with openai_server(lambda body, count: answered(body, "better")) as (url, bodies):
        actions, _ = judged(url, "--coach.form", form, "--ckpt.output_dir", str(tmp_path))
    assert [a.score for a in actions] == [0.4] * 3 and not any(
        "correction" in a.notes[NOTES] for a in actions
    )
    assert not any("orrection" in json.dumps(body) for body in bodies)


def test_a_rubric_gives_corrections_too(tmp_path):
    rules = tmp_path / "rules.py"
    rules.write_text(
        "from marl_plugins.coach.rubric import Criterion\n"
        "RUBRIC = {r: [Criterion('a', 1, lambda action, seen: True)] for r in ('solver', 'coder', "
        "'verifier')}\n"
        "async def better(action, seen):\n    return action.text + '!'\n"
        "CORRECTIONS = {'coder': better, 'solver': lambda action, seen: None}\n"
    )
    plan = build_plan(["--recipe", RECIPE, "--coach.rubric", str(rules)])
    trajectory = make_trajectory({"solver": [], "coder": ["solver"], "verifier": ["coder"]})
    hook = plan.plugins.hook.marl_score_action
    scorer = lambda action, seen: hook(run=plan.run, action=action, seen=seen)  # noqa: E731
    asyncio.run(score_trajectory(trajectory, scorer, None, roles=list(plan.run.recipe.roles)))
    notes = [a.notes[NOTES] for a in trajectory.actions]
    assert [n.get("correction") for n in notes] == [None, "x!", None] and not notes[1][
        "knew_the_label"
    ]
    assert from_record(json.loads(json.dumps(to_record(trajectory)))).actions[1].notes == {
        NOTES: notes[1]
    }


# --- what is used
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("correction", "label", "material", "leaking"),
    [
        ("So it is \\boxed{42}.", "42", "The program printed 42.", False),
        ("So it is \\boxed{42}.", "42", "The program printed 41.", True),
        ("So it is 42.0, or 1,042", "42", "no number", True),
        ("So it is 142", "42", "no number", False),
        ("So it is 42km", "42", "no number", True),
        ("So it is 42.5kg", "42", "no number", False),
        ("The price is 1,042", 1042, "it was 1042.00", False),
        ("The price is 1,042", 1042.0, "it was 42", True),
        ("It is PARIS,\nFrance", "Paris, France", "which town?", True),
        ("comparison", "Paris", "", False),
        ("a or b", ["b", "c"], "a", True),
        ("it is d", {"first": "c", "second": "d"}, "c", True),
        ("it is 7", "2+5=7\n#### 7", "it is 2+5", True),
        ("anything", None, "", False),
        ("anything", "", "", False),
    ],
)
def test_a_label_that_the_agent_could_not_know_is_a_leak(correction, label, material, leaking):
    assert leaks(correction, label, material) is leaking


def action_of(
    text="said", shown="See 5 pens.", turn_before=None, ids=(7,), role="coder", path="coder.1"
):
    return DraftAction(
        path=path,
        role=role,
        policy=role,
        turn=0 if turn_before is None else 1,
        shown_ids=(1, 2, 3),
        generation=Generation(ids, (-0.1,) * len(ids), "stop", role, 0),
        text=text,
        shown=(("user", shown),),
        before=turn_before,
        score=0.4,
        explanation="because",
    )


def refused(correction, knew=True, label="42", action=None, fits=lambda action, text: True):
    action = action or action_of()
    trajectory = Trajectory(Task("t", "5 pens", label), 0, 1, actions=[action])
    return why_refused(trajectory, action, {"correction": correction, "knew_the_label": knew}, fits)


def test_what_cannot_be_used_has_a_reason():
    assert refused("better") == ""
    assert refused(" \n") == "empty"
    assert refused("said\n") == "unchanged"
    assert refused("It is 42.") == "label"
    assert (
        refused("It is 42.", knew=False) == ""
    )  # who does not know the label has found the answer
    assert (
        refused("It is 5.", label="5") == "label"
    )  # in the task alone, which says nothing of the answer
    assert refused("better", fits=lambda action, text: False) == "too_long"
    first = action_of("print(42)", "See 5 pens.")
    assert (
        refused("It is 42.", action=action_of("said", "It printed 42.", first, path="coder.2"))
        == ""
    )


# --- the files
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    """A finished run's records: a coder of two turns, of which the second one was corrected, and a
    verifier who was not."""
    plan = build_plan(["--recipe", RECIPE])
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "plan.json").write_text(json.dumps(describe(plan)))
    lines = []
    notes = ["better", "  ", "said", "It is 42.", "b" * 41]
    for sample, better in enumerate(notes):
        first = action_of("```python\nprint(1)\n```")
        first.tool_results = (ToolResult("python", "print(1)", "1", True),)
        second = action_of("said", "It printed 1.", first, path="coder.2")
        second.notes = {NOTES: {"correction": better, "knew_the_label": True}}
        last = action_of("\\boxed{1}", "So?", role="verifier", path="verifier.1")
        trajectory = Trajectory(
            Task("t", "5 pens", "42"),
            sample,
            1 + sample,
            actions=[first, second, last],
            outcome=0.0,
        )
        lines.append(json.dumps(to_record(trajectory)) + "\n")
    (folder / "trajectories.jsonl").write_text("".join(lines))
    return folder


def export(table, *words):
    assert main(["export", *map(str, words), "--table", table]) == 0


def test_tables_in_trls_formats(run, capsys, tmp_path):
    before = (run / "trajectories.jsonl").read_bytes()
    export("sft", run, "--json")
    none = dict.fromkeys(("written", "empty", "unchanged", "label", "too_long"), 0)
    assert json.loads(capsys.readouterr().out) == {
        "coder": {"actions": 10, **dict.fromkeys(none, 1)},
        "verifier": {"actions": 5, **none},
    }
    files = {table: tmp_path / f"{table}.jsonl" for table in ("sft", "dpo")}
    for table, file in files.items():
        export(table, run, "--policy", "coder", "--to", file)
    prompt = [
        {"role": "user", "content": "See 5 pens."},
        {"role": "assistant", "content": "```python\nprint(1)\n```"},
        {"role": "user", "content": "It printed 1."},
    ]
    about = {
        **{"prompt": prompt, "task": "t", "sample": 0, "step": 1, "action": "coder.2"},
        **{"role": "coder", "score": 0.4, "outcome": 0.0, "reason": "because", "tools": None},
    }
    better, said = ([{"role": "assistant", "content": text}] for text in ("better", "said"))
    (line,) = map(json.loads, files["sft"].read_text().splitlines())
    assert line == {"completion": better, "said": "said", **about}
    (line,) = map(json.loads, files["dpo"].read_text().splitlines())
    assert line == {"chosen": better, "rejected": said, **about}
    assert (run / "trajectories.jsonl").read_bytes() == before
