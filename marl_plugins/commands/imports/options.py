"""The options of MARTI and MAPPA, and what each becomes: `options.yaml`, the one table behind the
import and `docs/marti.md`.

An option becomes a flag of ours, perhaps with a converted value, is read elsewhere in the import,
or is left out for a reason. Any other option is unknown, and an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from marl_plugins.commands.imports.read import ImportSource, Key
from marl_plugins.commands.imports.report import Report
from marl_plugins.core.failures import nearest
from marl_plugins.core.problems import Problem, at


def _is_count(value: Any) -> bool:
    return type(value) in (int, float) and value >= 1 and value % 1 == 0


def _are_texts(value: Any) -> bool:
    return all(isinstance(text, str) for text in (value if isinstance(value, list) else [value]))


TYPES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "": (lambda value: True, ""),
    "text": (lambda value: isinstance(value, str), "text"),
    "texts": (_are_texts, "text, or a list of texts"),
    "switch": (lambda value: isinstance(value, bool), "true or false"),
    "count": (_is_count, "a whole number of at least 1"),
    "seconds": (lambda value: isinstance(value, int | float), "seconds"),
}
"""The types of `options.yaml`, and that of all other options: whether a value is of it, and its
name in messages."""


TOOL = "tools_config.tools.NAME"


@dataclass(frozen=True)
class Options:
    """The options of one place of a configuration, in the form of `options.yaml`."""

    place: str
    flags: Mapping[str, str] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    values: Mapping[str, Mapping[Any, Any]] = field(default_factory=dict)
    read: Mapping[str, str] = field(default_factory=dict)
    left_out: Mapping[str, list[str]] = field(default_factory=dict)
    types: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def reasons(self) -> dict[str, str]:
        """Returns the options that are left out, each with its reason."""
        return {name: why for why, names in self.left_out.items() for name in names}

    def type_of(self, name: str) -> str:
        """Returns the type of an option's values; empty if any value will do."""
        return next((kind for kind, names in self.types.items() if name in names), "")

    def named(self, name: str) -> str:
        """Returns an option's name with its place; the settings of agents have none."""
        return name if self.place == "settings" else f"{self.place}.{name}"

    def converted(self, name: str, value: Any) -> Any:
        """Returns the value of our flag for a value of theirs; None leaves it out."""
        values = self.values.get(name, {})
        return next((ours for theirs, ours in values.items() if theirs == value), value)


@cache
def options() -> dict[str, Options]:
    """Returns the options of each place: `settings` (at the top, in `default_agent`, of an agent),
    `workflow_args`, `tools_config` and `tools_config.tools.NAME`."""
    table = yaml.safe_load(Path(__file__).with_name("options.yaml").read_text(encoding="utf-8"))
    return {place: Options(place, **entries) for place, entries in table.items()}


def check(source: ImportSource, report: Report) -> None:
    """Reports unknown options, options that are left out, and values of a wrong type; whole numbers
    such as 1.0e+3 become integers.

    Raises:
        ConfigurationError: A value is of a wrong type, with all earlier problems.
    """
    wrong = list[Problem]()
    for place, written, known in _places(source):
        if not isinstance(written, dict | None):
            where = at(line=source.where(*place), key=".".join(place))
            wrong.append(Problem("imports.value", where, f"{written!r:.80}", "settings"))
            continue
        settings = written or {}
        reasons = known.reasons
        names = {*known.flags, *known.read, *reasons}
        for name, value in settings.items():
            where = at(line=source.where(*place, name), key=".".join([*place, name]))
            type_name = known.type_of(name)
            fits, expected = TYPES[type_name]
            if name not in names:
                got = f"unknown key{nearest(name, names)}"
                report.unknown(Problem("imports.unknown_key", where, got, fix="delete it"))
            elif value is None:
                continue
            elif not fits(value):
                wrong.append(Problem("imports.value", where, f"{value!r:.80}", expected))
            elif type_name == "count":
                settings[name] = int(value)
            elif name in reasons and value is not False and (*place, name) not in source.inherited:
                report.leave_out(known.named(name), reasons[name])
        kind = settings.get("type")
        if known.place == TOOL and kind != "sandbox_fusion":
            got = f"is of type {kind!r}, which has no counterpart (marl_tools adds tools)"
            where = at(line=source.where(*place), tool=place[-1])
            report.unknown(Problem("imports.tool", where, got, fix="delete it"))
    if wrong:
        report.raise_problems(wrong)


def _places(source: ImportSource) -> Iterator[tuple[Key, Any, Options]]:
    """Every place that has options, with what is written there."""
    settings, known = source.settings, options()
    yield (), settings, known["settings"]
    yield ("default_agent",), settings.get("default_agent"), known["settings"]
    for number, agent in enumerate(settings["agents"]):
        place = ("agents", str(number))
        configs = agent.items() if isinstance(agent, dict) else [("", agent)]
        for name, config in configs:
            yield ((*place, name) if name else place), config, known["settings"]
    for name in ("workflow_args", "tools_config"):
        yield (name,), settings.get(name), known[name]
    tools = settings.get("tools_config")
    tools = tools.get("tools") if isinstance(tools, dict) else None
    if not isinstance(tools, dict | None):
        yield ("tools_config", "tools"), tools, known["tools_config"]
        return
    for name, config in (tools or {}).items():
        yield ("tools_config", "tools", name), config, known[TOOL]


def table() -> str:
    """Returns the table of `docs/marti.md`."""
    lines = ["| theirs | here | note |", "|---|---|---|"]
    reasons: dict[str, list[str]] = {}
    for known in options().values():
        here = {**{name: f"`{flag}`" for name, flag in known.flags.items()}, **known.read}
        lines += [
            f"| `{known.named(name)}` | {ours} | {known.notes.get(name, '')} |"
            for name, ours in here.items()
        ]
        for name, why in known.reasons.items():
            reasons.setdefault(why, []).append(f"`{known.named(name)}`")
    lines += [f"| {', '.join(names)} | left out | {why} |" for why, names in reasons.items()]
    return "\n".join(lines) + "\n"
