"""The commands of `openrlhf`, one module each; the table of those that are built in."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from marl_plugins.core.command import Command


def _command(name: str, usage: str, about: str, module: str = "") -> Command:
    """A built-in command, whose module (of the same name, unless given) is imported when it is
    called."""

    def main(words: Sequence[str]) -> int:
        code: int = importlib.import_module(f"{__name__}.{module or name}").main(words)
        return code

    return Command(name, usage, about, main)


COMMANDS = (
    _command("train", "--recipe RECIPE [flags]", "train a multi-agent system"),
    _command(
        "eval",
        "--recipe RECIPE [--models RUN]",
        "success of any models on a recipe's held-out tasks",
        "evaluate",
    ),
    _command(
        "recipes",
        "list | show | copy | new | check | import",
        "shipped recipes; your own: new, from one of them, or from MARTI; its check",
    ),
    _command("models", "list | add FILE.gguf", "models that recipes name without a folder"),
    _command(
        "export",
        "RUN [--to FILE]",
        "what became of a run's actions; tables of them, as Parquet, Arrow, JSON Lines",
    ),
    _command(
        "fork",
        "RUN --step N --task ID --action ROLE.N",
        "what would have come of other words: live continuations of a recorded trajectory",
    ),
    _command("plugins", "[--json]", "plugins that are found, and what they hook into"),
    _command("compat", "PATH | VERSION", "whether another release of upstream still fits"),
    _command("docs", "[PAGE]", "the documentation, page by page"),
    _command(
        "doctor",
        "[--recipe RECIPE] [--static]",
        "whether training can work here, and what to do if not",
    ),
)
"""In the order in which `openrlhf --help` lists them."""
