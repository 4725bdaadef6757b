"""The recipe dsbench: the benchmark's layout, generated tasks, the programs of words, and who is to
blame for what."""

import asyncio
import csv
import hashlib
import json
import random
import shutil
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from simulated import CharacterChat
from warm_programs import Programs

from benchmarks import coach_map
from marl_plugins.coach.rubric import RubricCoach, load_rubric
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.prompts import prompt_renderer
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.scoring import Seen, SeenLast
from marl_plugins.core.scoring import score_outcome as score_trajectory
from marl_plugins.core.trajectory import Generation, ToolResult
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import first_lines
from marl_plugins.engine.plan.fingerprint import fingerprint
from marl_plugins.engine.records import run_folder
from marl_plugins.reward_backprop import BackpropState
from marl_plugins.reward_backprop.backward import backward, conserve
from marl_plugins.sandbox.workspace import Workspaces

FOLDER = recipes_root() / "dsbench"
layout, pipeline, tables, root_cause, demonstrations, judging, rubric = (
    load_file(FOLDER / f"{name}.py")
    for name in (
        "layout",
        "pipeline",
        "tables",
        "root_cause",
        "demonstrations",
        "judging",
        "rubric",
    )
)
plugin = load_file(FOLDER / "dsbench.py")
scorer = layout.scorer


@pytest.fixture(scope="module")
def data():
    return plugin.root("generated:0")


@pytest.fixture(scope="module")
def programs():
    warm = Programs()
    yield warm
    warm.close()


# --- the benchmark's layout
# --------------------------------------------------------------------------------------------------


def test_the_table_has_the_74_tasks_and_their_metrics():
    known = layout.cards(FOLDER)
    metrics = Counter(card.metric for card in known.values())
    assert (
        len(known) == 74
        and metrics["roc_auc"] == 23
        and metrics["rmsle"] == 11
        and metrics["rmse"] == 9
    )
    assert (
        metrics["accuracy"] == 7 and metrics["mae"] == metrics["smape"] == 4 and len(metrics) == 20
    )
    assert (
        known["titanic"].targets == ("Survived",)
        and known["playground-series-s4e3"].targets[-1] == "Other_Faults"
    )
    assert sum(card.split == "eval" for card in known.values()) == 8
    for card in known.values():
        assert scorer.METRICS[card.metric].higher == (card.best > card.baseline), card
    assert {card.best for card in known.values() if card.metric in ("rmse", "log_loss")} == {0.0}


def benchmark(
    root, names=("titanic", "playground-series-s3e18", "conways-reverse-game-of-life-2020")
):
    """A folder in the layout, with rows of one's own."""
    columns = {
        "titanic": ["PassengerId", "Survived"],
        "playground-series-s3e18": ["id", "EC1", "EC2"],
    }
    for name in names:
        header = columns.get(name, ["id", "stop_0", "stop_1"])
        for folder, files in (
            (f"data_resplit/{name}", ("train", "test", "gender_submission")),
            (f"answers/{name}", ("test_answer",)),
        ):
            (root / folder).mkdir(parents=True)
            for file in files:
                rows = [header, *([n, *([n % 2] * (len(header) - 1))] for n in range(4))]
                with (root / folder / f"{file}.csv").open("w", newline="") as out:
                    csv.writer(out).writerows(rows)
        (root / "task").mkdir(exist_ok=True)
        (root / "task" / f"{name}.txt").write_text(f"Predict {name}.")
    (root / "data_resplit" / names[0] / ".DS_Store").write_text("")
    return root


def split_file(path, names, lines=False):
    """As MAPPA's: the tasks of a split, with the folders of their data."""
    items = [
        {
            "prompt": "p",
            "answer": None,
            "metadata": {"task_id": n, "train_file": f"./data_resplit/{n}/train.csv"},
        }
        for n in names
    ]
    path.write_text("\n".join(map(json.dumps, items)) if lines else json.dumps(items))
    return path


@pytest.mark.parametrize("lines", [False, True])
def test_the_real_layout_is_read_by_a_split_of_mappas_form(lines, tmp_path):
    root = benchmark(tmp_path / "data")
    names = ["conways-reverse-game-of-life-2020", "playground-series-s3e18", "titanic"]
    tasks = layout.load(root, "train", split_file(tmp_path / "split.json", names, lines))
    assert [t.id for t in tasks] == names and tasks[2].prompt == "Predict titanic."
    assert [t.metadata["targets"] for t in tasks] == [
        ["stop_0", "stop_1"],
        ["EC1", "EC2"],
        ["Survived"],
    ]
    assert [t.metadata["type"] for t in tasks] == ["regression", "classification", "classification"]
    card = layout.card_of(tasks[2].label)
    assert (
        card.answer.is_file()
        and card.inputs["sample_submission.csv"].name == "gender_submission.csv"
    )
    for task in tasks:
        card = layout.card_of(task.label)
        assert scorer.score(card, card.answer, card.answer).value == pytest.approx(card.best)


def test_everything_that_is_missing_is_named_with_its_file_and_the_cure(tmp_path):
    root = benchmark(tmp_path / "data")
    (root / "answers" / "titanic" / "test_answer.csv").unlink()
    (root / "data_resplit" / "playground-series-s3e18" / "more.csv").write_text("x\n")
    answer = root / "answers" / "conways-reverse-game-of-life-2020" / "test_answer.csv"
    answer.write_text("ID,stop_0\n1,1\n")
    names = [
        "titanic",
        "playground-series-s3e18",
        "conways-reverse-game-of-life-2020",
        "playground-series-s3e1",
        "titanicc",
    ]
    with pytest.raises(ConfigurationError) as caught:
        layout.load(root, "train", split_file(tmp_path / "split.json", names))
    text = "\n".join([*map(str, caught.value.problems)])
    for part in (
        f"{root}/answers/titanic/test_answer.csv: no such file; restore it",
        "one file is the sample submission, got gender_submission.csv, more.csv",
        f"{answer}: has no column 'id' (it has ID, stop_0)",
        f"{root}/task/playground-series-s3e1.txt: no such file",
        "there is no task 'titanicc'",
        "did you mean 'titanic'?",
    ):
        assert part in text
    assert caught.value.count == 8


@pytest.mark.parametrize("content", ["", "[]", "{", '[{"a": 1}]', '["titanic"]'])
def test_a_split_without_names_is_refused(content, tmp_path):
    (tmp_path / "split.json").write_text(content)
    with pytest.raises(ConfigurationError, match="split"):
        layout.names_in(tmp_path / "split.json")


def test_a_table_of_ones_own_is_checked(tmp_path):
    rows = (
        "name,metric,id,targets,split,best",
        "a,rmsee,id,y,train,",
        "b,rmse,,y,train,",
        "c,rmse,id,y,train,good",
    )
    (tmp_path / layout.TABLE).write_text("\n".join(rows))
    with pytest.raises(ConfigurationError) as caught:
        layout.cards(tmp_path)
    assert "there is no metric 'rmsee'; did you mean 'rmse'?" in next(
        map(str, caught.value.problems)
    )
    assert "benchmark.csv:3: 'id' is missing" in [*map(str, caught.value.problems)][1]
    assert "could not convert string to float: 'good'" in [*map(str, caught.value.problems)][2]


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--dsbench.data", "nowhere"], "no such folder"),
        (["--dsbench.data", "generated:x"], "expected generated:SEED"),
    ],
)
def test_data_that_are_not_there_are_a_problem_of_the_plan(words, part):
    with pytest.raises(ConfigurationError, match=part):
        build_plan(["--recipe", str(FOLDER / "tiny.yaml"), *words])


# --- generated tasks
# --------------------------------------------------------------------------------------------------


def digest(folder):
    return {
        str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in folder.rglob("*")
        if p.is_file()
    }


def test_the_same_seed_gives_the_same_bytes_and_another_gives_others(tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "EACH", 2)
    made = []
    for number, seed in enumerate((5, 5, 6)):
        folder = tmp_path / str(number)
        folder.mkdir()
        tables.generate(folder, seed, ("rentals", "cancer"))
        made.append(digest(folder))
    assert made[0] == made[1] and len(made[0]) == 1 + 2 * 2 * 5
    assert made[0].keys() == made[2].keys()
    same = {name for name in made[0] if made[0][name] == made[2][name]}
    assert all(name.startswith("task/") for name in same)


def test_64_tasks_are_to_train_and_6_held_out_in_the_real_layout(data):
    train, held_out = layout.load(data, "train"), layout.load(data, "eval")
    assert (len(train), len(held_out)) == (64, 6)
    assert Counter(t.metadata["type"] for t in held_out) == {"classification": 4, "regression": 2}
    assert len({t.metadata["words"] for t in (*train, *held_out)}) == 70
    trained = {t.metadata["words"].rpartition(" ")[0] for t in train}
    assert {t.metadata["words"].rpartition(" ")[0] for t in held_out} <= trained


def test_they_hold_what_is_planted(data):
    import numpy as np
    import pandas as pd

    for card in layout.cards(data).values():
        train, test = pd.read_csv(card.data / "train.csv"), pd.read_csv(card.data / "test.csv")
        answer = pd.read_csv(card.answer)
        assert list(answer["id"]) == list(test["id"]) and not set(test["id"]) & set(train["id"])
        assert not answer["id"].is_monotonic_increasing
        assert not set(card.targets) & set(test), "the answer is in no file of the agents'"
        numbers = train.select_dtypes("number").drop(
            columns=["id", *(t for t in card.targets if t in train)], errors="ignore"
        )
        assert train["f0"].isna().mean() > 0.05 and train["city"].nunique() >= 4
        spread = numbers.std()
        assert spread[spread > 0].max() / spread[spread > 0].min() > 1e5
        noise = numbers[[c for c in numbers if c.startswith("g")]]
        assert (abs(noise) > 4 * noise.std()).to_numpy().any(), "outliers"
        if card.metric == "rmsle":
            assert train["count"].skew() > 1.5 and (train["count"] >= 0).all()
        sample = scorer.score(card, card.answer, card.samples[0]).value
        assert sample is not None and np.isfinite(card.best)
        assert scorer.METRICS[card.metric].higher == (card.best > sample)


# --- words as programs
# --------------------------------------------------------------------------------------------------


class Run:
    """The ten programs of one task, one after the other in a workspace; those of right words are
    run once, and kept."""

    def __init__(self, card, programs, folder):
        self.card, self.programs, self.folder = card, programs, folder
        self.baseline = scorer.score(card, card.answer, card.samples[0]).value
        (folder / "0").mkdir()
        for name, source in card.inputs.items():
            shutil.copy(source, folder / "0" / name)
        for number, stage in enumerate(pipeline.STAGES):
            shutil.copytree(folder / str(number), folder / str(number + 1))
            ran = programs.run(folder / str(number + 1), self.program(stage))
            assert ran.ok, ran.output

    def program(self, stage, word=None):
        word = pipeline.right(stage.name, self.card.words) if word is None else word
        return pipeline.expand(stage, word, self.card.id, self.card.targets)

    def with_word(self, stage, word):
        """The first stage whose program fails, the gap, and the stages that are charged, where one
        word is another one."""
        number, workspace = pipeline.STAGES.index(stage), self.folder / "wrong"
        shutil.rmtree(workspace, ignore_errors=True)
        shutil.copytree(self.folder / str(number), workspace)
        after = pipeline.STAGES[number + 1 :]
        ran = self.programs.run(workspace, self.program(stage, word), *map(self.program, after))
        failed = None if ran.ok else pipeline.STAGES[number + ran.done].name
        written = {p.name for p in workspace.iterdir()} - set(self.card.inputs)
        found = scorer.score(self.card, self.card.answer, workspace / "submission.csv")
        gap = (
            None
            if found.value is None
            else scorer.relative_gap(found.value, self.baseline, self.card.best)
        )
        return failed, gap, set(root_cause.faults(workspace, written))


ELSEWHERE = {
    ("impute", "none"): "size",
    ("encode", "none"): "size",
    ("save", "train"): "predict",
    ("save", "noids"): "write",
    ("save", "swapped"): "size",
    ("keep", "params"): "predict",
    ("keep", "scores"): "predict",
    ("keep", "elsewhere"): "predict",
}
"""Wrong words that show first in the program of another role, whatever the task."""
OPAQUE = {"scale", "target", "model", "size"}
"""Decisions within a model, which is not looked into (nothing of an agent's is unpickled): charged
where they show."""


@pytest.mark.parametrize("kind", ["visitors", "rings", "profits", "rentals", "iris"])
def test_every_wrong_word_costs_success_and_many_fail_in_another_roles_program(
    kind, data, programs, tmp_path
):
    run = Run(layout.cards(data)[f"{kind}-2"], programs, tmp_path)
    submission = tmp_path / "10" / "submission.csv"
    assert scorer.score(run.card, run.card.answer, submission).value == pytest.approx(run.card.best)
    written = {p.name for p in (tmp_path / "10").iterdir()} - set(run.card.inputs)
    assert root_cause.faults(tmp_path / "10", written) == {}
    answer = coach_map.ANSWERS.get(run.card.metric, "number")
    harmless, crashed, role_of = [], Counter(), {s.name: s.role for s in pipeline.STAGES}
    for stage in pipeline.STAGES:
        for word in stage.options:
            if word == pipeline.right(stage.name, run.card.words):
                continue
            failed, gap, charged = run.with_word(stage, word)
            words = {
                s.name: pipeline.right(s.name, run.card.words)
                for s in pipeline.STAGES
                if s != stage
            }
            if gap is not None and gap >= 0.9:
                harmless.append((stage.name, word, gap))
            if failed is not None:
                crashed[role_of[failed] == stage.role] += 1
            if (stage.name, word) in ELSEWHERE:
                assert failed == ELSEWHERE[stage.name, word] and charged == {stage.name}, (
                    word,
                    charged,
                )
            elif stage.name in OPAQUE:
                assert charged <= {"size", "predict"}, (stage.name, word, charged)
            else:
                assert charged <= {stage.name}, (stage.name, word, charged)
            said = [
                options.index(words.get(name, word))
                for name, options in zip(coach_map.STAGES, coach_map.WORDS, strict=True)
            ]
            ran, fault = coach_map.what_ran(np.array(said), np.array(answer))
            assert failed == next(
                (s for s, good in zip(coach_map.STAGES, ran, strict=True) if not good), None
            ), (
                stage.name,
                word,
            )
            assert charged == {s for s, bad in zip(coach_map.STAGES, fault, strict=True) if bad}, (
                stage.name,
                word,
            )
            assert (
                (gap is not None) == (failed is None and not charged)
                or stage.name == "target"
                or word == "proba"
            )
    assert not harmless, harmless
    assert crashed[False] >= 8 and sum(crashed.values()) <= 20, crashed


def test_a_word_that_a_decision_does_not_have_fails_in_its_own_program(programs, tmp_path):
    for word in ("", "ridge", "'); import os #", "x" * 500):
        (folder := tmp_path / f"w{len(word)}").mkdir()
        ran = programs.run(folder, pipeline.expand(pipeline.STAGES[0], word, "id", ["y"]))
        assert (
            not ran.ok and "impute: got" in ran.output and "median, zero, none, drop" in ran.output
        )


def test_names_of_columns_are_data_of_a_program(programs, tmp_path):
    """A column may have any name; it never becomes code."""
    name = "a'\"; raise SystemExit(3) #"
    rows = [["my id", "x", name], *([n, n / 7, n % 3] for n in range(30))]
    for file, width in (("train.csv", 3), ("test.csv", 2)):
        with (tmp_path / file).open("w", newline="") as out:
            csv.writer(out).writerows(row[:width] for row in rows)
    words = [pipeline.right(stage.name, "rmse linear gaps 0") for stage in pipeline.STAGES]
    expanded = (
        pipeline.expand(stage, word, "my id", [name])
        for stage, word in zip(pipeline.STAGES, words, strict=True)
    )
    ran = programs.run(tmp_path, *expanded)
    assert ran.ok, ran.output
    assert list(scorer.read_table(tmp_path / "submission.csv", None)) == ["my id", name]


# --- whole trajectories
# --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def played():
    """`played(task id, {stage: word})`: a trajectory of agents who say the right words but for
    these, with its outcome, what they were shown, and by rubric and decision what each action was
    worth. Programs run in the real sandbox."""
    plan = build_plan(["--recipe", str(FOLDER / "tiny.yaml")])
    run, chat = plan.run, CharacterChat()
    tools = {
        tool.name: tool for answer in plan.plugins.hook.marl_tools(run=run) for tool in answer or ()
    }
    tasks = {task.id: task for split in ("train", "eval") for task in plan.tasks(split)}

    def spec(name, config):
        render = prompt_renderer(run.prompt(name), run.system(name))
        own = tuple(tools[t] for t in config.tools)
        return RoleSpec(
            name,
            name,
            render,
            chat,
            Sampling(1.0, 1.0, None, 9000),
            own,
            config.max_turns,
            None,
            False,
        )

    roles = {name: spec(name, config) for name, config in run.recipe.roles.items()}

    async def play(name, wrong):
        task, shown, judged = tasks[name], [], {}

        async def generate(call):
            prompt = chat.text(call.context_ids)
            shown.append(prompt)
            asked = prompt.split("?")[-2].split("\n")[-1]
            ids = (
                *chat.encode(wrong.get(asked) or pipeline.right(asked, task.metadata["words"])),
                ord("^"),
            )
            return Generation(ids, tuple(-0.5 for _ in ids), "stop", call.policy, 0)

        async def score(trajectory):
            for file in ("tiny_rubric.py", "symptom_rubric.py", "root_cause_rubric.py"):
                judged[file] = await scores(trajectory, file)
            ask = plan.plugins.hook.marl_score_outcome
            await score_trajectory(
                trajectory, lambda t: ask(run=run, trajectory=t), 60, list(roles)
            )

        async with run.state(Workspaces).of(task) as workspace:
            trajectory = await run_workflow(
                run.workflow_module.run,
                task,
                0,
                step=1,
                run_seed=0,
                roles=roles,
                tools=tools,
                generate=generate,
                score=score,
                workspace=workspace,
                seconds=300,
            )
        trajectory.actions = sorted(
            trajectory.actions, key=lambda a: (list(roles).index(a.role), a.turn)
        )
        return trajectory, shown, judged

    with asyncio.Runner() as runner:
        yield lambda name, wrong: runner.run(play(name, wrong))
        for stopped in plan.plugins.hook.marl_stop(run=run):
            runner.run(stopped)


async def scores(trajectory, file):
    """What a rubric says of each action, by its decision."""
    coach = RubricCoach(load_rubric(FOLDER / file, pipeline.ROLES))
    found, last = {}, max(trajectory.actions, key=lambda a: (a.role == "analyst", a.turn))
    for action in trajectory.actions:
        seen = Seen.of(trajectory, action)
        if action is last:
            seen = SeenLast(**vars(seen), label=trajectory.task.label, answer=trajectory.answer)
        found[pipeline.BY_ROLE[action.role][action.turn].name] = (
            await coach.judge(action, seen)
        ).share
    return found


def test_good_agents_solve_a_task_in_ten_turns(played):
    trajectory, shown, judged = played("profits-6", {})
    assert [(a.role, a.turn) for a in trajectory.actions] == [
        (role, turn) for role in pipeline.ROLES for turn in range(len(pipeline.BY_ROLE[role]))
    ]
    assert trajectory.outcome == 1.0 and trajectory.agent_failure is None
    parts = trajectory.outcome_parts
    assert parts["valid"] == 1.0 and parts["gap"] == pytest.approx(1.0) and parts["rmse"] < 30
    assert parts["made/engineer"] == parts["made/modeler"] == parts["made/analyst"] == 1.0
    assert all(set(found.values()) == {1.0} for found in judged.values())
    assert all(prompt.startswith("u:rmse linear gaps 20\n") for prompt in shown)
    assert max(len(prompt) for prompt in shown) < 448 - 12
    writer = {entry.path: entry.writer for entry in trajectory.files}
    assert (
        writer["train.csv"] == ""
        and writer["X_test.csv"].startswith("engineer.")
        and writer["model.joblib"].startswith("modeler.")
    )


@pytest.mark.parametrize(
    ("wrong", "symptom", "cause"),
    [
        ({"encode": "none"}, {"size", "keep", "predict", "write"}, {"encode"}),
        ({"save": "train"}, {"predict", "write"}, {"save"}),
        ({"keep": "elsewhere"}, {"predict", "write"}, {"keep"}),
        ({"impute": "drop"}, set(), set()),
        ({"write": "head"}, set(), {"write"}),
    ],
)
def test_who_is_charged_with_a_fault(wrong, symptom, cause, played):
    """The symptom is charged to whose program failed, the cause to who made it, lost quality to
    nobody but the strict coach."""
    trajectory, _, judged = played("visitors-6", wrong)
    assert trajectory.outcome == 0.0
    (at,) = wrong
    stages = [s.name for s in pipeline.STAGES]
    low = {"write": 0.0} | dict.fromkeys(stages, 0.0)
    strict, seen, traced = judged.values()
    assert {s for s in stages[:-1] if strict[s] == low[s]} == {at} - {"write"}
    assert {s for s in stages[:-1] if seen[s] == 0} == symptom - {"write"}
    assert {s for s in stages[:-1] if traced[s] == 0} == cause - {"write"}
    assert strict["write"] == (0.0 if at == "write" else 0.5), "its own word, and the outcome"
    assert seen["write"] == (0.0 if "write" in symptom else 0.5)
    assert traced["write"] == (0.0 if "write" in cause else 0.5)


@pytest.mark.parametrize(
    ("wrong", "blamed"),
    [
        ({"encode": "none"}, "encode"),
        ({"save": "noids"}, "save"),
        ({"impute": "drop"}, None),
        ({}, None),
    ],
)
def test_the_outcome_is_traced_back_to_whoever_owed_what_was_missing(wrong, blamed, played):
    """The contributions add up to the outcome's value: all of a failure to the one at fault, else
    an equal part to each."""
    traced = load_file(FOLDER / "traced.py")
    trajectory, _, _ = played("visitors-6", wrong)
    value = 2 * trajectory.outcome - 1
    trajectory.sort()
    found = asyncio.run(backward(trajectory, "", value, traced.Files()))
    parts = conserve({path: a.contribution for path, a in found.items()}, value)
    by_stage = {pipeline.BY_ROLE[a.role][a.turn].name: parts[a.path] for a in trajectory.actions}
    expected = {
        stage: value / 10 if blamed is None else value * (stage == blamed) for stage in by_stage
    }
    assert len(by_stage) == 10 and by_stage == pytest.approx(expected)


def test_tracing_by_files_takes_the_place_of_the_rules():
    words = ["--recipe", str(FOLDER / "tiny.yaml"), "--plugin", str(FOLDER / "traced.py")]
    plan = build_plan([*words, "--coach.rubric", str(FOLDER / "symptom_rubric.py")])
    assert (
        plan.run.warnings == ()
        and type(plan.run.state(BackpropState).attributor).__name__ == "Files"
    )


def test_without_a_baseline_the_sample_submission_is_it_and_has_to_be_valid(data, tmp_path):
    card = layout.cards(data)["profits-0"]
    assert judging.baseline(card) == pytest.approx(
        scorer.score(card, card.answer, card.samples[0]).value
    )
    root = benchmark(tmp_path, ["titanic"])
    (root / layout.TABLE).write_text(
        "name,metric,id,targets,split\ntitanic,accuracy,PassengerId,Survived,train\n"
    )
    assert judging.baseline(layout.cards(root)["titanic"]) == 1.0
    layout.cards(root)["titanic"].samples[0].write_text("PassengerId,Survived\n7,1\n")
    (root / layout.TABLE).write_text(
        "name,metric,id,targets,split\ntitanic,f1,PassengerId,Survived,train\n"
    )
    with pytest.raises(
        ValueError, match=r"4 ids of 4 are missing, .* give 'titanic' a `baseline` in"
    ):
        judging.baseline(layout.cards(root)["titanic"])


def test_what_came_with_the_task_is_no_submission(data, tmp_path):
    card = layout.cards(data)["visitors-0"]
    shutil.copy(card.answer, tmp_path / "submission.csv")
    assert judging.judge(card, tmp_path, set()).scored.value is None
    assert judging.judge(card, tmp_path, {"submission.csv"}).scored.value == 1.0


# --- the coach of full-size models
# -------------------------------------------------------------------------------------------


def action(role, turn=0, results=(), before=None):
    return SimpleNamespace(
        role=role, turn=turn, tool_results=tuple(results), before=before, text=""
    )


def program(ok, output=""):
    return ToolResult("python", "p", output, ok)


def sees(*written):
    return SimpleNamespace(files=tuple(SimpleNamespace(path=p, writer="x") for p in written))


LOST = "Traceback ...\nFileNotFoundError: [Errno 2] No such file or directory: '{}'"


def test_a_role_is_not_blamed_for_a_file_that_another_one_owed():
    blamed = action("analyst", 1, [program(False, LOST.format("answer.csv"))])
    for file in ("X_test.pkl", "/w/model.pkl"):
        excused = action("analyst", 1, [program(False, LOST.format(file))])
        assert (
            rubric.runs(excused, sees("train.csv"))
            and rubric.makes_its_files(excused, sees()) == 1.0
        )
    assert not rubric.runs(blamed, sees()) and rubric.makes_its_files(blamed, sees()) == 0.0
    there = sees("X_test.pkl", "model.pkl")
    misnamed = action("analyst", 1, [program(False, LOST.format("X_test.pkl"))])
    assert not rubric.runs(misnamed, there), "it was there; the program looked in another place"


def test_what_a_role_owes_is_charged_once_no_turn_is_left():
    first, last = (action("engineer", turn, [program(True)]) for turn in (0, 2))
    assert (
        rubric.makes_its_files(first, sees()) == 0.5 and rubric.makes_its_files(last, sees()) == 0.0
    )
    done = action("engineer", 1, before=first)
    assert rubric.makes_its_files(done, sees("X_train.pkl")) == 0.0 and rubric.runs(done, sees())
    assert rubric.makes_its_files(done, sees("X_train.pkl", "y_train.pkl", "X_test.pkl")) == 1.0


@pytest.mark.parametrize(
    ("metric", "value", "quality", "gap", "points"),
    [
        ("roc_auc", 0.85, {}, 1.0, 9),
        ("roc_auc", 0.80, {}, 1.0, 8),
        ("roc_auc", 0.65, {}, 1.0, 6),
        ("roc_auc", 0.60, {}, 1.0, 4),
        ("roc_auc", 0.50, {}, 1.0, 3),
        ("rmsle", 0.1, {"rmse": 9.9}, 0.1, 9),
        ("rmse", 5.0, {"rmse": 10.0}, 0.1, 8),
        ("mae", 5.0, {"rmse": 49.0}, 0.1, 6),
        ("mae", 5.0, {"rmse": 60.0}, 0.1, 4),
        ("accuracy", 0.9, {"accuracy": 0.9}, 0.75, 9),
        ("accuracy", 0.5, {"accuracy": 0.5}, 0.0, 3),
        ("accuracy", None, None, 0.0, 0),
    ],
)
def test_the_metric_caps_what_the_last_action_is_worth(metric, value, quality, gap, points):
    result = scorer.Result("?", metric, scorer.Scored(value, quality=quality), gap)
    assert rubric.cap(result) == points / 10


def test_no_criterion_of_the_last_action_exceeds_the_cap(data, tmp_path):
    card = layout.cards(data)["rings-0"]
    shutil.copy(card.samples[0], tmp_path / "submission.csv")  # ROC-AUC 0.5: at most 3
    files = sees("submission.csv").files
    seen = SeenLast(
        "rings-0", "p", "analyst", (), (), str(card.answer), "", files=files, workspace=tmp_path
    )
    coach = RubricCoach(load_rubric(FOLDER / "rubric.py", pipeline.ROLES))
    verdict = asyncio.run(coach.judge(action("analyst", 1, [program(True)]), seen))
    assert verdict.score == pytest.approx(3.0)


# --- the recipe
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", ["recipe.yaml", "tiny.yaml", "tiny_outcome.yaml"])
def test_its_plan_has_no_warning(file, monkeypatch):
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda" if file == "recipe.yaml" else "cpu")
    plan = build_plan(["--recipe", str(FOLDER / file)])
    assert plan.run.warnings == ()
    assert {name: role.max_turns for name, role in plan.run.recipe.roles.items()} == {
        "engineer": 3,
        "modeler": 5,
        "analyst": 2,
    }


def test_its_warm_up_is_checked_compared_and_kept(tmp_path):
    shutil.copytree(FOLDER, tmp_path / "dsbench")
    words = ["--recipe", str(tmp_path / "dsbench/tiny.yaml")]
    warm_up = tmp_path / "dsbench/warm_up.py"
    before = fingerprint(plan := build_plan(words))
    assert "warm_up.py" in set(run_folder._named(plan, tmp_path / "dsbench"))
    warm_up.write_text(warm_up.read_text() + "\n")
    assert fingerprint(build_plan(words)) != before
    warm_up.write_text("import pandas\nfor\n")
    with pytest.raises(
        ConfigurationError,
        match=r"tiny.yaml:12: tools.sandbox.warm_up: .*/warm_up.py:2: invalid syntax",
    ):
        build_plan(words)
    warm_up.unlink()
    with pytest.raises(
        ConfigurationError,
        match=r"tools.sandbox.warm_up: .*/warm_up.py cannot be read: .*No such file",
    ):
        build_plan(words)


@pytest.mark.usefixtures("data")
def test_the_plan_says_where_the_words_programs_run():
    plan = build_plan(["--recipe", str(FOLDER / "tiny.yaml")])
    assert first_lines(plan)[0].startswith("sandbox: ")


def test_planning_imports_neither_pandas_nor_scikit_learn():
    code = (
        "import sys; from marl_plugins.cli import main\n"
        f"assert main(['train', '--recipe', {str(FOLDER / 'tiny.yaml')!r}, '--dry-run']) == 0\n"
        "print([m for m in ('numpy', 'pandas', 'sklearn', 'scipy', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip().splitlines()[-1] == "[]", done.stdout[-500:] + done.stderr[-500:]


@pytest.mark.usefixtures("data")
def test_demonstrations_slip_so_often_that_success_is_rare_and_fit_the_prompts():
    run = (plan := build_plan(["--recipe", str(FOLDER / "tiny.yaml")])).run
    rng, slips, said = random.Random(0), [], 0
    for task in plan.tasks("train") * 20:
        for shown in demonstrations.demonstrate(task, rng):
            stages = pipeline.BY_ROLE[shown.role]
            assert [text.split("\n")[1] for text in shown.shown] == [
                f"{s.name}?" for s in stages[1:]
            ]
            prompt = prompt_renderer(run.prompt(shown.role), run.system(shown.role))(shown.fields)
            assert prompt[-1]["content"].strip() == f"{task.metadata['words']}\n{stages[0].name}?"
            for stage, word in zip(stages, shown.said, strict=True):
                assert word in stage.options and len(word) < run.role(shown.role).max_new_tokens
                slips.append(word != pipeline.right(stage.name, task.metadata["words"]))
                said += 1
    right = 1 - sum(slips) / said
    assert 0.003 <= right**10 <= 0.005
    assert {w for s in pipeline.STAGES for w in s.options if list(s.options).count(w) > 1} == set()


def test_an_agent_is_told_whether_its_program_ran_and_what_is_next():
    stages = pipeline.BY_ROLE["analyst"]
    failed = program(
        False, "Traceback\nFileNotFoundError: [Errno 2] No such file or directory: 'model.joblib'\n"
    )
    assert plugin.shown(stages, 0, program(True, "1")) == "ok\nwrite?"
    assert plugin.shown(stages, 1, program(True)) == "ok"
    assert plugin.shown(stages, 0, failed) == "failed\nwrite?"
    assert plugin.shown(stages, 1, failed) == "failed"


def test_a_model_as_the_coach_is_shown_who_wrote_what_and_neither_label_nor_score():
    from marl_plugins.asking.prompts import placeholders
    from marl_plugins.coach.model import read_prompt

    prompts = FOLDER / "prompts"
    for name, last in (("coach.md", False), ("last_coach.md", True)):
        text = read_prompt(prompts / name, with_label=last)
        assert {"files", "tools", "before", "duties"} <= placeholders(prompts / name)[1]
        assert "{label}" not in text  # where the answers lie
