"""`--train.async_enable`: the rollout of a later step during an update. Versions, bits and
resumption do not depend on timing.

What is simulated learns: an answer depends on the weights that the engine holds, and weights on the
rows that trained them, so that any difference in what was trained shows in everything after it.
"""

import asyncio
import hashlib
import json
import math
import random
from itertools import pairwise
from types import SimpleNamespace

import pytest
from refusals import briefs, refused
from simulated import make_trajectory, without_seconds
from simulated_run import UPDATE, simulated_trainer
from test_checkpoints import RUN

from marl_plugins.core.failures import InfrastructureFailure, RunEnded, RunPaused
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.rows import rows_of
from marl_plugins.core.trajectory import Task
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.resume import tag
from marl_plugins.engine.records.read import RunReader
from marl_plugins.engine.runtime.checkpoints import Checkpoints
from marl_plugins.engine.runtime.crediting import check_versions, without_stale
from marl_plugins.engine.runtime.metrics import lag_metrics
from marl_plugins.engine.runtime.saving import StepSaver
from marl_plugins.engine.runtime.waiting import file_of

STEPS = 6


class Killed(BaseException):
    """The end of a process, at a moment of which nothing in it knows."""


class Phases:
    """The moments of a run at which it can be killed, and how long each takes."""

    def __init__(self, kill=None, delays=None):
        self.kill, self.delays, self.count = kill, delays, 0
        self.seen = []

    async def at(self, what):
        self.count += 1
        self.seen.append(what)
        if self.delays:
            await asyncio.sleep(self.delays.random() * 0.004)
        if self.count == self.kill:
            raise Killed(what)


def learning_trainer(
    folder, queue, phases=None, steps=STEPS, save_steps=1, outcome=None, **settings
):
    """A trainer whose policy learns; its saved steps are in `folder / "checkpoints"`, from which it
    resumes: (trainer, done)."""
    phases = phases or Phases()
    trainer = simulated_trainer(
        folder,
        outcome or (lambda t: int(hashlib.sha256(t.answer.encode()).hexdigest(), 16) % 2),
        steps=steps,
        queue=queue,
        **settings,
    )
    policy, plugins = trainer.session.policies["p"], trainer.plugins
    policy.weights, held = "first", {"weights": "first"}
    first = plugins.hook.marl_generate

    async def generate(run, call, engines):
        await phases.at("generate")
        mixed = int(hashlib.sha256(f"{call.seed}/{held['weights']}".encode()).hexdigest()[:8], 16)
        return await first(
            run=run, call=type(call)(**{**vars(call), "seed": mixed}), engines=engines
        )

    async def update(run, policy, prepared, steps, step):
        await phases.at("update")
        told = [
            (row.name, row.reward, row.action.generation.ids, row.action.advantages)
            for row in prepared.rows
        ]
        policy.weights = hashlib.sha256(f"{policy.weights}{told}".encode()).hexdigest()
        return dict(UPDATE)

    async def sync(run, policy, version):
        await phases.at("sync")
        policy.version, held["weights"] = version, policy.weights
        return True

    forward = policy.forward

    async def slow_forward(rows, known=()):
        await phases.at("forward")
        return await forward(rows, known)

    async def save(name, state):
        await phases.at("save")
        part = folder / "checkpoints" / "p" / "_actor" / tag(state["step"])
        part.mkdir(parents=True, exist_ok=True)
        (part / "weights.pt").write_text(policy.weights)
        policy.saved.append(state["step"])

    plugins.hook.marl_generate, plugins.hook.marl_update, plugins.hook.marl_sync = (
        generate,
        update,
        sync,
    )
    policy.forward, policy.save = slow_forward, save
    trainer.run.args.ckpt.save_steps = save_steps
    trainer.saving.checkpoints = Checkpoints(folder / "checkpoints", 2, RUN)
    trainer.saving.save = StepSaver.save.__get__(trainer.saving)
    trainer.rollouts.last = trainer._last_rollout()
    manifest = trainer.saving.checkpoints.open(resume=True)
    if manifest is None:
        return trainer, 0
    done = manifest["step"]
    policy.version = manifest["policies"]["p"]
    policy.weights = (
        folder / "checkpoints" / "p" / "_actor" / tag(done) / "weights.pt"
    ).read_text()
    plugins.named.restore(trainer.run, manifest["state"])
    trainer.restore(done, manifest.get("files", {}))
    return trainer, done


def trained(folder, queue, phases=None, **settings):
    trainer, done = learning_trainer(folder, queue, phases, **settings)
    asyncio.run(trainer.fit(done))
    return trainer


def records(folder):
    """What a run has recorded, without what measures time; of a step that was repeated after a kill
    the last one."""
    lines = [json.loads(line) for line in (folder / "trajectories.jsonl").read_text().splitlines()]
    steps = {}
    for line in without_seconds(lines):
        steps.setdefault(line["step"], {})[line["task"], line["sample"]] = line
    return steps


def versions(folder):
    return {
        step: {a["version"] for t in found.values() for a in t["actions"]}
        for step, found in records(folder).items()
    }


@pytest.mark.parametrize("queue", [0, 1, 3])
def test_which_version_samples_a_step_is_a_function_of_the_step_alone(tmp_path, queue):
    trained(tmp_path, queue)
    assert versions(tmp_path) == {step: {max(0, step - 1 - queue)} for step in range(1, STEPS + 1)}
    metrics = RunReader(tmp_path).metrics()[1:]
    if queue:
        assert [m["policy/p/lag"] for m in metrics] == [min(queue, step) for step in range(STEPS)]
        assert all(
            m["policy/p/ess"] == m["role/a/ess"] == m["role/a/ratio"] == 1
            and m["seconds/wait"] >= 0
            for m in metrics
        )
    else:
        assert not any("lag" in name or name == "seconds/wait" for m in metrics for name in m)


@pytest.mark.parametrize("queue", [1, 2])
def test_the_same_seed_gives_the_same_bits_whatever_takes_how_long(tmp_path, queue):
    found = []
    for number in range(3):
        trainer = trained(
            tmp_path / str(number), queue, Phases(delays=random.Random(number) if number else None)
        )
        found.append((records(tmp_path / str(number)), trainer.session.policies["p"].weights))
    assert all(each == found[0] for each in found)


def test_a_rollout_runs_during_the_update_before_it(tmp_path):
    phases = Phases(delays=random.Random(1))
    trained(tmp_path, 1, phases, eval_steps=-1, save_steps=-1)
    updates = [n for n, what in enumerate(phases.seen) if what == "update"]
    syncs = [n for n, what in enumerate(phases.seen) if what == "sync"]
    slots = [phases.seen[a:b] for a, b in pairwise(syncs)]
    assert len(updates) == STEPS and len(syncs) == STEPS + 1  # the run begins with one
    # The first interval also has the rollout of step 1; the last has none during its update.
    assert [s.count("generate") for s in slots] == [16, 8, 8, 8, 8, 0] and all(
        s.count("update") == 1 for s in slots
    )


@pytest.mark.parametrize("queue", [1, 2])
def test_a_run_that_is_killed_anywhere_repeats_the_undisturbed_one(tmp_path, queue):
    whole = Phases()
    undisturbed = trained(tmp_path / "whole", queue, whole, eval_steps=2, save_steps=2)
    expected, weights = records(tmp_path / "whole"), undisturbed.session.policies["p"].weights
    moments = {
        what: [n for n, seen in enumerate(whole.seen, 1) if seen == what]
        for what in dict.fromkeys(whole.seen)
    }
    draw = random.Random(queue)
    for moment in sorted(
        {n for found in moments.values() for n in draw.sample(found, min(3, len(found)))}
    ):
        folder = tmp_path / str(moment)
        with pytest.raises(Killed):
            trained(folder, queue, Phases(moment), eval_steps=2, save_steps=2)
        resumed = trained(folder, queue, eval_steps=2, save_steps=2)
        assert resumed.session.policies["p"].weights == weights, (moment, whole.seen[moment - 1])
        assert records(folder) == expected


def test_a_run_that_is_cut_short_and_continued_is_the_whole_one(tmp_path):
    whole = trained(tmp_path / "whole", 1)
    trained(tmp_path / "cut", 1, max_steps=3)
    assert len(file_of(tmp_path / "cut" / "checkpoints", 3).read_text().splitlines()) == 1
    continued = trained(tmp_path / "cut", 1)
    assert continued.session.policies["p"].weights == whole.session.policies["p"].weights
    assert records(tmp_path / "cut") == records(tmp_path / "whole")


@pytest.mark.parametrize(
    ("before", "after", "expected"), [(0, 1, 3), (2, 1, 3), (1, 0, 3), (1, 2, 2)]
)
def test_a_saved_step_of_another_queue_is_continued(tmp_path, before, after, expected):
    """What waits and is not too old for the new queue is trained on; all else is sampled anew by
    the saved weights."""
    trained(tmp_path, before, max_steps=3)
    trained(tmp_path, after)
    assert versions(tmp_path)[4] == {expected} and len(RunReader(tmp_path).metrics()) == STEPS + 1


@pytest.mark.parametrize("kept", ["moved", "gone"])
def test_what_a_plugin_has_recorded_of_a_waiting_rollout_finds_it_again(tmp_path, kept):
    """A plugin that lies elsewhere is the same; without it, its records are nobody's."""
    plugin = (
        "from pathlib import Path\n"
        "from marl_plugins import StepPart, hookimpl\n"
        "class Part(StepPart):\n"
        "    record = lambda self: 'words'\n"
        "    restore = lambda self, record: Path(__file__).with_name('seen').write_text(record)\n"
        "@hookimpl\n"
        "def marl_step(step): return Part()\n"
    )
    first, second = tmp_path / "one" / "mine.py", tmp_path / "two" / "mine.py"
    for path in (first, second):
        path.parent.mkdir()
        path.write_text(plugin)
    trained(tmp_path / "run", 1, max_steps=3, plugins=[str(first)])
    plugins = [str(second)] if kept == "moved" else []
    again, _ = learning_trainer(tmp_path / "run", 1, plugins=plugins)
    assert again.rollouts.waiting.keys() == {4}
    assert (second.parent / "seen").exists() == (kept == "moved")


def test_a_waiting_rollout_of_which_the_run_has_no_task_or_step_is_made_anew(tmp_path):
    trained(tmp_path, 1, max_steps=3)
    shorter, _ = learning_trainer(tmp_path, 1, steps=3)
    others = [Task(f"other{n}", "q", "l") for n in range(4 * STEPS)]
    changed, _ = learning_trainer(tmp_path, 1, train_tasks=others)
    assert not shorter.rollouts.waiting and not changed.rollouts.waiting


def test_no_rollout_is_made_that_is_neither_trained_nor_saved(tmp_path):
    """A run that resumes goes on at the last step that is saved regularly."""
    trainer, _ = learning_trainer(tmp_path, 2, max_steps=4, save_steps=2)
    other, _ = learning_trainer(tmp_path / "other", 1, max_steps=4, save_steps=3)
    assert (trainer.rollouts.last, other.rollouts.last) == (6, 4)


def test_a_rollout_that_cannot_be_made_leaves_the_update_of_then_complete(tmp_path):
    """The step is trained, recorded and saved; the run that continues samples what is missing."""

    def outcome(trajectory):
        if trajectory.step == 4 and broken:
            raise RunPaused("the verifier's budget is spent")
        return 1.0

    broken = True
    trainer, _ = learning_trainer(tmp_path, 1, outcome=outcome)
    with pytest.raises(RunPaused, match="budget"):
        asyncio.run(trainer.fit(0))
    assert trainer.session.policies["p"].version == 3 and trainer.saving.last == 3
    broken = False
    trained(tmp_path, 1, outcome=outcome)
    assert versions(tmp_path) == {1: {0}, 2: {0}, 3: {1}, 4: {3}, 5: {3}, 6: {4}}


def test_a_step_that_cannot_be_credited_leaves_the_state_before_it(tmp_path):
    trainer, _ = learning_trainer(tmp_path, 1, save_steps=-1)
    forward = trainer.session.policies["p"].forward

    async def failing(rows, known=()):
        if rows[0].trajectory.step == 3:
            raise RunPaused("a plugin failed")
        return await forward(rows, known)

    trainer.session.policies["p"].forward = failing
    with pytest.raises(RunPaused, match="plugin failed"):
        asyncio.run(trainer.fit(0))
    assert trainer.saving.last == 2 and trainer.session.policies["p"].version == 2
    trained(tmp_path, 1)
    assert versions(tmp_path)[3] == {2}


def test_what_ends_a_rollout_ends_the_run_at_once(tmp_path):
    trainer, _ = learning_trainer(tmp_path, 1)
    generate = trainer.plugins.hook.marl_generate

    async def dead(run, call, engines):
        if call.step == 3:
            raise RunEnded("no engine is left")
        return await generate(run=run, call=call, engines=engines)

    trainer.plugins.hook.marl_generate = dead
    with pytest.raises(RunEnded, match="no engine"):
        asyncio.run(trainer.fit(0))
    assert trainer.saving.last == 1


def test_lost_trajectories_and_the_circuit_breaker_are_those_of_the_step_that_is_trained(tmp_path):
    def outcome(trajectory):
        if trajectory.step >= 3:
            raise InfrastructureFailure("verifier", "Connection refused")
        return 1.0

    trainer, _ = learning_trainer(tmp_path, 1, outcome=outcome, eval_steps=-1)
    with pytest.raises(RunPaused, match="up to step 5"):
        asyncio.run(trainer.fit(0))
    assert [m["trajectories/lost"] for m in RunReader(tmp_path).metrics()] == [0, 0, 8, 8]


# --- rows ---------------------------------------------------------------------------------------


def rows_at(version):
    trajectory = make_trajectory({"a": []})
    for action in trajectory.actions:
        object.__setattr__(action.generation, "version", version)
        action.returns = 1.0
    return rows_of([trajectory], {"p"})


@pytest.mark.parametrize(
    ("row", "oldest", "kept", "ends"),
    [
        (5, 0, True, False),
        (4, 0, False, True),
        (4, 1, True, False),
        (3, 1, False, True),
        (6, 1, True, True),
    ],
)
def test_a_row_says_its_version_and_what_is_too_old_is_left_out(row, oldest, kept, ends):
    rows, trained = rows_at(row), {"p": SimpleNamespace(name="p", version=5)}
    assert (without_stale(rows, trained, oldest) == rows) is kept
    assert [r.action.left_out for r in rows] == [None if kept else "stale"]
    if ends:
        with pytest.raises(RunEnded, match="out of step"):
            check_versions(rows, trained, oldest)
    else:
        check_versions(rows, trained, oldest)


def test_ratios_and_the_effective_sample_size_are_those_of_the_tokens():
    rows = rows_at(3)
    rows[0].action.trainer_logprobs = (-0.1 + math.log(2), -0.2)  # the engine's are -0.1 and -0.2
    found = lag_metrics(rows, {"p": 5})
    assert found["policy/p/lag"] == 2 and found["role/a/ratio"] == pytest.approx(1.5)
    assert found["policy/p/ess"] == found["role/a/ess"] == pytest.approx(3**2 / (2 * 5))
    entered = rows_at(0)
    entered[0].trajectory.origin = "bob step 1"
    assert lag_metrics([*rows, *entered], {"p": 5}) == found


# --- the plan
# --------------------------------------------------------------------------------------------------

TINY = ["--recipe", str(recipes_root() / "mathchat" / "tiny.yaml")]
ON = [*TINY, "--train.async_enable"]
CORRECTED = ["--algo.advantage.is_correction_level", "token"]


def test_a_plan_says_what_the_ratio_is_and_which_devices_work_at_the_same_time():
    plan = build_plan(ON)
    assert briefs(plan.run.warnings) == [("async.uncorrected", "train.async_enable")]
    said = describe(plan)["async"]
    assert "2 steps before" in said["versions"] and said["devices"]["solver"] == {
        "engines": 1,
        "training": 1,
    }


def test_one_policy_may_be_without_correction():
    words = [*ON, *CORRECTED, "--policy.coder.algo.advantage.is_correction_level", "off"]
    assert briefs(build_plan(words).run.warnings) == [
        ("async.uncorrected", "train.async_enable", "coder")
    ]


def test_a_longer_queue_is_said_to_gain_nothing():
    warnings = briefs(build_plan([*ON, *CORRECTED, "--train.async_queue_size", "2"]).run.warnings)
    assert warnings == [("async.queue", "train.async_queue_size")]


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (
            [*ON, "--train.async_queue_size", "0"],
            ("flags.value", "command line", "train.async_queue_size"),
        ),
        (
            [*ON, "--train.async_queue_size", "100"],
            ("async.queue_too_long", "train.async_queue_size"),
        ),
    ],
)
def test_what_does_not_go_together_is_refused(words, problem):
    with refused(problem):
        build_plan(words)


def test_on_gpus_engines_and_training_need_devices_of_their_own(monkeypatch):
    monkeypatch.setenv(cpu.DEVICE, "cuda")
    words = [
        *ON,
        "--train.colocate_all",
        "--actor.num_gpus_per_node",
        "1",
    ]
    names = ("solver", "coder", "verifier")
    with refused(*(("async.shared_devices", "train.async_enable", name) for name in names)):
        build_plan(words)
