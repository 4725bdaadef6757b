"""The structure of the package: one direction of imports, no state of modules, functions and classes that fit on a page."""

import ast
import copy
import functools
from collections import defaultdict
from pathlib import Path

from marl_plugins.builtin.rehearsal import check_workflow
from marl_plugins.commands.evaluate import only_players
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.fingerprint import fingerprint

PACKAGE = Path(__file__).resolve().parent.parent / "marl_plugins"
ORDER = (
    ("core",),
    ("grading",),
    ("sandbox",),
    ("hosts",),
    ("plugin_names",),
    ("loading",),
    ("hook_faults",),
    ("run",),
    ("hookspecs",),
    ("plugin_checks",),
    ("manager",),
    ("plan",),
    ("processes",),
    ("records",),
    ("runtime",),
    ("asking",),
    (
        "routing",
        "reinforce_pp",
        "groups",
        "gae",
        "rae",
        "opponent_pool",
        "balance",
        "streaming",
        "process_groups",
        "adapters",
        "flat_sync",
        "corrections",
        "filter_agents_data",
        "coach",
        "graph",
        "cases",
        "agents",
        "reward_backprop",
        "rewards",
        "cooperation",
        "competence",
        "mean_group",
        "replay",
        "transfer",
        "curriculum",
        "filtering",
        "ema",
        "reward_model",
        "swarm",
        "continuous",
        "old_logprobs",
        "builtin",
        "tools",
        "viewer",
    ),
    ("contracts",),
    ("commands",),
    ("upstream_ci",),
    ("cli", "__main__"),
)
"""Folders and modules of the package, each importing only from its own line and from those above it."""
LONGEST_FUNCTION, LONGEST_CLASS = 80, 180
"""Lines. A class of 200 is a page; at 180 it is split while a correction still fits."""
MOST_ANY = 69
"""How often runtime/ and processes/ say `Any`; 120 is the limit that was agreed, and nothing lets it grow again."""
BY_IDENTITY = {
    "core/fields.py": "values of a workflow's call, of any type, in which actions are looked for once",
    "adapters/worker.py": "what `copy.deepcopy` is not to copy, which it knows by that",
}
"""Files that know objects by `id()`, and why these cannot be keys themselves."""
LONGER: dict[str, str] = {"contracts/__init__.py PluginContract": "one test for each promise of a plugin"}
"""Functions and classes that may be longer, and why."""
STATE: dict[str, str] = {
    "engine/processes/engines.py _STARTING": "a lock: upstream's module is substituted for the whole process while engines start",
}
"""Module-level objects that change, and why."""
CACHES = {
    "grading/math_verify.py helper": "the process that runs math-verify, for all graders of this process",
    "builtin/cases/gym.py _apart": "the sandbox with reasoning-gym, for all cases and graders of this process",
    "sandbox/levels.py examine": "what isolation this machine has: programs get the level that the plan named",
    "asking/marked_answers.py line_patterns": "compiled patterns",
    "engine/hosts/upstream_cli.py upstream_root": "where a package is installed",
    "engine/hosts/upstream_cli.py upstream_version": "the release that is installed",
    "engine/hosts/upstream_cli.py _main_block": "a file's statements, compiled",
    "engine/hosts/upstream_cli.py _hierarchize": "a function of upstream's",
    "commands/doctor/versions.py read_pins": "a shipped file",
    "engine/plan/fingerprint.py _one_of": "compiled patterns",
    "engine/plan/fingerprint.py _real": "where the file of a loaded module is",
    "engine/plan/fingerprint.py _real_folder": "where a folder of loaded modules is",
}
"""Functions whose results are kept, and what these are: nothing that a run can change."""
INDIRECT = {
    "builtin/agents/launcher.py",
    "cli.py",
    "manager.py",
    "commands/__init__.py",
    "loading.py",
    "engine/processes/cluster.py",
    "sandbox/fork_server.py",
}
"""Modules that import others by name, because a user or a table names them."""
CHANGES = {"append", "add", "update", "pop", "popitem", "clear", "extend", "setdefault", "remove", "insert", "discard"}

FILES = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py")) if "data" not in path.parts}


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
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("marl_plugins"):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else node.module for name in names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("marl_plugins")]
        found.update(name for name in names if name not in ("marl_plugins", module_of(file)))
    return found


def level(module):
    part = module.split(".")[1]
    return next(n for n, line in enumerate(ORDER) if part in line)


def test_every_folder_has_its_place():
    assert {m.split(".")[1] for m in MODULES if "." in m} == {part for line in ORDER for part in line}


def test_no_import_goes_against_the_order():
    """No file imports what comes later in ORDER."""
    files = [file for file in FILES if file != "__init__.py"]
    assert not [(file, name) for file in files for name in imported(file) if level(name) > level(module_of(file))]


def test_imports_can_be_seen():
    """None is relative, and modules are imported by a name in a variable only where a user or a table names them."""
    indirect = (*INDIRECT, "hosts/", "upstream_ci/", "commands/doctor/")
    for file, node in nodes_of_all():
        assert not (isinstance(node, ast.ImportFrom) and node.level), f"{file}:{node.lineno}: a relative import"
        if isinstance(node, ast.Call) and called(node) in ("import_module", "__import__"):
            assert file.startswith(indirect), f"{file}:{node.lineno}"


def plugin_of(module):
    """The plugin that a module belongs to; empty for the rest of the package."""
    _, part, *below = module.split(".")
    if part not in next(line for line in ORDER if "coach" in line):
        return ""
    return ".".join([part, *below[:1]]) if part in ("tools", "builtin") else part


def test_plugins_know_nothing_of_each_other():
    pairs = {(plugin_of(m), plugin_of(name)) for m, f in MODULES.items() if "." in m for name in imported(f)}
    assert not {(a, b) for a, b in pairs if a and b and a != b}


def test_the_sandbox_is_as_if_it_came_from_outside():
    """It imports the core alone, and the tool `python` and the cases of reasoning-gym alone import it."""
    inside = {module for module in MODULES if module.startswith("marl_plugins.sandbox")}
    used = {name for module in inside for name in imported(MODULES[module])} - inside
    assert {name.split(".")[1] for name in used} == {"core"}
    assert {m for m, file in MODULES.items() if imported(file) & inside} - inside == {
        "marl_plugins.builtin.cases.gym",
        "marl_plugins.tools.python",
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


def test_the_contract_imports_the_core_and_the_run_alone():
    assert {name.split(".")[1] for name in imported("hookspecs.py")} == {"core", "run"}


def test_nothing_is_global():
    assert not [f"{file}:{node.lineno}" for file, node in nodes_of_all() if isinstance(node, ast.Global)]


def module_names(tree):
    """Names bound at the top of a module, with the value."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        for target in targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value


def changing(file):
    """Names at the top of a module whose objects are instances without arguments, or are changed by a function."""
    tree = tree_of(file)
    names = dict(module_names(tree))
    found = {
        name
        for name, value in names.items()
        if isinstance(value, ast.Call) and not value.args and not value.keywords and called(value).lstrip("_")[:1].isupper()
    }
    for function in (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)):
        local = {n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        local |= {a.arg for a in ast.walk(function) if isinstance(a, ast.arg)}
        for node in ast.walk(function):
            if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
                found.update({root(node)} & names.keys() - local)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
                found.update({root(node.func)} & names.keys() - local)
    return found


def test_no_module_has_state():
    """What changes while the program runs is kept in the run (run.state) or in a class."""
    assert not {f"{file} {name}" for file in FILES for name in changing(file)} - STATE.keys()


def test_only_what_a_run_cannot_change_is_cached():
    cached = {
        f"{file} {node.name}"
        for file, node in nodes_of_all()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if any(ast.unparse(d).split("(")[0].split(".")[-1] in ("cache", "lru_cache") for d in node.decorator_list)
    }
    assert not cached - CACHES.keys()


def test_a_run_is_as_it_was_after_it_was_planned_rehearsed_and_described():
    """What the syntax cannot show: nobody changes the flags below a run through another name."""
    plan = build_plan(["--recipe", "mathchat/tiny.yaml"])
    before = copy.deepcopy((plan.run.args, dict(plan.run.policy_args), plan.run.policies, plan.run.recipe))
    describe(plan)
    fingerprint(plan)
    check_workflow(plan, ["python"])
    only_players(plan.run)
    assert before == (plan.run.args, dict(plan.run.policy_args), plan.run.policies, plan.run.recipe)


def called(call):
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def root(node):
    """The name that an attribute or element belongs to; empty where it is the result of a call."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def test_only_the_plan_changes_a_run():
    """A `Run` is frozen; nobody changes what hangs below one either."""
    changed = [
        f"{file}:{node.lineno}"
        for file, node in nodes_of_all()
        if not file.startswith("plan/")
        if isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del)
        if "run" in ast.unparse(node).split("[")[0].split(".")[:-1] and ".state(" not in ast.unparse(node)
    ]
    assert not changed


def test_functions_and_classes_fit_on_a_page():
    long = defaultdict(int)
    for file in FILES:
        for node in ast.walk(tree_of(file)):
            limit = LONGEST_CLASS if isinstance(node, ast.ClassDef) else LONGEST_FUNCTION
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                lines = node.end_lineno - node.lineno + 1
                if lines > limit:
                    long[f"{file} {node.name}"] = lines
    assert long.keys() == LONGER.keys(), dict(long)


def test_every_argument_of_a_test_is_used():
    """What is parametrised and not used is not tested; a fixture that is there for what it does is named by `usefixtures`."""
    unused = [
        f"{path.name}:{test.lineno} {test.name}: {argument.arg}"
        for path in sorted(Path(__file__).parent.rglob("*.py"))
        for test in ast.walk(ast.parse(path.read_text()))
        if isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef) and test.name.startswith("test_")
        for argument in test.args.args
        if argument.arg
        not in {"self"} | {node.id for line in test.body for node in ast.walk(line) if isinstance(node, ast.Name)}
    ]
    assert not unused


def test_a_role_meets_its_policy_in_one_place():
    """A plan asks the recipe for the policy of a role; a run asks its cast, on each task (`engine/runtime/roles.py`)."""
    asking = [
        f"{file}:{node.lineno}"
        for file in FILES
        if file.split("/")[0] in ("runtime", "processes", "records") and file != "engine/runtime/roles.py"
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Attribute) and node.attr == "policies_of"
    ]
    assert not asking


def test_any_becomes_no_more():
    """Upstream, Ray and vLLM ship no types that hold; what takes their objects names their classes all the same."""
    used = [
        f"{file}:{node.lineno}"
        for file, node in nodes_of_all()
        if file.startswith(("runtime/", "processes/"))
        if isinstance(node, ast.Name) and node.id == "Any"
    ]
    assert len(used) <= MOST_ANY, "name the class, or a protocol of it"


def test_no_identity_is_a_key():
    """Actions, rows and trajectories are equal to themselves alone, and can be keys."""
    files = {
        file
        for file, node in nodes_of_all()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "id"
    }
    assert files <= BY_IDENTITY.keys()
