"""Names of a graph while it is compiled: what an expression may read where it stands, and what each
node reads."""

from __future__ import annotations

import keyword
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from marl_plugins.builtin.graph.expressions import BadExpression, Expression, written
from marl_plugins.builtin.graph.files import GraphSource, Spot
from marl_plugins.builtin.graph.grammar import Unset
from marl_plugins.builtin.graph.nodes import DONE, INDEX, LEFT, RESERVED, ROUND, TASK, TRAINING
from marl_plugins.builtin.graph.values import Result
from marl_plugins.core.problems import Problem, meant

OF_TASK = ("prompt", "id", "metadata")
"""What a graph may read of its task."""


@dataclass
class Level:
    """One graph while it is compiled.

    Args:
        address: Of the node that it stands in.
        source: Its file.
        specs: Its nodes, as they stand in the file.
        problems: All that is wrong so far, with any graph.
        own: Other names that belong to it: a loop's values, a map's item, inputs.
        around: The graph around it, whose names it sees.
        calls: The graphs that are being called, each by its file and name, to find one that calls
            itself.
        budget: What there is of each resource.
        used, softly: Names that its expressions read; those that they read in `ran()` and `first()`
            alone.
    """

    spot: Spot
    address: str
    source: GraphSource
    specs: Mapping[str, Any]
    problems: list[Problem]
    own: tuple[str, ...] = ()
    around: Level | None = None
    calls: tuple[tuple[str, str], ...] = ()
    in_loop: bool = False
    budget: Mapping[str, float] = field(default_factory=dict)
    used: dict[str, None] = field(default_factory=dict)
    softly: dict[str, None] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """All names that its expressions may read, but for `done` and `left`."""
        around = self.around.names if self.around else [TASK, TRAINING]
        return [*self.specs, *self.own, *(name for name in around if name not in self.specs)]

    @property
    def free(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names from around it that it cannot do without, and others that it reads."""
        mine = {*self.specs, *self.own, DONE, LEFT}
        hard = tuple(name for name in self.used if name not in mine)
        return hard, tuple(name for name in self.softly if name not in mine and name not in hard)

    def spec_of(self, name: str) -> Any:
        """Returns the node of a name, in this graph or around it; None where it is none."""
        if name in self.specs:
            return self.specs[name]
        return None if name in self.own or self.around is None else self.around.spec_of(name)

    def address_of(self, name: str) -> str:
        return f"{self.address}.{name}" if self.address else name

    def check_name(self, name: str, spot: Spot) -> None:
        """Notes why a node, or another value, cannot have a name."""
        taken = name in RESERVED or (name in self.specs and name in self.own)
        taken = taken or (self.around is not None and name in self.around.names)
        if name.isidentifier() and not (name.startswith("_") or keyword.iskeyword(name) or taken):
            return
        why = (
            "stands for something else here" if taken else "is no name that an expression can read"
        )
        expected = "letters, digits and underscores, a letter first, and a name that is free"
        self.problems.append(Problem("graph.name", spot.where, f"{name!r}, which {why}", expected))

    def expression(
        self, value: Any, spot: Spot, what: str, *, counting: bool = False
    ) -> Expression | None:
        """Returns an expression, whose names are noted; None where there is none, or it has
        problems.

        Args:
            what: What it is, for messages at run time.
            counting: Whether it may read `done` and `left`.
        """
        if value is Unset:
            return None
        try:
            expression = Expression(written(value), spot.line, what)
        except BadExpression as error:
            self.problems.append(Problem("graph.expression", spot.where, error.got, fix=error.fix))
            return None
        valid = [*self.names, *((DONE, *([LEFT] if self.budget else [])) if counting else ())]
        unknown = [name for name in expression.names if name not in valid]
        for name in unknown:
            quoted = (
                f"quote it twice where it is a text: \"'{name}'\"" if expression.is_name else ""
            )
            fix = "; ".join(filter(None, (meant(name, valid), quoted)))
            got = f"{expression.text!r} reads {name!r}, which is nothing that can be read here"
            self.problems.append(Problem("graph.unknown_name", spot.where, got, fix=fix))
        for name, read in expression.attributes:
            self._check_attribute(name, read, spot)
        self.used |= dict.fromkeys(expression.hard)
        self.softly |= dict.fromkeys(expression.soft)
        return None if unknown else expression

    def _check_attribute(self, name: str, read: str, spot: Spot) -> None:
        """Notes the problem with what an expression reads of a name, as far as that is known."""
        is_json = False
        if name == TASK:
            if read == "label":
                got, fix = "it reads task.label", "remove it: labels are for graders"
                self.problems.append(Problem("graph.label", spot.where, got, fix=fix))
                return
            valid: tuple[str, ...] = OF_TASK
        elif name == LEFT:
            valid = tuple(self.budget)
        elif name in (ROUND, INDEX, DONE, TRAINING):
            valid = ()
        else:
            spec = self.spec_of(name)
            if not isinstance(spec, dict) or not ("role" in spec or "tool" in spec):
                return
            how = spec.get("read", "raw")
            form = how.get("as", "raw") if isinstance(how, dict) else how
            is_json = "role" in spec and str(form).startswith("json")
            if is_json and read not in Result.READ:
                return
            valid = (*Result.READ[:-2], *(["score"] if spec.get("case") else []))
        if read not in valid:
            fix = f"a key of its JSON is {name}[{read!r}]" if is_json else meant(read, valid)
            self.problems.append(
                Problem("graph.attribute", spot.where, f"{name} has no {read!r}", fix=fix)
            )


@dataclass
class Draft:
    """A node while it is compiled: what it reads, by name.

    Args:
        reads: The names on whose actions it depends.
        hard: Those of them that it cannot do without.
        firsts: More names, of which those count that come up to the first that ran.
    """

    name: str
    spot: Spot
    level: Level
    reads: dict[str, None] = field(default_factory=dict)
    hard: dict[str, None] = field(default_factory=dict)
    firsts: list[tuple[str, ...]] = field(default_factory=list)

    def needs(self, hard: Iterable[str], others: Iterable[str] = ()) -> None:
        """Notes names that it cannot do without, and others that it reads."""
        hard = list(hard)
        self.hard |= dict.fromkeys(hard)
        self.reads |= dict.fromkeys((*hard, *others))

    @property
    def names(self) -> list[str]:
        """All names that it reads."""
        return list(
            dict.fromkeys((*self.reads, *(name for names in self.firsts for name in names)))
        )

    def what(self, *key: str) -> str:
        """Returns a key of it, for messages at run time."""
        return f"node {self.name!r}, {'.'.join(key)}"

    def expression(
        self,
        value: Any,
        *key: str,
        counting: bool = False,
        own: bool = False,
        waits: bool = True,
    ) -> Expression | None:
        """Returns an expression that decides or makes what the node does.

        Args:
            counting: Whether it may read `done` and `left`.
            own: Whether it may read the node itself.
            waits: Whether the node waits for what it names.
        """
        spot = self.spot.below(*key)
        expression = self.level.expression(value, spot, self.what(*key), counting=counting)
        if expression is not None and self.name in expression.names and not own:
            got, fix = f"node {self.name!r} reads itself", "what repeats is a `loop`"
            self.level.problems.append(Problem("graph.cycle", spot.where, got, fix=fix))
        if expression is not None and waits:
            self.needs(
                *(
                    [name for name in names if name != self.name]
                    for names in (expression.hard, expression.always)
                )
            )
            self.firsts += [
                tuple(name for name in names if name != self.name) for names in expression.firsts
            ]
        return expression

    def expressions(self, values: Mapping[str, Any], *key: str) -> dict[str, Expression | None]:
        """Returns expressions by name."""
        return {name: self.expression(value, *key, name) for name, value in values.items()}
