"""The report of an import tells its user: what was taken, what was left out, what to check, and
what stops it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem


@dataclass
class Report:
    """Filled while the parts of a configuration are translated."""

    skip_unknown: bool = False
    taken: list[tuple[str, str]] = field(default_factory=list)
    """Options of theirs, and what they became."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Options of theirs, and why they have no counterpart."""
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    def take(self, theirs: str, ours: str) -> None:
        self.taken.append((theirs, ours))

    def leave_out(self, theirs: str, why: str) -> None:
        self.left_out.setdefault(theirs, why)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def problem(self, problem: Problem) -> None:
        self.problems.append(problem)

    def unknown(self, problem: Problem) -> None:
        """Notes something without a counterpart: as a problem, or as a note with
        `--skip-unknown`."""
        if self.skip_unknown:
            self.notes.append(str(replace(problem, fix="it was skipped")))
        else:
            self.problems.append(replace(problem, fix=f"{problem.fix}, or give --skip-unknown"))

    def raise_problems(self, more: Sequence[Problem] = ()) -> None:
        """Stops the import if there are problems.

        Raises:
            ConfigurationError: All of them, each once.
        """
        if problems := dict.fromkeys([*self.problems, *more]):
            raise ConfigurationError(list(problems))

    def readme(self, name: str, description: str, source: Path) -> str:
        """Returns the README of the imported recipe."""
        notes = "\n".join(f"- {note}" for note in self.notes) or "Nothing."
        return (
            f"# {name}: {description}\n\n"
            "    openrlhf train --recipe recipe.yaml --dry-run   # the plan, for GPUs\n"
            "    openrlhf train --recipe tiny.yaml               # tiny models on a CPU: shows "
            "that it runs, learns nothing\n\n"
            f"Prompts and data are from {source}; their licence applies to them.\n\n"
            f"## To check\n\n{notes}\n\n## Taken\n\n{_table(self.taken, 'here')}\n"
            f"## Left out\n\n{_table(self.left_out.items(), 'why')}"
        )


def _table(pairs: Iterable[tuple[str, str]], second: str) -> str:
    rows = "\n".join(f"| `{theirs}` | {text} |" for theirs, text in pairs)
    return f"| theirs | {second} |\n|---|---|\n{rows}\n"
