"""The structure of the package: one direction of imports, and who may know what."""

import ast
import copy
import functools
from pathlib import Path

import marl_plugins
from marl_plugins.builtin.rehearsal.check import check_workflow
from marl_plugins.core.plugin_names import SHIPPED
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.engines_only import only_players
from marl_plugins.engine.plan.fingerprint import fingerprint

PACKAGE = Path(__file__).resolve().parent.parent / "marl_plugins"
ORDER = (
    ("core",),
    ("grading", "sandbox", "asking"),
    (
        "engine.hosts",
        "engine.hook_faults",
        "engine.plugin_checks",
        "engine.manager",
        "engine.plan",
        "engine.processes",
        "engine.records",
        "engine.runtime",
    ),
    ("contracts",),
    ("builtin",),
    (
        "rae",
        "opponent_pool",
        "balance",
        "streaming",
        "process_groups",
        "adapters",
        "filter_agents_data",
        "coach",
        "reward_backprop",
        "rewards",
        "cooperation",
        "competence",
        "counterfactual",
        "mean_group",
        "replay",
        "transfer",
        "curriculum",
        "swarm",
        "determinism",
        "environments",
    ),
    ("commands",),
    ("cli", "__main__"),
)
"""Rooms of the package. A room imports from those above it; of one line, those of `engine` from
those before them, and others not from each other."""
BY_IDENTITY = {
    "core/fields.py": "values of a workflow's call, of any type, in which actions are looked for "
    "once",
    "adapters/worker.py": "what `copy.deepcopy` is not to copy, which it knows by that",
}
"""Files that know objects by `id()`, and why these cannot be keys themselves."""
INDIRECT = {
    "__init__.py",
    "builtin/agents/launcher.py",
    "cli.py",
    "engine/manager.py",
    "commands/__init__.py",
    "core/loading.py",
    "engine/processes/cluster.py",
    "sandbox/fork_server.py",
}
"""Modules that import others by name, because a user or a table names them."""

FILES = {
    path.relative_to(PACKAGE).as_posix(): path
    for path in sorted(PACKAGE.rglob("*.py"))
    if not {"data", "drivers"} & set(path.parts)  # which is run by other Pythons
}


@functools.cache
def tree_of(file):
    """Parsed when a test asks for it: every process that collects the tests imports this module."""
    return ast.parse(FILES[file].read_text())


def nodes_of_all():
    """Every node of the package's syntax, with its file."""
    return ((file, node) for file in FILES for node in ast.walk(tree_of(file)))


def module_of(file):
    return "marl_plugins." + file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


MODULES = {module_of(file).removesuffix(".__init__"): file for file in FILES}
OFFERED = {f"marl_plugins.{name}": module for name, module in marl_plugins.MODULE_OF.items()}
"""The module of what is imported from the package itself."""


@functools.cache
def imported(file):
    """The package's own modules that a file imports, wherever in it, also for annotations alone."""
    return imports_in(file, ast.walk(tree_of(file)))


@functools.cache
def imported_at_run_time(file):
    """The same without what is imported for annotations alone."""

    def nodes(node):
        if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            yield node
            for below in ast.iter_child_nodes(node):
                yield from nodes(below)

    return imports_in(file, nodes(tree_of(file)))


def imports_in(file, nodes):
    found = set()
    for node in nodes:
        names = []
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.startswith("marl_plugins")
        ):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [OFFERED.get(name, name) for name in names]
            names = [name if name in MODULES else node.module for name in names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("marl_plugins")]
        found.update(name for name in names if name not in ("marl_plugins", module_of(file)))
    return found


def room(module):
    """The room that a module lies in: the first folder below the package; of `engine`, also the
    folder within it."""
    parts = module.split(".")
    return ".".join(parts[1:3]) if parts[1] == "engine" else parts[1]


def level(module):
    """Where a room stands in ORDER: its line, and its place among the rooms of `engine`."""
    name = room(module)
    number, line = next((n, line) for n, line in enumerate(ORDER) if name in line)
    return number, line.index(name) if name.startswith("engine.") else 0


def test_every_folder_has_its_place():
    rooms = {room(m) for m in MODULES if "." in m} - {"engine"}
    assert rooms == {name for line in ORDER for name in line}


def test_no_import_goes_against_the_order():
    """No file imports what comes later in ORDER."""
    files = [file for file in FILES if file != "__init__.py"]
    against = {
        (file, name)
        for file in files
        for name in imported(file)
        if level(name) > level(module_of(file))
    }
    assert not against


def test_imports_can_be_seen():
    """None is relative, and modules are imported by a name in a variable only where a user or a
    table names them."""
    indirect = (*INDIRECT, "engine/hosts/", "commands/upstream_ci/", "commands/doctor/")
    for file, node in nodes_of_all():
        assert not (isinstance(node, ast.ImportFrom) and node.level), (
            f"{file}:{node.lineno}: a relative import"
        )
        if isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            assert file.startswith(indirect), f"{file}:{node.lineno}"


def plugin_of(module):
    """The plugin that a module belongs to; empty for the rest of the package."""
    _, part, *below = module.split(".")
    if part == "builtin":
        return ".".join(below[:2]) if below[:1] == ["tools"] else ".".join(below[:1])
    return part if part in next(line for line in ORDER if "coach" in line) else ""


def test_plugins_know_nothing_of_each_other():
    pairs = {
        (plugin_of(m), plugin_of(name))
        for m, f in MODULES.items()
        if "." in m
        for name in imported(f)
    }
    assert not {(a, b) for a, b in pairs if a and b and a != b}


def test_the_sandbox_is_as_if_it_came_from_outside():
    """It imports the core alone; the tool `python`, the cases of reasoning-gym and what forks
    processes or hears them import it."""
    inside = {module for module in MODULES if module.startswith("marl_plugins.sandbox")}
    used = {name for module in inside for name in imported(MODULES[module])} - inside
    assert {name.split(".")[1] for name in used} == {"core"}
    assert {m for m, file in MODULES.items() if imported(file) & inside} - inside == {
        "marl_plugins.builtin.agents.isolation",
        "marl_plugins.builtin.agents.launcher",
        "marl_plugins.builtin.agents.programs",
        "marl_plugins.builtin.agents.workflow",
        "marl_plugins.builtin.cases.gym",
        "marl_plugins.builtin.tools.mcp.servers",
        "marl_plugins.builtin.tools.python",
        "marl_plugins.engine.hosts.cpu",
        "marl_plugins.engine.processes.engine_actor",
        "marl_plugins.engine.processes.fork_server",
    }


def test_there_is_no_circle():
    graph = {module: imported(file) for module, file in MODULES.items()}
    done: set[str] = set()

    def visit(module, trail):
        assert module not in trail, " -> ".join([*trail[trail.index(module) :], module])
        if module not in done:
            for other in sorted(graph.get(module, ())):
                visit(other, [*trail, module])
            done.add(module)

    for module in graph:
        visit(module, [])


PUBLIC = {"grading", "sandbox", "asking", "contracts"}
"""Libraries, which recipes and plugins import beside what the package itself offers."""
INSIDE = {
    "adapters",
    "process_groups",
    "streaming",
    "determinism",
    "coach/corrections.py",
    "coach/lessons.py",
    "coach/members.py",
    "coach/programs.py",
    "coach/rejudge.py",
    "coach/tables.py",
}
"""Plugins and files of plugins that work inside the training processes, or on plans and records:
a line `# inside: ...` above the import says so."""


def users():
    """The files that are to import the public names alone: recipes, examples and named plugins;
    each with its plugin."""
    for folder in ("recipes", "examples", "tests/recipes"):
        files = sorted((PACKAGE.parent / folder).rglob("*.py"))
        yield from ((path, "") for path in files if "venv" not in path.parts)  # of environments
    plugins = {name.removeprefix("marl_plugins.") for name in SHIPPED}
    for file, path in FILES.items():
        part = file.split("/")[0].removesuffix(".py")
        if part in plugins - INSIDE and file not in INSIDE:
            yield path, part


def test_recipes_examples_and_plugins_import_the_public_names_alone():
    others = [
        f"{path}:{node.lineno}: {module}.{name}"
        for path, own in users()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Import | ast.ImportFrom)
        for module, name in (
            [(node.module or "", alias.name) for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else [(alias.name, "") for alias in node.names]
        )
        if f"{module}.".startswith("marl_plugins.")
        and not (module == "marl_plugins" and name in marl_plugins.__all__)
        and module.split(".")[1:2] not in [[part] for part in (*PUBLIC, own)]
    ]
    assert not others


def test_the_public_names_are_few_and_lie_where_the_package_says():
    """Read, not imported: some need Ray."""
    assert len(marl_plugins.__all__) <= 90
    assert set(marl_plugins.__all__) == {"applies_if", "hookimpl", *marl_plugins.MODULE_OF}
    for_checkers = {
        (alias.name, node.module)
        for node in ast.walk(tree_of("__init__.py"))
        if isinstance(node, ast.ImportFrom) and node.col_offset
        for alias in node.names
    }
    assert for_checkers == set(marl_plugins.MODULE_OF.items())
    for name, module in marl_plugins.MODULE_OF.items():
        tree = tree_of(MODULES[module])
        bound = {node.name for node in tree.body if hasattr(node, "name")}
        assert name in bound | {bound for bound, _ in module_names(tree)}, name


def module_names(tree):
    """Names bound at the top of a module, with the value."""
    for node in tree.body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value


def test_a_run_is_as_it_was_after_it_was_planned_rehearsed_and_described():
    """What the syntax cannot show: nobody changes the flags below a run through another name."""
    plan = build_plan(["--recipe", "mathchat/tiny.yaml"])
    before = copy.deepcopy(
        (plan.run.args, dict(plan.run.policy_args), plan.run.policies, plan.run.recipe)
    )
    describe(plan)
    fingerprint(plan)
    check_workflow(plan)
    only_players(plan.run)
    assert before == (plan.run.args, dict(plan.run.policy_args), plan.run.policies, plan.run.recipe)


def called(call):
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def test_a_role_meets_its_policy_in_one_place():
    """A plan asks the recipe for the policy of a role; a run asks its cast, on each task
    (`engine/runtime/roles.py`)."""
    asking = [
        f"{file}:{node.lineno}"
        for file in FILES
        if file.startswith(("engine/runtime/", "engine/processes/", "engine/records/"))
        and file != "engine/runtime/roles.py"
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Attribute) and node.attr == "policies_of"
    ]
    assert not asking


def test_no_identity_is_a_key():
    """Actions, rows and trajectories are equal to themselves alone, and can be keys."""
    files = {
        file
        for file, node in nodes_of_all()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id"
    }
    assert files <= BY_IDENTITY.keys()


def test_only_the_plan_changes_a_run():
    """A `Run` is frozen; nobody changes what hangs below one either."""
    changed = [
        f"{file}:{node.lineno}"
        for file, node in nodes_of_all()
        if not file.startswith("engine/plan/")
        if isinstance(node, ast.Attribute | ast.Subscript)
        and isinstance(node.ctx, ast.Store | ast.Del)
        if "run" in ast.unparse(node).split("[")[0].split(".")[:-1]
        and ".state(" not in ast.unparse(node)
    ]
    assert not changed
