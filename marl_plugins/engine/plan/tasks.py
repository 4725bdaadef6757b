"""Checks of the tasks of a run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from marl_plugins.core.problems import Problem, at, meant
from marl_plugins.core.recipe.sources import sample_sizes, source_of, sources_of
from marl_plugins.core.recipe.tasks import FileTasks, not_json
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.core.run import Run
from marl_plugins.core.trajectory import Task
from marl_plugins.core.workspace import MAX_WORKSPACE_FILES, folders_of, path_problem, tree_problem
from marl_plugins.engine.plan.plan import Plan

MOST_NAMED = 5
"""Tasks that a message names."""


def from_hub(run: Run, split: str) -> bool:
    """Returns whether a split's tasks come from a hub; those are read when a run really starts."""
    data = run.args.eval.dataset
    if split == "train":
        data = None if run.recipe.tasks else run.args.data.prompt_dataset
    return bool(data) and any(source.is_elsewhere for source in sources_of(data))


def known_tasks(plan: Plan, split: str) -> list[Task] | None:
    """Returns a split's tasks; None for a hub's as long as nobody has read them."""
    unread = split not in plan.counted and from_hub(plan.run, split)
    return None if unread else plan.tasks(split)


def check_tasks(plan: Plan) -> list[Problem]:
    """Returns what is wrong with the tasks themselves, whichever plugin or file they come from."""
    run, problems = plan.run, []
    known, known_evaluation = known_tasks(plan, "train"), known_tasks(plan, "eval")
    train, evaluation = known or [], known_evaluation or []
    owners = plan.plugins.owners("marl_tasks")
    source = at(plugin=owners, hook="marl_tasks") if owners else ()
    if other := [task for task in (*train, *evaluation) if not isinstance(task, Task)]:
        expected = "each task to be a marl_plugins.Task"
        return [Problem("tasks.kind_of_value", source, f"{other[0]!r:.80}", expected)]
    if known == []:
        problems.append(Problem("tasks.none", source, "there are no tasks to train on"))
    elif train and not run.episode_steps(len(train)):
        problems.append(
            Problem(
                "tasks.too_few",
                got=(
                    f"{len(train)} tasks x {run.args.rollout.n_samples_per_prompt} samples are "
                    "fewer trajectories than one optimiser step takes (--train.batch_size "
                    f"{run.args.train.batch_size})"
                ),
                flags=("train.batch_size",),
            )
        )
    for split, tasks in (("train", train), ("eval", evaluation)):
        named = isinstance(tasks, FileTasks) or owners or not run.recipe.tasks
        file = at() if named else at(file=run.folder / str(run.recipe.tasks))
        problems += (replace(p, where=file + p.where) for p in _of_split(split, tasks))
        if any(problem.code == "tasks.text" for problem in problems):
            return problems
    problems += _in_both(run, train, evaluation)
    if known_evaluation is not None:
        problems += _best_metric_problems(run, evaluation)
    return problems


def _of_split(split: str, tasks: Sequence[Task]) -> Iterator[Problem]:
    """Returns what is wrong with the ids of one split's tasks, and with the first task that is
    wrong."""
    counts = Counter(task.id for task in tasks)
    if twice := [name for name, count in counts.items() if count > 1]:
        got = f"{len(twice)} ids are used more than once, the first {twice[0]!r}"
        yield Problem("tasks.ids", at(task=split), got, fix="ids name results")
    for task in tasks:
        if problem := _task_problem(task):
            yield problem.within(task=f"{split}/{task.id}")
            return


def _task_problem(task: Task) -> Problem | None:
    """Returns what is wrong with a task."""
    for name in ("id", "prompt"):
        if not isinstance(value := getattr(task, name), str) or not value:
            got = f"its {name} must be a non-empty string, got {value!r:.100}"
            fix = "chat messages become one with `tasks:`, a file with load(split)"
            return Problem("tasks.text", got=got, fix=fix * (name == "prompt"))
    if not isinstance(task.metadata, dict) or not all(
        isinstance(key, str) for key in task.metadata
    ):
        expected = "its metadata to be a dict whose keys are texts"
        return Problem("tasks.metadata", (), f"{task.metadata!r:.80}", expected)
    if wrong := not_json([task.id, task.prompt, task.label, task.metadata]):
        return Problem("tasks.json", got=f"it must be made of JSON values: {wrong}")
    return None if task.files == {} else _wrong_file(task)


def _in_both(run: Run, train: Sequence[Task], evaluation: Sequence[Task]) -> Iterator[Problem]:
    """Tasks that are trained on and evaluated."""
    trained = {_words(t.prompt): t.id for t in reversed(train)}
    if same := [(t, trained[words]) for t in evaluation if (words := _words(t.prompt)) in trained]:
        pairs = [
            f"{t.id!r}" if t.id == other else f"{t.id!r} (there {other!r})" for t, other in same
        ]
        named = f"{', '.join(pairs[:MOST_NAMED])}{' and others' if len(pairs) > MOST_NAMED else ''}"
        got = (
            f"{len(same)} of {len(evaluation)} evaluation tasks are in the training data too: "
            f"{named}, the first {same[0][0].prompt[:80]!r}"
        )
        fix = "what was trained on proves nothing: remove them from one of the two"
        yield Problem("tasks.leaked", got=got, fix=fix)
    elif run.tasks_module is not None and (
        both := {t.id for t in train} & {t.id for t in evaluation}
    ):
        got = f"{len(both)} tasks are in both train and eval, the first {min(both)!r}"
        yield Problem("tasks.both_splits", got=got, fix="ids name results: rename one of the two")


def best_metric(key: str) -> str:
    """Returns the metric that `--ckpt.best_metric_key` names; empty where no step is kept apart."""
    key = f"eval/{key}" if key.startswith("eval_") else key  # upstream's own
    return {"none": "", "": "eval/outcome"}.get(key, key)


def _of_samples(run: Run, tasks: Sequence[Task]) -> Iterator[str]:
    """Yields the metrics of sets and of several samples that an evaluation can have."""
    samples = {(t.dataset, t.samples or run.args.eval.n_samples_per_prompt) for t in tasks}
    has_majority = hasattr(run.grader_module, "answer_key")
    if len({count for _, count in samples}) == 1:
        samples.add(("", next(iter(samples))[1]))
    for name, count in samples:
        prefix = f"eval/{name}/" if name else "eval/"
        yield f"{prefix}outcome"
        for k in sample_sizes(count):
            yield f"{prefix}pass@{k}"
            if has_majority and k > 2:
                yield f"{prefix}maj@{k}"
    for task in {source_of(task): task for task in tasks}.values():
        most = task.samples or run.args.eval.n_samples_per_prompt
        yield from (f"eval/eval_{source_of(task)}_pass{n}" for n in (1, most))


def _best_metric_problems(run: Run, evaluation: Sequence[Task]) -> list[Problem]:
    """Returns why no step can be the best by what `--ckpt.best_metric_key` names."""
    key = run.args.ckpt.best_metric_key
    if not (name := best_metric(key)):
        return []
    known = ["eval/outcome", *(f"eval/outcome/{role}" for role in run.recipe.roles)]
    if len(types := {task.metadata.get("type") for task in evaluation}) > 1:
        known += [f"eval/type/{kind}" for kind in types if kind is not None]
    known += _of_samples(run, evaluation)
    if name not in known:
        got, fix = "is no metric of the evaluations", meant(name, known)
    elif not evaluation:
        got = "nothing is evaluated, so no step is the best"
        fix = "give eval tasks (--eval.dataset FILE, or load('eval') of the recipe's `tasks`)"
    elif run.args.eval.steps <= 0:
        got, fix = "nothing is evaluated, so no step is the best", "give --eval.steps N"
    else:
        return []
    where = at(flag="ckpt.best_metric_key")
    return [Problem("tasks.best_metric", where, f"{key}: {got}", fix=fix)]


def task_warnings(plan: Plan) -> Iterator[Problem]:
    """Returns what is worth knowing of the tasks before they are trained on."""
    run, known_evaluation = plan.run, known_tasks(plan, "eval")
    train, evaluation = known_tasks(plan, "train") or [], known_evaluation or []
    yield from [*field_warnings(train), *field_warnings(evaluation)]
    yield from _label_warnings(plan)
    yield from [*_text_warnings("train", train), *_text_warnings("eval", evaluation)]
    if run.args.eval.steps > 0 and "eval.steps" in run.given and known_evaluation == []:
        source = "load('eval') gave none" if run.recipe.tasks else "give --eval.dataset FILE"
        got = f"{run.args.eval.steps}: nothing is evaluated, because there are no eval tasks"
        where = at(flag="eval.steps")
        yield Problem("tasks.no_evaluation", where, got, fix=source, severity="warning")
    if (
        {"eval.dataset", "eval.steps"} & run.given == {"eval.dataset"}
        and run.args.eval.steps <= 0
        and any(policy.trainable for policy in run.policies)
    ):
        got = f"{run.args.eval.dataset}: training evaluates nothing without --eval.steps"
        where, fix = at(flag="eval.dataset"), "give --eval.steps N"
        yield Problem("tasks.not_evaluated", where, got, fix=fix, severity="warning")


def field_warnings(tasks: list[Task]) -> list[Problem]:
    """Returns other fields of a file that could have been the prompt."""
    if not isinstance(tasks, FileTasks) or not tasks.fields.rivals:
        return []
    rivals = ", ".join(map(repr, tasks.fields.rivals))
    return [
        Problem(
            "tasks.prompt_field",
            at(file=tasks.path),
            f"the prompt is taken from field {tasks.fields.prompt!r}",
            fix=f"there is {rivals} too: name the right one with --data.input_key",
            severity="warning",
        )
    ]


def _text_warnings(split: str, tasks: list[Task]) -> list[Problem]:
    """Tasks that no agent can tell apart and that have different labels."""
    alike: dict[str, list[Task]] = {}
    for task in tasks:
        alike.setdefault(task.prompt, []).append(task)
    unclear = [task for same in alike.values() for task in _contradicted(same)]
    if not unclear:
        return []
    return [
        Problem(
            "tasks.contradict",
            at(task=unclear[0].id),
            f"{len(unclear)} of {len(tasks)} {split} tasks have the prompt of another one and a "
            f"different label, as this one has: {unclear[0].prompt!r:.80}",
            fix="tell the agents what differs, or keep one of them",
            severity="warning",
        )
    ]


def _contradicted(same: list[Task]) -> list[Task]:
    """Returns the tasks, of those with one prompt, metadata and files, that have another label than
    an earlier one of them."""
    labels: dict[str, Any] = {}
    return [t for t in same if labels.setdefault(repr((t.metadata, t.files)), t.label) != t.label]


def _label_warnings(plan: Plan) -> Iterator[Problem]:
    """Tasks without a label, where the recipe's grader reads labels."""
    run = plan.run
    if not run.recipe.grader or "label" not in read_text(run.folder / run.recipe.grader):
        return
    for split in ("train", "eval"):
        tasks = known_tasks(plan, split) or []
        count = sum(task.label in (None, []) or not str(task.label).strip() for task in tasks)
        if count:
            fix = "give each a label, or use another grader"
            if isinstance(tasks, FileTasks) and tasks.fields.label is None:
                fix = (
                    f"fields besides the prompt: {', '.join(tasks[0].metadata) or 'none'} "
                    "(--data.label_key)"
                )
            got = (
                f"{count} of {len(tasks)} {split} tasks have no label, and "
                f"{run.folder / run.recipe.grader} reads it"
            )
            yield Problem("tasks.no_label", got=got, fix=fix, severity="warning")


def _wrong_file(task: Task) -> Problem | None:
    """Returns what is wrong with the files that a task brings."""
    where = at(key="files")
    if not isinstance(task.files, dict):
        expected = "a dict of a path in the workspace to the file that is copied there"
        return Problem("tasks.files", where, f"{task.files!r:.80}", expected)
    for name, source in task.files.items():
        if problem := path_problem(name) if isinstance(name, str) else "is no text":
            return Problem(
                "tasks.file_path",
                where,
                f"path {name!r:.200} {problem}",
                fix="write one such as 'data/train.csv'",
            )
        if not isinstance(source, str | os.PathLike) or not os.path.isfile(source):
            return Problem(
                "tasks.no_source",
                where,
                f"{name!r} is to be a copy of {source!r}, which is no file",
            )
    if problem := tree_problem(task.files):
        return Problem("tasks.file_tree", where, problem)
    if (count := len(task.files) + len(folders_of(task.files))) > MAX_WORKSPACE_FILES:
        got = f"{count} files and folders; a workspace holds at most {MAX_WORKSPACE_FILES}"
        return Problem("tasks.many_files", where, got, fix="put them into an archive")
    return None


def _words(text: str) -> str:
    """A text without regard to case and white space."""
    return " ".join(text.lower().split())
