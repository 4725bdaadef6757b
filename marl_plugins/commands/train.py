"""`openrlhf train`: a checked plan, shown or trained; without a plugin or recipe upstream's own
trainer."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.redaction import inert
from marl_plugins.engine.runtime.collector import without_collector

if TYPE_CHECKING:
    from marl_plugins.engine.plan.plan import Plan


def main(words: Sequence[str]) -> int:
    if "--help" in words or "-h" in words:
        return print_help(words)
    if not words:
        fix = (
            "for example:\n"
            "  openrlhf train --recipe mathchat/tiny.yaml --max_steps 5    on a CPU; other "
            "recipes: openrlhf recipes list\n"
            "  openrlhf train --help                                       all flags, upstream's "
            "own trainer's too"
        )
        raise ConfigurationError(
            Problem("train.nothing", got="nothing to train was named", fix=fix)
        )
    typed, remarks = words, list[Problem]()
    if any(w.partition("=")[0] == "--resume" for w in typed):
        from marl_plugins.engine.records.run_folder import replayed

        words, remarks = replayed(typed)
    if not any(w.partition("=")[0] in ("--recipe", "--plugin") for w in words):
        from marl_plugins.engine.plan.flags import OWN_FLAGS

        named = (w[2:].partition("=")[0] for w in words if w.startswith("--"))
        if ours := [name for name in named if name in OWN_FLAGS]:
            where = at(flag=ours[0])
            got = "is about multi-agent training, and nothing multi-agent was asked for"
            fix = "give --recipe RECIPE or --plugin NAME as well"
            raise ConfigurationError(Problem("train.no_recipe", where, got, fix=fix))
        return pass_through(words)
    if "--dry-run" in words:  # looking for plugins of pydantic's takes a tenth of a dry run
        os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    with without_collector():
        from marl_plugins.engine.plan.build import build_plan
        from marl_plugins.engine.plan.resume import with_resumption

        with contextlib.redirect_stdout(
            sys.stderr
        ):  # what a user's code prints is no part of the plan
            plan, step = with_resumption(build_plan(words), remarks)
        if plan.options.dry_run:
            return print_plan(plan, {"resume": f"would resume after step {step}"} if step else {})
    if text := finished(plan, step):
        print(text, file=sys.stderr if plan.options.json else sys.stdout)
        return 0
    from marl_plugins.engine.runtime.driver import train

    return train(plan, typed)


def finished(plan: Plan, step: int) -> str:
    """Returns what is said of a resumed run that has nothing left to do; empty where there is
    something, or where that is not known yet.

    Args:
        step: The saved step that it would continue from; 0 for none.

    Raises:
        ConfigurationError: The run's metrics cannot be read.
    """
    from marl_plugins.engine.records.read import RunReader

    run, steps = plan.run, plan.counted.get("steps", plan.run.max_steps)
    if not (run.args.ckpt.load_enable and (step or plan.options.resume)) or steps is None:
        return ""
    if not RunReader(run.output).has_finished(
        [policy.name for policy in run.policies if policy.trainable], steps
    ):
        return ""
    return (
        f"{run.output}: the run has finished: all {steps} steps are trained, and its weights and "
        "report are there; raise "
        "--max_steps or --train.num_episodes to train on"
    )


def print_help(words: Sequence[str]) -> int:
    """Prints the help: our flags first, then the active plugins', then upstream's."""
    from marl_plugins.engine.hosts import upstream_cli
    from marl_plugins.engine.plan.build import mentioned_plugins
    from marl_plugins.engine.plan.flags import own_parser

    upstream = upstream_cli.build_parser(upstream_cli.upstream_root())
    known = {*upstream._actions}
    mentioned_plugins(words).options(upstream)
    options, plugins = upstream._optionals, upstream.add_argument_group("other flags of plugins")
    plugins._group_actions = [action for action in options._group_actions if action not in known]
    options.title = "upstream"
    options._group_actions = [action for action in options._group_actions if action in known]
    upstream._action_groups.sort(key=lambda group: group is options)
    for action in {*upstream._actions} - known:
        if action.nargs != 0 and action.default not in (None, "", []):
            action.help = f"{action.help or ''} (default: %(default)s)".strip()
    ours = own_parser()
    ours.usage = "openrlhf train --recipe RECIPE [--plugin NAME ...] [flags]"
    ours.description = (
        "Train a multi-agent system with OpenRLHF. A flag beats the recipe, which "
        "beats the defaults."
    )
    ours.epilog = (
        "Any flag of upstream below may also be given for one policy: --policy.NAME.actor.adam.lr "
        "1e-5. What becomes of each "
        "of them: openrlhf docs flags"
    )
    print(ours.format_help())
    upstream.usage = "the flags of upstream and of the active plugins:"
    print(upstream.format_help().partition("\n")[2])
    return 0


def pass_through(words: Sequence[str]) -> int:
    """Runs upstream's command, where no plugin was asked for."""
    from marl_plugins.engine.hosts import cpu
    from marl_plugins.engine.plan.flags import unknown_flags

    if unknown := unknown_flags(words):  # upstream itself takes ten seconds to say so
        raise ConfigurationError(unknown)
    if cpu.device() != "cpu":
        os.execv(sys.executable, [sys.executable, "-m", "openrlhf.cli.train_ppo_ray", *words])
    print(
        "no accelerator found: running upstream's trainer in this process with the CPU support",
        file=sys.stderr,
    )
    os.environ[cpu.DEVICE] = "cpu"
    os.environ.update(cpu.environment())
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    from marl_plugins.engine.processes.pass_through import run_upstream

    run_upstream(words)
    return 0


def print_plan(plan: Plan, more: dict[str, object]) -> int:
    """Prints the plan as one JSON object, or for people: one line per fact, nested by
    indentation."""
    from marl_plugins.engine.plan.describe import describe

    shown = describe(plan) | more
    if plan.options.json:
        print(json.dumps(shown, indent=2))
        return 0

    def show(value: object, indent: int) -> None:
        pad = "  " * indent
        if isinstance(value, dict):
            for key, inner in value.items():
                if isinstance(inner, dict) and inner:
                    print(f"{pad}{key}:")
                    show(inner, indent + 1)
                elif key == "warnings" and isinstance(inner, list) and inner:
                    print(f"{pad}{key}:")
                    for warning in inner:
                        print(f"{pad}  - {inert(warning['sentence'])}")
                else:
                    print(f"{pad}{key}: {inert(_inline(inner))}")

    show(shown, 0)
    return 0


def _inline(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value) or "none"
    return "none" if value in (None, {}, "") else str(value)
