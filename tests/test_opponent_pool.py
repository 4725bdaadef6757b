"""Policies that follow a trained one, and the pool of its earlier versions: planned, kept, drawn,
saved and resumed."""

import asyncio
import dataclasses
import hashlib
import itertools
import json
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planned_once import PlannedOnce
from ray.exceptions import RayActorError
from refusals import briefs, found_by, refused
from simulated import without_seconds
from simulated_run import SimulatedPolicy, simulated_trainer

from marl_plugins import opponent_pool
from marl_plugins.core.failures import ConfigurationError, RunEnded
from marl_plugins.core.policy import Policy
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.engines_only import only_players, with_models
from marl_plugins.engine.plan.fingerprint import compared, fingerprint
from marl_plugins.engine.plan.resume import (
    changed,
    manifest_of,
    read_manifest,
    saved_steps,
)
from marl_plugins.engine.processes.engines import EnginePool, RestartBudget
from marl_plugins.engine.records.write import cut_back
from marl_plugins.engine.runtime.checkpoints import Checkpoints, broken_files
from marl_plugins.engine.runtime.policy import UpstreamPolicy

ROOT = Path(__file__).resolve().parent.parent
POOL = str(ROOT / "recipes" / "kuhn_poker" / "pool.yaml")
RUN = {
    "mapping": {},
    "roles": {},
    "policies": {},
    "estimator": "reinforce",
    "warm_start": None,
    "flags": {},
    "policy_flags": {},
    "plugins": {},
    "recipe": {},
    "files": {},
}


class TestOpponentPool(PlannedOnce):
    plugin = "marl_plugins.opponent_pool"
    recipe = str(ROOT / "tests" / "recipes" / "sums" / "earlier.yaml")


# --- which versions are kept and drawn
# ------------------------------------------------------------------------------------


def weights_of(version):
    return hashlib.blake2b(str(version).encode()).digest()


class Follower:
    """What the plugin is handed; it notes what it was given to hold."""

    spec = Policy("earlier", "tiny", trainable=False, follows="p")
    trained, owns_engines = False, True
    engines = SimulatedPolicy.engines

    def __init__(self, followed):
        self.name, self.version, self.followed = "earlier", 0, followed
        self.held = []

    async def weights(self):
        return weights_of(self.followed.version)

    async def hold(self, weights, version):
        assert weights == weights_of(version)
        self.version = version
        self.held.append(version)
        return True

    async def wake(self):
        pass

    sleep = wake


def run_in(folder, every=2, size=3, seed=1):
    """What the plugin reads of a run."""
    states = {}
    return SimpleNamespace(
        state=lambda kind: states.setdefault(kind, kind()),
        args=SimpleNamespace(
            opponents=SimpleNamespace(every=every, size=size),
            train=SimpleNamespace(seed=seed),
            ckpt=SimpleNamespace(path=str(folder)),
        ),
        policy_args={
            "earlier": SimpleNamespace(ckpt=SimpleNamespace(path=str(folder / "earlier")))
        },
    )


def synced(run, versions):
    """The pool's versions after each sync, and what was held."""
    follower, kept = Follower(SimpleNamespace(version=0)), []

    async def sync():
        for version in versions:
            follower.followed.version = version
            assert await opponent_pool.marl_sync(run, follower, version)
            kept.append(sorted(run.state(opponent_pool.Pools)["earlier"].kept))

    asyncio.run(sync())
    return kept, follower.held


def files(folder):
    return sorted(
        int(path.stem.partition("-")[2]) for path in folder.glob("earlier/version-*.safetensors")
    )


sizes = st.integers(1, 9)


@given(st.integers(1, 7), sizes, st.integers(1, 90))
@settings(max_examples=20)
def test_the_kept_versions_lie_evenly_over_the_run(every, size, last):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        kept, held = synced(run_in(folder, every, size), range(last + 1))
        for version, (before, now) in enumerate(itertools.pairwise([[], *kept])):
            assert now[0] == 0 and len(now) <= size
            gaps = {b - a for a, b in itertools.pairwise(now)}
            gap = min(gaps, default=every)
            assert len(gaps) <= 1 and gap % every == 0
            assert len(now) > size / 2 or now == list(range(0, version + 1, every)), (
                "no fewer than have to be"
            )
            assert set(now) <= {*before, version}, "what was left out does not come back"
            if len(now) > 1:
                assert version - now[-1] < 2 * gap
        assert all(chosen in now for chosen, now in zip(held, kept, strict=True))
        assert files(folder) == kept[-1]  # nothing was saved, so nothing else is needed


@given(sizes, st.integers(0, 60), st.integers(0, 30))
@settings(max_examples=15)
def test_a_pool_that_begins_late_or_with_other_numbers_always_has_an_opponent(size, start, more):
    """The plugin, or another `--opponents.every`, may be accepted by --resume_with_changes."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        first = run_in(folder, every=5, size=size)
        kept, _ = synced(first, range(start, start + more + 1))
        second = run_in(folder, every=3, size=4)
        opponent_pool.marl_restore(second, json.loads(json.dumps(opponent_pool.marl_state(first))))
        again, held = synced(second, range(start + more, start + 2 * more + 20))
        assert all(kept) and all(again)
        assert all(len(now) <= 4 for now in again[20:])
        assert all(chosen in now for chosen, now in zip(held, again, strict=True))


def test_every_kept_version_is_drawn_as_often_as_any_other():
    with tempfile.TemporaryDirectory() as name:
        drawn = Counter()
        for seed in range(600):
            run = run_in(Path(name), every=1, size=4, seed=seed)
            drawn[synced(run, [0, 1, 2])[1][-1]] += 1
        assert drawn.keys() == {0, 1, 2}
        assert max(drawn.values()) < 260  # 200 each; five standard deviations


def test_the_metrics_say_who_played_in_the_step_and_not_who_will(tmp_path):
    run, follower, said = (
        run_in(tmp_path, every=1, size=20),
        Follower(SimpleNamespace(version=0)),
        [],
    )
    asyncio.run(opponent_pool.marl_sync(run, follower, 0))
    for version in range(1, 20):
        playing = follower.version
        follower.followed.version = version
        if version % 5:  # in the others nothing was trained, so nothing is synced
            asyncio.run(opponent_pool.marl_sync(run, follower, version))
        metrics = {}
        opponent_pool.marl_log(run, metrics)
        assert metrics["opponents/earlier/version"] == playing
        said.append(metrics["opponents/earlier/kept"])
    assert said[-1] == 17 and len(set(follower.held)) > 3


# --- files
# --------------------------------------------------------------------------------------------------


def test_what_is_damaged_is_named_and_not_played(tmp_path):
    run = run_in(tmp_path, size=1)
    synced(run, [0])
    path = tmp_path / "earlier" / "version-0.safetensors"
    whole = path.read_bytes()
    for damage in (
        *(whole[:size] for size in range(len(whole))),
        whole[:-1] + bytes([whole[-1] ^ 1]),
        whole + b"\0",
    ):
        path.write_bytes(damage)
        with pytest.raises(RunEnded, match=r"earlier/version-0\.safetensors is damaged"):
            synced(run, [1])
    path.unlink()
    with pytest.raises(RunEnded, match=r"version 1: .*version-0\.safetensors: No such file"):
        synced(run, [1])


def test_a_fresh_run_begins_without_what_another_left(tmp_path):
    synced(run_in(tmp_path, every=1), range(4))
    (tmp_path / "earlier" / "version-9.safetensors.new").write_bytes(b"half")
    (tmp_path / "earlier" / "notes.txt").write_text("mine")
    assert files(tmp_path) == [0, 2]
    synced(run_in(tmp_path), [0])
    assert {p.name for p in (tmp_path / "earlier").iterdir()} == {
        "version-0.safetensors",
        "notes.txt",
    }


# --- whole runs, without processes
# ----------------------------------------------------------------------------------------


class Saving(SimulatedPolicy):
    def __init__(self, folder):
        super().__init__("p")
        self.folder = folder

    async def save(self, name, state):
        part = self.folder / "p" / "_actor" / name
        part.mkdir(parents=True, exist_ok=True)
        (part / "states.pt").write_bytes(b"weights")


async def both(task, roles, tools):
    return await roles.a(q=task.prompt, after=[await roles.b(q=task.prompt)])


STEPS = 12


def trainer_in(folder, steps=STEPS, keep=2, save_steps=2, synced=lambda version: None, sync=True):
    """A run with role `a` on a trained policy and `b` on one that follows it; `synced` is called
    after every sync of that one."""
    trainer = simulated_trainer(
        folder, lambda t: 1.0, steps=steps, samples=1, tasks=2, eval_steps=-1, workflow=both
    )
    checkpoints, session, run = folder / "checkpoints", trainer.session, trainer.run
    session.policies["p"] = Saving(checkpoints)
    session.trained = {"p": session.policies["p"]}
    session.policies["earlier"] = Follower(session.policies["p"])
    members = session.cast.members
    members["b"] = (dataclasses.replace(members["a"][0], name="b", policy="earlier"),)
    session.rollout.pools = {"p": None, "earlier": None}
    mine = run_in(checkpoints)
    run.recipe.roles["b"] = None
    run.state, run.policy_args = mine.state, mine.policy_args
    run.args.opponents, run.args.ckpt.path, run.args.ckpt.save_steps = (
        mine.args.opponents,
        mine.args.ckpt.path,
        save_steps,
    )
    trainer.saving.checkpoints = Checkpoints(checkpoints, keep, RUN)
    del trainer.saving.save  # the real one
    plugins, trained_sync = trainer.plugins, trainer.plugins.hook.marl_sync

    async def marl_sync(run, policy, version):
        work = opponent_pool.marl_sync(run, policy, version)
        if work is None:
            return await trained_sync(run, policy, version)
        done = await work
        synced(version)
        return done and sync

    plugins.hook.marl_sync = marl_sync
    plugins.hook.marl_log = lambda run, step, metrics: opponent_pool.marl_log(run, metrics)
    plugins.state = opponent_pool.marl_state
    plugins.files = opponent_pool.marl_files
    return trainer


def resumed(folder, **settings):
    """Resume a run from its folder, as the driver does; the trainer."""
    trainer = trainer_in(folder, **settings)
    manifest = trainer.saving.checkpoints.open(resume=True)
    done = manifest["step"] if manifest else 0
    if done:
        cut_back(folder, done)
        trainer.session.policies["p"].version = manifest["policies"]["p"]
        opponent_pool.marl_restore(trainer.run, manifest["state"])
    else:
        for name in ("metrics.jsonl", "trajectories.jsonl", "ledger.jsonl"):
            (folder / name).unlink(missing_ok=True)
    asyncio.run(trainer.fit(done))
    return trainer


def records(folder):
    def lines(name):
        return [json.loads(line) for line in (folder / name).read_text().splitlines()]

    metrics = [{k: v for k, v in m.items() if "second" not in k} for m in lines("metrics.jsonl")]
    return metrics, without_seconds(lines("trajectories.jsonl")), lines("ledger.jsonl")


def test_a_run_plays_earlier_versions_and_trains_the_newest_alone(tmp_path):
    trainer = trainer_in(tmp_path)
    asyncio.run(trainer.fit(0))
    metrics, trajectories, ledger = records(tmp_path)
    versions = {(t["step"], a["policy"], a["version"]) for t in trajectories for a in t["actions"]}
    by_step = {m["step"]: m["opponents/earlier/version"] for m in metrics}
    expected = {(step, "p", step - 1) for step in by_step} | {
        (step, "earlier", v) for step, v in by_step.items()
    }
    assert versions == expected and len(set(by_step.values())) > 2
    assert any(version < step - 1 for step, version in by_step.items())
    for entry in ledger:
        assert entry["roles"]["b"] == {"generated": 2, "trained": 0, "left_out": {"frozen": 2}}
        assert entry["roles"]["a"]["trained"] == 2
    assert trainer.session.policies["earlier"].held == [
        *by_step.values(),
        trainer.run.state(opponent_pool.Pools)["earlier"].drawn,
    ]


def test_a_follower_that_is_not_brought_to_any_version_ends_the_run(tmp_path):
    with pytest.raises(
        RunEnded, match="the engines of policy 'earlier' were not brought to version 0"
    ):
        asyncio.run(trainer_in(tmp_path, sync=False).fit(0))


@pytest.mark.parametrize("save_steps", [1, 3])
def test_a_resumed_run_is_the_undisturbed_one_wherever_it_was_cut(tmp_path, save_steps):
    """Cut after every sync of the follower, which is after a version was written and before the
    step is saved; also with what steps that are lost have left, and with a file that was being
    written."""
    whole, cuts = tmp_path / "whole", []

    def cut(version):
        if (whole / "checkpoints").exists():
            cuts.append(tmp_path / f"cut-{version}")
            shutil.copytree(whole, cuts[-1])

    trainer = trainer_in(whole, save_steps=save_steps, synced=cut)
    asyncio.run(trainer.fit(0))
    assert len(cuts) >= STEPS
    for number, folder in enumerate(cuts):
        place = folder / "checkpoints" / "earlier"
        if number % 2:
            (place / f"version-{number + 2}.safetensors").write_bytes(b"of a step that is lost")
            (place / f"version-{number + 1}.safetensors.new").write_bytes(b"half")
        again = resumed(folder, save_steps=save_steps)
        assert records(folder) == records(whole), folder
        pools = [t.run.state(opponent_pool.Pools)["earlier"] for t in (again, trainer)]
        assert pools[0].kept == pools[1].kept and pools[0].drawn == pools[1].drawn
        contents = [
            {p.name: p.read_bytes() for p in (f / "checkpoints" / "earlier").iterdir()}
            for f in (folder, whole)
        ]
        assert contents[0] == contents[1], folder


@given(st.integers(1, 3), st.integers(1, 4))
@settings(max_examples=8)
def test_every_step_that_is_saved_has_its_files_and_nothing_else_stays(keep, save_steps):
    with tempfile.TemporaryDirectory() as name:
        folder, checkpoints, needed = Path(name), Path(name) / "checkpoints", set()

        def look(version):
            for step in saved_steps(checkpoints):
                manifest = json.loads(manifest_of(checkpoints, step).read_text())
                assert not broken_files(checkpoints, manifest), (version, step)

        trainer = trainer_in(folder, steps=16, keep=keep, save_steps=save_steps, synced=look)
        asyncio.run(trainer.fit(0))
        for step in saved_steps(checkpoints):
            needed |= {
                int(v)
                for v in json.loads(manifest_of(checkpoints, step).read_text())["state"]["earlier"]
            }
        assert (
            set(files(checkpoints))
            == needed | trainer.run.state(opponent_pool.Pools)["earlier"].kept.keys()
        )


def test_a_run_may_go_on_from_an_older_saved_step(tmp_path):
    """As the messages about a damaged step say: with the older manifest in the place of the last
    one."""
    whole, back = tmp_path / "whole", tmp_path / "back"
    asyncio.run(trainer_in(whole, keep=4).fit(0))
    shutil.copytree(whole, back)
    shutil.copy(back / "checkpoints" / "manifest-8.json", back / "checkpoints" / "manifest.json")
    resumed(back, keep=4)
    assert records(back) == records(whole)
    assert files(back / "checkpoints") == files(whole / "checkpoints")


def test_a_saved_version_that_is_cut_or_gone_is_refused_by_name_before_anything_starts(tmp_path):
    asyncio.run(trainer_in(tmp_path, steps=6).fit(0))
    checkpoints = tmp_path / "checkpoints"
    kept = [int(version) for version in read_manifest(checkpoints)["state"]["earlier"]]
    assert len(kept) == 2
    for version in kept:
        path = checkpoints / "earlier" / f"version-{version}.safetensors"
        whole = path.read_bytes()
        for damage in (
            *(whole[:size] for size in (0, len(whole) // 2, len(whole) - 1)),
            whole[:-1] + bytes([whole[-1] ^ 1]),
            None,
        ):
            path.unlink() if damage is None else path.write_bytes(damage)
            with pytest.raises(ConfigurationError) as refused:
                Checkpoints(checkpoints, 2, RUN).open(resume=True)
            assert path.name in next(map(str, refused.value.problems))
            assert [*map(str, refused.value.problems)][-1].startswith(f"{checkpoints}: step 6 ")
            path.write_bytes(whole)
    assert Checkpoints(checkpoints, 2, RUN).open(resume=True)["step"] == 6


# --- engines that are replaced
# --------------------------------------------------------------------------------------------


class Handle:
    """An engine's process: what it was told, and whether it is dead."""

    def __init__(self, dead=False):
        self.told, self.dead = [], dead
        self._actor_id = SimpleNamespace(hex=lambda: "id")
        self.load_state = self.identify = self
        self.locate = SimpleNamespace()

    async def remote(self, *arguments):
        if self.dead:
            error = RayActorError()
            error.actor_id = None
            raise error
        self.told.append(arguments)


@pytest.fixture
def following(monkeypatch):
    """A follower over engines that are no processes."""
    import marl_plugins.engine.processes.engines as engines
    import marl_plugins.engine.runtime.policy_engines as follower

    async def nowhere(handle):
        return None

    monkeypatch.setattr(follower.ray, "put", lambda piece: ("put", b"".join(piece)))
    monkeypatch.setattr(follower.ray, "kill", lambda handle: None)
    monkeypatch.setattr(engines, "locate", nowhere)
    policy, started = UpstreamPolicy.__new__(UpstreamPolicy), []

    def start(dead):
        started.append(engines.EngineProcess(Handle(), []))
        return started[-1]

    policy.name, policy.version, policy.spec, policy.started = "earlier", 0, Follower.spec, started
    policy.training, policy._settled = None, asyncio.Event()
    policy._settled.set()
    policy.engines = EnginePool(
        "earlier", [], start, policy.restore_engine, RestartBudget(9), 60.0, 4
    )
    policy.engines.engines = [engines.EngineProcess(Handle(), []) for _ in range(2)]
    return policy


def test_a_replaced_engine_gets_the_weights_that_the_others_hold(following):
    async def go():
        first, second = following.engines.engines
        await following.engines.replace(
            first
        )  # before the first sync: it has loaded the model itself
        assert following.started[0].handle.told == [("earlier", 0)]
        second.handle.dead = True
        assert await following.hold(b"three", 3)  # it dies while they are given to it
        assert following.started[1].handle.told == [([("put", b"three")], "earlier", 3)]
        assert await following.hold(b"one", 1)
        await following.engines.replace(following.started[0])
        assert following.started[2].handle.told == [([("put", b"one")], "earlier", 1)]
        assert [e.handle.told[-1] for e in following.engines.engines] == [
            ([("put", b"one")], "earlier", 1)
        ] * 2

    asyncio.run(go())


# --- the plan
# --------------------------------------------------------------------------------------------------


@pytest.fixture
def recipe(tmp_path):
    """Writes a recipe that extends the shipped one; its name."""
    folder = tmp_path / "kuhn"
    shutil.copytree(
        ROOT / "recipes" / "kuhn_poker", folder, ignore=shutil.ignore_patterns("__pycache__")
    )

    def write(text):
        (folder / "mine.yaml").write_text(f"extends: pool.yaml\n{text}\n")
        return str(folder / "mine.yaml")

    return write


def plan_of(recipe, *words):
    return build_plan(["--recipe", recipe, *words])


def test_only_a_trained_policy_is_followed_and_by_a_role(recipe):
    mapping = (
        "mapping: {first: player, second: other, earlier_first: earlier, earlier_second: earlier}"
    )
    for other in ("{trainable: false}", "{follows: player}"):
        name = recipe(f"{mapping}\npolicies:\n  earlier: {{follows: other}}\n  other: {other}")
        assert (
            "policies.untrained",
            f"{Path(name).name}:4",
            "policies.earlier.follows",
        ) in found_by(plan_of, name)


def test_a_model_of_its_own_on_the_command_line_is_refused():
    with refused(
        ("policies.model_of_follower", "command line", "earlier", "actor.model_name_or_path")
    ):
        plan_of(POOL, "--policy.earlier.actor.model_name_or_path", "tiny:seed=3")


def test_a_follower_is_planned_as_engines_with_the_model_of_the_other():
    plan = build_plan(["--recipe", POOL, "--policy.player.actor.model_name_or_path", "tiny:seed=3"])
    shown = describe(plan)
    assert (
        shown["policies"]["earlier"]
        | {"follows": "player", "trainable": False, "ranks": 0, "critic": None}
        == (shown["policies"]["earlier"])
    )
    assert {p["model"] for p in shown["policies"].values()} == {"tiny:seed=3"}
    assert plan.run.policy_args["earlier"].actor.model_name_or_path == "tiny:seed=3"
    assert shown["devices"] == {"player": 2, "earlier": 1}
    assert shown["policies"]["player"]["follows"] is None
    assert set(shown["lengths"]) == {"first", "second", "earlier_first", "earlier_second"}
    assert plan.run.trained_roles.keys() == {"first", "second"}
    assert not plan.run.warnings


def test_whom_it_follows_and_how_the_pool_is_kept_are_compared_on_resume(recipe):
    plan = build_plan(["--recipe", POOL])
    before = fingerprint(plan)
    assert before["policies"]["earlier"]["follows"] == "player"

    def changes(plan):
        return briefs(changed(4, compared(before), compared(fingerprint(plan))))

    other = build_plan(["--recipe", POOL, "--opponents.every", "3"])
    assert changes(other) == [("resume.changed", "opponents.every")]
    follows = ("resume.changed", "earlier", "follows")
    name = recipe("policies: {earlier: {follows: null, trainable: false}}")
    assert follows in changes(build_plan(["--recipe", name]))
    del (
        before["policies"]["earlier"]["follows"],
        before["policies"]["player"]["follows"],
    )  # of an earlier release
    assert follows in changes(plan)


def test_an_evaluation_gives_it_the_weights_of_the_other(tmp_path):
    (tmp_path / "player").mkdir()
    (tmp_path / "player" / "config.json").write_text("{}")
    run = only_players(build_plan(["--recipe", POOL]).run)
    saved = str(tmp_path / "player")
    assert {p.name: p.model for p in with_models(run, tmp_path, []).policies} == {
        "player": saved,
        "earlier": saved,
    }
    against_the_start = with_models(run, tmp_path, ["player"])
    assert {p.name: p.model for p in against_the_start.policies} == {
        "player": saved,
        "earlier": "tiny",
    }
    assert against_the_start.policy_args["earlier"].actor.model_name_or_path == "tiny"
    (tmp_path / "player" / "config.json").unlink()
    with refused(("eval.no_weights", "models")):
        with_models(run, tmp_path, [])
    with refused(("eval.no_policy", "only")):
        with_models(run, tmp_path, ["nobody"])
