"""Verdicts as a data set for a judge: the very question that the coach was asked, and an answer
that is read as its verdict."""

import asyncio
import json
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import Reply, nonce_in, openai_server
from refusals import found_by
from simulated import make_trajectory

from marl_plugins.cli import dispatch, main
from marl_plugins.coach import correcting, verdict
from marl_plugins.coach.distil import fold
from marl_plugins.coach.notes import NOTES
from marl_plugins.coach.verdict import Verdict
from marl_plugins.core.scoring import score_trajectory
from marl_plugins.core.trajectory import Task, ToolResult
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.records.trajectory_record import to_record

ROOT = Path(__file__).resolve().parent.parent
RECIPE = str(ROOT / "recipes" / "mathchat" / "tiny.yaml")
NONCE = "9f31c2aa"
ROLES = {"solver": [], "coder": ["solver"], "verifier": ["coder"]}

LINES = st.sampled_from(
    [
        "fine",
        "SCORE abc: 3",
        f"SCORE {NONCE}: 10",
        f"**CORRECT {NONCE}**: no",
        f"I say {NONCE}",
        "{",
        "score: 3",
        "",
        "\x0b",
    ]
)


@given(
    score=st.floats(0, 10),
    correct=st.none() | st.booleans(),
    lines=st.lists(LINES | st.text(st.characters(codec="utf-8"), max_size=9)),
    criteria=st.dictionaries(st.text(max_size=4), st.floats(0, 10), max_size=3),
    better=st.none() | st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20),
    form=st.sampled_from(["text", "json"]),
    last=st.booleans(),
)
def test_the_answer_is_read_as_the_verdict(score, correct, lines, criteria, better, form, last):
    given = Verdict(
        score=score,
        correct=correct,
        criteria=criteria,
        explanation="\n".join(lines),
        correction=better,
    )
    answer = correcting.with_it(verdict.answer(given, NONCE, form, last), better, NONCE, form)
    rest, block = correcting.taken_out(answer, NONCE) if form == "text" else (answer, None)
    found = verdict.parse(rest, NONCE, form, last)
    assert found.score == pytest.approx(score, abs=0.0051)
    assert found.correct == ((score >= 5 if correct is None else correct) if last else None)
    assert (block if form == "text" else found.correction) == better
    if form == "json":
        assert found.criteria == pytest.approx(criteria, abs=0.0051)


# --- a run's records
# --------------------------------------------------------------------------------------------------


def judge(tmp_path, *words, tasks=1, recipe=RECIPE):
    """The folder of a run whose actions have been judged as the words say."""
    plan = build_plan(["--recipe", str(recipe), "--ckpt.output_dir", str(tmp_path), *words])
    folder = tmp_path / "run"
    folder.mkdir()

    def scorer(action, seen):
        return plan.plugins.hook.marl_score_action(run=plan.run, action=action, seen=seen)

    async def score():
        async with plan.plugins.started(plan.run, "judge"):
            for trajectory in trajectories:
                await score_trajectory(trajectory, scorer, None, roles=list(plan.run.recipe.roles))

    trajectories = []
    for number in range(tasks):
        trajectory = make_trajectory(ROLES)
        trajectory.task = Task(f"t{number}", f"task {number}", "the label")
        trajectory.answer, trajectory.outcome = "mine", 1.0
        trajectory.actions[1].tool_results = (ToolResult("python", "1", "it printed 1", True),)
        for action in trajectory.actions:
            action.shown, action.text = (
                (("user", f"Do {number} as {action.role}."),),
                f"done by {action.role}",
            )
        trajectories.append(trajectory)
    asyncio.run(score())
    lines = [json.dumps(to_record(trajectory)) + "\n" for trajectory in trajectories]
    (folder / "trajectories.jsonl").write_text("".join(lines))
    return folder


def copied(folder):
    """A copy of the recipe's folder, for a file beside the recipe."""
    return Path(shutil.copytree(ROOT / "recipes" / "mathchat", folder / "recipe"))


def export(*words):
    assert main(["export", *map(str, words), "--table", "verdicts"]) == 0


def account(capsys, *words):
    export(*words, "--json")
    return json.loads(capsys.readouterr().out)


def rows(run, *words):
    file = run.parent / "verdicts.jsonl"
    export(run, *words, "--to", file)
    return lines_of(file)


def problem(*words):
    return found_by(dispatch, ["export", *map(str, words), "--table", "verdicts"])


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def says(body, count):
    """A coach of either form; it gives a correction where it is asked for one."""
    nonce, prompt = nonce_in(body), body["messages"][-1]["content"]
    if "response_format" in body:
        fields = body["response_format"]["json_schema"]["schema"]["properties"]
        values = {
            "nonce": nonce,
            "explanation": "Good.",
            "criteria": [{"name": "style", "score": 3}],
            "score": 7.5,
        }
        return json.dumps(
            {name: ({"correct": False, "correction": "better"} | values)[name] for name in fields}
        )
    block = f"CORRECTION {nonce}\nbetter\nEND {nonce}\n" if f"CORRECTION {nonce}" in prompt else ""
    asked = f"CORRECT {nonce}: no\n" if f"CORRECT {nonce}:" in prompt else ""
    return f"{block}Good.\n{asked}SCORE {nonce}: 7.5"


def without_nonce(text):
    return re.sub(r"\b[0-9a-f]{8}\b", "NONCE", text)


@pytest.mark.parametrize(
    ("form", "more"),
    [
        ("text", []),
        ("text", ["--coach.corrections"]),
        ("json", ["--coach.corrections"]),
        ("json", ["--coach.ground_truth", "none"]),
    ],
)
def test_each_line_is_the_question_that_was_asked_and_the_verdict_that_was_given(
    form, more, tmp_path, capsys
):
    flags = ["--coach.model", "m", "--coach.form", form, *more]
    with openai_server(says) as (url, bodies):
        run = judge(tmp_path, *flags, "--coach.base_url", url)
    shown = [body["messages"][0]["content"] for body in bodies[1:]]  # before it, a trial
    told = account(capsys, run, "--recipe", RECIPE, *flags)
    assert all(
        count == {**dict.fromkeys(count, 0), "actions": 1, "by_model": 1} for count in told.values()
    )
    lines = rows(run, "--recipe", RECIPE, *flags)
    assert sorted(without_nonce(line["prompt"][0]["content"]) for line in lines) == sorted(
        map(without_nonce, shown)
    )
    for line in lines:
        (asked,), (said,) = line["prompt"], line["completion"]
        nonce = nonce_in(
            {"messages": [asked], **({"response_format": {}} if form == "json" else {})}
        )
        rest, block = correcting.taken_out(said["content"], nonce)
        found = verdict.parse(
            rest if form == "text" else said["content"], nonce, form, line["knew_the_label"]
        )
        assert (found.score, found.explanation.split("\n")[0]) == (7.5, "Good.")
        assert (line["score"], line["outcome"], line["task"], line["by_rules"]) == (
            0.75,
            1.0,
            "t0",
            False,
        )
        assert (block or found.correction) == ("better" if "--coach.corrections" in more else None)
        knew = line["role"] == "verifier" and "none" not in more
        assert (line["knew_the_label"], found.correct) == (knew, False if knew else None)
        assert ("the label" in asked["content"]) == knew
        assert (asked["role"], said["role"]) == ("user", "assistant")


def test_what_was_said_of_the_training_is_in_the_question(tmp_path):
    text = "extends: tiny.yaml\nflags: {coach.rubric: null, coach.model: m}\n"
    text += "coach: {stages: [{until_step: 1, ask: Be brief.}, {ask: Be right.}]}\n"
    recipe = copied(tmp_path) / "staged.yaml"
    recipe.write_text(text)
    with openai_server(says) as (url, _):
        run = judge(tmp_path, "--coach.base_url", url, recipe=recipe)
    records = (run / "trajectories.jsonl").read_text()
    recipe.write_text(text.replace("Be brief.", "Be anything."))  # the stage of now is another
    lines = rows(run, "--recipe", recipe)
    assert len(lines) == 3 and all("Be brief." in line["prompt"][0]["content"] for line in lines)
    (run / "trajectories.jsonl").write_text(records.replace("Be brief.", "Be late."))
    found = problem(run, "--recipe", recipe, "--to", tmp_path / "other.jsonl")
    assert [code for code, *_ in found] == ["export.no_actions"]


def test_what_cannot_be_used_is_counted(tmp_path, capsys):
    def answer(body, count):
        return (
            Reply("no", 413) if "as coder" in body["messages"][0]["content"] else says(body, count)
        )

    with openai_server(answer) as (url, _):
        run = judge(
            tmp_path, "--coach.model", "m", "--coach.base_url", url, "--coach.form", "text", tasks=2
        )
    records = lines_of(run / "trajectories.jsonl")
    del records[0]["actions"][0]["notes"][NOTES]
    records[1]["actions"][2]["text"] = "something else"
    (run / "trajectories.jsonl").write_text(
        "".join(json.dumps(record) + "\n" for record in records)
    )
    told = account(capsys, run, "--recipe", RECIPE, "--coach.model", "m")
    none = {
        "actions": 2,
        "by_model": 0,
        "by_rules": 0,
        "failed": 0,
        "unjudged": 0,
        "other_question": 0,
        "ran_programs": 0,
    }
    assert told == {
        "solver": none | {"by_model": 1, "unjudged": 1},
        "coder": none | {"failed": 2},
        "verifier": none | {"by_model": 1, "other_question": 1},
    }


def test_the_verdicts_of_rules_stand_under_the_packages_prompt(tmp_path, capsys):
    run = judge(tmp_path)
    told = account(capsys, run, "--recipe", RECIPE)
    assert all(count["by_rules"] == 1 and not count["by_model"] for count in told.values())
    for line in rows(run, "--recipe", RECIPE):
        (asked,), (said,) = line["prompt"], line["completion"]
        assert "You coach one member of a team" in asked["content"] and line["by_rules"]
        found = verdict.parse(
            said["content"], nonce_in({"messages": [asked]}), "text", line["knew_the_label"]
        )
        assert found.share == pytest.approx(line["score"], abs=0.0006)


def test_several_coaches_are_one_judge(tmp_path, capsys):
    recipe = copied(tmp_path) / "ensemble.yaml"
    with openai_server(says) as (url, bodies):
        recipe.write_text(
            "extends: tiny.yaml\nflags: {coach.rubric: null}\ncoach:\n  members:\n    rules: "
            "{rubric: tiny_rubric.py}\n"
            f"    one: {{model: m, flags: {{base_url: '{url}', form: text}}}}\n"
        )
        run = judge(tmp_path, recipe=recipe)
    shown = {without_nonce(body["messages"][0]["content"]) for body in bodies}
    told = account(capsys, run, "--recipe", recipe)
    assert all(count["by_model"] == 1 and not count["by_rules"] for count in told.values())
    records = {
        action["role"]: action for action in lines_of(run / "trajectories.jsonl")[0]["actions"]
    }
    for line in rows(run, "--recipe", recipe):
        assert line["score"] == pytest.approx(records[line["role"]]["score"])
        assert without_nonce(line["prompt"][0]["content"]) in shown


# --- the files
# --------------------------------------------------------------------------------------------------


def test_a_task_is_on_one_side_in_every_run():
    folds = [fold(f"task {n}") for n in range(4000)]
    assert folds == [fold(f"task {n}") for n in range(4000)] and 0 <= min(folds) <= max(folds) < 1
    for share in (0.1, 0.5):
        held_out = sum(number < share for number in folds)
        assert held_out == pytest.approx(share * len(folds), abs=4 * 32)  # standard deviations
