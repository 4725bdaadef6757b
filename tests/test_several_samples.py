"""pass@k, maj@k and upstream's own numbers of an evaluation, against enumeration."""

import asyncio
import itertools
import math
import random
from collections import Counter
from statistics import fmean
from types import SimpleNamespace

import pytest

from marl_plugins.core.trajectory import EVALUATION, Task, Trajectory
from marl_plugins.engine.plan.tasks import _of_samples, best_metric
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.records.intervals import wilson
from marl_plugins.engine.runtime.metrics import evaluation, held_out
from marl_plugins.engine.runtime.several_samples import maj_at, pass_at, upstream_metrics


def enumerated(samples, k):
    """pass@k and maj@k by looking at every subset of k (answer, outcome)."""
    passed, majority = [], []
    worth = dict(samples)
    for subset in itertools.combinations(samples, k):
        passed.append(any(outcome for _, outcome in subset))
        counts = Counter(answer for answer, _ in subset)
        most = [answer for answer in counts if counts[answer] == max(counts.values())]
        majority.append(fmean(worth[answer] for answer in most))
    return fmean(passed), fmean(majority)


def test_both_are_those_of_all_subsets():
    rng = random.Random(1)
    for _ in range(200):
        n = rng.randint(1, 8)
        answers = [rng.randrange(rng.randint(1, 5)) for _ in range(n)]
        worth = {answer: float(rng.random() < 0.4) for answer in set(answers)}
        samples = [(answer, worth[answer]) for answer in answers]
        k = rng.randint(1, n)
        counts = Counter(answers)
        table = tuple(sorted((counts[answer], worth[answer]) for answer in counts))
        passed, majority = enumerated(samples, k)
        right = sum(outcome == 1 for _, outcome in samples)
        assert math.isclose(pass_at(n, right, k), passed, abs_tol=1e-12)
        assert math.isclose(maj_at(table, k), majority, abs_tol=1e-12)


def made(table, dataset="", metadata=None):
    """Trajectories of tasks: (answer, outcome) of each sample; an outcome of None is lost."""
    return [
        Trajectory(
            Task(task, "?", None, metadata or {}, dataset=dataset),
            n,
            EVALUATION,
            answer=answer,
            outcome=outcome,
            infrastructure_failure=None if outcome is not None else "engine",
        )
        for task, samples in table.items()
        for n, (answer, outcome) in enumerate(samples)
    ]


TABLE = {
    "a": [("4", 1.0), (" 4", 1.0), ("5", 0.0), (None, 0.0)],
    "b": [("1", 0.0), ("2", 0.0), ("3", 0.0), ("3", 0.0)],
    "c": [("7", 1.0), ("8", 0.0), ("9", None), ("7", 1.0)],
}


def test_of_an_evaluation():
    metrics = held_out(made(TABLE), str.strip)
    assert metrics["eval/pass@1"] == pytest.approx(metrics["eval/outcome"])
    assert metrics["eval/pass@1"] == pytest.approx(7 / 18)
    bounds = [metrics["eval/pass@1/low"], metrics["eval/pass@1/high"]]
    assert bounds == pytest.approx(wilson(7 / 18, 3))
    assert metrics["eval/pass@2"] == pytest.approx(fmean([5 / 6, 0, 1]))
    assert metrics["eval/pass@4"] == 0.5 and metrics["eval/pass@4/left_out"] == 1.0
    assert metrics["eval/maj@4"] == 0.5 and "eval/maj@2" not in metrics
    assert not any("maj" in name for name in held_out(made(TABLE)))
    graded = {**TABLE, "d": [("1", 0.5)] * 4}
    assert not any("@" in name for name in held_out(made(graded)))  # no successes
    assert not any("@" in name for name in held_out(made({"a": [("1", 1.0)]})))


def test_upstreams_numbers_have_its_names():
    trajectories = made(TABLE, metadata={"data_source": "aime"}) + made({"e": [("1", 1.0)]}, "mine")
    metrics = upstream_metrics(trajectories)
    assert metrics["eval/eval_aime_pass4"] == fmean([1, 0, 1])
    assert metrics["eval/eval_aime_pass1"] == pytest.approx(fmean([0.5, 0, 2 / 3]))
    assert metrics["eval/eval_mine_pass1"] == 1.0


def test_metrics_that_the_best_step_may_be_chosen_by_are_those_that_there_are():
    args = SimpleNamespace(eval=SimpleNamespace(n_samples_per_prompt=4))
    run = SimpleNamespace(args=args, grader_module=SimpleNamespace(answer_key=str.strip))
    trajectories = made(TABLE)
    known = {*_of_samples(run, [t.task for t in trajectories])}
    metrics = held_out(trajectories, str.strip) | upstream_metrics(trajectories)
    values = {name for name in metrics if "@" in name and name.count("/") == 1}
    assert values | {"eval/outcome"} <= known <= {*metrics}
    assert best_metric("eval_aime_pass1") == "eval/eval_aime_pass1"


def test_each_set_is_played_with_its_own_samples():
    played = []

    class Played:
        run = SimpleNamespace(grader_module=SimpleNamespace(answer_key=str.strip))
        cast = SimpleNamespace(has_population=False)
        in_order = staticmethod(list)

        async def evaluate(self, tasks, samples, temperature):
            played.append((len(tasks), samples))
            for task in tasks:
                for sample in range(samples):
                    outcome = float(task.id == "aime/0" and sample == 0)
                    yield Trajectory(task, sample, EVALUATION, answer="4", outcome=outcome)

    tasks = [Task(f"aime/{n}", "?", dataset="aime", samples=4) for n in range(2)]
    tasks += [Task(f"math/{n}", "?", dataset="math") for n in range(3)]
    args = SimpleNamespace(n_samples_per_prompt=2, temperature=0.6)
    metrics, trajectories = asyncio.run(evaluation(Played(), tasks, args, Display(False)))
    assert played == [(2, 4), (3, 2)] and len(trajectories) == 14
    assert metrics["eval/aime/pass@4"] == 0.5 and metrics["eval/math/pass@2"] == 0.0
    assert metrics["eval/aime/outcome"] == 1 / 8 and metrics["eval/outcome"] == 1 / 20
    assert metrics["eval/eval_aime_pass4"] == 0.5 and "eval/pass@2" not in metrics
