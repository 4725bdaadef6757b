"""Checks what a grader makes of the data's own labels: a label that is said as the answer is paid;
a wrong answer, an empty one and the label of another task are not.

Every role says the text, without models and with silent tools (graders.py). A label is no answer
where the task wants more than its text, a program that passes tests for instance; answers.py then
says what is right.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from marl_plugins.contracts.graders import GradedAnswers, GraderFinding, graded_apart, outcome_of
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.user_code_thread import Capture

PAID_OUTCOME = 0.5
"""Least outcome of what counts as paid."""
CONCURRENT_GRADINGS = 64
NUMBER = re.compile(r"\d+(?!.*\d)", re.DOTALL)
"""The last digits of a text."""
ANSWER_KEYS = ("answer", "answers", "label", "labels", "target", "gold", "value", "final_answer")


def texts_of(label: Any) -> list[str]:
    """Returns the texts that a label may mean as an answer; none where it is something else."""
    if label is None:
        return []
    if isinstance(label, dict):
        return [text for key in ANSWER_KEYS if key in label for text in texts_of(label[key])]
    if isinstance(label, list | tuple):
        return [
            text
            for each in label
            if not isinstance(each, dict | list | tuple)
            for text in texts_of(each)
        ]
    text = str(label)
    if not text.strip():
        return []
    solved = text.rpartition("####")[2].strip()  # GSM8K's solutions end with their result
    return list(dict.fromkeys([text, solved]))


def wrong_for(text: str) -> str:
    """Returns a text that is not what a label says: its last number is one more, or it is spelled
    backwards."""
    if match := NUMBER.search(text):
        return f"{text[: match.start()]}{int(match[0]) + 1}{text[match.end() :]}"
    return text[::-1] if text[::-1] != text else f"{text}x"


def check_labels(plan: Plan, most: int | None = None) -> list[GraderFinding]:
    """Grades the label of every task of both splits, and what is none.

    Args:
        most: Number of tasks of each split, evenly spaced; None: all.

    Raises:
        ConfigurationError: They never end.
        Exception: What workflow or grader raise.
    """
    tasks = [task for split in ("train", "eval") for task in spaced(plan.tasks(split), most)]
    return graded_apart(plan, lambda caught: _check(plan, tasks, caught))


def spaced(tasks: Sequence[Task], most: int | None) -> list[Task]:
    """Returns at most so many tasks, evenly spaced."""
    every = 1 if most is None else max(1, math.ceil(len(tasks) / most))
    return list(tasks[::every])


async def _check(plan: Plan, tasks: Sequence[Task], caught: Capture) -> list[GraderFinding]:
    role, free = list(plan.run.recipe.roles)[-1], asyncio.Semaphore(CONCURRENT_GRADINGS)
    labelled = [(task, texts) for task in tasks if (texts := texts_of(task.label))]

    async def graded(task: Task, kind: str, texts: Sequence[str]) -> GraderFinding:
        async with free:
            for text in texts:
                outcome, failure = await outcome_of(plan, GradedAnswers(task, role=role), text)
                caught.goes_on()
                if outcome is not None and outcome >= PAID_OUTCOME:
                    break
        paid = outcome is not None and outcome >= PAID_OUTCOME
        fine = paid == (kind == "label")
        return GraderFinding(task.id, role, kind, text, outcome, fine, failure)

    caught.goes_on()

    def asked() -> Iterator[tuple[Task, str, Sequence[str]]]:
        for number, (task, texts) in enumerate(labelled):
            yield task, "label", texts
            yield task, "wrong", [wrong_for(texts[-1])]
            yield task, "empty", [""]
            others = (
                labelled[(number + n) % len(labelled)][1] for n in range(1, min(8, len(labelled)))
            )
            if other := next(
                (answers for answers in others if not set(answers) & set(texts)), None
            ):
                yield task, "another task's", [other[-1]]

    each = list(asked())
    alone = [
        await graded(*one) for one in each[:1]
    ]  # a workflow without an end is found sooner than among many
    return [*alone, *await asyncio.gather(*(graded(*one) for one in each[1:]))]
