"""`openrlhf eval`: any models on a recipe's held-out tasks, without training. Engines only."""

from __future__ import annotations

import asyncio
import copy
import json
import tempfile
from argparse import Namespace
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from marl_plugins.commands.train import print_plan
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at, meant
from marl_plugins.core.run import Run
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser
from marl_plugins.engine.plan.build import build_plan, use_engines_only
from marl_plugins.engine.plan.describe import first_lines
from marl_plugins.engine.plan.flags import COMMAND_LINE, split_flags
from marl_plugins.engine.plan.plan import Plan
from marl_plugins.engine.plan.resume import COMMAND_FILE
from marl_plugins.engine.plan.tasks import from_hub
from marl_plugins.engine.records.display import Display

if TYPE_CHECKING:
    from marl_plugins.core.trajectory import Trajectory
    from marl_plugins.engine.runtime.session import Session

T = TypeVar("T")

TRAINING = ("resume", "resume_with_changes")
"""Flags of `openrlhf train` that would do nothing here."""
NO_TASKS = Problem(
    "tasks.none_held_out",
    got="there are no held-out tasks: the recipe's `tasks:` gives none for eval, nor "
    "--eval.dataset",
)


def parser() -> UpstreamParser:
    """Returns the flags of `openrlhf eval` that `openrlhf train` does not have."""
    own = UpstreamParser(prog="openrlhf eval", add_help=False, allow_abbrev=False)
    own.usage = (
        "openrlhf eval --recipe RECIPE [--models FOLDER [--only NAME ...]] [flags of "
        "openrlhf train]"
    )
    own.description = "Success of a recipe's system on its held-out tasks, with whatever models."
    own.epilog = (
        "Without --models the recipe's own models are evaluated; a hub name or folder for one "
        "policy is "
        "--policy.NAME.actor.model_name_or_path. --eval.n_samples_per_prompt and "
        "--eval.temperature say how, --eval.dataset on "
        "what, --json prints one object. All flags: openrlhf train --help."
    )
    own.add_argument(
        "--models",
        type=Path,
        metavar="FOLDER",
        help="a run's output folder: one folder of weights per policy",
    )
    own.add_argument(
        "--only",
        nargs="+",
        default=[],
        metavar="NAME",
        help="take these policies from --models, the others from the recipe",
    )
    return own


def main(words: Sequence[str]) -> int:
    if "--help" in words or "-h" in words:
        print(parser().format_help(), end="")
        return 0
    plan, options = planned(words, parser())
    if not from_hub(plan.run) and not plan.tasks("eval"):
        raise ConfigurationError(NO_TASKS)
    if plan.options.dry_run:
        return print_plan(plan, {})
    result = evaluate(plan, options.models)
    if plan.options.json:
        print(json.dumps(result))
    return 0 if result["answered"] else 1


def planned(words: Sequence[str], own: UpstreamParser) -> tuple[Plan, Namespace]:
    """Returns the plan of a run of engines only, and the command's own flags.

    Raises:
        ConfigurationError: All that is wrong with them.
    """
    flags = split_flags(words, COMMAND_LINE)
    names = [option.removeprefix("--") for option in own._option_string_actions]
    misspelt = [
        Problem(
            "flags.unknown",
            at(line=COMMAND_LINE, flag=f.name),
            "unknown flag",
            fix=meant(f.name, names),
        )
        for f in flags
        if f.name not in names and get_close_matches(f.name, names, cutoff=0.7)
    ]
    if misspelt:  # the plan's flags do not have ours
        raise ConfigurationError(misspelt)
    if resumed := [f.name for f in flags if f.name in TRAINING]:
        fix = "what a run has saved is evaluated with --recipe RECIPE --models FOLDER"
        where = at(flag=resumed[0])
        raise ConfigurationError(Problem("eval.resumed", where, "continues a training", fix=fix))
    options = own.parse_args(
        [w for f in flags if f.name in names for w in (f"--{f.name}", *f.words)]
    )
    plan = build_plan([w for f in flags if f.name not in names for w in f.argv])
    run = only_players(plan.run)
    if options.models:
        run = with_models(run, options.models, options.only)
    elif options.only:
        raise ConfigurationError(
            Problem(
                "eval.only",
                got="--only names policies that are taken from --models FOLDER, which is not given",
                flags=("only", "models"),
            )
        )
    return replace(plan, run=run), options


def only_players(run: Run) -> Run:
    """Returns the run with the policies that play a role, as engines only: nothing is trained, and
    no coach is asked."""
    playing = {policy for role in run.recipe.roles for policy in run.recipe.policies_of(role)}
    policies = tuple(
        replace(policy, trainable=False) for policy in run.policies if policy.name in playing
    )
    policy_args = {policy.name: copy.deepcopy(run.policy_args[policy.name]) for policy in policies}
    for args in policy_args.values():
        use_engines_only(args)
    return replace(run, policies=policies, policy_args=policy_args)


def with_models(run: Run, folder: Path, only: Sequence[str]) -> Run:
    """Returns the run with saved weights in place of the recipe's models; a policy that follows
    another one has those of that one.

    Args:
        only: Names of policies; empty for all.

    Raises:
        ConfigurationError: The folder has none, or there is no policy of such a name.
    """
    names, saved_as = (
        [p.name for p in run.policies],
        {p.name: p.follows or p.name for p in run.policies},
    )
    problems = [
        Problem(
            "eval.no_policy",
            at(flag="only"),
            f"{name}: there is no policy of that name",
            fix=meant(name, names),
        )
        for name in only
        if name not in names
    ]
    to_load = list(only) or names
    for name in to_load:
        if name in names and not (folder / saved_as[name] / "config.json").is_file():
            saved = sorted(p.parent.name for p in folder.glob("*/config.json"))
            has = f"it holds weights of {', '.join(saved)}" if saved else "it holds no weights"
            if (folder / "config.json").is_file():
                has = "it is itself a model; expected the folder above it, of the run"
            elif not saved and (folder / COMMAND_FILE).is_file():
                has += f", because a run writes them at its end: openrlhf train --resume {folder}"
            problems.append(
                Problem(
                    "eval.no_weights",
                    at(flag="models"),
                    f"{folder}: no folder {saved_as[name]!r} with a model in it",
                    fix=str(has),
                )
            )
    if problems:
        raise ConfigurationError(list(dict.fromkeys(problems)))
    models = {name: str((folder / saved_as[name]).absolute()) for name in to_load}
    policy_args = {name: copy.deepcopy(args) for name, args in run.policy_args.items()}
    for name, model in models.items():
        policy_args[name].actor.model_name_or_path = model
    policies = tuple(replace(p, model=models.get(p.name, p.model)) for p in run.policies)
    return replace(run, policies=policies, policy_args=policy_args)


def with_whole_models(run: Run, folder: Path) -> Run:
    """Returns the run with adapters and their models as whole models, which are written into a
    folder.

    Raises:
        ConfigurationError: An adapter's model is gone, or another one's.
    """
    from marl_plugins.engine.runtime.merged_model import base_of, merge

    policy_args = {name: copy.deepcopy(args) for name, args in run.policy_args.items()}
    policies = []
    for policy in run.policies:
        if base_of(Path(policy.model)):
            whole = folder / policy.name
            merge(Path(policy.model), whole)
            policy = replace(policy, model=str(whole))
            policy_args[policy.name].actor.model_name_or_path = str(whole)
        policies.append(policy)
    return replace(run, policies=tuple(policies), policy_args=policy_args)


def evaluate(plan: Plan, begun: Path | None = None) -> dict[str, Any]:
    """Returns the held-out outcome with its interval; what is lost to infrastructure is in neither
    and is counted apart.

    Args:
        begun: The run's output folder that the models are of.

    Raises:
        ConfigurationError: There are no held-out tasks, or a model does not load.
    """
    run, display = plan.run, Display(plan.options.json)

    async def work(session: Session) -> tuple[dict[str, float], list[Trajectory]]:
        from marl_plugins.engine.runtime.metrics import evaluation

        return await evaluation(session.rollout, session.eval_tasks, run.args.eval, display)

    result, trajectories = with_engines(plan, display, work, begun, needs_tasks=True)
    display.evaluation(None, result, trajectories)
    models = {p.name: p.model for p in run.policies}  # as they were named
    return {
        **{name.removeprefix("eval/"): value for name, value in result.items()},
        "models": models,
    }


def with_engines(
    plan: Plan,
    display: Display,
    work: Callable[[Session], Coroutine[Any, Any, T]],
    begun: Path | None,
    needs_tasks: bool = False,
) -> T:
    """Starts the engines of a plan, does some work, and ends them.

    Args:
        begun: The output folder of the run that the models are of.

    Raises:
        ConfigurationError: There are no held-out tasks and they are needed, or a model does not
            load.
    """
    from marl_plugins.engine.processes.cluster import prepare_environment, ray_cluster
    from marl_plugins.engine.processes.fork_server import fork_server
    from marl_plugins.engine.runtime.lifetime import (
        plugins_started,
        run_until_terminated,
        terminated_like_interrupted,
    )
    from marl_plugins.engine.runtime.session import Session

    run, debug = plan.run, plan.options.debug
    for line in first_lines(plan):
        display.say(line)
    prepare_environment(run, debug)
    with (
        fork_server(debug) as python,
        terminated_like_interrupted(),
        asyncio.Runner() as loop,
        plugins_started(loop, plan, "evaluate"),
        tempfile.TemporaryDirectory() as folder,
    ):
        with display.phase("loading tasks and tokenizers", announce=True):
            plan = replace(plan, run=with_whole_models(run, Path(folder)))
            session = Session(plan, begun)
        if needs_tasks and not session.eval_tasks:
            raise ConfigurationError(NO_TASKS)
        session.warm_start(display)
        with ray_cluster(run, debug, python):
            with display.phase(f"starting engines (policies: {len(run.policies)})", announce=True):
                session.start()
            return run_until_terminated(loop, session, work(session))
