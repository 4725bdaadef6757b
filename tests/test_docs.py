"""The documents say what the code does."""

import asyncio
import inspect
import re
import shutil
import textwrap
from pathlib import Path

import pages
import pytest
from simulated import CharacterChat

from marl_plugins.core import hookspecs
from marl_plugins.core.section import Model
from marl_plugins.core.trajectory import Generation
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.manager import Plugins, load_file

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


def test_every_hooks_text_is_its_docstring():
    page = (ROOT / "docs/hooks.md").read_text()
    assert [name for name, hook in HOOKS.items() if text_of(hook) not in page] == []


def test_every_hook_says_its_kind_and_shows_an_implementation_that_registers(tmp_path):
    for name, hook in HOOKS.items():
        text = text_of(hook)
        assert re.search(r"\*(each|first|chain|around)(, async)?\*", text), name
        code = re.search(r"(    @hookimpl.*)", text, re.DOTALL).group(1)
        file = tmp_path / f"{name}.py"
        file.write_text("from marl_plugins import hookimpl\n" + textwrap.dedent(code))
        assert Plugins([str(file)]).claims(name), name


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


# --- hooks.md
# --------------------------------------------------------------------------------------------------


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


# --- recipes.md
# --------------------------------------------------------------------------------------------------


def fenced(page, first):
    """The fenced block of a page that has a line."""
    blocks = re.findall(r"^```\w+\n(.*?)^```$", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [b for b in blocks if first in b.splitlines()]
    return block


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


# --- the README and the package
# -----------------------------------------------------------------------------------------


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
