"""The files of a graph: where their keys stand, and the graphs in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from marl_plugins.builtin.graph.grammar import GraphConfig, GraphFile
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, Where, at, meant
from marl_plugins.core.recipe.recipe_yaml import Origins, read_recipe
from marl_plugins.core.recipe.validation import validated

C = TypeVar("C", bound=GraphConfig)
SUFFIXES = (".yaml", ".yml")


@dataclass(frozen=True)
class Spot:
    """A place in a graph's file.

    Args:
        origins: Lines of the file, by key.
        key: From the outermost.
    """

    origins: Origins
    key: tuple[str, ...] = ()

    def below(self, *key: str) -> Spot:
        return replace(self, key=(*self.key, *key))

    @property
    def line(self) -> str:
        return self.origins.where(*self.key)

    @property
    def where(self) -> Where:
        return at(line=self.line, key=".".join(self.key))


@dataclass(frozen=True)
class GraphSource:
    """A file with graphs.

    Args:
        name: Relative to the recipe's folder.
        graphs: Those that nodes may call by name.
    """

    name: str
    origins: Origins
    graphs: Mapping[str, Any]


Found = tuple[GraphSource, GraphConfig, Spot]
"""A graph, with its file and its place there."""


class Files:
    """Reads the files of a workflow's graphs, each once.

    Args:
        folder: The recipe's.

    Attributes:
        names: Those that were read.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.names: dict[str, None] = {}

    def read(self, name: str, problems: list[Problem]) -> Found | None:
        """Returns the graph of a file; None with its problems."""
        try:
            tree = read_recipe(
                self.folder / name, "a graph, which is a mapping of keys, as in `nodes: {...}`"
            )
        except ConfigurationError as error:
            problems += error.problems
            return None
        # with those that it extends
        self.names |= {
            str(path.relative_to(self.folder)): None for path, _ in tree.origins.lines.values()
        }
        config = validated(GraphFile, tree.values, (), tree.origins, problems)
        return (
            None
            if config is None
            else (GraphSource(name, tree.origins, config.graphs), config, Spot(tree.origins))
        )

    def called(
        self, name: str, source: GraphSource, spot: Spot, problems: list[Problem]
    ) -> Found | None:
        """Returns the graph that a node calls, by its name in the same file, or in a file of its
        own.

        Args:
            source: The file in which the node stands.
            spot: The node's.
        """
        if name in source.graphs:
            key = ("graphs", name)
            config = validated(GraphConfig, source.graphs[name], key, source.origins, problems)
            return None if config is None else (source, config, Spot(source.origins, key))
        if not name.endswith(SUFFIXES):
            expected = "a graph of `graphs:`, or a .yaml file"
            problems.append(
                Problem("graph.graph", spot.where, repr(name), expected, meant(name, source.graphs))
            )
            return None
        if (
            Path(name).is_absolute()
            or ".." in Path(name).parts
            or not (self.folder / name).is_file()
        ):
            expected = f"a file in {self.folder}"
            problems.append(Problem("graph.file", spot.where, repr(name), expected))
            return None
        return self.read(name, problems)
