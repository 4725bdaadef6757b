"""What is wrong with the tasks of a run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from marl_plugins.plan.plan import Plan
from marl_plugins.run import Run


def from_hub(run: Run) -> bool:
    """Whether tasks come from a hub; those are read when a run really starts."""
    names = [run.args.data.prompt_dataset, run.args.eval.dataset]
    return not run.recipe.tasks and any(name and Path(name).suffix not in (".json", ".jsonl") for name in names)


def check_tasks(plan: Plan) -> list[str]:
    """What is wrong with the tasks themselves, whichever plugin or file they come from."""
    run, problems = plan.run, []
    train, evaluation = plan.tasks("train"), plan.tasks("eval")
    if not train:
        problems.append("there are no tasks to train on")
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
        for task in tasks:
            for name in ("id", "prompt"):
                if not isinstance(getattr(task, name), str) or not getattr(task, name):
                    problems.append(
                        f"{split} task {task.id!r}: its {name} must be a non-empty string, got {getattr(task, name)!r:.100}; "
                        "chat messages become one with `tasks:`, a file with load(split)"
                    )
                    return problems
            try:
                json.dumps([task.label, task.metadata])
            except TypeError as error:
                problems.append(f"{split} task {task.id!r}: label and metadata must be JSON values: {error}")
                break
    same = {_words(t.prompt) for t in train} & {_words(t.prompt) for t in evaluation}
    if same:
        problems.append(
            f"{len(same)} of {len(evaluation)} evaluation tasks are in the training data too, the first {min(same)[:80]!r}; what "
            "was trained on proves nothing"
        )
    elif run.tasks_module is not None:
        both = {t.id for t in train} & {t.id for t in evaluation}
        if both:
            problems.append(f"{len(both)} tasks are in both train and eval, the first {min(both)!r}")
    return problems


def _words(text: str) -> str:
    """A text without regard to case and white space."""
    return " ".join(text.lower().split())
