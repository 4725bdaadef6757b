"""Checks of the files of a recipe and of its run, and of whether somebody scores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from marl_plugins.core.cases import CaseSection
from marl_plugins.core.demonstrations import WarmStartConfig
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.loading import load_file
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.recipe_yaml import Origins
from marl_plugins.core.recipe.sources import Source, sources_of, split_of, unsaid
from marl_plugins.core.recipe.tasks import SUFFIXES
from marl_plugins.core.run import Run
from marl_plugins.engine.plan.describe import flag_value
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.resolve_plugins import arity_problem
from marl_plugins.engine.plan.workflow_file import workflow_of

ARGUMENTS: Mapping[str, Sequence[str]] = MappingProxyType(
    {"tasks": ("split",), "demonstrations": ("task", "rng")}
)
"""What the recipe's plain functions are called with; workflow and grader are called once in the
rehearsal."""
OF_THE_RUN = ("run", "best", "best.new", "best.old", "ema")
"""Folders in `--ckpt.output_dir` in addition to those of the policies."""
NOT_READ = (".txt", ".tsv", ".arrow", ".xlsx", ".yaml", ".gz", ".zip")
"""Kinds of data files that are met; a hub's name may end with a dot and something else."""


def check_files(plan: Plan, origins: Origins) -> list[Problem]:
    """Returns the recipe's Python files, who scores, flags that the recipe makes pointless, and
    folders to write to."""
    return [
        *_modules(plan, origins),
        *_scorers(plan),
        *_pointless(plan),
        *_data(plan),
        *_reward_function(plan),
        *_folders(plan),
    ]


def check_workflow_file(plan: Plan, origins: Origins) -> list[Problem]:
    """Returns what is wrong with a workflow that is no Python, which a plugin reads; the run's
    tools are known."""
    if plan.run.recipe.workflow.endswith(".py"):
        return []
    try:
        workflow_of(plan.plugins, plan.run)
    except ConfigurationError as error:
        where = origins.where("workflow")
        return [
            p if p.names("line") or p.names("key") else p.within(line=where, key="workflow")
            for p in error.problems
        ]
    return []


def _modules(plan: Plan, origins: Origins) -> Iterator[Problem]:
    run, recipe = plan.run, plan.run.recipe
    warm = run.section(WarmStartConfig)
    files: list[tuple[str, str, str | None, str]] = [
        ("workflow", "workflow", recipe.workflow, "run"),
        ("grader", "grader", recipe.grader, "score_outcome"),
        ("tasks", "tasks", recipe.tasks, "load"),
        (
            "warm_start.demonstrations",
            "demonstrations",
            warm.demonstrations if warm else None,
            "demonstrate",
        ),
    ]
    for place, key, file, function in files:
        if file is None or (
            key == "workflow" and (plan.plugins.claims("marl_workflow") or not file.endswith(".py"))
        ):
            continue
        where = origins.where(*place.split(".")) if origins.lines else str(run.folder / file)
        try:
            module = getattr(run, f"{key}_module")
        except ConfigurationError as error:
            yield from [p.within(line=where, key=place) for p in error.problems]
            continue
        called = getattr(module, function, None)
        if not callable(called):
            yield Problem(
                "files.no_function",
                at(line=where, key=place),
                f"{run.folder / file} has no function {function}",
            )
        elif key in ARGUMENTS:
            yield from [
                p.within(key=place) for p in _signature_problems(called, function, ARGUMENTS[key])
            ]


def _signature_problems(called: Any, name: str, arguments: Sequence[str]) -> list[Problem]:
    """Returns why a recipe's function cannot be called as it will be, with its file and line."""
    wrong = arity_problem(called, len(arguments))
    return [replace(wrong, fix=f"{name} is called with {', '.join(arguments)}")] if wrong else []


def _scorers(plan: Plan) -> Iterator[Problem]:
    run = plan.run
    outcomes = (
        run.recipe.grader
        or run.args.reward.remote_url
        or plan.plugins.claims("marl_score_outcome", run)
    )
    if not (outcomes or run.section(CaseSection) or plan.plugins.claims("marl_score_action", run)):
        yield Problem(
            "scores.none",
            got="nothing scores the agents",
            fix="give the recipe a grader, --reward.remote_url file.py, "
            "--reward.model_name_or_path, or a coach plugin",
        )
    if run.args.eval.dataset and not outcomes:
        yield Problem(
            "scores.evaluation",
            at(flag="eval.dataset"),
            "nothing scores outcomes, so an evaluation has nothing to count",
            fix="give the recipe a grader or --reward.remote_url file.py",
        )


def _pointless(plan: Plan) -> Iterator[Problem]:
    run, recipe = plan.run, plan.run.recipe
    model = None if "actor.model_name_or_path" in run.on_command_line else recipe.model
    for flag, key, value in (
        ("data.prompt_dataset", "tasks", recipe.tasks),
        ("data.prompt_split", "tasks", recipe.tasks),
        ("data.prompt_probs", "tasks", recipe.tasks),
        ("reward.remote_url", "grader", recipe.grader),
        ("actor.model_name_or_path", "model", model),
    ):
        if value and flag in run.given:
            got = f"would have no effect: the recipe has `{key}: {value}`"
            yield Problem("flags.pointless", at(flag=flag), got, fix="remove one of the two")
    if (
        not recipe.tasks
        and not run.args.data.prompt_dataset
        and not plan.plugins.claims("marl_tasks", run)
    ):
        fix = "give the recipe `tasks:`, or --data.prompt_dataset FILE"
        yield Problem("tasks.none", got="there are no tasks", fix=fix)


def _data(plan: Plan) -> Iterator[Problem]:
    """Data files of a kind that is not read, paths that are no file and no name of the hub's, and
    what is wrong with how they are named."""
    run = plan.run
    for split, flag in (("train", "data.prompt_dataset"), ("eval", "eval.dataset")):
        text = "" if split == "train" and run.recipe.tasks else flag_value(run.args, flag)
        if not text or plan.plugins.claims("marl_tasks", run):
            continue
        for source in sources_of(text, flag):
            yield from _source(run, source, split, flag)


def _source(run: Run, source: Source, split: str, flag: str) -> list[Problem]:
    name, where = source.path, at(flag=flag, file=source.path)
    if source.is_file:
        fix = "correct the path"
        missing = Problem("tasks.no_file", where, "no such file", fix=fix)
        return [] if Path(name).exists() else [missing]
    if (Path(name).exists() and not Path(name).is_dir()) or Path(name).suffix in NOT_READ:
        got = f"of files only {', '.join(SUFFIXES)} are read"
        return [Problem("tasks.kind", where, got, fix="convert it to .jsonl")]
    if source.is_elsewhere and (name.startswith((".", "/", "~")) or name.count("/") > 1):
        got = "no such file or folder, and not a name of the hub's (owner/name)"
        return [Problem("tasks.no_file", where, got, fix="correct the path")]
    if source.is_elsewhere and not split_of(run, source, split):  # others are read in the plan
        return [unsaid(source, flag)]
    return []


def _reward_function(plan: Plan) -> list[Problem]:
    remote = plan.run.args.reward.remote_url
    if not remote:
        return []
    if not (remote.endswith(".py") and Path(remote).is_file()):
        got = f"{remote}: only a .py file with reward_func(queries, prompts, labels) that exists"
        return [Problem("reward.file", at(flag="reward.remote_url"), got)]
    try:
        module = load_file(Path(remote))
    except ConfigurationError as error:
        return [p.within(flag="reward.remote_url") for p in error.problems]
    function = getattr(module, "reward_func", None)
    if callable(function):
        wrong = _signature_problems(function, "reward_func", ("queries", "prompts", "labels"))
        return [problem.within(flag="reward.remote_url") for problem in wrong]
    got = f"{remote}: has no function reward_func(queries, prompts, labels)"
    return [Problem("reward.no_function", at(flag="reward.remote_url"), got)]


def _folders(plan: Plan) -> Iterator[Problem]:
    output, saved = (
        Path(flag_value(plan.run.args, flag)).absolute()
        for flag in ("ckpt.output_dir", "ckpt.path")
    )
    own = [output / name for name in OF_THE_RUN]
    for policy in plan.run.policies:
        if (weights := output / policy.name) in (*own, saved):
            got = f"its weights would lie in {weights}, where the run keeps something else"
            yield Problem("files.taken", at(policy=policy.name), got, fix="rename it")
    if any(saved.is_relative_to(folder) for folder in own):
        got = f"{saved}: the run keeps something else in this folder"
        yield Problem("files.taken", at(flag="ckpt.path"), got, fix="choose another")
    folders = {"ckpt.output_dir": output}
    if "ckpt.path" in plan.run.given:  # else it lies in the other one
        folders["ckpt.path"] = saved
    for flag, folder in folders.items():
        if not writable(folder):
            where, got = at(flag=flag, folder=folder), "no file can be created there"
            yield Problem("files.unwritable", where, got, fix="name another folder")


def writable(folder: Path) -> bool:
    """Returns whether files can be created in a folder, which may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
