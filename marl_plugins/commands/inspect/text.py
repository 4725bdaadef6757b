"""Trajectories as text for a terminal: one line each for a list, and a tree of actions with
everything that is recorded of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rich.text import Text

from marl_plugins.commands.inspect.index import Entry
from marl_plugins.commands.inspect.shown import note_text, number
from marl_plugins.core.redaction import inert

COLUMNS = (
    *(("step", 5), ("task", 14), ("sample", 6), ("outcome", 7), ("score", 6), ("reward", 7)),
    *(("low A", 6), ("out", 4), ("roles", 24)),
)
"""Columns of a list with their widths in characters; `low A` is the lowest advantage of an action,
`out` the number of actions that were left out of training."""
HEADER = " ".join(f"{name:<{width}}" for name, width in COLUMNS) + " failure, prompt"


def entry_line(entry: Entry) -> str:
    """Writes an entry on one line, harmless to a terminal."""
    roles = dict.fromkeys(action.role for action in entry.actions)
    cells = (
        str(entry.step),
        entry.name,
        str(entry.sample),
        number(entry.outcome),
        number(entry.score, 2),
        number(entry.reward, 2, sign=True),
        number(entry.lowest_advantage, 2, sign=True),
        str(entry.left_out or ""),
        " ".join(roles),
    )
    fixed = (_cut(one_line(cell), width) for cell, (_, width) in zip(cells, COLUMNS, strict=True))
    failure = f"[{entry.failure}] " if entry.failure else ""
    return " ".join(fixed) + f" {one_line(failure + entry.prompt)}"


def one_line(text: str) -> str:
    """Writes a text on one line, harmless to a terminal."""
    return inert(text).replace("\n", "⏎").replace("\t", " ")


def _cut(text: str, width: int) -> str:
    return f"{text:<{width}}" if len(text) <= width else f"{text[: width - 1]}…"


def summary(shown: Mapping[str, Any]) -> Text:
    """Writes what is known of a trajectory as a whole."""
    lines = [
        (
            "task",
            f"{shown['task']}, step {shown['step']}, sample {shown['sample']}, "
            f"{number(shown['seconds'], 1)} s",
        ),
        ("prompt", shown["prompt"]),
        ("label", _plain(shown["label"])),
        ("answer", shown["answer"]),
        ("outcome", number(shown["outcome"])),
        *((f"outcome of {role}", number(value)) for role, value in shown["outcomes"].items()),
        *((f"  {name}", number(value)) for name, value in shown["outcome_parts"].items()),
        ("agents' failure", shown["agent_failure"]),
        ("infrastructure failure", shown["infrastructure_failure"]),
        ("detail", shown["detail"]),
        (
            "files",
            ", ".join(
                f"{f['path']} ({f['size']} bytes, {f['writer'] or 'the task'})"
                for f in shown["files"]
            ),
        ),
    ]
    text = _fields(lines)
    for call in shown["tools"]:
        text.append_text(tool_text(call, "the workflow called"))
    return text


def action_title(action: Mapping[str, Any]) -> str:
    """Writes an action's name with its numbers on one line; the advantage first, which the tree's
    edge must not cut off."""
    marks = [
        f"A {number(action['advantage'], 2, sign=True)}" if action["advantage"] is not None else "",
        f"score {number(action['score'], 2)}" if action["score"] is not None else "",
        f"left out: {action['left_out']}" if action["left_out"] else "",
    ]
    return one_line("  ".join([action["action"], *filter(None, marks)]))


def version_text(action: Mapping[str, Any]) -> str:
    """Returns which versions of its policy have sampled an action, and from which token on."""
    changes = "".join(
        f", {version} from token {first + 1} on" for first, version in action.get("newer", ())
    )
    return f"{action['version']}{changes}"


def action_text(action: Mapping[str, Any]) -> Text:
    """Writes everything that is recorded of an action, but for its tokens."""
    begin, answered, end = (number(seconds, 2) for seconds in action["times"])
    coach = action["notes"].get("coach")
    criteria = coach.get("criteria") if isinstance(coach, dict) else None
    if isinstance(coach, dict):  # without what stands above
        coach = {name: value for name, value in coach.items() if name not in ("criteria", "score")}
    notes = {
        name: note_text(value)
        for name, value in {**action["notes"], "coach": coach}.items()
        if value
    }
    lines = [
        (
            "role",
            f"{action['role']}, by policy {action['policy']} version {version_text(action)}, turn "
            f"{action['turn']}",
        ),
        ("saw", ", ".join(action["parents"]) or "the task alone"),
        ("continues", action["continues"]),
        ("words", "given, not sampled" if action.get("replayed") else None),
        (
            "tokens",
            f"{action['tokens_shown']} shown, {action['tokens_sampled']} sampled, finish "
            f"{action['finish']}",
        ),
        ("times", f"asked at {begin} s, answered at {answered} s, tools done at {end} s"),
        ("score", number(action["score"]) if action["score"] is not None else action["unscored"]),
        ("criteria", note_text(criteria) if criteria else None),
        ("explanation", action["explanation"]),
        ("reward", number(action["reward"], sign=True)),
        *((f"  {name}", number(value, sign=True)) for name, value in action["terms"].items()),
        ("return", number(action["return"], sign=True)),
        ("advantage", number(action["advantage"], sign=True)),
        ("left out", action["left_out"]),
        *((f"note of {name}", value) for name, value in notes.items()),
    ]
    text = Text()
    for role, message in action["shown"]:
        text.append(f"── shown ({one_line(role)})\n", "bold blue")
        text.append(inert(message) + "\n")
    text.append(f"── said by {one_line(action['role'])}\n", "bold green")
    text.append(inert(action["text"]) + "\n")
    for call in action["tools"]:
        text.append_text(tool_text(call, "called"))
    text.append("── recorded\n", "bold")
    return text.append_text(_fields(lines))


def tool_text(call: Mapping[str, Any], who: str) -> Text:
    """Writes a tool's call and its answer."""
    text = Text(
        f"── {who} {one_line(call['tool'])} ({call['status']}, {number(call['seconds'], 2)} s)\n",
        "bold yellow",
    )
    text.append(inert(call["call"]) + "\n", "default not bold")
    text.append("── it answered\n", "bold yellow")
    text.append(inert(call["output"]) + "\n", "default not bold")
    return text


def whole(shown: Mapping[str, Any]) -> Iterator[Text]:
    """Yields a trajectory part by part: the summary, and each action below its title, indented by
    its place in the graph."""
    yield summary(shown)
    for action in shown["actions"]:
        yield Text(f"\n{'  ' * action['depth']}● {action_title(action)}", "bold magenta")
        yield action_text(action)


def _fields(lines: list[tuple[str, Any]]) -> Text:
    text = Text()
    for name, value in lines:
        if value not in (None, "", "-"):
            text.append(f"{one_line(name)}: ", "dim")
            text.append(inert(str(value)) + "\n")
    return text


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
