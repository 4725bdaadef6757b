"""What is wrong with the tasks of a run."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import nearest
from marl_plugins.core.tasks import SUFFIXES, FileTasks, not_json
from marl_plugins.core.texts import read_text
from marl_plugins.core.trajectory import Task
from marl_plugins.core.workspace import MOST_FILES, folders_of, path_problem, tree_problem
from marl_plugins.plan.plan import Plan
from marl_plugins.run import Run

MOST_NAMED = 5
"""Tasks that a message names."""


def from_hub(run: Run) -> bool:
    """Whether tasks come from a hub; those are read when a run really starts."""
    names = [None if run.recipe.tasks else run.args.data.prompt_dataset, run.args.eval.dataset]
    return any(name and Path(name).suffix not in SUFFIXES for name in names)


def check_tasks(plan: Plan) -> list[str]:
    """What is wrong with the tasks themselves, whichever plugin or file they come from."""
    run, problems = plan.run, []
    train, evaluation = plan.tasks("train"), plan.tasks("eval")
    owners = plan.plugins.owners("marl_tasks")
    source = f"plugin {' or '.join(owners)}: marl_tasks: " if owners else ""
    if other := [task for task in (*train, *evaluation) if not isinstance(task, Task)]:
        return [f"{source}a task is a marl_plugins.core.trajectory.Task, got {other[0]!r:.80}"]
    if not train:
        problems.append(f"{source}there are no tasks to train on")
    elif not run.episode_steps(len(train)):
        problems.append(
            f"{len(train)} tasks x {run.args.rollout.n_samples_per_prompt} samples are fewer trajectories than one optimiser "
            f"step takes (--train.batch_size {run.args.train.batch_size})"
        )
    for split, tasks in (("train", train), ("eval", evaluation)):
        counts = Counter(task.id for task in tasks)
        twice = [name for name, count in counts.items() if count > 1]
        if twice:
            problems.append(
                f"{split} tasks: {len(twice)} ids are used more than once, the first {twice[0]!r}; ids name results"
            )
        # At once: one by one takes ten times as long.
        values = [(task.label, task.metadata) for task in tasks]
        all_json = not not_json(values)
        all_text = _is_text("".join(f"{task.id}{task.prompt}" for task in tasks)) and _is_text(_written(values, all_json))
        for task in tasks:
            for name in ("id", "prompt"):
                if not isinstance(getattr(task, name), str) or not getattr(task, name):
                    problems.append(
                        f"{split} task {task.id!r}: its {name} must be a non-empty string, got {getattr(task, name)!r:.100}; "
                        "chat messages become one with `tasks:`, a file with load(split)"
                    )
                    return problems
            if not isinstance(task.metadata, dict) or not all(isinstance(key, str) for key in task.metadata):
                problems.append(
                    f"{split} task {task.id!r}: its metadata must be a dict whose keys are texts, got {task.metadata!r:.80}"
                )
                break
            if not all_json and (wrong := not_json([task.label, task.metadata])):
                problems.append(f"{split} task {task.id!r}: label and metadata must be JSON values: {wrong}")
                break
            if not all_text and (broken := [name for name in ("id", "prompt") if not _is_text(getattr(task, name))]):
                problems.append(
                    f"{split} task {task.id!r}: its {broken[0]} holds half of a UTF-16 pair, which no tokenizer takes"
                )
                break
            if not all_text and not _is_text(_written([task.label, task.metadata], all_json)):
                problems.append(
                    f"{split} task {task.id!r}: its label or metadata holds half of a UTF-16 pair, which no file takes"
                )
                break
            if wrong := _wrong_file(task):
                problems.append(f"{split} task {task.id!r}: {wrong}")
                break
    trained = {_words(t.prompt): t.id for t in reversed(train)}
    if same := [(t, trained[words]) for t in evaluation if (words := _words(t.prompt)) in trained]:
        pairs = [f"{t.id!r}" if t.id == other else f"{t.id!r} (there {other!r})" for t, other in same]
        named = f"{', '.join(pairs[:MOST_NAMED])}{' and others' if len(pairs) > MOST_NAMED else ''}"
        problems.append(
            f"{len(same)} of {len(evaluation)} evaluation tasks are in the training data too: {named}, the first "
            f"{same[0][0].prompt[:80]!r}; what was trained on proves nothing: remove them from one of the two"
        )
    elif run.tasks_module is not None:
        both = {t.id for t in train} & {t.id for t in evaluation}
        if both:
            problems.append(f"{len(both)} tasks are in both train and eval, the first {min(both)!r}")
    return [*problems, *_best_metric_problems(run, evaluation)]


def best_metric(key: str) -> str:
    """The metric that `--ckpt.best_metric_key` names; empty where no step is kept apart."""
    return {"none": "", "": "eval/outcome"}.get(key, key)


def _best_metric_problems(run: Run, evaluation: Sequence[Task]) -> list[str]:
    """Why no step can be the best by what `--ckpt.best_metric_key` names."""
    key = run.args.ckpt.best_metric_key
    if not (name := best_metric(key)):
        return []
    known = ["eval/outcome", *(f"eval/outcome/{role}" for role in run.recipe.roles)]
    if len(types := {task.metadata.get("type") for task in evaluation}) > 1:
        known += [f"eval/type/{kind}" for kind in types if kind is not None]
    if name not in known:
        return [f"--ckpt.best_metric_key {key}: is no metric of the evaluations{nearest(name, known)}"]
    if run.args.eval.steps > 0 and evaluation:
        return []
    missing = (
        "--eval.steps N" if evaluation else "eval tasks (--eval.dataset FILE, or load('eval') of the recipe's `tasks`)"
    )
    return [f"--ckpt.best_metric_key {key}: nothing is evaluated, so no step is the best: give {missing}"]


def task_warnings(plan: Plan) -> list[str]:
    """What is worth knowing of the tasks before they are trained on."""
    run, train, evaluation = plan.run, plan.tasks("train"), plan.tasks("eval")
    warnings = [*_field_warnings(train), *_field_warnings(evaluation), *_label_warnings(plan)]
    if run.args.rollout.batch_size > len(train):
        samples = run.args.rollout.n_samples_per_prompt
        warnings.append(
            f"--rollout.batch_size {run.args.rollout.batch_size} is more than there are tasks: a step has {len(train)} tasks x "
            f"{samples} samples = {len(train) * samples} trajectories"
        )
    if run.args.eval.steps > 0 and "eval.steps" in run.given and not evaluation:
        source = "load('eval') gave none" if run.recipe.tasks else "give --eval.dataset FILE"
        warnings.append(
            f"--eval.steps {run.args.eval.steps}: nothing is evaluated, because there are no eval tasks; {source}"
        )
    return warnings


def _field_warnings(tasks: list[Task]) -> list[str]:
    """Other fields of a file that could have been the prompt."""
    if not isinstance(tasks, FileTasks) or not tasks.fields.rivals:
        return []
    rivals = ", ".join(map(repr, tasks.fields.rivals))
    return [
        f"{tasks.path}: the prompt is taken from field {tasks.fields.prompt!r}; there is {rivals} too: name the right one with "
        "--data.input_key"
    ]


def _label_warnings(plan: Plan) -> list[str]:
    """Tasks without a label, where the recipe's grader reads labels."""
    run, warnings = plan.run, []
    if not run.recipe.grader or "label" not in read_text(run.folder / run.recipe.grader):
        return []
    for split in ("train", "eval"):
        tasks = plan.tasks(split)
        count = sum(task.label in (None, []) or not str(task.label).strip() for task in tasks)
        if count:
            field = ""
            if isinstance(tasks, FileTasks) and tasks.fields.label is None:
                field = f"; fields besides the prompt: {', '.join(tasks[0].metadata) or 'none'} (--data.label_key)"
            warnings.append(
                f"{count} of {len(tasks)} {split} tasks have no label, and {run.folder / run.recipe.grader} reads it{field}"
            )
    return warnings


def _wrong_file(task: Task) -> str:
    """What is wrong with the files that a task brings; empty where nothing is."""
    if not isinstance(task.files, dict):
        return f"files: expected a dict of a path in the workspace to the file that is copied there, got {task.files!r:.80}"
    for name, source in task.files.items():
        if problem := path_problem(name) if isinstance(name, str) else "is no text":
            return f"files: path {name!r:.200} {problem}; expected one such as 'data/train.csv'"
        if not isinstance(source, str | os.PathLike) or not os.path.isfile(source):
            return f"files: {name!r} is to be a copy of {source!r}, which is no file"
    if problem := tree_problem(task.files):
        return f"files: {problem}"
    if (count := len(task.files) + len(folders_of(task.files))) > MOST_FILES:
        return f"files: {count} files and folders; a workspace holds at most {MOST_FILES}: put them into an archive"
    return ""


def _written(value: Any, is_json: bool) -> str:
    return json.dumps(value, ensure_ascii=False) if is_json else ""


def _is_text(text: str) -> bool:
    """Whether a string can be written in UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _words(text: str) -> str:
    """A text without regard to case and white space."""
    return " ".join(text.lower().split())
