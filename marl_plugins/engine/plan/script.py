"""A script is what every role says, and every tool answers, in one run of a workflow."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from marl_plugins.core.recipe.schema import RoleConfig
from marl_plugins.core.workflow import Workflow

SHOWN_CHARS = 60
"""Characters of an answer in a message."""
TOOL = "tools."
"""Begins the speaker that is a tool; roles are called by their names alone."""
MAX_SCRIPT_TURNS = 20
"""Answers of a role that differ from each other in `by_role`."""
WORD = "answerzq"
"""Begins what an action says when every answer is a word of its own, to be found again wherever it
is shown."""


class FailureText(str):
    """The text that a tool answers to a call that has failed; a role that says it fails
    (`AgentFailure`)."""


def word(number: int) -> str:
    """Returns the word of the action with a number."""
    return WORD + "".join(chr(ord("a") + number // 26**place % 26) for place in (2, 1, 0))


@dataclass(frozen=True)
class Script:
    """A script of what every role says, and every tool answers, in one run of a workflow.

    Args:
        when: Says when a run is like this: "every answer is a word".
        text: The text of the action with a number, where its role has no lines.
        lines: What speakers say one after the other; the last line is repeated. None: as `text` has
            it.
        workflow: What is run in place of the workflow itself.
    """

    when: str
    text: Callable[[int], str] = word
    lines: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    workflow: Workflow | None = None

    def line(self, speaker: str, nth: int, number: int) -> str | None:
        """Returns the nth answer of a speaker (from 0), which is the run's answer with a number;
        None: a tool answers nothing."""
        lines = self.lines.get(speaker)
        answer = lines[min(nth, len(lines) - 1)] if lines else None
        if answer is None and not speaker.startswith(TOOL):
            return self.text(number)
        return answer

    def says(self, label: object) -> bool:
        """Returns whether a speaker says a task's label."""
        lines = [line for answers in self.lines.values() for line in answers if line is not None]
        return isinstance(label, str | int | float) and any(str(label) in line for line in lines)

    def saying(self, speaker: str, *lines: str | None) -> Script:
        """Returns the script in which a speaker says these lines, too."""
        return replace(self, when="", lines={**self.lines, speaker: lines}).named()

    def named(self) -> Script:
        """Returns the script with a `when` that quotes its lines."""
        quotes = [
            f"{'tool' if by.startswith(TOOL) else 'role'} {by.removeprefix(TOOL)!r} {quoted(lines)}"
            for by, lines in self.lines.items()
        ]
        return replace(self, when=" and ".join(quotes))


def quoted(lines: Sequence[str | None]) -> str:
    """Returns what a speaker says, as the predicate of a sentence."""
    known = [line for line in lines if line is not None]
    if isinstance(known[-1], FailureText):
        return "fails"
    last = known[-1] if len(known[-1]) <= SHOWN_CHARS else known[-1][:SHOWN_CHARS] + "..."
    return f"says {'in the end ' if len(lines) > 1 else ''}{last!r}"


WORDS = Script("every answer is a word")
ONES = Script("every answer is the number 1", lambda number: "1")


def example_scripts(roles: Mapping[str, RoleConfig]) -> list[Script]:
    """Returns scripts of the examples that roles state: all first ones together, then each further
    one; none where no role states any. After a tool call the role says a word."""
    examples = {
        role: [(text, None) if "<tool_call>" in text else (text,) for text in config.example]
        for role, config in roles.items()
        if config.example
    }
    if not examples:
        return []
    first = {role: lines[0] for role, lines in examples.items()}
    together = Script("every role says its example", lines=first)
    return [
        together,
        *(together.saying(role, *line) for role, lines in examples.items() for line in lines[1:]),
    ]


def by_role(script: Script, roles: Sequence[str], nth: int = 0) -> Script:
    """Returns the script in which roles that have no lines say words of their own, in whatever
    order they are called.

    Args:
        nth: Another number gives other words.
    """
    before = nth * len(roles)
    words = {
        role: tuple(word(n * MAX_SCRIPT_TURNS + turn) for turn in range(MAX_SCRIPT_TURNS))
        for n, role in enumerate(roles, before)
    }
    return replace(
        script,
        lines={**words, **{by: lines for by, lines in script.lines.items() if None not in lines}},
    )
