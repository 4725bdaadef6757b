"""Checkpoints of several policies are one or none."""

import asyncio
import json
import subprocess
from dataclasses import replace

import pytest
from plugin_pairs import words
from refusals import refused
from simulated_session import recorded, run_planned

from marl_plugins.core.failures import RunEnded
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.resume import sealed, tag
from marl_plugins.engine.records.write import cut_back, move_aside
from marl_plugins.engine.runtime.checkpoints import Checkpoints

RUN = {
    "mapping": {"a": "p"},
    "roles": {"a": "p"},
    "policies": {},
    "estimator": "reinforce",
    "warm_start": None,
    "flags": {"train.seed": 1},
    "policy_flags": {},
    "plugins": {},
    "recipe": {},
    "files": {},
}


def saved(folder, step, policies=("p", "q"), parts=("_actor",)):
    """What DeepSpeed leaves behind for a step."""
    for part in (folder / policy / part for policy in policies for part in parts):
        (part / tag(step)).mkdir(parents=True)
        (part / tag(step) / "states.pt").write_text(str(step))
        (part / "latest").write_text(tag(step))


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path, keep=2, run=RUN)


def latest(checkpoints, policy):
    return (checkpoints.folder / policy / "_actor" / "latest").read_text()


def test_resume_points_every_policy_at_the_manifests_step(checkpoints):
    saved(checkpoints.folder, 2)
    checkpoints.commit(2, {"p": 2, "q": 2}, {"plugin": {"n": 1}})
    saved(checkpoints.folder, 4, ["p"])  # killed while the policies were saving: q has no step 4
    manifest = checkpoints.open(resume=True)
    assert (manifest["step"], manifest["state"]) == (2, {"plugin": {"n": 1}})
    assert latest(checkpoints, "p") == latest(checkpoints, "q") == tag(2)


def test_a_critic_is_a_part_of_its_policys_step(tmp_path):
    checkpoints, both = Checkpoints(tmp_path, keep=1, run=RUN, critics=True), ("_actor", "_critic")
    for step in (2, 4):
        saved(tmp_path, step, ["p"], both)
        checkpoints.commit(step, {"p": step}, {})
    assert [sorted(d.name for d in (tmp_path / "p" / part).glob("global*")) for part in both] == [
        [tag(4)]
    ] * 2
    saved(tmp_path, 6, ["p"], both)  # killed before the manifest
    assert checkpoints.open(resume=True)["step"] == 4
    assert [(tmp_path / "p" / part / "latest").read_text() for part in both] == [tag(4)] * 2
    (tmp_path / "p" / "_critic" / tag(4) / "states.pt").unlink()
    (tmp_path / "p" / "_critic" / tag(4)).rmdir()
    with refused(("resume.missing", "global_step4"), ("resume.damaged", tmp_path.name)) as error:
        checkpoints.open(resume=True)
    assert "p/_critic/global_step4: is missing" in str(error.value)


def test_parts_without_a_manifest_do_not_exist(checkpoints):
    saved(checkpoints.folder, 2, parts=("_actor", "_critic"))
    assert checkpoints.open(resume=True) is None
    assert not list(checkpoints.folder.glob("*/*/latest"))  # upstream would load it otherwise


def test_the_last_complete_step_is_always_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, 0, RUN)
    for step in (1, 2):
        saved(tmp_path, step)
        checkpoints.commit(step, {"p": step, "q": step}, {})
    assert checkpoints.open(resume=True)["step"] == 2


def test_a_saved_run_is_not_overwritten_by_mistake(checkpoints):
    saved(checkpoints.folder, 2)
    checkpoints.commit(2, {"p": 2, "q": 2}, {})
    with refused(("resume.taken", "ckpt.path")):
        checkpoints.open(resume=False)


def test_another_run_cannot_be_resumed_unless_its_changes_are_accepted(checkpoints):
    saved(checkpoints.folder, 2)
    checkpoints.commit(2, {"p": 2, "q": 2}, {})
    other = Checkpoints(checkpoints.folder, 2, {**RUN, "flags": {"train.seed": 2}})
    with refused(("resume.changed", "train.seed")) as error:
        other.open(resume=True)
    change = str(replace(error.value.problems[0], fix=""))
    assert other.open(resume=True, with_changes=True)["step"] == 2
    saved(checkpoints.folder, 3)
    other.commit(3, {"p": 3, "q": 3}, {})
    manifest = other.open(resume=True)  # the change is part of the run now
    assert manifest["changes"] == other.changes == [{"after_step": 2, "changes": [change]}]


def test_missing_parts_are_named(checkpoints):
    saved(checkpoints.folder, 2, ["p"])
    checkpoints.commit(2, {"p": 2}, {})
    manifest = json.loads(checkpoints.manifest_path.read_text())
    manifest["policies"]["q"] = 2
    del manifest["digest"]
    checkpoints.manifest_path.write_text(json.dumps(sealed(manifest)))
    with refused(("resume.missing", "global_step2"), ("resume.damaged", checkpoints.folder.name)):
        checkpoints.open(resume=True)
    saved(checkpoints.folder, 2, ["q"])
    (checkpoints.folder / "q" / "_actor" / tag(2) / "states.pt").write_text("")
    with refused(
        ("resume.no_weights", "global_step2"), ("resume.damaged", checkpoints.folder.name)
    ):
        checkpoints.open(resume=True)


WHOLE = {"schema": 3, "step": 1, "policies": {"p": 1}, "run": RUN, "state": {}, "files": {}}
OTHER_FORMS = [
    "",
    "{",
    "[]",
    "null",
    "[" * 100_000,
    "9" * 5000,
    '{"schema": 99, "step": 1}',
    '{"schema": 3}',
]
OTHER_FORMS += [
    json.dumps(sealed(WHOLE | {"run": run}))
    for run in ([], {}, RUN | {"policies": {"p": {}}}, RUN | {"files": {"a": 1}})
]
OTHER_FORMS.append(json.dumps(sealed(WHOLE | {"schema": 2})))


@pytest.mark.parametrize(
    "text", [*map(str.encode, OTHER_FORMS), b"\xff\xfe", b'{"schema": 2, "step": "\xe2']
)
def test_a_broken_manifest_is_an_error_not_a_fresh_start(checkpoints, text):
    checkpoints.manifest_path.write_bytes(text)
    for resume in (True, False):
        with refused(("resume.manifest", "manifest.json")) as error:
            checkpoints.open(resume)
        assert len(str(error.value)) < 700


def shards(folder, step, names):
    """What two ranks leave of a policy: weights, and an optimiser state each."""
    for name in names:
        part = folder / "p" / "_actor" / tag(step)
        part.mkdir(parents=True, exist_ok=True)
        (part / name).write_bytes(bytes(range(256)) * 5 + bytes([step]))
    (folder / "p" / "_actor" / "latest").write_text(tag(step))


SHARDS = (
    "mp_rank_00_model_states.pt",
    "zero_pp_rank_0_mp_rank_00_optim_states.pt",
    "zero_pp_rank_1_mp_rank_00_optim_states.pt",
)


def remove(path):
    path.unlink()


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "code"),
    [(remove, "resume.missing"), (cut, "resume.size"), (flip, "resume.damaged_file")],
)
@pytest.mark.parametrize("name", SHARDS[::2])
def test_a_file_that_is_not_what_was_saved_is_named_with_the_way_out(
    checkpoints, damage, code, name
):
    for step in (2, 4):
        shards(checkpoints.folder, step, SHARDS)
        checkpoints.commit(step, {"p": step}, {})
    broken = checkpoints.folder / "p" / "_actor" / tag(4) / name
    damage(broken)
    with refused((code, name), ("resume.damaged", checkpoints.folder.name)) as error:
        checkpoints.open(resume=True)
    way_out = error.value.problems[1]
    command = f"cp {checkpoints.folder}/manifest-2.json {checkpoints.folder}/manifest.json"
    assert way_out.fix.endswith(f", 2: {command}")
    subprocess.run(command.split(), check=True)
    assert checkpoints.open(resume=True)["step"] == 2
    shards(checkpoints.folder, 4, SHARDS)
    checkpoints.commit(4, {"p": 4}, {})
    assert checkpoints.open(resume=True)["step"] == 4
    flip(checkpoints.folder / "p" / "_actor" / tag(4) / name)
    remove(checkpoints.folder / "p" / "_actor" / tag(2) / name)
    with refused(
        ("resume.damaged_file", name), ("resume.damaged", checkpoints.folder.name)
    ) as error:
        checkpoints.open(resume=True)
    assert "manifest" not in error.value.problems[1].fix  # there is no other step


def test_a_lost_manifest_is_not_a_fresh_start(checkpoints):
    saved(checkpoints.folder, 2)
    checkpoints.commit(2, {"p": 2, "q": 2}, {})
    checkpoints.manifest_path.unlink()
    with refused(("resume.gone", "manifest.json")):
        checkpoints.open(resume=True)


def test_only_kept_steps_and_what_is_newer_stay(checkpoints):
    """Half-written steps of killed runs do not count among those that are kept."""
    for step in (1, 2, 3, 9):
        saved(checkpoints.folder, step)
    for step in (4, 6):
        saved(checkpoints.folder, step)
        checkpoints.commit(step, {"p": step, "q": step}, {})
        saved(checkpoints.folder, step + 1)
    saved(checkpoints.folder, 8)
    checkpoints.commit(8, {"p": 8, "q": 8}, {})
    names = {p.name for p in (checkpoints.folder / "p" / "_actor").glob("global*")}
    assert names == {tag(6), tag(8), tag(9)}
    assert sorted(p.name for p in checkpoints.folder.glob("manifest*")) == [
        "manifest-6.json",
        "manifest-8.json",
        "manifest.json",
    ]


def test_a_run_does_not_save_over_another_ones_steps(checkpoints):
    saved(checkpoints.folder, 2)
    checkpoints.commit(2, {"p": 2, "q": 2}, {})
    assert checkpoints.what_is_saved().startswith("step 2 is saved in")
    other = Checkpoints(checkpoints.folder, 2, RUN)
    other.open(resume=True)
    saved(checkpoints.folder, 3)
    other.commit(3, {"p": 3, "q": 3}, {})
    for attempt in (checkpoints.check_ours, lambda: checkpoints.commit(3, {"p": 3, "q": 3}, {})):
        with pytest.raises(
            RunEnded,
            match=r"manifest\.json was changed by another run that saves to the same --ckpt\.path",
        ):
            attempt()
    assert checkpoints.what_is_saved() == f"what is saved in {checkpoints.folder} is not this run's"
    assert json.loads(checkpoints.manifest_path.read_text())["policies"] == {"p": 3, "q": 3}


def test_a_step_without_its_parts_is_not_committed(checkpoints):
    saved(checkpoints.folder, 2, ["p"])
    with pytest.raises(FileNotFoundError, match="q/_actor/global_step2"):
        checkpoints.commit(2, {"p": 2, "q": 2}, {})
    assert checkpoints.open(resume=True) is None
    assert checkpoints.what_is_saved() == (
        "no step was saved (--ckpt.save_steps N saves every N steps, without --ckpt.disable_ds)"
    )


def test_records_are_cut_back_to_the_step_that_is_continued(tmp_path):
    file = tmp_path / "metrics.jsonl"
    file.write_text('{"step": 1}\n{"step": 2}\n{"step": 3}\n{"step": 4, "rew')
    assert cut_back(tmp_path, 2) == []
    assert file.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_records_of_an_earlier_run_are_moved_aside_not_erased(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("1\n")
    assert move_aside(tmp_path) == tmp_path / "earlier-1"
    (tmp_path / "metrics.jsonl").write_text("2\n")
    assert move_aside(tmp_path) == tmp_path / "earlier-2"
    assert move_aside(tmp_path) is None
    assert (tmp_path / "earlier-1" / "metrics.jsonl").read_text() == "1\n"


def test_a_run_without_saved_steps_leaves_the_best_weights(tmp_path):
    flags = ("--ckpt.disable_ds", "--ckpt.best_metric_key", "eval/outcome", "--eval.steps", "1")
    plan = build_plan([*words(tmp_path, []), *flags])
    trainer = run_planned(plan)
    trainer.best.step = 2
    asyncio.run(trainer.saving.save(2))
    assert [m["step"] for m in recorded(plan, "metrics.jsonl")] == [
        0,
        1,
        2,
    ] and trainer.saving.last == 2
    assert json.loads((plan.run.output / "best" / "best.json").read_text())["step"] == 2
    assert not [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
