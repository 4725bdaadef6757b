"""The recipes `search` and `reflect`: whole trajectories through a simulated engine, paid as
UnityMAS-O's formulas say (arXiv 2605.26646, section 6), which are written out here a second time;
their data, and what is refused."""

import asyncio
import json
import random
import re
import shutil

import pytest
from refusals import refused
from simulated import CharacterChat
from test_overlap import reference

from marl_plugins.builtin.tools.search.corpus import read_corpus
from marl_plugins.builtin.tools.search.index import SearchIndex
from marl_plugins.core.credit import rewards_from_scores
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.prompts import prompt_renderer
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.scoring import score_outcome
from marl_plugins.core.trajectory import EVALUATION, Generation
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.workflow_file import workflow_of

ROOT = recipes_root()
TINY = (
    "search/tiny.yaml",
    "search/tiny_extract.yaml",
    "search/tiny_rounds.yaml",
    "reflect/tiny.yaml",
)
ON_GPUS = ("search/recipe.yaml", "search/extract.yaml", "search/rounds.yaml", "reflect/recipe.yaml")


def planned(file, *words, folder=ROOT):
    """The plan; on any machine for the devices that the file is for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_PLUGINS_DEVICE", "cpu" if "tiny" in file else "cuda")
        return build_plan(["--recipe", str(folder / file), *words])


def played(plan, task, says, step=1):
    """A scored and credited trajectory in which `says(role, prompt)` answers."""
    run, chat = plan.run, CharacterChat()
    tools = {
        tool.name: tool for answer in plan.plugins.hook.marl_tools(run=run) for tool in answer or ()
    }

    async def generate(call):
        ids = (*chat.encode(says(call.role, chat.text(call.context_ids))), ord("^"))
        return Generation(ids, tuple(-0.5 for _ in ids), "stop", call.policy, 0)

    def role(name):
        render = prompt_renderer(run.prompt(name), run.system(name))
        return RoleSpec(name, name, render, chat, Sampling(1.0, 1.0, None, 9000))

    async def play():
        roles = {name: role(name) for name in run.recipe.roles}
        trajectory = await run_workflow(
            workflow_of(plan.plugins, run),
            task,
            0,
            step=step,
            run_seed=0,
            roles=roles,
            tools=tools,
            generate=generate,
            seconds=60,
        )
        await score_outcome(
            trajectory,
            lambda t: plan.plugins.hook.marl_score_outcome(run=run, trajectory=t),
            60,
            roles,
        )
        rewards_from_scores([trajectory])
        await plan.plugins.chain("marl_credit", [trajectory], run=run)
        return trajectory

    return asyncio.run(play())


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


@pytest.mark.parametrize("file", [*TINY, *ON_GPUS, "mathchat/tiny_format.yaml"])
def test_its_plan_has_no_warning(file):
    assert planned(file).run.warnings == ()


@pytest.mark.parametrize("file", TINY)
def test_its_splits_share_no_name_that_an_answer_depends_on(file):
    plan = planned(file)
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
    run, rng, roles = (plan := planned(file)).run, random.Random(0), set()
    for task in plan.tasks("train")[:100]:
        for shown in run.demonstrations_module.demonstrate(task, rng):
            prompt_renderer(run.prompt(shown.role), None)(shown.fields)
            assert max(len(text) for text in shown.said) < run.role(shown.role).max_new_tokens, (
                shown.role,
                shown.said,
            )
            roles.add(shown.role)
    assert roles == set(run.recipe.roles)


@pytest.mark.parametrize("part", ["title", "all", "text"])
def test_perfect_queries_find_every_document(part):
    """Towns are named in their inhabitants' documents as well, which once hid their own."""
    documents = read_corpus(ROOT / "search" / "world.py", part)
    index = SearchIndex(documents, part)
    assert all(index.best(document.title, 1) == [document] for document in documents)


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
    plan = planned(file)
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
    for task in plan.tasks("train")[:25]:
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


def test_a_program_that_ends_the_visible_tests_by_leaving_is_paid_nothing():
    plan = planned("reflect/tiny.yaml")
    says = scripted(planner=["<plan>p</plan>"], coder=["```python\nraise SystemExit\n```"])
    trajectory = played(plan, plan.tasks("train")[0], says)
    assert (
        rewards_of(trajectory) == {"planner": [0.0], "coder": [0.0]} and trajectory.outcome == 0.0
    )


# --- data of the user's own
# -----------------------------------------------------------------------------------------------


def jsonl(path, items):
    path.write_text("".join(json.dumps(item) + "\n" for item in items))
    return str(path)


def test_the_search_recipes_are_planned_on_questions_and_documents_of_files(tmp_path):
    train = jsonl(
        tmp_path / "nq.jsonl",
        [
            {"id": f"n{n}", "question": f"who is {n}?", "golden_answers": ["a", "b"]}
            for n in range(64)
        ],
    )
    test = jsonl(
        tmp_path / "hotpot.jsonl",
        [{"id": "h", "question": "what?", "golden_answers": ["Ulm", "the Danube"]}],
    )
    corpus = jsonl(
        tmp_path / "wiki.jsonl", [{"id": "0", "contents": '"Ulm"\nUlm lies on the Danube.'}]
    )
    words = [
        "--data.prompt_dataset",
        train,
        "--eval.dataset",
        test,
        "--data.label_key",
        "golden_answers",
        "--search.corpus",
        corpus,
    ]
    for file in ON_GPUS[:3]:
        plan = planned(file, *words)
        assert plan.run.warnings == () and len(plan.tasks("train")) == 64
    plan = planned(ON_GPUS[0], *words)
    said = scripted(rewriter=[queries("danube")], answerer=["<answer>Danube</answer>"])
    trajectory = played(plan, plan.tasks("eval")[0], said)
    assert trajectory.outcome == 1.0 and "lies on" in trajectory.actions[-1].shown[0][1]


def test_reflect_takes_programs_with_their_tests_from_files(tmp_path):
    items = [
        {
            "task_id": n,
            "text": f"add {n}",
            "prompt": f"Add {n}.",
            "test_list": [f"assert f({k}) == {k + n}" for k in range(3)],
        }
        for n in range(64)
    ]
    train = jsonl(tmp_path / "train.jsonl", items)
    test = jsonl(
        tmp_path / "test.jsonl",
        [{"id": "t", "prompt": "Double.", "tests": ["assert f(1) == 2", "assert f(4) == 8"]}],
    )
    plan = planned(
        ON_GPUS[3], "--data.prompt_dataset", train, "--eval.dataset", test, "--reflect.visible", "1"
    )
    task = plan.tasks("eval")[0]
    assert (
        plan.run.warnings == ()
        and task.metadata == {"visible": "assert f(1) == 2"}
        and task.label == ["assert f(4) == 8"]
    )
    assert len(plan.tasks("train")[0].label) == 2
    says = scripted(planner=["<plan>p</plan>"], coder=["```python\ndef f(x): return 2\n```"])
    assert played(plan, task, says).outcome == 0.0  # the visible test alone passes
    with refused(("reflect.hidden", "test.jsonl:1")):
        planned(
            ON_GPUS[3],
            "--data.prompt_dataset",
            train,
            "--eval.dataset",
            test,
            "--reflect.visible",
            "2",
        )
    wrong = jsonl(
        tmp_path / "wrong.jsonl",
        [{"prompt": "Nothing."}, {"prompt": "a text", "tests": "assert f(1)"}],
    )
    with refused(("reflect.tests", "wrong.jsonl:1"), ("reflect.tests", "wrong.jsonl:2")):
        planned(ON_GPUS[3], "--data.prompt_dataset", wrong)


# --- what is refused
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "lines", "code"),
    [
        (
            "search/tiny_rounds.yaml",
            "rewards: {terms: [{kind: gain, of: [planer]}]}",
            "rewards.role",
        ),
        ("search/tiny.yaml", "workflow: graph_rounds.yaml", "graph.role"),
        ("search/tiny.yaml", "tools: {search: {corpus: broken.jsonl}}", "search.document"),
        ("search/tiny.yaml", "tools: {search: null}", "graph.tool"),
        (
            "mathchat/tiny_format.yaml",
            "rewards: {terms: [{kind: gain, of: [coder], delay: 9}]}",
            "rewards.no_value",
        ),
    ],
)
def test_what_does_not_fit_together_is_refused(file, lines, code, tmp_path):
    folder = file.partition("/")[0]
    shutil.copytree(ROOT / folder, tmp_path / folder)
    (tmp_path / folder / "broken.jsonl").write_text(
        '{"title": "a", "text": "a"}\n{"title": "b", "text": ""}\n'
    )
    (tmp_path / folder / "tiny_mine.yaml").write_text(
        f"extends: {file.partition('/')[2]}\n{lines}\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        planned(f"{folder}/tiny_mine.yaml", folder=tmp_path)
    assert code in {problem.code for problem in caught.value.problems}


def test_a_gain_past_the_last_round_is_nothing(tmp_path):
    shutil.copytree(ROOT / "search", tmp_path / "search")
    (tmp_path / "search" / "tiny_mine.yaml").write_text(
        "extends: tiny_rounds.yaml\nrewards: {terms: [{kind: gain, of: [planner, answerer], delay: "
        "9}]}\n"
    )
    plan, task = planned("search/tiny_mine.yaml", folder=tmp_path), None
    task = plan.tasks("train")[0]
    lines, paid, _ = drawn_script(random.Random(0), task, "the planner's")
    found = rewards_of(played(plan, task, scripted(**lines)))
    assert found == {role: [0.0] * len(amounts) for role, amounts in paid.items()}
