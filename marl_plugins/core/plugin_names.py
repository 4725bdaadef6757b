"""The names of the plugins that are found without being named: this package's own, and installed
packages' entry points.

Nothing is imported to find them: `openrlhf --help` lists their commands in a tenth of a second.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from marl_plugins.core.moved import present_name

GROUP = "marl_plugins"
"""Entry points of this group are names of plugins."""
SHIPPED = (
    "marl_plugins.coach",
    "marl_plugins.reward_backprop",
    "marl_plugins.rewards",
    "marl_plugins.routing",
    "marl_plugins.reinforce_pp",
    "marl_plugins.groups",
    "marl_plugins.gae",
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
    "marl_plugins.continuous",
    "marl_plugins.old_logprobs",
    "marl_plugins.determinism",
    "marl_plugins.viewer",
)
"""The capabilities in this package that a user names."""
BUILTINS = (
    "marl_plugins.builtin.recipe",
    "marl_plugins.graph",
    "marl_plugins.cases",
    "marl_plugins.agents",
    "marl_plugins.environments",
    "marl_plugins.tools.python",
    "marl_plugins.tools.sql",
    "marl_plugins.tools.search",
    "marl_plugins.tools.mcp",
    "marl_plugins.routing",
    "marl_plugins.reinforce_pp",
    "marl_plugins.groups",
    "marl_plugins.gae",
    "marl_plugins.builtin.external",
    "marl_plugins.builtin.upstream",
    "marl_plugins.builtin.behaviour",
    "marl_plugins.filtering",
    "marl_plugins.ema",
    "marl_plugins.reward_model",
    "marl_plugins.builtin.rehearsal",
)
"""Always active and asked last: what a run does where no named plugin answers."""


def found() -> list[str]:
    """Returns the names of the plugins that are found: shipped ones, built-in ones and entry
    points."""
    package = Path(__file__).resolve().parents[1]
    places = {
        name: package.joinpath(*present_name(name).split(".")[1:]) for name in (*SHIPPED, *BUILTINS)
    }
    own = [name for name, place in places.items() if _is_there(place)]
    return list(dict.fromkeys([*own, *entry_points()]))


def name_of(module: str) -> str:
    """Returns the name of the plugin that a module is: a built-in one keeps the name it had before
    its module moved."""
    names = {present_name(name): name for name in (*SHIPPED, *BUILTINS)}
    return names.get(module, module)


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
