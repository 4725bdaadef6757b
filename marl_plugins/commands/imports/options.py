"""The options of MARTI and MAPPA, and what each becomes: `options.yaml`, the one table behind the
import.

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
class Option:
    """What becomes of an option, in the form of `options.yaml`."""

    flag: str = ""
    here: str = ""
    left_out: str = ""
    type: str = ""
    note: str = ""
    values: Mapping[Any, Any] = field(default_factory=dict)

    def converted(self, value: Any) -> Any:
        """Returns the value of our flag for a value of theirs; None leaves it out."""
        return next((ours for theirs, ours in self.values.items() if theirs == value), value)


@cache
def options() -> dict[str, dict[str, Option]]:
    """Returns the options of each place: `settings` (at the top, in `default_agent`, of an agent),
    `workflow_args`, `tools_config` and `tools_config.tools.NAME`."""
    table = yaml.safe_load(Path(__file__).with_name("options.yaml").read_text(encoding="utf-8"))
    return {
        place: {name: Option(**option) for name, option in known.items()}
        for place, known in table.items()
    }


def check(source: ImportSource, report: Report) -> None:
    """Reports unknown options, options that are left out, and values of a wrong type; whole numbers
    such as 1.0e+3 become integers.

    Raises:
        ConfigurationError: A value is of a wrong type, with all earlier problems.
    """
    wrong = list[Problem]()
    for place, written, kind in _places(source):
        if not isinstance(written, dict | None):
            where = at(line=source.where(*place), key=".".join(place))
            wrong.append(Problem("imports.value", where, f"{written!r:.80}", "settings"))
            continue
        settings, known = written or {}, options()[kind]
        for name, value in settings.items():
            where = at(line=source.where(*place, name), key=".".join([*place, name]))
            if name not in known:
                got = f"unknown key{nearest(name, known)}"
                report.unknown(Problem("imports.unknown_key", where, got, fix="delete it"))
                continue
            option = known[name]
            fits, expected = TYPES[option.type]
            if value is None:
                continue
            if not fits(value):
                wrong.append(Problem("imports.value", where, f"{value!r:.80}", expected))
            elif option.type == "count":
                settings[name] = int(value)
            elif option.left_out and value is not False and (*place, name) not in source.inherited:
                theirs = name if kind == "settings" else f"{kind}.{name}"
                report.leave_out(theirs, option.left_out)
        if kind == TOOL and settings.get("type") != "sandbox_fusion":
            theirs = repr(settings.get("type"))
            got = f"is of type {theirs}, which has no counterpart (marl_tools adds tools)"
            where = at(line=source.where(*place), tool=place[-1])
            report.unknown(Problem("imports.tool", where, got, fix="delete it"))
    if wrong:
        report.raise_problems(wrong)


def _places(source: ImportSource) -> Iterator[tuple[Key, Any, str]]:
    """Every place that has options, with what is written there, and the place in `options.yaml`."""
    settings = source.settings
    yield (), settings, "settings"
    yield ("default_agent",), settings.get("default_agent"), "settings"
    for number, agent in enumerate(settings["agents"]):
        place = ("agents", str(number))
        configs = agent.items() if isinstance(agent, dict) else [("", agent)]
        for name, config in configs:
            yield ((*place, name) if name else place), config, "settings"
    for name in ("workflow_args", "tools_config"):
        yield (name,), settings.get(name), name
    tools = settings.get("tools_config")
    tools = tools.get("tools") if isinstance(tools, dict) else None
    if not isinstance(tools, dict | None):
        yield ("tools_config", "tools"), tools, "tools_config"
        return
    for name, config in (tools or {}).items():
        yield ("tools_config", "tools", name), config, TOOL
