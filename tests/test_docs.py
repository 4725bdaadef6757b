"""The documents say what the code does."""

import asyncio
import importlib
import inspect
import random
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pages
import pytest
from reading import load as load_recipe
from simulated import CharacterChat, make_trajectory

import marl_plugins
from marl_plugins.coach.rubric import RubricCoach, load_rubric
from marl_plugins.core import hookspecs
from marl_plugins.core.demonstrations import Demonstration
from marl_plugins.core.scoring import Seen, SeenLast
from marl_plugins.core.section import Model
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Generation, Task, ToolResult
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.manager import Plugins, load_file
from marl_plugins.engine.plan.build import build_plan, implicit_recipe
from marl_plugins.engine.plan.devices import needed_devices

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"


def text_of(function):
    """A hook's docstring without its indentation."""
    return inspect.cleandoc(function.__doc__)


HOOKS = {name: f for name, f in vars(hookspecs).items() if name.startswith("marl_")}


def test_every_hook_has_a_heading_with_its_signature():
    headings = re.findall(r"^## `(.+)`$", (ROOT / "docs/hooks.md").read_text(), re.MULTILINE)
    assert headings == [
        f"{name}{inspect.signature(f)}".replace("'", "") for name, f in HOOKS.items()
    ]


@pytest.mark.parametrize("name", HOOKS)
def test_every_hooks_text_is_its_docstring(name):
    assert text_of(HOOKS[name]) in (ROOT / "docs/hooks.md").read_text()


@pytest.mark.parametrize("name", HOOKS)
def test_every_hook_says_its_kind_and_shows_an_implementation_that_registers(name, tmp_path):
    text = text_of(HOOKS[name])
    assert re.search(r"\*(each|first|chain|around)(, async)?\*", text)
    code = re.search(r"(    @hookimpl.*)", text, re.DOTALL).group(1)
    file = tmp_path / "example.py"
    file.write_text("from marl_plugins import hookimpl\n" + textwrap.dedent(code))
    assert Plugins([str(file)]).claims(name)


@pytest.mark.parametrize(("page", "heading"), pages.TABLES, ids=str)
def test_every_table_is_the_codes(page, heading):
    """`python tests/pages.py` writes them anew."""
    text = (DOCS / page).read_text()
    start, end = pages.table_under(text, heading)
    assert text[start:end] == pages.TABLES[page, heading]() + "\n"


def test_the_tables_leave_nothing_out():
    models, found = set(), [Model]
    while found:
        models |= (
            below := {
                m for m in found.pop().__subclasses__() if m.__module__.startswith("marl_plugins.")
            }
        )
        found += below
    models = {model for model in models if model.model_fields}
    assert models == {*pages.RECIPE.values(), *pages.COACH.values(), *pages.GRAPH.values()}
    keys = {
        f"{model.__name__}.{name}": text
        for model in models
        for name, (_, text) in pages._fields(model).items()
    }
    assert {name for name, text in keys.items() if not text} == pages.SAYS_ITSELF.keys()
    flags = {action.option_strings[0] for _, action in pages.own_flags()}
    assert {
        "--recipe",
        "--models",
        "--coach.policy",
        "--reinforce_pp.scope",
        "--groups.by",
        "--gae.scope",
    } <= flags


def test_links_between_the_pages_lead_somewhere():
    for page in DOCS.glob("*.md"):
        for link, name in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
            target = (page.parent / link).resolve() if link else page
            assert target.exists(), (page, link)
            if name:
                headings = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
                assert name in map(pages.anchor, headings), (page, name)


# --- hooks.md
# --------------------------------------------------------------------------------------------------


def words():
    """Rows of the two tables of "The public names": name, module, and what is said."""
    text = (DOCS / "hooks.md").read_text()
    start, end = pages.table_under(text, "The public names")
    offered = [
        re.split(r" \| ", line.strip("| \n"), maxsplit=1)
        for line in text[start:end].splitlines()[2:]
    ]
    others = re.search(r"\| name \| import from .*\n((?:\|.*\n)+)", text)[1].splitlines()[1:]
    return [(name, "`marl_plugins`", about) for name, about in offered] + [
        re.split(r" \| ", line.strip("| \n"), maxsplit=2) for line in others
    ]


@pytest.mark.parametrize(("name", "module", "about"), words(), ids=lambda w: w[:20])
def test_the_words_live_where_the_page_says(name, module, about):
    module, name = module.strip("`"), name.strip("`")
    module = marl_plugins.MODULE_OF.get(name, module)
    if module == "marl_plugins.engine.processes.launch":
        return  # it needs Ray, and upstream
    word = getattr(importlib.import_module(module), name)
    fields = re.findall(r"`([a-z_]+)(?:\([a-z]+\))?`", about.partition("in the same module")[0])
    if inspect.isclass(word) and not issubclass(word, Exception | str | dict):
        has = {*dir(word), *inspect.signature(word).parameters}
        assert fields and set(fields) <= has


def test_the_table_has_the_public_names():
    named = [name.strip("`") for name, module, _ in words() if module == "`marl_plugins`"]
    assert sorted(named) == sorted(marl_plugins.__all__)


def test_every_word_of_the_hooks_is_in_the_table():
    named = {name.strip("`") for name, _, _ in words()}
    said = {w for f in HOOKS.values() for w in re.findall(r"[A-Z]\w+", str(inspect.signature(f)))}
    assert (
        said
        - {
            "Sequence",
            "Awaitable",
            "Any",
            "None",
            "ArgumentParser",
            "Literal",
            "Path",
            "Mapping",
            "SimpleNamespace",
            "Chained",
            "JsonValue",
        }
        <= named
    )


def test_the_contract_tests_of_the_page_run(tmp_path, monkeypatch):
    code = fenced("hooks.md", "# test_brevity.py").replace("# recipe = ", "recipe = ")
    code = code.replace("    your own, as", "  # your own, as")
    (tmp_path / "test_brevity.py").write_text(code)
    (tmp_path / "brevity.py").write_text(
        re.search(r"```python\n(# brevity\.py.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[
            1
        ]
    )
    shutil.copytree(ROOT / "recipes" / "mathchat", tmp_path / "my_recipe")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(ROOT)
    kit = load_file(tmp_path / "test_brevity.py").TestBrevity()
    assert kit.plan.run.folder == Path("my_recipe") and kit.plan.run.args.brevity.limit == 8
    tests = [name for name in dir(kit) if name.startswith("test_")]
    for name in tests:
        getattr(kit, name)()
    assert len(tests) > 5


# --- coach.md
# --------------------------------------------------------------------------------------------------


def test_the_rubric_of_the_page_judges(tmp_path):
    (tmp_path / "rules.py").write_text(fenced("coach.md", "# rules.py"))
    coach = RubricCoach(load_rubric(tmp_path / "rules.py", list(implicit_recipe().values["roles"])))
    action = make_trajectory({"agent": []}).actions[0]
    action.text = "4"
    seen = Seen("t", "2+2", "agent", (), ())
    assert asyncio.run(coach.judge(action, seen)).share == 1.0
    wrong = asyncio.run(coach.judge(action, SeenLast(**vars(seen), label="5", answer="4")))
    assert wrong.share == pytest.approx(0.3)


# --- recipes.md
# --------------------------------------------------------------------------------------------------


def fenced(page, first):
    """The fenced block of a page that has a line."""
    blocks = re.findall(r"^```\w+\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [b for b in blocks if first in b.splitlines()]
    return block


@pytest.fixture
def pair(tmp_path):
    """The page's recipe, written out."""
    for name, text in re.findall(
        r"^`pair/(\S+)`:\n\n```\w+\n(.*?)^```$",
        (DOCS / "recipes.md").read_text(),
        re.MULTILINE | re.DOTALL,
    ):
        (tmp_path / "pair" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "pair" / name).write_text(text)
    return tmp_path / "pair"


def simulated(workflow, task, prompts, says, tools=None, finish="stop"):
    """A trajectory of a workflow whose roles say what `says(role, prompt)` gives."""

    async def generate(call):
        said = says(call.role, CharacterChat().text(call.context_ids))
        ids = (*CharacterChat.encode(said), ord("^"))
        return Generation(ids, tuple(-0.5 for _ in ids), finish, call.policy, 0)

    def role(name):
        def render(fields):
            return [{"role": "user", "content": prompts[name].format(**fields)}]

        return RoleSpec(name, name, render, CharacterChat(), Sampling(1.0, 1.0, 32, 2000))

    roles = {name: role(name) for name in prompts}
    return asyncio.run(
        run_workflow(
            workflow, task, 0, step=1, run_seed=0, roles=roles, tools=tools or {}, generate=generate
        )
    )


def test_the_recipe_of_the_page_is_complete(pair):
    plan = build_plan(["--recipe", str(pair), "--dry-run"])
    run = plan.run
    assert (
        plan.options.dry_run
        and run.warnings == ()
        and [p.name for p in run.policies] == ["solver", "checker"]
    )
    assert len(plan.tasks("train")) == 40 and len(plan.tasks("eval")) == 10
    assert [
        p.name for p in build_plan(["--recipe", str(pair), "--mapping", "shared"]).run.policies
    ] == ["shared"]


@pytest.mark.parametrize(("said", "outcome"), [("17", 1.0), (" 17\n", 1.0), ("18", 0.0)])
def test_the_recipe_of_the_page_works(pair, said, outcome):
    plan = build_plan(["--recipe", str(pair)])
    run, task = plan.run, plan.tasks("train")[0]
    prompts = {name: run.prompt(name) for name in run.recipe.roles}

    def says(role, prompt):
        assert task.prompt in prompt and ("The answer was: 10+7 is 17" in prompt) == (
            role == "checker"
        )
        return "10+7 is 17" if role == "solver" else said

    trajectory = simulated(run.workflow_module.run, task, prompts, says)
    solver, checker = trajectory.actions
    assert checker.parents == (solver.path,) and trajectory.answer == said
    assert run.grader_module.score_outcome(trajectory) == outcome


def test_extends_on_the_page_does_what_is_said(tmp_path):
    shutil.copytree(ROOT / "recipes" / "mathchat", tmp_path / "mine")
    text = re.search(
        r"^    extends: recipe\.yaml(?:.*\n)+?(?=\n)",
        (DOCS / "recipes.md").read_text(),
        re.MULTILINE,
    )[0]
    with (tmp_path / "mine" / "recipe.yaml").open("a") as file:
        file.write("\nwarm_start: {demonstrations: demonstrations.py, steps: 1}\n")
    (tmp_path / "mine" / "other.yaml").write_text(textwrap.dedent(text))
    recipe, sections, _ = load_recipe(tmp_path / "mine" / "other.yaml")
    assert recipe.model == "tiny" and "warm_start" not in sections and recipe.grader == "grader.py"
    assert recipe.roles["coder"].max_turns == 2 and recipe.roles["coder"].tools == ["python"]
    assert (
        recipe.flags["train.colocate_all"] is False and "rollout.max_new_tokens" not in recipe.flags
    )


def the_long_workflow(tmp_path):
    (tmp_path / "workflow.py").write_text(fenced("recipes.md", "import asyncio"))
    return load_file(tmp_path / "workflow.py").run


@pytest.mark.parametrize("ok", [True, False])
def test_the_workflow_of_the_page_does_what_is_said(tmp_path, ok):
    async def answer(code):
        return ToolResult("python", code.text, "17", ok=ok)

    def says(role, prompt):
        return {"planner": "add", "critic": "10+7", "writer": "17"}.get(
            role, f"{len(asked)}+{asked.append(0) or 1}"
        )

    asked = []
    prompts = dict.fromkeys(("planner", "solver", "critic", "writer"), "?")
    tools = {"python": Tool("python", answer, lambda text: [])}
    got = simulated(the_long_workflow(tmp_path), Task("t", "10+7", "17"), prompts, says, tools)
    by_role = {a.role: a for a in got.actions}
    assert [a.role for a in got.actions].count("solver") == 2
    if not ok:
        assert got.agent_failure == "no_answer" and "writer" not in by_role and got.answer is None
        return
    assert got.answer == "17" and by_role["writer"].parents == (by_role["critic"].path,)
    assert set(by_role["critic"].parents) & {
        a.path for a in got.actions if a.role in ("solver", "critic")
    }


def test_the_grader_and_the_demonstrations_of_the_page(tmp_path, pair):
    (tmp_path / "grader.py").write_text(fenced("recipes.md", "def score_action(action, seen):"))
    score = load_file(tmp_path / "grader.py").score_action
    action = SimpleNamespace(text="4 ", generation=SimpleNamespace(ids=(1,) * 40))
    seen = Seen("t", "2+2", "checker", (), ())
    assert (
        score(action, seen) == 0.0
        and score(action, SeenLast(**vars(seen), label="4", answer="4")) == 0.8
    )
    (pair / "demonstrations.py").write_text(fenced("recipes.md", "def demonstrate(task, rng):"))
    with (pair / "recipe.yaml").open("a") as file:
        file.write("warm_start: {demonstrations: demonstrations.py, steps: 2}\n")
    plan = build_plan(["--recipe", str(pair)])
    run = plan.run
    shown = list(run.demonstrations_module.demonstrate(plan.tasks("train")[0], random.Random(0)))
    assert all(isinstance(d, Demonstration) for d in shown) and [d.role for d in shown] == list(
        run.recipe.roles
    )


def test_a_plan_for_gpus_can_be_made_without_any(monkeypatch):
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    run = build_plan(["--recipe", "mathchat", "--dry-run"]).run
    assert run.device == "cuda" and needed_devices(run) == {"solver": 1, "coder": 1, "verifier": 1}


# --- the README and the package
# -----------------------------------------------------------------------------------------


def test_the_readmes_plugin_works(tmp_path):
    readme = (ROOT / "README.md").read_text()
    code = re.search(r"```python\n(# brevity\.py.*?)```", readme, re.DOTALL).group(1)
    file = tmp_path / "brevity.py"
    file.write_text(code)
    words = [
        "train",
        "--recipe",
        "recipes/mathchat/tiny.yaml",
        "--plugin",
        str(file),
        "--brevity.limit",
        "32",
        "--dry-run",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "marl_plugins", *words], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert str(file) in done.stdout


def test_the_readmes_links_and_commands_exist():
    readme = (ROOT / "README.md").read_text()
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", readme):
        assert (ROOT / link).exists(), link
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for target in re.findall(r"make ([a-z]+)", readme):
        assert target in targets


WORKERS = {
    "builtin/reward_model/worker.py",
    "builtin/reward_model/scorer.py",
    "adapters/worker.py",
    "adapters/processes.py",
    "adapters/engine.py",
    "streaming/worker.py",
    "process_groups/worker.py",
    "process_groups/room.py",
    "process_groups/training_state.py",
}
"""What plugins bring for training processes, and what starts these."""


def test_modules_outside_the_runtime_import_nothing_heavy_at_the_top():
    """Only hosts/, processes/, runtime/ and the workers of plugins import openrlhf, vllm, deepspeed
    or ray at module level; and the program that the compatibility tests start to import a
    release."""
    package = ROOT / "marl_plugins"
    for path in package.rglob("*.py"):
        name = path.relative_to(package).as_posix()
        allowed = (
            name.startswith(("engine/hosts/", "engine/processes/", "engine/runtime/"))
            or name == "commands/upstream_ci/adapter.py"
        )
        for line in path.read_text().splitlines() if not allowed and name not in WORKERS else ():
            assert not re.match(r"(import|from) (openrlhf|vllm|deepspeed|ray)\b", line), (
                path,
                line,
            )


def test_importing_plugins_is_light():
    """`--help`, `plugins` and `--dry-run` import every plugin; torch, Ray and transformers take
    seconds."""
    script = (
        "import sys; from marl_plugins.core.loading import load; from "
        "marl_plugins.core.plugin_names import SHIPPED; "
        "[load(name) for name in SHIPPED]; "
        "print(sorted({'torch', 'ray', 'vllm', 'transformers', 'openrlhf', 'numpy'} & "
        "sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stdout
