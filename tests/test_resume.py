"""What a resumed run has in common with the saved one, what its folder holds, and
`openrlhf train --resume FOLDER`."""

import copy
import json
import os
import pickle
import shutil
import textwrap
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from refusals import briefs, found_by
from refusals import refused as refuses

from marl_plugins.cli import dispatch, main
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.tools import Function, Tool
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.fingerprint import compared, fingerprint
from marl_plugins.engine.plan.resume import changed, read_manifest, tag, with_resumption
from marl_plugins.engine.processes.optimiser_settings import keep_settings_when_loading
from marl_plugins.engine.records.run_folder import record_start, replayed
from marl_plugins.engine.records.write import cut_back, move_aside
from marl_plugins.engine.runtime.checkpoints import Checkpoints

SUMS = Path(__file__).parent / "recipes" / "sums"
PLUGIN = """
    from marl_plugins import hookimpl

    @hookimpl
    def marl_log(step): pass
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A user's folder: the recipe, a plugin beside it, a working folder."""
    folder = tmp_path / "project"
    shutil.copytree(SUMS, folder / "sums", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "plug").mkdir()
    (folder / "plug" / "extra.py").write_text(textwrap.dedent(PLUGIN))
    monkeypatch.chdir(folder)
    return folder


WORDS = (
    "--recipe",
    "sums/tiny.yaml",
    "--ckpt.output_dir",
    "runs/a",
    "--ckpt.path",
    "runs/a/checkpoints",
)
RESUME = ("--ckpt.load_enable", "--dry-run")


def start(*words, step=4):
    """What a run that was killed after a saved step leaves."""
    plan, _ = with_resumption(build_plan(words))
    folder = Path(plan.run.args.ckpt.path)
    checkpoints = Checkpoints(folder, 3, fingerprint(plan))
    checkpoints.open(
        resume=plan.run.args.ckpt.load_enable, with_changes=plan.options.resume_with_changes
    )
    record_start(plan, words, 0)
    names = [p.name for p in plan.run.policies]
    for name in names:
        part = folder / name / "_actor" / tag(step)
        part.mkdir(parents=True, exist_ok=True)
        (part / "mp_rank_00_model_states.pt").write_text("weights")
    checkpoints.commit(step, dict.fromkeys(names, step), plan.plugins.state(plan.run))
    return plan


def resumed(*words):
    """The plan of a resumed run, and the step that it continues from."""
    return with_resumption(build_plan([*words, *RESUME]))


def edit(file, old, new):
    text = Path(file).read_text()
    assert old in text
    Path(file).write_text(text.replace(old, new))


@pytest.mark.usefixtures("project")
def test_the_same_command_resumes():
    start(*WORDS)
    plan, step = resumed(*WORDS)
    assert step == 4
    assert not plan.run.warnings


FREE = [
    *("--max_steps", "9", "--eval.steps", "3", "--eval.temperature", "0.5"),
    *("--ckpt.save_steps", "5", "--ckpt.max_num", "7", "--logger.logging_steps", "2"),
    *("--vllm.num_engines", "2", "--vllm.gpu_memory_utilization", "0.3"),
    *("--train.micro_batch_size", "16", "--rollout.micro_batch_size", "16"),
]


@pytest.mark.usefixtures("project")
def test_what_changes_nothing_of_what_is_learned_may_differ():
    start(*WORDS)
    assert resumed(*WORDS, *FREE)[1] == 4


CHANGED_FLAGS = {
    ("actor.adam.lr",): ["--actor.adam.lr", "1e-5"],
    ("algo.kl.init_coef",): ["--algo.kl.init_coef", "0.02"],
    ("rollout.temperature",): ["--policy.coder.rollout.temperature", "0.7"],
    ("rollout.batch_size",): ["--rollout.batch_size", "64"],
    ("rollout.n_samples_per_prompt",): ["--rollout.n_samples_per_prompt", "2"],
    ("data.max_len",): ["--data.max_len", "400"],
    ("rollout.max_new_tokens",): ["--rollout.max_new_tokens", "16"],
    ("train.seed",): ["--train.seed", "7"],
    ("groups.by",): ["--groups.by", "task+role+turn"],
    ("the estimator",): ["--algo.advantage.estimator", "dr_grpo"],
    ("extra.py",): ["--plugin", "plug/extra.py"],
}


@pytest.mark.usefixtures("project")
def test_what_changes_what_is_learned_is_refused_until_it_is_accepted():
    start(*WORDS)
    more = [word for words in CHANGED_FLAGS.values() for word in words]
    found = found_by(resumed, *WORDS, *more)
    assert sorted(found) == sorted(("resume.changed", *where) for where in CHANGED_FLAGS)
    plan, step = resumed(*WORDS, *more, "--resume_with_changes")
    assert step == 4
    assert briefs(plan.run.warnings) == [("resume.accepted",)] * len(CHANGED_FLAGS)


CHANGED_FILES = {
    ("prompt of role solver",): ("prompts/solver.md", "\n", "\n\n"),
    ("workflow",): ("workflow.py", "\n", "\n\n"),
    ("grader",): ("grader.py", "\n", "\n\n"),
    ("tasks",): ("tasks.py", "\n", "\n\n"),
    ("--coach.rubric",): ("rubric.py", "\n", "\n\n"),
    ("module helper.py",): ("helper.py", "1", "2"),
    ("roles.coder.max_turns",): ("recipe.yaml", "max_turns: 3", "max_turns: 2"),
    ("tools.python.memory_mb",): ("recipe.yaml", "memory_mb: 512", "memory_mb: 600"),
    ("actor.adam.lr",): ("tiny.yaml", "1e-3", "1e-4"),
}


def test_a_recipe_that_was_edited_is_noticed(project):
    (project / "sums/helper.py").write_text("ONE = 1\n")
    (project / "sums/rubric.py").write_text(
        "from pathlib import Path\nfrom marl_plugins.coach.rubric import Criterion\nfrom "
        "marl_plugins.core.loading import load_file\n"
        'helper = load_file(Path(__file__).with_name("helper.py"))\n'
        'yes = Criterion("yes", 1.0, lambda action, seen: 1.0)\n'
        'RUBRIC = {"solver": [yes], "coder": [yes], "verifier": [yes]}\n'
    )
    words = (*WORDS, "--plugin", "marl_plugins.coach", "--coach.rubric", "sums/rubric.py")
    start(*words)
    for file, old, new in CHANGED_FILES.values():
        edit(project / "sums" / file, old, new)
    assert sorted(found_by(resumed, *words)) == sorted(
        ("resume.changed", *where) for where in CHANGED_FILES
    )
    assert resumed(*words, "--resume_with_changes")[1] == 4


IMPOSSIBLE = {
    ("solver", "actor.num_nodes", "actor.num_gpus_per_node"): [
        "--policy.solver.actor.num_gpus_per_node",
        "2",
    ],
    ("coder", "ds.zero_stage"): ["--ds.zero_stage", "2"],
    ("coder", "model"): ["--policy.coder.actor.model_name_or_path", "tiny:seed=9"],
    ("actor.optim",): ["--actor.optim", "muon"],
}


@pytest.mark.usefixtures("project")
def test_what_makes_resuming_impossible_cannot_be_accepted():
    start(*WORDS)
    more = [word for words in IMPOSSIBLE.values() for word in words]
    found = found_by(resumed, *WORDS, *more, "--resume_with_changes")
    assert {("resume.fixed", *where) for where in IMPOSSIBLE} <= {*found}
    assert {code for code, *_ in found} == {"resume.fixed"}
    found = found_by(resumed, *WORDS, "--mapping", "shared", "--resume_with_changes")
    assert found == [("resume.fixed", "mapping", role) for role in ("solver", "coder", "verifier")]


def test_labels_and_tasks_are_compared(project):
    data = project / "sums" / "data.json"
    rows = [{"id": n, "input": f"What is {n} + 1?", "label": n + 1} for n in range(64)]
    data.write_text(json.dumps(rows))
    words = (*WORDS, "--data.prompt_dataset", str(data))
    start(*words)
    rows[3]["label"] = 99
    data.write_text(json.dumps(rows))
    assert found_by(resumed, *words) == [("resume.changed", "labels of training tasks")]
    rows[3]["input"] = "What?"
    data.write_text(json.dumps(rows))
    changes = [("resume.changed", name) for name in ("training tasks", "labels of training tasks")]
    assert found_by(resumed, *words) == changes
    other = project / "elsewhere.json"  # the same tasks from another file are the same
    rows[3] |= {"input": "What is 3 + 1?", "label": 4}
    other.write_text(json.dumps(rows))
    assert resumed(*WORDS, "--data.prompt_dataset", str(other))[1] == 4


NOW = Function("now", "The time.", {"type": "object", "properties": {"zone": {"type": "string"}}})
OFFERS = {
    "the same": [NOW],
    "one more": [NOW, replace(NOW, name="tomorrow")],
    "another description": [replace(NOW, description="Delete everything.")],
    "other arguments": [replace(NOW, parameters={"type": "object"})],
}


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize("offer", OFFERS)
def test_what_a_server_offers_is_compared_once_it_is_known(offer):
    start(*WORDS)
    plan = build_plan([*WORDS, RESUME[0]])
    tools = [{"clock": Tool("clock", None, functions=tuple(f))} for f in ([NOW], OFFERS[offer])]
    saved, of_now = (compared(fingerprint(plan, each)) for each in tools)
    for other in (None, {}):  # not known yet, or another tool's
        assert changed(4, compared(fingerprint(plan, other)), saved) == []
    changes = briefs(changed(4, saved, of_now))
    assert changes == ([] if offer == "the same" else [("resume.changed", "clock")])


@pytest.mark.usefixtures("project")
def test_a_plugin_is_the_same_wherever_it_lies():
    start(*WORDS, "--plugin", "plug/extra.py")
    shutil.move("plug", "moved")
    assert resumed(*WORDS, "--plugin", "moved/extra.py")[1] == 4
    edit("moved/extra.py", "pass", "...")
    assert found_by(resumed, *WORDS, "--plugin", "moved/extra.py") == [
        ("resume.changed", "extra.py")
    ]
    assert found_by(resumed, *WORDS) == [("resume.changed", "extra.py")]


def test_a_moved_project_and_model_are_the_same(project, monkeypatch):
    model = project / "model"
    from marl_plugins.engine.runtime.tiny_model import resolve

    shutil.copytree(resolve("tiny"), model)
    words = (*WORDS, "--policy.solver.actor.model_name_or_path", "./model")
    start(*words)
    moved = project.rename(project.with_name("moved"))
    monkeypatch.chdir(moved)
    assert resumed(*words)[1] == 4
    edit("model/config.json", "{", "{ ")
    assert found_by(resumed, *words)[0] == ("resume.fixed", "solver", "model")


def test_a_plan_looks_at_the_saved_files_and_at_what_is_left(project, capsys):
    nothing, _ = resumed(*WORDS)
    assert briefs(nothing.run.warnings) == [("resume.nothing_saved", "checkpoints")]
    start(*WORDS)
    assert main(["train", *WORDS, *RESUME]) == 0
    assert "resume: would resume after step 4\n" in capsys.readouterr().out
    done, _ = resumed(*WORDS, "--max_steps", "4")
    assert briefs(done.run.warnings) == [("resume.done", "checkpoints")]
    with refuses(("resume.taken", "ckpt.path")):
        dispatch(["train", *WORDS, "--dry-run"])
    (states,) = (project / "runs/a/checkpoints/coder/_actor/global_step4").glob("*.pt")
    states.unlink()
    assert ("resume.no_weights", "global_step4") in found_by(dispatch, ["train", *WORDS, *RESUME])
    shutil.rmtree(project / "runs/a/checkpoints/coder")
    assert found_by(resumed, *WORDS)[0] == ("resume.missing", "global_step4")


def test_changes_are_recorded_with_their_step_and_kept(project):
    start(*WORDS)
    start(*WORDS, "--ckpt.load_enable", "--resume_with_changes", "--actor.adam.lr", "1e-5", step=6)
    start(*WORDS, "--ckpt.load_enable", "--actor.adam.lr", "1e-5", step=8)
    manifest = read_manifest(project / "runs/a/checkpoints")
    (change,) = manifest["changes"]
    assert change["after_step"] == 4
    assert [text.partition(":")[0] for text in change["changes"]] == ["--actor.adam.lr"]


def command(folder):
    return json.loads((folder / "run" / "command.json").read_text())


def test_a_run_folder_needs_nothing_else(project, monkeypatch, tmp_path):
    (project / "plug" / "words.txt").write_text("beside the plugin")
    with (project / "sums" / "large.bin").open("wb") as file:
        file.truncate(11 * 2**20)
    start(*WORDS, "--plugin", "plug/extra.py", "--max_steps", "8")
    prompt = (project / "sums/prompts/solver.md").read_text()
    edit("sums/prompts/solver.md", "\n", "\nBe quick.\n")
    shutil.rmtree("plug")
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    words, _ = replayed(["--resume", "../project/runs/a", "--max_steps", "40"])
    plan, step = with_resumption(build_plan(words))
    assert (step, plan.run.max_steps, [*map(str, plan.run.warnings)]) == (4, 40, [])
    assert plan.run.prompt("solver") == prompt
    assert plan.run.output == project / "runs/a"
    (entry,) = command(project / "runs/a")
    ((copy, linked),) = entry["linked"].items()
    assert copy.startswith("run/recipe-")
    assert copy.endswith("/large.bin")
    assert linked == str(project / "sums/large.bin")
    assert len(list((project / "runs/a/run/plugins").glob("extra-*/extra.py"))) == 1

    project.rename(tmp_path / "moved")  # the whole folder elsewhere
    words, _ = replayed(["--resume", "../moved/runs/a"])
    assert with_resumption(build_plan(words))[1] == 4


def test_every_start_is_an_entry_and_the_last_is_repeated(project):
    start(*WORDS, "--plugin", "plug/extra.py")
    shutil.rmtree("sums")
    typed = ("--resume", "runs/a", "--resume_with_changes", "--actor.adam.lr", "1e-5")
    plan, step = with_resumption(build_plan(replayed(typed)[0]))
    assert step == 4
    record_start(plan, typed, step)
    first, second = command(project / "runs/a")
    assert second["resumed_after"] == 4
    assert second["words"] == ["--resume=runs/a", "--resume_with_changes", "--actor.adam.lr=1e-5"]
    copies = sorted(p.name.partition("-")[0] for p in (project / "runs/a/run").iterdir())
    assert copies == ["command.json", "plugins", "recipe"]
    assert first["directory"] == str(project)
    assert {"python", "openrlhf", "openrlhf-marl", "torch", "vllm", "deepspeed", "ray"} <= first[
        "versions"
    ].keys()
    assert {"cores", "memory", "gpus"} <= first["host"].keys()
    again = build_plan(replayed(["--resume", "runs/a"])[0])
    assert again.run.args.actor.adam.lr == 1e-5
    assert again.plugins.versions() == plan.plugins.versions()


def test_a_resumption_of_nothing_saved_keeps_what_it_starts_from(project):
    plan = build_plan(WORDS)
    record_start(plan, WORDS, 0)
    (project / "runs/a/metrics.jsonl").write_text("{}\n")
    words, _ = replayed(["--resume", "runs/a"])
    plan, step = with_resumption(build_plan(words))
    assert step == 0
    assert plan.run.warnings[0].code == "resume.nothing_saved"
    aside = move_aside(project / "runs/a", keep_start=True)
    assert [p.name for p in aside.iterdir()] == ["metrics.jsonl"]
    assert build_plan(words)
    (project / "runs/a/metrics.jsonl").write_text("{}\n")
    aside = move_aside(project / "runs/a")  # another run into the same folder
    assert (aside / "run" / "command.json").is_file()


@pytest.mark.usefixtures("project")
def test_what_a_recipe_names_outside_its_folder_is_copied_too():
    shutil.move("sums/prompts", "prompts")
    shutil.move("sums/grader.py", "grader.py")
    edit("sums/recipe.yaml", "prompts/", "../prompts/")
    edit("sums/recipe.yaml", "grader: grader.py", "grader: ../grader.py")
    edit("sums/recipe.yaml", "plugins: []", "plugins: [../plug/extra.py]")
    start(*WORDS)
    shutil.rmtree("sums")
    shutil.rmtree("prompts")
    shutil.rmtree("plug")
    Path("grader.py").unlink()
    plan, step = with_resumption(build_plan(replayed(["--resume", "runs/a"])[0]))
    assert step == 4
    assert plan.run.prompt("coder")


def test_secrets_are_not_kept(project):
    key = "f00dcafe" * 5
    words = (*WORDS, "--logger.wandb.key", key)
    start(*words)
    assert not [
        p for p in (project / "runs").rglob("*") if p.is_file() and key.encode() in p.read_bytes()
    ]
    words, remarks = replayed(["--resume", "runs/a"])
    assert not [w for w in words if "wandb" in w]
    assert briefs(remarks) == [("resume.secret", "logger.wandb.key")]
    assert not replayed(["--resume", "runs/a", "--logger.wandb.key", key])[1]


def test_a_recipe_folder_that_cannot_be_copied_whole_is_linked(project):
    os.mkfifo("sums/pipe")
    (project / "sums/elsewhere").symlink_to(project / "plug")
    (project / "sums/cycle").mkdir()
    (project / "sums/cycle/back").symlink_to(project / "sums/cycle")
    many = project / "sums" / "many"
    many.mkdir()
    for n in range(3000):
        (many / f"{n}.txt").touch()
    words = (
        "--recipe",
        "sums/tiny.yaml",
        "--ckpt.output_dir",
        "sums/runs/a",
        "--ckpt.path",
        "sums/runs/a/checkpoints",
    )
    start(*words)
    (entry,) = command(project / "sums/runs/a")
    assert {Path(link).name for link in entry["linked"]} == {"cycle", "many"}
    (copy,) = (project / "sums/runs/a/run").glob("recipe-*")
    assert not (copy / "pipe").exists()
    assert (copy / "elsewhere" / "extra.py").resolve().is_relative_to(copy.resolve())
    assert not (copy / "runs").exists()
    assert (copy / "many" / "7.txt").is_file()


def test_resume_names_what_is_wrong(project, tmp_path, capsys):
    start(*WORDS, "--plugin", "plug/extra.py")
    (tmp_path / "empty").mkdir()

    def problems(*words):
        return found_by(dispatch, ["train", "--resume", *words, "--dry-run"])

    for folder in ("nowhere", str(tmp_path / "empty"), "runs/a/checkpoints"):
        assert problems(folder) == [("resume.folder", "resume")]
    assert problems("runs/a", "--recipe", "sums") == [("resume.recipe",)]
    assert problems("runs/a", "--plugin", "plug/extra.py") == [("resume.plugin",)]
    assert problems() == [("resume.folder",)]
    assert main(["train", "--resume", "runs/a", "--dry-run"]) == 0
    assert "would resume after step 4" in capsys.readouterr().out
    (project / "runs/a/run/command.json").write_text("[]")
    assert problems("runs/a") == [("run_folder.form", "command.json")]


def training(rate, decay=0.0):
    """An engine as DeepSpeed makes it, as far as loading goes: an optimiser with a schedule."""
    parameter = torch.nn.Parameter(torch.ones(3))
    optimiser = torch.optim.AdamW([parameter], lr=rate, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1.0, (step + 1) / 4))
    return SimpleNamespace(parameter=parameter, optimiser=optimiser, lr_scheduler=schedule)


def advance(engine):
    engine.parameter.grad = torch.tensor([1.0, -2.0, 0.5])
    engine.optimiser.step()
    engine.lr_scheduler.step()


@pytest.mark.parametrize(("rate", "decay"), [(0.1, 0.0), (0.02, 0.3)])
def test_a_resumed_policy_has_the_learning_rate_of_its_flags_at_the_saved_place_of_the_schedule(
    rate, decay
):
    saved = training(0.1)
    for _ in range(2):
        advance(saved)

    def load_ckpt(engine, folder):
        engine.optimiser.load_state_dict(copy.deepcopy(saved.optimiser.state_dict()))
        engine.lr_scheduler.load_state_dict(saved.lr_scheduler.state_dict())
        engine.parameter.data = saved.parameter.data.clone()
        return folder, {}

    strategy, engine = SimpleNamespace(load_ckpt=load_ckpt), training(rate, decay)
    keep_settings_when_loading(strategy)
    assert strategy.load_ckpt(engine, "folder") == ("folder", {})
    (group,) = engine.optimiser.param_groups
    assert (group["lr"], group["initial_lr"], group["weight_decay"]) == (rate * 3 / 4, rate, decay)
    assert engine.lr_scheduler.get_last_lr() == [rate * 3 / 4]
    for one in (saved, engine):
        advance(one)
    assert engine.lr_scheduler.get_last_lr() == [rate]
    assert torch.equal(engine.parameter, saved.parameter) == (rate == 0.1)
    assert engine.optimiser.state[engine.parameter]["step"] == 3


def loading_strategy(result):
    def load_ckpt(engine, folder):
        if isinstance(result, Exception):
            raise result
        return result

    strategy = SimpleNamespace(load_ckpt=load_ckpt)
    keep_settings_when_loading(strategy)
    return strategy


@pytest.mark.parametrize("result", [AssertionError(), RuntimeError("many\nlines"), (None, {})])
def test_a_checkpoint_that_does_not_load_is_named(tmp_path, result):
    strategy, engine = loading_strategy(result), training(0.1)
    (tmp_path / "latest").write_text(tag(4))
    with refuses(("resume.unloadable",)) as error:
        strategy.load_ckpt(engine, str(tmp_path))
    assert "\n" not in str(error.value)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(
        error.value
    )  # it comes from another process


def test_a_copy_that_was_changed_or_cut_is_named_and_made_anew(project):
    words = (*WORDS, "--plugin", "plug/extra.py")
    start(*words)
    (grader,) = (project / "runs/a/run").glob("recipe-*/grader.py")
    (plugin,) = (project / "runs/a/run").glob("plugins/extra-*/extra.py")
    grader.write_text(grader.read_text()[:-1])
    plugin.unlink()
    with pytest.raises(ConfigurationError) as error:
        replayed(["--resume", "runs/a"])
    assert [p.partition(" ")[0] for p in [*map(str, error.value.problems)]] == [
        str(p.relative_to(project)) for p in (grader, plugin)
    ]
    plan, step = resumed(*words)  # the run's own command
    record_start(plan, words, step)
    assert with_resumption(build_plan(replayed(["--resume", "runs/a"])[0]))[1] == 4
    plan = build_plan(replayed(["--resume", "runs/a"])[0])
    record_start(plan, ["--resume", "runs/a"], 4)  # started from the copies
    assert command(project / "runs/a")[-1]["files"] == command(project / "runs/a")[-2]["files"]
    grader.write_text("")
    with refuses(("run_folder.changed",)):
        replayed(["--resume", "runs/a"])


@pytest.mark.usefixtures("project")
def test_a_copy_that_was_half_made_is_not_used(monkeypatch):
    """The process is killed while it copies a plugin; the next start makes a whole one."""
    words = (*WORDS, "--plugin", "plug/extra.py")
    copy = shutil.copy2

    def killed(source, target):
        copy(source, target)
        if Path(source).name == "extra.py":
            Path(target).write_text("from marl")
            raise KeyboardInterrupt

    monkeypatch.setattr(shutil, "copy2", killed)
    with pytest.raises(KeyboardInterrupt):
        record_start(build_plan(words), words, 0)
    monkeypatch.setattr(shutil, "copy2", copy)
    record_start(build_plan(words), words, 0)
    assert build_plan(replayed(["--resume", "runs/a"])[0])


def test_a_run_that_has_finished_says_so_and_starts_nothing(project, capsys, monkeypatch):
    """Where its weights and its report are there, whatever step was the last that was saved; else
    it is started to write them."""
    started = []
    monkeypatch.setattr(
        "marl_plugins.engine.runtime.driver.train", lambda plan, words: started.append(words) or 0
    )
    plan, folder = start(*WORDS), project / "runs/a"
    resume = ["train", "--resume", "runs/a", "--max_steps", "5"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps({"step": n}) + "\n" for n in range(6)))
    for policy in plan.run.policies:
        assert main(resume) == 0 and started.pop()
        (folder / policy.name).mkdir(exist_ok=True)
    assert main(resume) == 0 and started.pop()
    (folder / "report.md").write_text("# a")
    capsys.readouterr()
    before = {path: path.read_bytes() for path in project.rglob("*") if path.is_file()}
    assert main(resume) == 0 and not started
    assert "runs/a: the run has finished: all 5 steps are trained" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in project.rglob("*") if path.is_file()} == before
    assert main(["train", "--resume", "runs/a", "--max_steps", "6"]) == 0 and started.pop()
    cut_back(folder, 4)
    assert main(resume) == 0 and started.pop()
