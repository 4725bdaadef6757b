"""The known defects of MARTI checkouts, and the patches that fix them.

Every test of the patches runs on a miniature of MARTI's tree and, where MARTI_CHECKOUT names one,
on a real checkout too.
"""

import asyncio
import importlib.util
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import git_patches
import pytest

MINI = Path(__file__).parent / "marti_v2"
REAL = os.environ.get("MARTI_CHECKOUT")
TREES = [pytest.param(MINI, id="mini"), *([pytest.param(Path(REAL), id="real")] if REAL else [])]
PATCH = git_patches.series("marti/v2")


def copy_of(tree, folder):
    """The package of a checkout and its version.txt."""
    shutil.copytree(tree / "marti", folder / "marti")
    shutil.copy(tree / "version.txt", folder)
    return folder


def apply(folder, *names, reverse=False):
    git_patches.apply(folder, *(PATCH[name] for name in names), reverse=reverse)


def texts(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*.py")}


@pytest.fixture
def mini(tmp_path):
    """A copy of the miniature; `mini.load(module)` runs a module of it."""
    folder = copy_of(MINI, tmp_path)

    def load(module):
        path = folder / "marti" / (module.replace(".", "/") + ".py")
        spec = importlib.util.spec_from_file_location(f"marti_mini_{path.stem}", path)
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        return loaded

    return SimpleNamespace(folder=folder, load=load)


@pytest.mark.parametrize("tree", TREES)
def test_all_patches_apply_compile_and_revert(tree, tmp_path):
    folder = copy_of(tree, tmp_path)
    before = texts(folder)
    apply(folder, *PATCH)
    changed = {path: text for path, text in texts(folder).items() if text != before[path]}
    for text in changed.values():
        compile(text, "patched", "exec")
    files = {file for patch in PATCH.values() for file in git_patches.files_of(patch)}
    assert {str(p) for p in changed} == files
    apply(folder, *reversed(PATCH), reverse=True)
    assert texts(folder) == before


class Actor:
    """An agent that records its samples and counts its fits."""

    def __init__(self):
        self.got, self.fits = [], 0

    def append(self, samples):
        assert samples, "upstream's groups refuse an empty list"
        self.got += samples

    def fit(self):
        self.fits += 1


def train(mini, batches, agents=3, filtering=False):
    actors = [Actor() for _ in range(agents)]
    maker = mini.load(
        "trainer.ppo_utils.multi_agent_experience_maker"
    ).MultiAgent_RemoteExperienceMaker(actors)
    strategy = SimpleNamespace(args=SimpleNamespace(dynamic_filtering_for_agents=filtering))
    trainer = mini.load("trainer.multi_agent_ppotrainer").MultiAgent_PPOTrainer
    trainer("", strategy, actors, experience_maker=maker, batches=batches).fit()
    return actors


FULL = [[(0, "a"), (1, "b"), (2, "c")]]


@pytest.mark.parametrize("filtering", [False, True])
def test_m1_agents_are_trained_without_the_flag(mini, filtering):
    assert [a.fits for a in train(mini, FULL, filtering=filtering)] == [filtering] * 3
    apply(mini.folder, "M1")
    assert [a.fits for a in train(mini, FULL, filtering=filtering)] == [1, 1, 1]


def test_m5_an_agent_without_samples_shifts_no_other(mini):
    def maker():
        return mini.load(
            "trainer.ppo_utils.multi_agent_experience_maker"
        ).MultiAgent_RemoteExperienceMaker([0, 1, 2])

    def of(maker):
        return maker.get_agent_experiences(maker.make_experience([(0, "a"), (2, "c")]))

    assert of(maker()) == [[(0, "a")], [(2, "c")]]  # agent 2's samples in agent 1's place
    with pytest.raises(IndexError):
        train(mini, [[(0, "a"), (2, "c")]])
    apply(mini.folder, "M5", "M1")
    assert of(maker()) == [[(0, "a")], [], [(2, "c")]]
    actors = train(mini, [[(0, "a"), (2, "c")]])
    assert [a.got for a in actors] == [[(0, "a")], [], [(2, "c")]]
    assert [a.fits for a in actors] == [1, 0, 1]


def test_m8_the_coders_result_is_read(mini):
    def outcome(status="Finished"):
        async def execute_tool(name, parameters, metadata):
            return "42\n", {"run_status": status}

        manager = SimpleNamespace(execute_tool=execute_tool)
        workflow = mini.load("agent_workflows.mathchat_workflow").workflow
        return asyncio.run(workflow("?", "42", [str] * 3, manager))

    content, answers = outcome()
    assert content == "ERROR" and answers[1] == "Answer is \\boxedERROR"
    apply(mini.folder, "M8")
    content, answers = outcome()
    assert content == "42\n" and answers[1] == "Answer is \\boxed{42}"
    assert outcome("TimeLimitExceeded")[1][1] == "Answer is \\boxed{None}"


def test_m16_two_agents_save_to_two_folders(mini):
    def saved():
        folders = []
        strategy = SimpleNamespace(
            args=SimpleNamespace(save_path="out"),
            save_model=lambda model, tokenizer, path: folders.append((model, path)),
        )
        group = mini.load("trainer.ray.launcher").RayActorGroup
        actor = mini.load("trainer.ray.ppo_actor").PolicyModelActor
        critic = mini.load("trainer.ray.ppo_critic").CriticModelActor
        config = {
            "is_tuning": True,
            "critic_pretrain": "c",
            "save_value_network": True,
            "save_path": "out",
        }
        for name in "01":
            groups = [group([kind(strategy, name, None)]) for kind in (actor, critic)]
            mini.load("cli.multi_agent_train_ppo_ray").Agent(
                name, config, *groups
            ).save_actor_and_critic_model()
        groups[0].async_save_model()  # as the single-agent trainers do
        return [path for _, path in folders]

    assert saved() == ["out", "out_critic", "out", "out_critic", "out"]
    apply(mini.folder, "M16")
    assert saved() == ["out/0", "out/0_critic", "out/1", "out/1_critic", "out"]
