"""A command of `openrlhf`, built in or a plugin's."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from marl_plugins.core.failures import ConfigurationError


class Parser(argparse.ArgumentParser):
    """A parser that raises `ConfigurationError` instead of printing and exiting."""

    def error(self, message: str) -> Any:
        raise ConfigurationError(message.removeprefix("argument "))


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
