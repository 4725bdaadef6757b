"""The command `openrlhf`: train, eval, recipes, plugins, patch, doctor. Imports nothing heavy until a run really starts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from marl_plugins import __version__
from marl_plugins.core.failures import ConfigurationError, RunEnded

USAGE = """\
openrlhf {version}: multi-agent training as plugins for an unmodified OpenRLHF

  openrlhf train --recipe RECIPE [flags]         train a multi-agent system
  openrlhf train --recipe RECIPE --dry-run       check everything, print the plan, start nothing
  openrlhf train --plugin NAME [flags]           an ordinary OpenRLHF command line with a plugin
  openrlhf train [upstream's flags]              upstream's own trainer, unchanged
  openrlhf train --help                          all flags
  openrlhf eval --recipe RECIPE [--models RUN]   success of any models on a recipe's held-out tasks
  openrlhf recipes list | show | copy | import   shipped recipes; your own from one of them, or from MARTI
  openrlhf plugins [--json]                      plugins that are found, and what they hook into
  openrlhf compat PATH | VERSION                 whether another release of upstream still fits
  openrlhf patch status | apply | revert         thin patches for those who carry a checkout of upstream
  openrlhf doctor [--recipe RECIPE] [--static]   whether training can work here, and what to do where not
  openrlhf --version

Begin with:  openrlhf train --recipe mathchat/tiny.yaml --max_steps 5
"""


MULTI_AGENT = ("--mapping", "--max_steps", "--logical_gpus", "--dry-run")
"""Flags of `openrlhf train` that upstream's own trainer does not have."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit code: 0 good, 1 the run ended early, 2 to be mended by the user, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    try:
        return _dispatch(words)
    except ConfigurationError as error:
        if debug:
            raise
        for problem in error.problems:
            print(f"error: {problem}", file=sys.stderr)
        if len(error.problems) > 1:
            print(f"{len(error.problems)} problems; nothing was done", file=sys.stderr)
        return 2
    except RunEnded as error:
        if debug:
            raise
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(str(error) or "interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1 if words[:1] == ["train"] else 0


def _dispatch(words: list[str]) -> int:
    command, rest = (words[0], words[1:]) if words else ("--help", [])
    if command in ("--help", "-h", "help"):
        print(USAGE.format(version=__version__), end="")
        return 0
    if command == "--version":
        from marl_plugins.hosts.upstream_cli import upstream_version

        print(f"openrlhf-marl {__version__}, openrlhf {upstream_version()}")
        return 0
    if command == "train":
        return _train(rest)
    if command == "plugins":
        return _plugins(rest)
    if command == "eval":
        from marl_plugins.commands.evaluate import main as evaluate

        return evaluate(rest)
    if command == "recipes":
        from marl_plugins.commands.recipes import main as recipes

        return recipes(rest)
    if command == "compat":
        from marl_plugins.commands.compat import main as compat

        return compat(rest)
    if command == "patch":
        from marl_plugins.commands.patch import main as patch

        return patch(rest)
    if command == "doctor":
        from marl_plugins.commands.doctor import main as doctor

        return doctor(rest)
    from marl_plugins.core.failures import nearest

    known = ["train", "eval", "recipes", "plugins", "compat", "patch", "doctor"]
    raise ConfigurationError(f"unknown command {command!r}{nearest(command, known)} (openrlhf --help)")


def _train(words: list[str]) -> int:
    if "--help" in words or "-h" in words:
        return _train_help(words)
    if not any(w.partition("=")[0] in ("--recipe", "--plugin") for w in words):
        if ours := [w for w in words if w.partition("=")[0] in MULTI_AGENT]:
            raise ConfigurationError(
                f"{ours[0]} is about multi-agent training, and nothing multi-agent was asked for: give --recipe RECIPE or "
                "--plugin NAME as well"
            )
        return _pass_through(words)
    from marl_plugins.plan.build import build_run
    from marl_plugins.run import describe

    run, options = build_run(words)
    if options.dry_run:
        plan = describe(run)
        if options.json:
            print(json.dumps(plan, indent=2))
        else:
            _print_plan(plan)
        return 0
    from marl_plugins.runtime.driver import train

    return train(run, debug=options.debug, as_json=options.json)


def _train_help(words: list[str]) -> int:
    """Our flags first, then the active plugins', then upstream's."""
    from marl_plugins.core.recipe import find_recipe, load_recipe
    from marl_plugins.hosts import upstream_cli
    from marl_plugins.manager import Plugins
    from marl_plugins.plan.flags import own_parser, split_flags

    flags = [f for f in split_flags([w for w in words if w not in ("--help", "-h")], "command line") if f.words]
    names = []
    for path in [find_recipe(f.words[0]) for f in flags if f.name == "recipe"]:
        names += [n if not n.endswith(".py") else str(path.parent / n) for n in load_recipe(path)[0].plugins]
    names += [f.words[0] for f in flags if f.name == "plugin"]
    upstream = upstream_cli.build_parser(upstream_cli.upstream_root())
    Plugins(names).options(upstream)
    ours = own_parser()
    ours.usage = "openrlhf train --recipe RECIPE [--plugin NAME ...] [flags]"
    ours.description = "Train a multi-agent system with OpenRLHF. A flag beats the recipe, which beats the defaults."
    ours.epilog = (
        "Any flag of upstream below may also be given for one policy: --policy.NAME.actor.adam.lr 1e-5. What becomes of each "
        "of them is in docs/flags.md."
    )
    print(ours.format_help())
    upstream.usage = "the flags of upstream and of the active plugins:"
    print(upstream.format_help().partition("\n")[2])
    return 0


def _pass_through(words: list[str]) -> int:
    """No plugin was asked for: this is upstream's command."""
    from marl_plugins.hosts import cpu, upstream_cli

    upstream_cli.upstream_root()
    if cpu.device() != "cpu":
        os.execv(sys.executable, [sys.executable, "-m", "openrlhf.cli.train_ppo_ray", *words])
    print("no accelerator found: running upstream's trainer in this process with the CPU support", file=sys.stderr)
    os.environ[cpu.DEVICE] = "cpu"
    os.environ.update(cpu.environment())
    os.environ.pop("CUDA_VISIBLE_DEVICES", None)
    from marl_plugins.runtime.pass_through import run

    run(words)
    return 0


def _print_plan(plan: dict[str, object]) -> None:
    """The plan for people: one line per fact, nested by indentation."""

    def show(value: object, indent: int) -> None:
        pad = "  " * indent
        if isinstance(value, dict):
            for key, inner in value.items():
                if isinstance(inner, dict) and inner:
                    print(f"{pad}{key}:")
                    show(inner, indent + 1)
                else:
                    print(f"{pad}{key}: {_inline(inner)}")

    show(plan, 0)


def _inline(value: object) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value) or "none"
    return "none" if value in (None, {}, "") else str(value)


def _plugins(words: list[str]) -> int:
    from importlib import metadata

    from marl_plugins import hookspecs
    from marl_plugins.manager import BUILTINS, GROUP, SHIPPED, load, version_of

    unknown = [w for w in words if w != "--json"]
    if unknown:
        raise ConfigurationError(f"openrlhf plugins: unknown argument {unknown[0]!r}; only --json is known")
    names = dict.fromkeys([*SHIPPED, *(e.value for e in metadata.entry_points(group=GROUP))])
    found: list[dict[str, Any]] = []
    for name in names:
        try:
            module = load(name)
            hooks = [n for n in vars(hookspecs) if n.startswith("marl_") and hasattr(getattr(module, n, None), "marl_impl")]
            about = (module.__doc__ or "").strip().splitlines()
            found.append(
                {
                    "name": name,
                    "version": version_of(name),
                    "built_in": name in BUILTINS,
                    "hooks": hooks,
                    "about": about[0] if about else "",
                }
            )
        except ConfigurationError as error:
            found.append(
                {"name": name, "version": "?", "built_in": False, "hooks": [], "about": f"cannot be loaded: {error}"}
            )
    if "--json" in words:
        print(json.dumps(found, indent=2))
        return 0
    from marl_plugins.runtime.display import print_table

    rows = [
        [
            str(f["name"]),
            str(f["version"]),
            "built in" if f["built_in"] else "",
            ", ".join(str(h) for h in f["hooks"]),
            str(f["about"]),
        ]
        for f in found
    ]
    print_table("Plugins found; name one with --plugin NAME", ["name", "version", "", "hooks", "about"], rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
