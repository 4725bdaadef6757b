"""Dynamic filtering: a step's tasks do not depend on what arrives first, and what is left out is in
the ledger."""

from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugin_pairs import words
from refusals import refused
from simulated import make_trajectory
from simulated_session import killed_after, recorded, run_planned

from marl_plugins.builtin.filtering import (
    FilteringPart,
    TaskStream,
    marl_exchange,
    score,
    teaches_nothing,
)
from marl_plugins.core.failures import RunEnded, RunPaused
from marl_plugins.core.recipe.tasks import epoch_order
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.plan.build import build_plan

TASKS = [Task(f"t{n}", "p") for n in range(20)]


def run_of(most=4, by="outcome", low=0.0, high=1.0):
    stream = TaskStream()
    args = SimpleNamespace(
        algo=SimpleNamespace(dynamic_filtering_enable=True, dynamic_filtering_range=(low, high)),
        filtering=SimpleNamespace(by=by, most=most),
    )
    return SimpleNamespace(args=args, state=lambda kind: stream), stream


def samples(task, outcomes):
    found = [make_trajectory({"a": []}, task=task.id, sample=n) for n in range(len(outcomes))]
    for trajectory, outcome in zip(found, outcomes, strict=True):
        trajectory.outcome = outcome
    return found


@given(
    st.lists(st.booleans(), min_size=20, max_size=20),
    st.integers(1, 5),
    st.integers(1, 4),
    st.data(),
)
def test_a_step_has_the_shortest_piece_of_the_data_whatever_arrives_first(mixed, batch, most, data):
    """`mixed` says of each task, in the order of the data, whether its samples differ."""
    run, stream = run_of(most)
    stream.tasks, stream.seed, stream.position = TASKS, 3, 0
    order = [TASKS[n] for n in epoch_order(len(TASKS), 3, 0)]
    varies = dict(zip((t.id for t in order), mixed, strict=True))
    step = SimpleNamespace(tasks=stream.take(batch, ()))
    part, waiting = FilteringPart(run, step), list(step.tasks)
    while waiting:
        task = waiting.pop(data.draw(st.integers(0, len(waiting) - 1)))
        more = part.completed(samples(task, [0.0, 1.0] if varies[task.id] else [1.0, 1.0]))
        step.tasks += more
        waiting += more
    wanted = next((n for n in range(batch, 21) if sum(mixed[:n]) == batch), 20)
    assert step.tasks == order[: min(wanted, most * batch)]
    assert part.metrics()["filtering/tasks"] == len(step.tasks)
    assert part.metrics()["filtering/kept"] == sum(varies[t.id] for t in step.tasks) / len(
        step.tasks
    )


def test_the_data_goes_on_in_another_order_and_no_task_is_taken_twice_in_a_step():
    _, stream = run_of()
    stream.tasks, stream.seed, stream.position = TASKS, 3, 0
    passes = [epoch_order(20, 3, number) for number in range(2)]
    assert stream.take(15, ()) == [TASKS[n] for n in passes[0][:15]]
    step = stream.take(10, ())
    assert len(step) == 10 == len({t.id for t in step}) and step[:5] == [
        TASKS[n] for n in passes[0][15:]
    ]
    assert step[5:] == [TASKS[n] for n in passes[1] if TASKS[n] not in step[:5]][:5]
    assert stream.take(5, [t.id for t in TASKS]) == []


@pytest.mark.parametrize(
    ("outcomes", "low", "high", "nothing"),
    [
        ([0.0, 0.0], 0, 1, True),
        ([1.0, 1.0], 0, 1, True),
        ([0.0, 1.0], 0, 1, False),
        ([0.5, 0.5], 0, 1, False),  # as upstream has it: the mean lies within
        ([0.0, 1.0], 0.5, 1, True),  # a bound is not within
        ([0.0, None], 0, 1, False),  # unknown
        ([0.0, 1.0, 1.0], 0.3, 0.9, False),
    ],
)
def test_a_task_is_kept_where_the_mean_lies_strictly_within_the_range(outcomes, low, high, nothing):
    run, _ = run_of(low=low, high=high)
    assert teaches_nothing(samples(TASKS[0], outcomes), run) == nothing


def test_forks_leave_with_their_task_and_do_not_keep_it():
    run, _ = run_of()
    poor, good = samples(TASKS[0], [0.0, 0.0, 1.0]), samples(TASKS[1], [0.0, 1.0, 1.0])
    poor[2].forked = good[2].forked = ("a.1", 0)
    left = []
    exchange = SimpleNamespace(leave_out=lambda t, reason: left.append(t))
    assert marl_exchange([*poor, *good], run, exchange) == good and left == poor


def test_by_a_role_its_scores_count_or_else_its_outcome():
    trajectory = make_trajectory({"a": [], "b": []})
    trajectory.outcome, trajectory.outcomes = 0.5, {"a": 0.0, "b": 1.0}
    assert (score(trajectory, "outcome"), score(trajectory, "b")) == (0.5, 1.0)
    trajectory.actions[1].score = 0.25
    assert (score(trajectory, "a"), score(trajectory, "b")) == (0.0, 0.25)


def planned(folder, *more, parts=("filtering",), outcome=None):
    command = [*words(folder, parts), *more]
    if outcome:
        (folder / "recipe" / "grader.py").write_text(
            f"def score_outcome(trajectory):\n    return {outcome}\n"
        )
    return build_plan(command)


def test_what_is_left_out_is_in_the_ledger_and_the_next_step_goes_on_after_it(tmp_path):
    plan = planned(
        tmp_path, outcome="float(int(trajectory.task.id[1:]) % 3 > 0 and trajectory.sample == 0)"
    )
    run_planned(plan)
    lines, trajectories = recorded(plan, "ledger.jsonl"), recorded(plan, "trajectories.jsonl")
    order = [f"t{n}" for n in epoch_order(12, plan.run.args.train.seed, 0)]
    by_step = [
        list(dict.fromkeys(t["task"] for t in trajectories if t["step"] == step)) for step in (1, 2)
    ]
    assert [*by_step[0], *by_step[1]] == order[: sum(map(len, by_step))]
    for line, tasks in zip(lines, by_step, strict=True):
        kept = [t for t in tasks if int(t[1:]) % 3]
        assert len(kept) == 4 and line["trajectories"] == 2 * len(tasks)
        critic = line["roles"]["critic"]
        assert critic["trained"] == 8 and critic["left_out"].get("filtered", 0) == 2 * (
            len(tasks) - 4
        )
    kept = {t["task"] for t in trajectories if any(a["left_out"] is None for a in t["actions"])}
    assert not any(int(t[1:]) % 3 == 0 for t in kept)


def test_a_step_that_is_paused_is_made_of_the_same_tasks_when_the_run_goes_on(tmp_path):
    (tmp_path / "pauser.py").write_text(
        "from marl_plugins import RunPaused, hookimpl\n"
        "left = [1]\n"
        "@hookimpl\n"
        "def marl_credit_step(trajectories):\n"
        "    if trajectories[0].step == 2 and left:\n"
        "        left.pop()\n"
        "        raise RunPaused('spent')\n"
        "    return trajectories\n"
    )
    outcome = "float(int(trajectory.task.id[1:]) % 3 > 0 and trajectory.sample == 0)"
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    whole = planned(tmp_path / "a", outcome=outcome)
    run_planned(whole)
    plan = planned(tmp_path / "b", "--plugin", str(tmp_path / "pauser.py"), outcome=outcome)
    with pytest.raises(RunPaused):
        run_planned(plan)
    run_planned(plan, resume=True)
    first, again = (
        [(t["step"], t["task"], t["sample"]) for t in recorded(each, "trajectories.jsonl")]
        for each in (whole, plan)
    )
    assert first == again


def words_again(folder, plan):
    """The command line of a plan, with filtering."""
    flags = {
        "ckpt.output_dir": plan.run.args.ckpt.output_dir,
        "ckpt.path": plan.run.args.ckpt.path,
        "max_steps": "2",
    }
    found = ["--recipe", str(folder / "recipe" / "both.yaml"), "--algo.dynamic_filtering_enable"]
    return [*found, *(w for name, value in flags.items() for w in (f"--{name}", value))]


def test_samples_that_never_vary_end_the_run_after_a_bounded_number_of_rollouts(tmp_path):
    plan = planned(tmp_path, "--filtering.most", "2", "--max_idle_steps", "2", outcome="1.0")
    with pytest.raises(RunEnded):
        run_planned(plan)
    counts = [line["trajectories"] for line in recorded(plan, "ledger.jsonl")]
    assert counts and set(counts) == {2 * 2 * 4}  # two batches of four tasks, two samples


def test_a_run_that_is_filtered_from_a_later_step_on_goes_on_where_it_is(tmp_path):
    whole = planned(tmp_path, parts=())
    run_planned(whole)
    killed_after(whole, 1)
    filtered = build_plan([*words_again(tmp_path, whole), "--resume_with_changes"])
    run_planned(filtered, resume=True, with_changes=True)
    second = list(
        dict.fromkeys(t["task"] for t in recorded(whole, "trajectories.jsonl") if t["step"] == 2)
    )
    order = [f"t{n}" for n in epoch_order(12, whole.run.args.train.seed, 0)]
    assert second[:4] == order[4:8]


def test_streaming_needs_to_know_a_steps_tasks(tmp_path):
    with refused(
        ("streaming.filtering", "marl_plugins.streaming", "algo.dynamic_filtering_enable")
    ):
        planned(tmp_path, "--plugin", "marl_plugins.streaming")


@pytest.mark.parametrize("plugin", ["builtin.filtering", "curriculum"])
def test_tasks_are_not_chosen_before_the_step_before_is_trained(tmp_path, plugin):
    with refused(("async.batch", f"marl_plugins.{plugin}", "train.async_enable")):
        planned(tmp_path, "--train.async_enable", parts=[plugin.rpartition(".")[2]])
