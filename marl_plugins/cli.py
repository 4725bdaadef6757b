"""The command `openrlhf`. Imports nothing heavy until a run really starts."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
from collections.abc import Sequence

from marl_plugins import __version__
from marl_plugins.commands import COMMANDS
from marl_plugins.core.command import Command
from marl_plugins.core.failures import ConfigurationError, RunEnded
from marl_plugins.core.problems import Problem, as_json, at, meant, with_relative_paths
from marl_plugins.core.redaction import inert

USAGE = """\
openrlhf {version}: multi-agent training as plugins for an unmodified OpenRLHF

{commands}

  openrlhf train --recipe RECIPE --dry-run       check everything, print the plan, start nothing
  openrlhf train --plugin NAME [flags]           an ordinary OpenRLHF command line with a plugin
  openrlhf train [upstream's flags]              upstream's own trainer, unchanged
  openrlhf train --help                          all flags
  openrlhf --version

Begin with:  openrlhf train --recipe mathchat/tiny.yaml --max_steps 5
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command, and returns its exit code: 0 good, 1 the run ended early, 2 the user has to
    fix something, 130 interrupted."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:
        atexit.register(end_at_once)
    debug = "--debug" in words
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a console that cannot show all that is printed
            stream.reconfigure(errors="backslashreplace")
    try:
        code = dispatch(words)
        sys.stdout.flush()
        return code
    except ConfigurationError as error:
        if debug:
            raise
        if "--json" in words:
            import json

            print(
                json.dumps({"problems": [as_json(problem) for problem in error.problems]}, indent=2)
            )
        for problem in error.problems:
            print(f"error: {inert(str(problem))}", file=sys.stderr)
        if error.count > 1:
            print(f"{error.count} problems; nothing was done", file=sys.stderr)
        return 2
    except RunEnded as error:
        if debug:
            raise
        print(f"error: {inert(with_relative_paths(str(error)))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as error:
        print(inert(str(error)) or "interrupted", file=sys.stderr)
        return 130
    except OSError:
        lost = _output_error()
        if lost is None or debug:
            raise
        if isinstance(lost, BrokenPipeError):  # the reader of our output has gone, as `| head` does
            return 1 if words[:1] == ["train"] else 0
        print(f"error: standard output cannot be written: {lost.strerror}", file=sys.stderr)
        return 2


def _output_error() -> OSError | None:
    """Returns why standard output cannot be written, and drops what was to be; None where it
    can."""
    try:
        print(flush=True)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None


def end_at_once() -> None:
    """Leaves everything out of the collections with which Python ends: seven seconds of CPU once
    vLLM has been imported. What nanobind says of objects that are not freed goes nowhere."""
    gc.freeze()
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def dispatch(words: list[str]) -> int:
    """Calls the command that the words name."""
    name, rest = (words[0], words[1:]) if words else ("--help", [])
    if name in ("--help", "-h", "help"):
        shown = "\n".join(
            f"  {f'openrlhf {c.name} {c.usage}':<46} {c.about}" for c in all_commands([]).values()
        )
        print(USAGE.format(version=__version__, commands=shown), end="")
        return 0
    if name == "--version":
        from marl_plugins.engine.hosts.upstream_cli import upstream_version

        print(f"openrlhf-marl {__version__}, openrlhf {upstream_version()}")
        return 0
    known = {command.name: command for command in COMMANDS}
    if name not in known:
        known = all_commands(rest)
    if name in known:
        return known[name].main(rest)
    if name.startswith("-"):
        fix = f"write `openrlhf train {name} ...` (openrlhf --help)"
        raise ConfigurationError(
            Problem("command.expected", at(command="openrlhf"), name, "a command first", fix)
        )
    fix = f"{meant(name, known)} (openrlhf --help)".strip()
    raise ConfigurationError(
        Problem("command.unknown", at(command="openrlhf"), f"unknown command {name!r}", fix=fix)
    )


def all_commands(words: Sequence[str]) -> dict[str, Command]:
    """Returns the built-in commands, and those of all plugins that are found, or named in the words
    with `--plugin`, by name.

    A plugin that was found and cannot be loaded is left out (`openrlhf plugins` says what is wrong
    with it), and so is a command
    of a name that is taken: installing a package must not break this command for anyone.

    Raises:
        ConfigurationError: A named plugin cannot be loaded, or brings a command of a name that is
            taken.
    """
    from marl_plugins.commands.plugin_commands import (
        commands_of,
        loaded_commands,
        named_plugins,
    )
    from marl_plugins.core.plugin_names import found

    named = named_plugins(words) if words else []
    commands = {command.name: command for command in COMMANDS}
    for plugin in dict.fromkeys([*named, *found()]):
        try:
            for command in (loaded_commands if plugin in named else commands_of)(plugin):
                if command.name in commands:
                    raise ConfigurationError(
                        Problem(
                            "plugin.command_taken",
                            at(plugin=plugin),
                            f"brings a command {command.name!r}, which exists already",
                            fix="rename it",
                        )
                    )
                commands[command.name] = command
        except ConfigurationError:
            if plugin in named:
                raise
    return commands


if __name__ == "__main__":
    sys.exit(main())
