"""The names of the plugins that are found without being named: this package's own, and installed
packages' entry points.

Nothing is imported to find them: `openrlhf --help` lists their commands in a tenth of a second.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

GROUP = "marl_plugins"
"""Entry points of this group are names of plugins."""
SHIPPED = (
    "marl_plugins.coach",
    "marl_plugins.reward_backprop",
    "marl_plugins.rewards",
    "marl_plugins.builtin.routing",
    "marl_plugins.builtin.reinforce_pp",
    "marl_plugins.builtin.groups",
    "marl_plugins.builtin.gae",
    "marl_plugins.rae",
    "marl_plugins.opponent_pool",
    "marl_plugins.balance",
    "marl_plugins.streaming",
    "marl_plugins.process_groups",
    "marl_plugins.adapters",
    "marl_plugins.filter_agents_data",
    "marl_plugins.cooperation",
    "marl_plugins.competence",
    "marl_plugins.counterfactual",
    "marl_plugins.mean_group",
    "marl_plugins.replay",
    "marl_plugins.transfer",
    "marl_plugins.curriculum",
    "marl_plugins.swarm",
    "marl_plugins.determinism",
    "marl_plugins.commands.inspect",
)
"""The capabilities in this package that a user names."""
BUILTINS = (
    "marl_plugins.builtin.recipe",
    "marl_plugins.builtin.graph",
    "marl_plugins.builtin.cases",
    "marl_plugins.builtin.agents",
    "marl_plugins.environments",
    "marl_plugins.builtin.tools.python",
    "marl_plugins.builtin.tools.sql",
    "marl_plugins.builtin.tools.search",
    "marl_plugins.builtin.tools.mcp",
    "marl_plugins.builtin.routing",
    "marl_plugins.builtin.reinforce_pp",
    "marl_plugins.builtin.groups",
    "marl_plugins.builtin.gae",
    "marl_plugins.builtin.external",
    "marl_plugins.builtin.upstream",
    "marl_plugins.builtin.behaviour",
    "marl_plugins.builtin.filtering",
    "marl_plugins.builtin.ema",
    "marl_plugins.builtin.reward_model",
    "marl_plugins.builtin.rehearsal",
)
"""Always active and asked last: what a run does where no named plugin answers."""


def found() -> list[str]:
    """Returns the names of the plugins that are found: shipped ones, built-in ones and entry
    points."""
    package = Path(__file__).resolve().parents[1]
    places = {name: package.joinpath(*name.split(".")[1:]) for name in (*SHIPPED, *BUILTINS)}
    own = [name for name, place in places.items() if _is_there(place)]
    return list(dict.fromkeys([*own, *entry_points()]))


def entry_points() -> list[str]:
    """Returns the modules that installed packages name in the group `marl_plugins`."""
    if not any(_holds_group(file) for file in _entry_point_files()):
        # reading the metadata of all that is installed takes five times as long as looking for the
        # group's name
        return []
    from importlib import metadata

    return [entry.value for entry in metadata.entry_points(group=GROUP)]


def _is_there(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _entry_point_files() -> Iterator[Path]:
    for folder in dict.fromkeys(sys.path):
        yield from Path(folder or ".").glob("*.*-info/entry_points.txt")


def _holds_group(file: Path) -> bool:
    try:
        return f"[{GROUP}]".encode() in file.read_bytes()
    except OSError:
        return True  # whoever reads the metadata says what is wrong with it
