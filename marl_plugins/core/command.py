"""A command of `openrlhf`, built in or a plugin's."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at


class Parser(argparse.ArgumentParser):
    """A parser that raises `ConfigurationError` instead of printing and exiting."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        self.exit_on_error = False
        try:
            return super().parse_known_args(args, namespace)
        except argparse.ArgumentError as error:
            name = (error.argument_name or "").partition("/")[0]  # the first of its names
            where = at(flag=name[2:]) if name.startswith("--") else at(name=name)
            raise ConfigurationError(Problem("flags.value", where, error.message)) from None

    def error(self, message: str) -> Any:
        """Raises what is wrong with a command line as a whole."""
        raise ConfigurationError(Problem("flags.command_line", got=message))


@dataclass(frozen=True)
class Command:
    """`openrlhf NAME ...`.

    Args:
        name: One word.
        usage: The arguments that matter most, for the list of commands.
        about: One line, for the list of commands.
        main: Gets the words after the name; returns the exit code. Imports what it needs itself.
    """

    name: str
    usage: str
    about: str
    main: Callable[[Sequence[str]], int]
