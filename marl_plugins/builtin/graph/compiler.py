"""A graph's YAML becomes a checked graph here: kinds, keys, names, expressions, and what they have
to agree with in the recipe.

Nothing is run. Every problem is kept with its file, line and key, and all are reported at once; a
graph with problems is never run.
"""

from __future__ import annotations

import graphlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from marl_plugins.builtin.graph import grammar, nodes
from marl_plugins.builtin.graph.cases import NodeCase
from marl_plugins.builtin.graph.checks import (
    RecipeParts,
    check_case,
    check_role,
    check_tool,
    reading_of,
)
from marl_plugins.builtin.graph.expressions import Expression
from marl_plugins.builtin.graph.files import Files
from marl_plugins.builtin.graph.names import Draft, Level
from marl_plugins.builtin.graph.nodes import DONE, INDEX, LEFT, ROUND, TASK, TRAINING, Graph, Node
from marl_plugins.core.problems import Problem, meant
from marl_plugins.core.recipe.validation import validated

Own = dict[str, Any]
"""What a node of one kind has beside what every node has; None where it has problems, with which
no graph is made."""


class Compiler:
    """Compiles the graphs of a workflow.

    Args:
        known: What the recipe has.
        files: Those that are read.

    Attributes:
        problems: All that is wrong so far.
    """

    def __init__(self, known: RecipeParts, files: Files):
        self.known = known
        self.files = files
        self.problems: list[Problem] = []

    def compile(self, name: str) -> Graph | None:
        """Returns the graph in a file; None where it has problems."""
        entry = self.files.read(name, self.problems)
        if entry is None:
            return None
        source, config, spot = entry
        return self.graph(
            config, Level(spot, "", source, config.nodes, self.problems, calls=((name, ""),))
        )

    def graph(self, config: grammar.GraphConfig, level: Level) -> Graph | None:
        """Returns a graph; None where it has problems."""
        before, spot = len(self.problems), level.spot
        level.budget = config.budget
        made = [self.node(name, index, level) for index, name in enumerate(level.specs)]
        give = level.expression(config.give, spot.below("give"), "give")
        stop = level.expression(config.stop, spot.below("stop"), "stop", counting=True)
        choose = self.choose(config.choose, level) if config.choose else None
        complete = [node for node in made if node is not None]
        self.problems += circles(complete, level)
        if len(self.problems) > before or give is None:
            return None
        return Graph(complete, give, config.budget, stop, choose)

    def choose(self, config: grammar.ChooseConfig, level: Level) -> nodes.Choice:
        """Returns who chooses what runs next."""
        spot = level.spot.below("choose")
        expressions = {
            name: level.expression(value, spot.below("with", name), f"choose, with.{name}")
            for name, value in config.fields.items()
        }
        fields = {name: value for name, value in expressions.items() if value is not None}
        for name in dict.fromkeys(
            name for value in fields.values() for name in value.hard if name in level.specs
        ):
            got = f"{name} may not have run when somebody chooses"
            self.problems.append(
                Problem(
                    "graph.choose",
                    spot.below("with").where,
                    got,
                    fix=f"first({name}, 'nothing yet')",
                )
            )
        self.problems += check_role(config.role, self.known, spot)
        return nodes.Choice(config.role, fields, level.address_of("choose"), spot.line)

    def node(self, name: str, index: int, level: Level) -> Node | None:
        """Returns a node; None where it has problems."""
        spot, spec = level.spot.below("nodes", name), level.specs[name]
        level.check_name(name, spot)
        kinds = [kind for kind in KINDS if kind in spec]
        if len(kinds) != 1:
            got = f"{' and '.join(kinds) or 'none of them'} in node {name!r}"
            fix = "make two nodes of it" if kinds else ""
            expected = f"exactly one of {', '.join(KINDS)}"
            self.problems.append(Problem("graph.kind", spot.where, got, expected, fix))
            return None
        if isinstance(spec.get("read"), str):
            spec = {**spec, "read": {"as": spec["read"]}}
        form, kind, parts_of = KINDS[kinds[0]]
        config = validated(form, spec, spot.key, level.source.origins, self.problems)
        if config is None:
            return None
        draft = Draft(name, spot, level)
        shared = self.shared(config, draft)
        own = parts_of(self, config, draft)
        order = {other: number for number, other in enumerate(level.specs)}
        otherwise = shared["otherwise"]
        names = [*draft.names, *(otherwise.names if otherwise else ())]
        level.used |= draft.hard
        level.softly |= dict.fromkeys(names)
        if own is None:
            return None
        return kind(
            name=name,
            index=index,
            address=level.address_of(name),
            place=spot.line,
            reads=tuple(dict.fromkeys((*draft.reads, *(otherwise.names if otherwise else ())))),
            firsts=tuple(draft.firsts),
            hard=tuple(draft.hard),
            waits=tuple(dict.fromkeys(order[other] for other in names if other in order)),
            counts=DONE in draft.reads or LEFT in draft.reads,
            **shared,
            **own,
        )

    def shared(self, config: grammar.NodeConfig, draft: Draft) -> dict[str, Any]:
        """Returns what every kind of node has."""
        spot, level, retry = draft.spot, draft.level, None
        for other in config.after:
            if other in level.specs and other != draft.name:
                draft.needs([other])
            else:
                fix = meant(other, [name for name in level.specs if name != draft.name])
                self.problems.append(
                    Problem(
                        "graph.after", spot.below("after").where, repr(other), "another node", fix
                    )
                )
        when = draft.expression(config.when, "when", counting=True)
        once = draft.expression(config.once, "once", counting=True, waits=False)
        # it is read where the others are not there
        otherwise = level.expression(
            config.otherwise, spot.below("otherwise"), draft.what("otherwise")
        )
        if config.retry is not None:
            repeated = draft.expression(config.retry.repeated, "retry", "while", own=True)
            if repeated is not None:
                retry = nodes.Retry(config.retry.most, repeated, config.retry.cooldown)
        for resource in config.cost:
            if resource not in level.budget:
                got = f"the graph has no budget of {resource!r}"
                fix = meant(resource, level.budget) or f"budget: {{{resource}: 10}}"
                self.problems.append(
                    Problem("graph.budget", spot.below("cost", resource).where, got, fix=fix)
                )
        return {
            "when": when,
            "once": once,
            "otherwise": otherwise,
            "retry": retry,
            "cost": config.cost,
            "priority": config.priority,
        }

    def body(
        self, config: grammar.GraphConfig, draft: Draft, key: str, own: tuple[str, ...]
    ) -> tuple[Graph | None, Level]:
        """Returns the graph in a node, and what it may read.

        Args:
            own: Names that belong to it beside its nodes.
        """
        around, spot = draft.level, draft.spot.below(key)
        level = Level(
            spot,
            around.address_of(draft.name),
            around.source,
            config.nodes,
            self.problems,
            own,
            around,
            around.calls,
            around.in_loop or key == "loop",
        )
        for name in own:
            if name not in (ROUND, INDEX):
                level.check_name(name, spot)
        return self.graph(config, level), level


def seen_by(level: Level, draft: Draft) -> tuple[str, ...]:
    """Returns the names from outside that the graph in a node sees, on which the node depends
    therefore."""
    hard, softly = level.free
    draft.needs(hard, softly)
    rounds = draft.level.in_loop and ROUND not in (*hard, *level.own)
    return (*hard, *softly, *([ROUND] if rounds else []))


def circles(made: Sequence[Node], level: Level) -> list[Problem]:
    """Returns the nodes that wait for each other."""
    every = list(level.specs)
    before = {node.name: [every[index] for index in node.waits] for node in made}
    try:
        graphlib.TopologicalSorter(before).prepare()
    except graphlib.CycleError as error:
        names = [str(name) for name in error.args[1]]
        got = f"these nodes wait for each other: {' -> '.join(names)}"
        where = level.spot.below("nodes", names[0]).where
        return [Problem("graph.cycle", where, got, fix="what repeats is a `loop`")]
    return []


# --- kinds of nodes
# --------------------------------------------------------------------------------------------------


def role_parts(compiler: Compiler, config: grammar.RoleNode, draft: Draft) -> Own:
    compiler.problems += check_role(config.role, compiler.known, draft.spot)
    fields = draft.expressions(config.fields, "with")
    case = case_of(compiler, config, draft)
    continues = draft.expression(config.continues, "continues")
    default = draft.expression(config.read.default, "read", "default")
    reading, problems = reading_of(config.read, default, draft.spot)
    compiler.problems += problems

    return {
        "role": config.role,
        "fields": fields,
        "reading": reading,
        "continues": continues,
        "case": case,
    }


def case_of(compiler: Compiler, config: grammar.RoleNode, draft: Draft) -> NodeCase | None:
    """Returns the case of a node; None where it has none, or one with problems."""
    known = compiler.known
    problems = check_case(config, known, draft.spot)
    compiler.problems += problems
    value = draft.expression(config.given, "given")
    if config.case is None or problems:
        return None
    address = draft.level.address_of(draft.name)
    return NodeCase(
        config.case, known.cases[config.case], value, known.case_seconds, address, draft.spot.line
    )


def tool_parts(compiler: Compiler, config: grammar.ToolSpec, draft: Draft) -> Own:
    name, _, function = config.tool.partition(".")
    compiler.problems += check_tool(name, function, config, compiler.known, draft.spot)
    call = draft.expression(config.call, "call")
    fields = draft.expressions(config.fields, "with")

    return {"tool": name, "function": function, "call": call, "fields": fields}


def let_parts(compiler: Compiler, config: grammar.LetSpec, draft: Draft) -> Own:
    return {"value": draft.expression(config.let, "let")}


def fail_parts(compiler: Compiler, config: grammar.FailSpec, draft: Draft) -> Own:
    return {"why": draft.expression(config.fail, "fail")}


def map_parts(compiler: Compiler, config: grammar.MapSpec, draft: Draft) -> Own:
    inner = config.map
    over = draft.expression(inner.over, "map", "over")
    if over is not None and inner.most is None:
        compiler.problems += unbounded(over, draft)
    body, level = compiler.body(inner, draft, "map", (inner.item, INDEX))

    return {
        "over": over,
        "item": inner.item,
        "most": inner.most,
        "body": body,
        "outer": seen_by(level, draft),
    }


def unbounded(over: Expression, draft: Draft) -> list[Problem]:
    """Returns the problem with a map over a list that agents may make as long as they like."""
    for name in over.names:
        spec = mapping(draft.level.spec_of(name))
        bounded = "map" in spec or "most" in mapping(spec.get("read"))
        if name not in (TASK, TRAINING, ROUND, INDEX) and not bounded:
            got = f"the list comes from {name}, and may be of any length"
            fix = "give the map `most: 5`, or the node's `read`"
            return [Problem("graph.most", draft.spot.below("map").where, got, fix=fix)]
    return []


def mapping(value: Any) -> dict[str, Any]:
    """Returns a mapping of the file; an empty one in place of what is none."""
    return value if isinstance(value, dict) else {}


def loop_parts(compiler: Compiler, config: grammar.LoopSpec, draft: Draft) -> Own:
    inner, spot = config.loop, draft.spot.below("loop")
    start = draft.expressions(inner.start, "loop", "start")
    for name in inner.next:
        if name not in inner.start:
            got, fix = f"`start` has no {name!r}", meant(name, inner.start)
            compiler.problems.append(
                Problem("graph.next", spot.below("next", name).where, got, fix=fix)
            )

    body, level = compiler.body(inner, draft, "loop", (*inner.start, ROUND))
    until = level.expression(inner.until, spot.below("until"), draft.what("loop", "until"))
    following = {
        name: level.expression(value, spot.below("next", name), draft.what("loop", "next", name))
        for name, value in inner.next.items()
    }

    return {
        "most": inner.most,
        "start": start,
        "until": until,
        "following": following,
        "body": body,
        "outer": seen_by(level, draft),
    }


def graph_parts(compiler: Compiler, config: grammar.GraphNode, draft: Draft) -> Own | None:
    level, spot = draft.level, draft.spot.below("graph")
    fields = draft.expressions(config.fields, "with")
    draft.needs([TASK, TRAINING])
    entry = compiler.files.called(config.graph, level.source, spot, compiler.problems)
    if entry is None:
        return None
    source, inner, place = entry
    call = (source.name, config.graph if place.key else "")
    if call in level.calls:
        circle = " -> ".join(graph or file for file, graph in (*level.calls, call))
        compiler.problems.append(
            Problem("graph.recursion", spot.where, f"it calls itself: {circle}", fix="use a `loop`")
        )
        return None
    address, calls = level.address_of(draft.name), (*level.calls, call)
    below = Level(
        place, address, source, inner.nodes, compiler.problems, tuple(config.fields), calls=calls
    )
    for name in config.fields:
        below.check_name(name, spot)
    body = compiler.graph(inner, below)
    return {"fields": fields, "body": body, "outer": (TASK, TRAINING, ROUND)}


KINDS: Mapping[str, tuple[type[grammar.NodeConfig], type[Node], Callable[..., Own | None]]] = {
    "role": (grammar.RoleNode, nodes.RoleCallNode, role_parts),
    "tool": (grammar.ToolSpec, nodes.ToolNode, tool_parts),
    "let": (grammar.LetSpec, nodes.LetNode, let_parts),
    "map": (grammar.MapSpec, nodes.MapNode, map_parts),
    "loop": (grammar.LoopSpec, nodes.LoopNode, loop_parts),
    "graph": (grammar.GraphNode, nodes.GraphCallNode, graph_parts),
    "fail": (grammar.FailSpec, nodes.FailNode, fail_parts),
}
"""The kinds of nodes, by the key that makes a node one: its keys, the node, and what reads the
keys; None where they have problems."""
