"""The recipes `search` and `reflect`: whole trajectories through a simulated engine, paid as
UnityMAS-O's formulas say (arXiv 2605.26646, section 6), which are written out here a second time;
their data, and what is refused."""

import functools
import json
import random
import re
import shutil

import pytest
from recipe_runs import planned, played
from test_overlap import reference

from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.prompts import prompt_renderer
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.trajectory import EVALUATION

ROOT = recipes_root()
TINY = (
    "search/tiny.yaml",
    "search/tiny_extract.yaml",
    "search/tiny_rounds.yaml",
    "reflect/tiny.yaml",
)


plan_of = functools.cache(planned)


def scripted(**lines):
    """Roles that say their lines in turn."""
    left = {role: iter(said) for role, said in lines.items()}
    return lambda role, prompt: next(left[role])


def rewards_of(trajectory):
    """By role, in turn."""
    found = {}
    for action in trajectory.actions:
        found.setdefault(action.role, []).append(action.reward)
    return found


# --- plans and data
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", TINY)
def test_its_splits_share_no_name_that_an_answer_depends_on(file):
    plan = plan_of(file)
    names, known = re.compile(r"\b[A-Z][a-z]+\b|(?<=f\(')\w+(?='\))"), {}
    for split in ("train", "eval"):
        texts = [
            str([t.prompt, t.metadata, t.label if isinstance(t.label, list) else ""])
            for t in plan.tasks(split)
        ]
        known[split] = set(names.findall(" ".join(texts))) - {"What", "In"}
    assert len(known["train"]) > 1000 and len(known["eval"]) > 200
    assert not known["train"] & known["eval"]


@pytest.mark.parametrize("file", TINY)
def test_what_its_demonstrators_say_fits_the_prompts_and_limits(file):
    run, rng, roles = (plan := plan_of(file)).run, random.Random(0), set()
    for task in plan.tasks("train")[:30]:
        for shown in run.demonstrations_module.demonstrate(task, rng):
            prompt_renderer(run.prompt(shown.role), None)(shown.fields)
            assert max(len(text) for text in shown.said) < run.role(shown.role).max_new_tokens, (
                shown.role,
                shown.said,
            )
            roles.add(shown.role)
    assert roles == set(run.recipe.roles)


# --- A and B: F1 and format to all
# ----------------------------------------------------------------------------------------


def queries(*names):
    return json.dumps({"queries": names})


@pytest.mark.parametrize("file", ["search/tiny.yaml", "search/tiny_extract.yaml"])
@pytest.mark.parametrize(
    ("asked", "answered", "legal"),
    [
        ("both", "right", True),
        ("both", "half", True),
        ("one", "right", True),
        ("none", "half", False),
        ("both", "bare", True),
    ],
)
def test_everybody_is_paid_the_f1_of_the_answer_and_the_own_form(file, asked, answered, legal):
    plan = plan_of(file)
    task = plan.tasks("train")[0]
    names, shown = task.metadata["people"], []
    asks = {
        "both": queries(*names),
        "one": queries(names[0]),
        "none": f'{{"queries": "{names[0]}"}}',
    }[asked]
    said = {"right": task.label, "half": task.label.split()[0], "bare": task.label}[answered]

    def says(role, prompt):
        if role == "rewriter":
            return asks
        if role == "extractor":
            return f"<evidence>{re.search('likes ([a-z]+)', prompt)[1]}</evidence>"
        shown.append(prompt)
        return said if answered == "bare" else f"<answer>{said}</answer>"

    trajectory = played(plan, task, says)
    score = 0.0 if answered == "bare" else float(reference(said, task.label))
    paid = rewards_of(trajectory)
    count = {"both": 2, "one": 1, "none": 0}[asked]
    assert trajectory.outcome == score == trajectory.outcome_parts["f1"]
    assert paid["rewriter"] == [score - (not legal)] and paid["answerer"] == [
        score - (answered == "bare")
    ]
    assert paid.get("extractor", []) == [score] * (count if "extract" in file else 0)
    assert sum(word in shown[0] for word in task.label.split()) == count
    answerer = trajectory.actions[-1]
    assert {a.role for a in trajectory.actions if a.path in answerer.parents} >= {
        "extractor" if count and "extract" in file else "rewriter"
    }


# --- C: what each round has gained
# ----------------------------------------------------------------------------------------


FILES = {"the planner's": "graph_rounds.yaml", "the answerer's": "graph_rounds_answered.yaml"}


def rounds_plan(reading, folder):
    shutil.copytree(ROOT / "search", folder / "search")
    (folder / "search" / "tiny_mine.yaml").write_text(
        f"extends: tiny_rounds.yaml\nworkflow: {FILES[reading]}\n"
    )
    return planned("search/tiny_mine.yaml", folder=folder)


def drawn_script(rng, task, reading):
    """What everybody says, and what section 6 pays for it: by role, in turn."""
    town, land = task.label.split()

    def answer():
        said = rng.choice(
            [task.label, town, land, f"{town} Atlantis", "Atlantis", "the " + task.label]
        )
        legal = rng.random() < 0.8
        return said, legal, float(reference(said, task.label)) if legal else 0.0

    said, legal, own = answer()
    plan = json.dumps({"knowledge": "nothing", "answer": said})
    lines = {
        "planner": [plan if legal else plan[:-1]],
        "answerer": [],
        "searcher": [],
        "summariser": [],
        "updater": [],
    }
    paid = {
        "planner": [own - (not legal)],
        "answerer": [],
        "searcher": [],
        "summariser": [],
        "updater": [],
    }

    def answered():
        said, legal, score = answer()
        lines["answerer"].append(f"<answer>{said}</answer>" if legal else said)
        paid["answerer"].append(score - (not legal))
        return said if legal else "", score

    last, before = (said if legal else ""), own
    if reading == "the answerer's":
        last, before = answered()
    for _ in range(3):
        if rng.random() < 0.25:
            lines["searcher"].append("<search><end></search>")
            paid["searcher"].append(0.0)
            break
        forms = {role: rng.random() < 0.8 for role in ("searcher", "summariser", "updater")}
        for role, tag, text in (
            ("searcher", "search", town),
            ("summariser", "summary", "x"),
            ("updater", "knowledge", "y"),
        ):
            lines[role].append(f"<{tag}>{text}</{tag}>" if forms[role] else text)
        last, now = answered()
        for role, legal in forms.items():
            paid[role].append(now - before - (not legal))
        before = now
    return lines, {role: amounts for role, amounts in paid.items() if amounts}, last


@pytest.mark.parametrize("reading", FILES)
def test_rounds_are_paid_what_their_answer_gains(reading, tmp_path):
    plan, rng = rounds_plan(reading, tmp_path), random.Random(reading)
    for task in plan.tasks("train")[:15]:
        lines, paid, last = drawn_script(rng, task, reading)
        trajectory = played(plan, task, scripted(**lines))
        found = rewards_of(trajectory)
        assert found.keys() == paid.keys()
        for role, amounts in paid.items():
            assert found[role] == pytest.approx(amounts, abs=1e-12), (role, lines)
        assert trajectory.answer == last and trajectory.outcome == pytest.approx(
            float(reference(last, task.label))
        )


@pytest.mark.parametrize("reading", FILES)
def test_an_evaluation_asks_for_the_last_answer_alone_which_is_that_of_training(reading, tmp_path):
    plan = rounds_plan(reading, tmp_path)
    task = plan.tasks("eval")[0]
    town, land = task.label.split()

    for first, ends in (
        ("<search><end></search>", 0),
        (f"<search>{task.metadata['person']}</search>", 2),
    ):

        def says(role, prompt, first=first):
            match role:
                case "planner":
                    return json.dumps({"knowledge": "none", "answer": "Atlantis"})
                case "searcher":
                    if "town" not in prompt:
                        return first
                    return (
                        "<search><end></search>" if "land" in prompt else f"<search>{town}</search>"
                    )
                case "summariser":
                    return (
                        f"<summary>{'land ' + land if land in prompt else 'town ' + town}</summary>"
                    )
                case "updater":
                    known = " ".join(
                        word for word in ("town " + town, "land " + land) if word in prompt
                    )
                    return f"<knowledge>{known}</knowledge>"
            return f"<answer>{' '.join(word for word in (town, land) if word in prompt) or 'Atlantis'}</answer>"

        trained, evaluated = played(plan, task, says), played(plan, task, says, step=EVALUATION)
        calls = [sum(a.role == "answerer" for a in t.actions) for t in (trained, evaluated)]
        answered = reading == "the answerer's"
        assert calls == [ends + answered, min(1, ends + answered)]
        assert trained.answer == evaluated.answer == (task.label if ends else "Atlantis")
        assert rewards_of(trained)["searcher"][-1] == 0.0


# --- D: what each round has gained, and the reflector by the next
# ---------------------------------------------------------


def test_pairs_are_paid_what_they_gain_and_the_reflector_what_the_next_gains():
    plan, rng = planned("reflect/tiny.yaml"), random.Random(1)
    recipe = load_file(ROOT / "reflect" / "tasks.py")
    seen = set()
    for task in plan.tasks("train")[:12]:
        names, given = task.metadata["operations"], task.prompt.split()[0]
        cases = [
            re.fullmatch(r"assert f\('(\w+)'\) == '(\w*)'", test).groups() for test in task.label
        ]
        assert len(cases) == 4
        rates, lines = [], {"planner": [], "coder": [], "reflector": []}
        forms = {role: [] for role in lines}
        for turn in range(3):
            tried = rng.choice([names, names[:1], [rng.choice(list(recipe.OPERATIONS))]])
            legal = {role: rng.random() < 0.8 for role in lines}
            code = recipe.program(tried)
            lines["planner"].append(f"<plan>{turn}</plan>" if legal["planner"] else "what?")
            lines["coder"].append(f"```python\n{code}\n```" if legal["coder"] else code)
            rates.append(
                sum(recipe.applied(tried, one) == other for one, other in cases) / 4
                if legal["coder"]
                else 0.0
            )
            forms["planner"].append(-(not legal["planner"]))
            forms["coder"].append(-(not legal["coder"]))
            if turn == 2 or (
                legal["coder"] and recipe.applied(tried, given) == task.prompt.split()[2]
            ):
                break
            lines["reflector"].append("<advice>other ones</advice>" if legal["reflector"] else "hm")
            forms["reflector"].append(-(not legal["reflector"]))
        trajectory = played(plan, task, scripted(**lines))
        gains = [now - before for now, before in zip(rates, [0.0, *rates], strict=False)]
        amounts = {"planner": gains, "coder": gains, "reflector": gains[1:]}
        expected = {
            role: [a + b for a, b in zip(amounts[role], forms[role], strict=True)]
            for role in forms
            if forms[role]
        }
        found = rewards_of(trajectory)
        assert found.keys() == expected.keys()
        for role, values in expected.items():
            assert found[role] == pytest.approx(values, abs=1e-12), role
        assert trajectory.outcome == float(rates[-1] == 1)
        seen.add((len(rates), rates[-1] == 1))
    assert len(seen) >= 3


def test_no_agent_is_shown_a_hidden_test():
    plan = planned("reflect/recipe.yaml")
    task, prompts = plan.tasks("train")[0], []

    def says(role, prompt):
        prompts.append(prompt)
        return {
            "planner": "<plan>p</plan>",
            "coder": "```python\ndef f(s): return 0\n```",
            "reflector": "<advice>a</advice>",
        }[role]

    trajectory = played(plan, task, says)
    assert len(trajectory.actions) == 8 and task.metadata["visible"] in prompts[0]
    assert not [test for test in task.label if any(test in prompt for prompt in prompts)]
    assert not [test for test in task.label if any(test in r.call for r in trajectory.tool_results)]


@pytest.mark.parametrize("layout", ["deepcoder", "taco"])
def test_programs_that_read_standard_input_are_steered_by_visible_tests_and_paid_by_hidden_ones(
    tmp_path, layout
):
    pairs = [(f"{a} {b}\n", f"{a + b}\n") for a, b in ((1, 2), (5, 0), (7, 7), (30, 4))]
    tests = {
        "deepcoder": [{"type": "stdin_stdout", "input": i, "output": o} for i, o in pairs],
        "taco": {"inputs": [i for i, _ in pairs], "outputs": [o for _, o in pairs]},
    }[layout]
    key = "tests" if layout == "deepcoder" else "input_output"
    file = tmp_path / "sums.jsonl"
    line = json.dumps({"problem": "Print the sum.", key: json.dumps(tests)}) + "\n"
    file.write_text(64 * line)
    data = ["--data.prompt_dataset", str(file), "--data.input_key", "problem"]
    plan = planned("reflect/stdin.yaml", *data)
    task = plan.tasks("train")[0]
    assert task.metadata["visible"] == "assert printed('1 2\\n') == '3'"
    assert len(task.label) == 3
    programs = ["print(3)", "a, b = map(int, input().split())\nprint(a + b)"]
    lines = {
        "planner": ["<plan>add</plan>"] * 2,
        "coder": [f"```python\n{program}\n```" for program in ("print(2)", programs[1])],
        "reflector": ["<advice>read them</advice>"],
    }
    trajectory = played(plan, task, scripted(**lines))
    assert trajectory.outcome == 1.0
    assert rewards_of(trajectory)["coder"] == [0.0, 1.0]
    assert sorted(result.ok for result in trajectory.tool_results) == [False, True]
    lines |= {"coder": [f"```python\n{programs[0]}\n```"], "planner": ["<plan>3</plan>"]}
    assert played(plan, task, scripted(**lines)).outcome == 0.0  # the visible test alone passes
