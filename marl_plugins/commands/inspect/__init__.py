"""Looking at a run: `openrlhf inspect RUN` in the terminal, `--html FILE` as one page, `--json` for
programs.

Everything shown is read from the run's records; nothing of the run is imported or started, so that
a run in progress, one that was moved, or one of a machine with GPUs is shown the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from marl_plugins import hookimpl
from marl_plugins.core.command import Command


def _inspect(words: Sequence[str]) -> int:
    from marl_plugins.commands.inspect.command import main

    return main(words)


@hookimpl
def marl_commands() -> Sequence[Command]:
    return [
        Command(
            "inspect",
            "RUN [RUN] [--html FILE]",
            "who saw what, said what, and was rewarded for it",
            _inspect,
        )
    ]
