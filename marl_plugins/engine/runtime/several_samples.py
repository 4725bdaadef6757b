"""What several samples of each task of an evaluation say: whether one of k is right (pass@k), and
whether the majority of k is (maj@k).

    pass@k = mean over tasks of 1 - C(n - c, k) / C(n, k)        n samples, c of them right

which is unbiased (Chen et al. 2021, "Evaluating Large Language Models Trained on Code", eq. 1): the
share of the subsets of k samples that have a right one. maj@k is the mean over the same subsets of
what their most frequent answer is worth; of several that are as frequent, their mean.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import comb
from statistics import fmean
from typing import Any

from marl_plugins.core.recipe.sources import sample_sizes, source_of
from marl_plugins.core.trajectory import Trajectory
from marl_plugins.engine.records.intervals import interval

AnswerKey = Callable[[str], Any]
"""A grader's `answer_key(answer)`: what two answers have in common that are the same."""


def pass_at(samples: int, right: int, k: int) -> float:
    """Returns the share of the subsets of k samples that have at least one that is right."""
    return 1.0 - comb(samples - right, k) / comb(samples, k)


def maj_at(answers: tuple[tuple[int, float], ...], k: int) -> float:
    """Returns what the most frequent answer is worth, on average over the subsets of k samples.

    Args:
        answers: Of each answer how many samples gave it, and what it is worth.
    """
    left = sum(count for count, _ in answers)
    total = comb(left, k)
    # By samples drawn, highest count, answers that have it and their worth: in how many ways.
    ways: dict[tuple[int, int, int, float], int] = {(0, 0, 0, 0.0): 1}
    for count, worth in answers:
        left -= count
        after: dict[tuple[int, int, int, float], int] = defaultdict(int)
        for (drawn, most, tied, sum_), number in ways.items():
            for more in range(max(0, k - drawn - left), min(count, k - drawn) + 1):
                if more > most:
                    state = (drawn + more, more, 1, worth)
                elif more == most > 0:
                    state = (drawn + more, most, tied + 1, sum_ + worth)
                else:
                    state = (drawn + more, most, tied, sum_)
                after[state] += number * comb(count, more)
        ways = after
    return sum(number * sum_ / tied for (_, _, tied, sum_), number in ways.items()) / total


def _counted(trajectories: Sequence[Trajectory], key: AnswerKey) -> Iterator[tuple[int, float]]:
    """Yields of each answer how many trajectories gave it, and what it is worth; sorted, so that
    equal tables are equal. One that the grader cannot read is as none."""
    outcomes: dict[str, list[float]] = defaultdict(list)
    for t in trajectories:
        try:
            answer = None if t.answer is None else key(t.answer)
        except Exception:
            answer = None
        outcomes[repr(answer)].append(t.outcome or 0.0)
    yield from sorted(((len(each), fmean(each)) for each in outcomes.values()), reverse=True)


def upstream_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Returns what upstream logs of an evaluation, under its names: the mean over tasks of their
    best outcome (`pass4` of four samples), and of their mean one (`pass1`). What is lost counts in
    neither."""
    played = Counter(t.task.id for t in trajectories)
    by_source: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for t in trajectories:
        if t.outcome is not None:
            by_source[source_of(t.task)][t.task.id].append(t.outcome)
    metrics = {}
    for source, outcomes in by_source.items():
        best = f"pass{max(played[task] for task in outcomes)}"
        metrics[f"eval/eval_{source}_{best}"] = fmean(map(max, outcomes.values()))
        metrics[f"eval/eval_{source}_pass1"] = fmean(map(fmean, outcomes.values()))
    return metrics


def sample_metrics(
    by_task: Mapping[str, Sequence[Trajectory]], samples: int, answer_key: AnswerKey | None
) -> dict[str, float]:
    """Returns `eval/pass@k` for k = 1, 2, 4, ... and `eval/maj@k` from 4 on, each with its interval
    over the tasks; one and two samples have no majority. Tasks with fewer than k are left out, and
    counted.

    Args:
        by_task: The trajectories that have an outcome, of which each is 0 or 1.
        samples: Of each task, those that were lost included.
        answer_key: Tells which answers are the same; without one there is no majority.
    """
    metrics: dict[str, float] = {}
    keys = {task: list(_counted(each, answer_key)) for task, each in by_task.items() if answer_key}
    for k in sample_sizes(samples):
        enough = {task: each for task, each in by_task.items() if len(each) >= k}
        passed = [
            pass_at(len(each), sum(t.outcome == 1.0 for t in each), k) for each in enough.values()
        ]
        measured = {"pass": passed}
        if answer_key and k > 2:
            measured["maj"] = [maj_at(tuple(keys[task]), k) for task in enough]
        for name, values in measured.items():
            if values:
                low, high = interval(values, True)
                metrics |= {
                    f"eval/{name}@{k}": fmean(values),
                    f"eval/{name}@{k}/low": low,
                    f"eval/{name}@{k}/high": high,
                }
        metrics[f"eval/pass@{k}/left_out"] = float(len(by_task) - len(enough))
    return metrics
