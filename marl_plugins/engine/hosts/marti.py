"""Finds out which MARTI a checkout is, whether it has the expected seams, and which known defects
it has.

MARTI-v2 (package `marti`) is a fork of OpenRLHF with its own multi-agent trainer. MARTI v0.1, on
which MAPPA's repository is built, is another program with the same name; only its file formats
matter here (`openrlhf recipes import`). Nothing is
imported from a checkout: its files are parsed.

Defects are detected in the code, not by checksums: a checkout that fixed one in another way counts
as fixed.
"""

from __future__ import annotations

import ast
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import Finding, error, note, ok
from marl_plugins.engine.hosts.seams import Seam, check_seams, syntax_tree

V2, V01, MAPPA = "marti v2", "marti v0.1", "mappa"

SEAMS = (
    Seam("cli.multi_agent_train_ppo_ray", "train", "args", "starts all agents"),
    Seam(
        "cli.multi_agent_train_ppo_ray",
        "init_agent",
        "agent_id, agent_config, global_config, strategy, pg_id, unified_pg_list, global_seed, "
        "max_steps",
        "engines, policy and reference of one agent",
    ),
    Seam(
        "cli.multi_agent_train_ppo_ray",
        "Agent.save_actor_and_critic_model",
        "self",
        "saves one agent (M16)",
    ),
    Seam(
        "cli.multi_agent_train_ppo_ray",
        "Agent.get_metadata",
        "self",
        "what a workflow knows about an agent",
    ),
    Seam(
        "trainer.multi_agent_ppotrainer",
        "MultiAgent_PPOTrainer.__init__",
        "self, pretrain, strategy, agent_list, prompt_max_len, dataloader_pin_memory, "
        "prompt_split, eval_split",
        "the controller of all agents",
    ),
    Seam(
        "trainer.multi_agent_ppotrainer",
        "MultiAgent_PPOTrainer.fit",
        "self",
        "the training loop (M1, M5)",
    ),
    Seam(
        "trainer.multi_agent_ppotrainer",
        "MultiAgent_PPOTrainer.ppo_train",
        "self, global_steps",
        "updates all agents (M1)",
    ),
    Seam(
        "trainer.ppo_utils.multi_agent_samples_generator",
        "MultiAgentSamplesGenerator.get_rank_agent",
        "self, rank, world_size, is_eval",
        "the agents that workflows receive",
    ),
    Seam(
        "trainer.ppo_utils.multi_agent_samples_generator",
        "MultiAgentSamplesGenerator.prepare_samples",
        "self, all_trajectories, truncate_length, is_eval",
        "turns of trajectories to training samples",
    ),
    Seam(
        "trainer.ppo_utils.multi_agent_experience_maker",
        "MultiAgent_RemoteExperienceMaker.make_experience",
        "self, samples_list",
        "groups samples by agent",
    ),
    Seam(
        "trainer.ppo_utils.multi_agent_experience_maker",
        "MultiAgent_RemoteExperienceMaker.get_agent_experiences",
        "self, samples_list",
        "one list of samples per agent (M5)",
    ),
    Seam(
        "agent_workflows.workflow_wrapper",
        "MultiAgentWrapper.add_requests",
        "self, prompts, labels, metadatas, max_length, is_eval, tool_manager",
        "calls the workflow",
    ),
    Seam(
        "agent_workflows.mathchat_workflow",
        "workflow",
        "prompt, label, agents, tool_manager, task, metadata",
        "solver, coder, refiner (M8)",
    ),
    Seam(
        "agent_workflows.chain_processor",
        "processor",
        "trajectories, num_agents, global_args",
        "shapes rewards of a chain",
    ),
    Seam(
        "agent_workflows.debate_processor",
        "processor",
        "trajectories, num_agents, global_args",
        "shapes rewards of a debate",
    ),
    Seam(
        "agent_workflows.tools.manager",
        "ToolManager.execute_tool",
        "self, tool_name, parameters",
        "tool calls",
    ),
    Seam(
        "agent_workflows.tools.sandbox",
        "SandboxFusionExecutor.execute",
        "self, parameters",
        "names a run's status (M8)",
    ),
    Seam(
        "trainer.ray.launcher",
        "RayActorGroup.async_run_method",
        "self, method_name",
        "calls on all ranks of an agent",
    ),
    Seam("trainer.ray.ppo_actor", "PolicyModelActor.save_model", None, "an agent's weights (M16)"),
    Seam("trainer.ray.ppo_critic", "CriticModelActor.save_model", None, "a critic's weights (M16)"),
)

CONTRACT = (
    "prompt",
    "label",
    "agents",
    "metadata",
    "tool_manager",
    "workflow_args",
    "max_length",
    "is_eval",
    "prompt_id",
    "agent_step",
)
"""The keywords with which MARTI-v2 calls a workflow."""

FLAGS = (
    "--agents",
    "--default_agent",
    "--shared_agents",
    "--workflow_args",
    "--workflow_func_path",
    "--processor_func_path",
)
"""The multi-agent flags that `openrlhf recipes import` reads."""


class Defect(NamedTuple):
    """A known defect of MARTI-v2; `present` detects it in the syntax trees of `files`, None: the
    place does not exist."""

    name: str
    files: tuple[str, ...]
    symptom: str
    present: Callable[..., bool | None]


def recognise(root: Path) -> str | None:
    """Returns `V2`, `V01` or `MAPPA` by layout and `version.txt`; None for anything else."""
    package = _package(root)
    if package is None:
        return None
    version = package.parent / "version.txt"
    stated = (
        version.read_text(encoding="utf-8", errors="replace").strip() if version.is_file() else ""
    )
    if (package / "trainer/multi_agent_ppotrainer.py").is_file() and (
        package / "agent_workflows"
    ).is_dir():
        return V2 if not stated or stated.split(".")[0] == "2" else None
    if (package / "controllers/multi_agent_controller.py").is_file() and (
        package / "worlds"
    ).is_dir():
        return MAPPA if (package / "verifiers/coach").is_dir() else V01
    return None


def check(root: Path) -> list[Finding]:
    """Returns all that can be found out without running a checkout; `root` contains the package
    `marti`, or is it."""
    host = recognise(root)
    package = _package(root)
    if host is None or package is None:
        found = (
            f"{root} is not a known MARTI checkout: neither v2's layout with version.txt 2.x "
            "nor v0.1's"
        )
        return [error("marti", found, "name the folder that contains version.txt and marti/")]
    if host != V2:
        name = "MAPPA's repository, built on MARTI v0.1" if host == MAPPA else "MARTI v0.1"
        found = (
            f"{name}: only importing is supported; its trainer shares nothing with MARTI-v2's, "
            "so nothing is checked"
        )
        return [note("marti", found, "openrlhf recipes import CONFIG.yaml --to FOLDER")]
    findings = [ok("marti", f"MARTI-v2 in {package}")]
    gone = [
        *check_seams(package, SEAMS, "marti"),
        *_check_contract(package),
        *_check_flags(package),
    ]
    findings += [error("seams", problem, "check out MARTI main at a2fe2c7") for problem in gone]
    if not gone:
        findings.append(
            ok("seams", f"all {len(SEAMS)} known places, the workflow contract and the flags exist")
        )
    return findings + [_check_defect(defect, package) for defect in DEFECTS]


def _package(root: Path) -> Path | None:
    """The package folder of a checkout."""
    for folder in (root / "marti", root):
        if folder.name == "marti" and folder.is_dir():
            return folder
    return None


def _check_defect(defect: Defect, package: Path) -> Finding:
    trees = [_parse(package / file) for file in defect.files]
    present = defect.present(*trees) if all(trees) else None
    if present is None:
        where = ", ".join(defect.files)
        return note(
            defect.name, f"cannot tell whether {defect.symptom}: {where} has an unknown form"
        )
    if present:
        found = f"{defect.symptom} ({defect.files[0]})"
        return error(
            defect.name,
            found,
            f"openrlhf patch apply {defect.name} --to {shlex.quote(str(package.parent))}",
        )
    return ok(defect.name, f"fixed; it was: {defect.symptom}")


def _check_contract(package: Path) -> list[str]:
    """Returns what is wrong with how workflows are called."""
    tree = _parse(package / "agent_workflows/workflow_wrapper.py")
    for node in ast.walk(tree) if tree else ():
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "self.workflow_func":
            passed = {keyword.arg for keyword in node.keywords}
            return [
                f"workflows are no longer called with {name!r}"
                for name in CONTRACT
                if name not in passed
            ]
    return (
        ["marti.agent_workflows.workflow_wrapper no longer calls self.workflow_func"]
        if tree
        else []
    )


def _check_flags(package: Path) -> list[str]:
    tree = _parse(package / "cli/multi_agent_train_ppo_ray.py")
    if tree is None:
        return []
    found = {
        node.args[0].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "add_argument"
        and node.args
        and isinstance(node.args[0], ast.Constant)
    }
    return [
        f"marti.cli.multi_agent_train_ppo_ray no longer has the flag {flag}"
        for flag in FLAGS
        if flag not in found
    ]


def _parse(path: Path) -> ast.Module | None:
    """The syntax tree of a file; None if it is missing or not Python, which the seams report."""
    try:
        return syntax_tree(path)
    except ConfigurationError:
        return None


def _find_function(tree: ast.Module, name: str) -> ast.FunctionDef | ast.AsyncFunctionDef | None:
    """A function of a module, or of a class of it (`Class.method`)."""
    body = tree.body
    *classes, last = name.split(".")
    for wanted in classes:
        body = next((n.body for n in body if isinstance(n, ast.ClassDef) and n.name == wanted), [])
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == last:
            return node
    return None


def _trains_no_agent(tree: ast.Module) -> bool | None:
    """Returns the defect that without filtering only None is assigned to `self.pass_rate`, which
    `ppo_train` reads."""
    fit = _find_function(tree, "MultiAgent_PPOTrainer.fit")
    train = _find_function(tree, "MultiAgent_PPOTrainer.ppo_train")
    if fit is None or train is None:
        return None
    read = any(
        isinstance(n, ast.Compare) and ast.unparse(n.left).startswith("self.pass_rate[")
        for n in ast.walk(train)
    )
    values = [
        node.value
        for node in ast.walk(fit)
        if isinstance(node, ast.Assign)
        and any(ast.unparse(target) == "self.pass_rate" for target in node.targets)
    ]
    return read and bool(values) and all(_only_none(value) for value in values)


def _only_none(value: ast.expr) -> bool:
    """`[None for ...]` or `[None] * n`."""
    match value:
        case (
            ast.ListComp(elt=ast.Constant(value=None))
            | ast.BinOp(left=ast.List(elts=[ast.Constant(value=None)]))
        ):
            return True
    return False


def _shifts_agents(tree: ast.Module) -> bool | None:
    """The lists are built from the existing groups instead of from all agents."""
    function = _find_function(tree, "MultiAgent_RemoteExperienceMaker.get_agent_experiences")
    if function is None:
        return None
    return any("self.groups" in ast.unparse(loop) for loop in _loops(function))


def _loops(function: ast.AST) -> Iterator[ast.expr]:
    for node in ast.walk(function):
        if isinstance(node, ast.For | ast.comprehension):
            yield node.iter


def _misreads_status(tree: ast.Module) -> bool | None:
    """Reads `response_metadata["status"]`, which the sandbox does not return, or writes a box
    without braces."""
    function = _find_function(tree, "workflow")
    if function is None:
        return None
    for node in ast.walk(function):
        match node:
            case ast.Subscript(
                value=ast.Name(id="response_metadata"), slice=ast.Constant(value="status")
            ):
                return True
            case ast.JoinedStr(
                values=[ast.Constant(value=str(text)), ast.FormattedValue(), *_]
            ) if text.endswith("\\boxed"):
                return True
    return False


def _saves_to_one_folder(actor: ast.Module, cli: ast.Module) -> bool | None:
    """`save_model` passes the global path on, or a path of its caller's, which passes none."""
    function = _find_function(actor, "PolicyModelActor.save_model")
    caller = _find_function(cli, "Agent.save_actor_and_critic_model")
    if function is None or caller is None:
        return None
    calls = [
        n
        for n in ast.walk(function)
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "self.strategy.save_model"
    ]
    if any(ast.unparse(argument) == "args.save_path" for call in calls for argument in call.args):
        return True
    return len(function.args.args) > 1 and any(
        isinstance(n, ast.Call) and ast.unparse(n) == "self.actor_model_group.async_save_model()"
        for n in ast.walk(caller)
    )


DEFECTS = (
    Defect(
        "M1",
        ("trainer/multi_agent_ppotrainer.py",),
        "no agent is trained unless --dynamic_filtering_for_agents is given",
        _trains_no_agent,
    ),
    Defect(
        "M5",
        ("trainer/ppo_utils/multi_agent_experience_maker.py",),
        "an agent without samples shifts later agents' samples to the wrong models",
        _shifts_agents,
    ),
    Defect(
        "M8",
        ("agent_workflows/mathchat_workflow.py",),
        "in MathChat the result of every program reads ERROR",
        _misreads_status,
    ),
    Defect(
        "M16",
        ("trainer/ray/ppo_actor.py", "cli/multi_agent_train_ppo_ray.py"),
        "the agents' final weights overwrite each other",
        _saves_to_one_folder,
    ),
)
