"""The best step of all policies together: found by an average over the evaluations, kept, and its
weights kept apart."""

import asyncio
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_run import simulated_trainer
from test_checkpoints import RUN, saved

from marl_plugins.core.trajectory import EVALUATION, Task, Trajectory
from marl_plugins.engine.plan.resume import manifest_of, read_manifest, saved_steps, tag
from marl_plugins.engine.records.best import Best, kept_apart, put_back
from marl_plugins.engine.records.read import RunReader
from marl_plugins.engine.records.report import legend, summarise
from marl_plugins.engine.runtime.checkpoints import Checkpoints
from marl_plugins.engine.runtime.metrics import held_out
from marl_plugins.engine.runtime.saving import StepSaver
from marl_plugins.engine.runtime.trainer import Trainer

numbers = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(numbers)
def test_the_average_is_the_geometric_one_and_the_best_step_has_the_highest(values):
    best = Best("m")
    told = [best.see(step, {"m": value}) for step, value in enumerate(values)]
    smooth = [  # the closed form
        (2 / 3) ** n * values[0] + sum((2 / 3) ** (n - k) * values[k] / 3 for k in range(1, n + 1))
        for n in range(len(values))
    ]
    assert best.smoothed == pytest.approx(smooth[-1], abs=1e-9)
    if len(values) > 1:
        highest = max(smooth[1:])
        assert smooth[best.step] == pytest.approx(
            highest, abs=1e-9
        ) and best.value == pytest.approx(highest, abs=1e-9)
        assert told.index(True) == 1 and not any(told[best.step + 1 :]) and told[best.step]
    assert not told[0]  # no checkpoint holds the start


@given(numbers, numbers)
def test_a_resumed_run_finds_the_same_best_step(before, after):
    whole, first, second = Best("m"), Best("m"), Best("m")
    for step, value in enumerate([*before, *after]):
        whole.see(step, {"m": value})
    for step, value in enumerate(before):
        first.see(step, {"m": value})
    second.restore(json.loads(json.dumps(first.state())), [first.step])
    for step, value in enumerate(after, len(before)):
        second.see(step, {"m": value})
    assert second.state() == whole.state()


def test_the_best_step_is_kept_beside_the_last_ones(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=1, run=RUN)
    kept = []
    for step, best in ((1, 1), (2, 2), (3, 2), (4, 2), (5, 5), (6, 5)):
        saved(tmp_path, step)
        state = {"key": "m", "smoothed": 0.1, "step": best, "value": 0.1}
        checkpoints.commit(step, {"p": step, "q": step}, {}, best=state)
        kept.append(saved_steps(tmp_path))
        folders = [
            sorted(d.name for d in (tmp_path / p / "_actor").glob("global*")) for p in ("p", "q")
        ]
        assert folders == [[tag(n) for n in kept[-1]]] * 2
    assert kept == [[1], [2], [2, 3], [2, 4], [5], [5, 6]]
    assert read_manifest(tmp_path)["best"]["step"] == 5
    assert json.loads(manifest_of(tmp_path, 5).read_text())["best"]["step"] == 5


def test_a_folder_of_best_weights_is_whole_or_the_one_before(tmp_path):
    best = Best("m")
    best.see(1, {"m": 0.5})
    with kept_apart(tmp_path, best) as folder:
        (folder / "p").mkdir()
        (folder / "p" / "weights").write_text("1")
    best.see(2, {"m": 0.8})

    def fill_the_disk():
        with kept_apart(tmp_path, best) as folder:
            (folder / "p").mkdir()
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        fill_the_disk()
    assert (tmp_path / "best" / "p" / "weights").read_text() == "1"
    assert json.loads((tmp_path / "best" / "best.json").read_text()) == {
        "step": 1,
        "metric": "m",
        "smoothed": 0.5,
    }
    with kept_apart(tmp_path, best) as folder:  # what was half written is thrown away
        assert list(folder.iterdir()) == []
    assert json.loads((tmp_path / "best" / "best.json").read_text())["step"] == 2
    assert not (tmp_path / "best" / "p").exists() and sorted(
        p.name for p in tmp_path.iterdir()
    ) == ["best"]


def test_the_best_step_of_a_run_that_was_killed_while_it_replaced_it_is_put_back(tmp_path):
    (tmp_path / "best.old").mkdir()
    (tmp_path / "best.old" / "best.json").write_text("{}")
    (tmp_path / "best.new").mkdir()
    put_back(tmp_path)
    assert (tmp_path / "best" / "best.json").exists() and not (tmp_path / "best.old").exists()
    (tmp_path / "best.old").mkdir()  # killed before the old one was removed
    put_back(tmp_path)
    assert (tmp_path / "best" / "best.json").exists()


OUTCOMES = {1: 0.1, 2: 0.9, 3: 0.9, 4: 0.2, 5: 0.3, 6: 0.2}
"""By step: what the evaluations after it give."""


def trained(folder, best_metric_key):
    """A run of six steps whose evaluations have these outcomes; every policy leaves the step in
    what it saves."""
    now = {"step": 0}
    trainer = simulated_trainer(
        folder, lambda t: OUTCOMES.get(now["step"], 0.0), best_metric_key=best_metric_key
    )
    trainer.run.args.ckpt.save_steps = 3
    trainer.saving.checkpoints = Checkpoints(folder / "checkpoints", 1, RUN)
    trainer.plugins.files = lambda run: []
    trainer.saving.save = StepSaver.save.__get__(trainer.saving)
    policy = trainer.session.trained["p"]

    async def save(name, state):
        saved(folder / "checkpoints", state["step"], ["p"])

    async def save_model(place):
        (place / "p").mkdir()
        (place / "p" / "version").write_text(str(policy.version))

    async def train_step(step):
        now["step"] = step
        return await Trainer.train_step(trainer, step)

    policy.save, policy.save_model, trainer.train_step = save, save_model, train_step
    asyncio.run(trainer.fit(0))
    return trainer


def test_a_run_keeps_the_best_step_of_all_policies_apart_from_the_last(tmp_path):
    trainer = trained(tmp_path, "eval/outcome")
    # 0, .03, .32, .51, .41, .37, .32: step 3 is the best, though 2 has the same outcome
    assert trainer.best.step == 3 and saved_steps(tmp_path / "checkpoints") == [3, 6]
    assert (tmp_path / "best" / "p" / "version").read_text() == "3"
    metrics = RunReader(tmp_path).metrics()
    assert [m["best/step"] for m in metrics[1:]] == [1, 2, 3, 3, 3, 3] and metrics[0][
        "best/smoothed"
    ] == 0.0
    told = "Best step: 3 (0.515 on average over the evaluations so far); its weights are in best/."
    assert told in legend(summarise(metrics, ["a"]))


def test_outcomes_by_type_are_means_over_tasks():
    def trajectory(task, kind, outcome):
        return Trajectory(Task(task, "?", None, {"type": kind}), 0, EVALUATION, outcome=outcome)

    several = [
        trajectory("a", "amc", 1.0),
        trajectory("a", "amc", 0.0),
        trajectory("b", "amc", 1.0),
        trajectory("c", "aime", 0.0),
    ]
    lost = trajectory("d", "aime", None)
    found = held_out([*several, lost])
    assert (found["eval/type/amc"], found["eval/type/aime"]) == (0.75, 0.0)
    assert not any(
        "type" in name for name in held_out(several[:3])
    )  # of one type only: it is eval/outcome
