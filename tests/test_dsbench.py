"""The recipe dsbench: the benchmark's layout, generated tasks, the programs of words, and who is to
blame for what."""

import asyncio
import csv
import json
import random
import shutil
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from simulated import CharacterChat
from warm_programs import Programs

from benchmarks import coach_map
from marl_plugins.coach.rubric import RubricCoach, load_rubric
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.prompts import prompt_renderer
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.scoring import Seen, SeenLast
from marl_plugins.core.scoring import score_outcome as score_trajectory
from marl_plugins.core.trajectory import Generation, ToolResult
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.plan.build import build_plan
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


@pytest.mark.parametrize("kind", ["visitors", "rings", "profits", "rentals"])
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


@pytest.mark.parametrize(
    ("metric", "value", "quality", "gap", "points"),
    [
        ("roc_auc", 0.85, {}, 1.0, 9),
        ("roc_auc", 0.60, {}, 1.0, 4),
        ("roc_auc", 0.50, {}, 1.0, 3),
        ("rmsle", 0.1, {"rmse": 9.9}, 0.1, 9),
        ("rmse", 5.0, {"rmse": 10.0}, 0.1, 8),
        ("mae", 5.0, {"rmse": 60.0}, 0.1, 4),
        ("accuracy", 0.9, {"accuracy": 0.9}, 0.75, 9),
        ("accuracy", None, None, 0.0, 0),
    ],
)
def test_the_metric_caps_what_the_last_action_is_worth(metric, value, quality, gap, points):
    result = scorer.Result("?", metric, scorer.Scored(value, quality=quality), gap)
    assert rubric.cap(result) == points / 10


# --- the recipe
# --------------------------------------------------------------------------------------------------


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
