"""MathChat at the paper's scale: problems from files in their public layouts, who sees what, and
the boxed answer."""

import asyncio
import csv
import json
from types import SimpleNamespace

import pytest

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.trajectory import Task, Trajectory
from marl_plugins.engine.plan.build import build_plan

MATHCHAT = recipes_root() / "mathchat"
competition = load_file(MATHCHAT / "competition.py")


def aime(year, number, part="I"):
    """A row of AIME 1983 to 2024 in the layout of MAPPA's repository."""
    return {
        "prompt": f"Find the number of the {year} exam's part {part}, problem {number}.",
        "answer": f"{number:03}",
        "id": f"{year}-{part}-{number}",
        "year": year,
        "problem_number": number,
        "part": part,
    }


TRAIN = [aime(year, number) for year in (1999, 2000) for number in range(1, 11)]
AIME_2025 = [{"problem": f"Held out {n}?", "answer": str(n), "id": str(n)} for n in range(3)]
AMC = [
    {"prompt": f"Choose {n}.", "answer": float(n), "source": "amc", "id": str(n)} for n in range(5)
]


def write(path, rows):
    if path.suffix == ".json":
        path.write_text(json.dumps(rows, indent=2))
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        with path.open("w", newline="") as file:
            table = csv.DictWriter(file, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
    return path


@pytest.fixture
def files(tmp_path):
    """Words that name the files, by what they are written as."""

    def make(train=TRAIN, held_out=AIME_2025, amc=AMC, suffix=".json"):
        given = {
            "train": ("AIME_1983_2024", train),
            "aime": ("aime_2025", held_out),
            "amc": ("amc", amc),
        }
        return [
            word
            for name, (stem, rows) in given.items()
            for word in (f"--mathchat.{name}", str(write(tmp_path / f"{stem}{suffix}", rows)))
        ]

    return make


def plan(words, recipe="tiny_paper.yaml"):
    return build_plan(["--recipe", str(MATHCHAT / recipe), *words])


def problem(words):
    with pytest.raises(ConfigurationError) as caught:
        plan(words)
    (found,) = caught.value.problems
    return found


@pytest.mark.parametrize("suffix", [".json", ".jsonl"])
def test_files_in_the_layout_of_mappa_become_tasks(files, suffix):
    made = plan([*files(suffix=suffix), "--data.max_samples", "20", "--mathchat.held_out", "32"])
    train, held_out = made.tasks("train"), made.tasks("eval")
    assert {t.id: (t.prompt, t.label) for t in train} == {
        f"AIME_1983_2024/{row['id']}": (row["prompt"], str(int(row["answer"]))) for row in TRAIN
    }
    assert {t.id: (t.label, t.metadata["type"]) for t in held_out} == {
        **{f"aime_2025/{n}": (str(n), "aime") for n in range(3)},
        **{f"amc/{n}": (str(n), "amc") for n in range(5)},
    }
    assert not any("take the place" in warning for warning in [*map(str, made.run.warnings)])


@pytest.mark.parametrize(
    ("suffix", "answer", "said"),
    [(".json", "12.5", "is no integer"), (".jsonl", "1000", "'1000' is not between 0 and 999")],
)
def test_an_answer_of_aime_that_is_none_is_named_by_its_place(files, suffix, answer, said):
    words = files(train=[*TRAIN[:4], TRAIN[4] | {"answer": answer}, *TRAIN[5:]], suffix=suffix)
    found = problem(words)
    place = ": item 5: " if suffix == ".json" else ":5: "
    assert str(found).startswith(words[words.index("--mathchat.train") + 1] + place)
    assert f"problem {TRAIN[4]['id']}: answer " in str(found) and said in str(found)


def test_problems_that_are_trained_on_and_held_out_are_named(files):
    leaked = [
        {"problem": f"  {TRAIN[n]['prompt'].upper()}", "answer": "7", "id": str(n)} for n in (2, 3)
    ]
    found = problem(
        [*files(held_out=[*AIME_2025[:1], *leaked], amc=[{**AMC[0]}]), "--data.max_samples", "20"]
    )
    assert found.code == "tasks.leaked"
    for n in (2, 3):
        assert f"'aime_2025/{n}' (there 'AIME_1983_2024/{TRAIN[n]['id']}')" in str(found)


# --- the system
# --------------------------------------------------------------------------------------------------


class Said(str):
    """What stands for an action: its text, its tools' output, the turn before."""

    tool_output = ""
    before = None


def shown(workflow, problem="What is six times seven?"):
    """What each role is shown by a workflow of the recipe, and the actions that it depends on."""
    seen, programs = {}, Said("I ran it. ```python\nprint(42)\n```")
    programs.tool_output = "42"
    answers = {
        name: Said(f"<think>THOUGHT of {name}</think>ANSWER of {name}")
        for name in ("solver", "coder", "verifier")
    }
    answers["coder"].before = programs

    def role(name):
        async def call(material, after=()):
            seen[name] = (material, [str(a) for a in after])
            return answers[name]

        return call

    module = load_file(MATHCHAT / workflow)
    roles = SimpleNamespace(**{name: role(name) for name in answers})
    assert asyncio.run(module.run(Task("t", problem, "42"), roles, None)) is answers["verifier"]
    assert [after for _, after in seen.values()] == [
        [],
        [str(answers["solver"])],
        [str(answers["coder"])],
    ]
    return {name: material for name, (material, _) in seen.items()}


def test_information_is_full_or_partial_by_the_workflow():
    full, partial = shown("full_information.py"), shown("partial_information.py")
    for materials in (full, partial):
        assert "What is six times seven?" in materials["solver"]
        assert (
            "ANSWER of solver" in materials["coder"] and "ANSWER of coder" in materials["verifier"]
        )
        assert "42" in materials["verifier"] and not any(
            "THOUGHT" in text for text in materials.values()
        )
        assert "ANSWER of solver" not in materials["verifier"]
    assert all("What is six times seven?" in full[role] for role in full)
    assert [role for role in partial if "What is six times seven?" in partial[role]] == ["solver"]


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ("It is \\boxed{42}.", 1.0),
        ("\\boxed{42.0}", 1.0),
        ("The answer is 42.", 0.0),
        ("\\boxed{}42", 0.0),
        ("\\boxed{41}", 0.0),
    ],
)
def test_only_an_answer_in_a_box_counts(answer, outcome):
    grader = load_file(MATHCHAT / "boxed_grader.py")
    trajectory = Trajectory(Task("t", "?", "42"), 0, 1, answer=answer)
    assert asyncio.run(grader.score_outcome(trajectory)) == outcome
