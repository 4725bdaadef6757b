"""A graph for people: as lines of text, and as a Mermaid flowchart with its loops and
conditions."""

from __future__ import annotations

import html
from collections.abc import Iterator

from marl_plugins.builtin.graph.nodes import (
    BodyNode,
    FailNode,
    Graph,
    GraphCallNode,
    LetNode,
    LoopNode,
    MapNode,
    Node,
    RoleCallNode,
    ToolNode,
)


def about(node: Node) -> str:
    """Returns what a node does, in a few words."""
    match node:
        case RoleCallNode():
            return f"role {node.role}" + (f", case {node.case.name}" if node.case else "")
        case ToolNode():
            return f"tool {node.tool}{'.' * bool(node.function)}{node.function}"
        case LetNode():
            return node.value.text
        case MapNode():
            return f"for each {node.item} of {node.over.text}" + (
                f", at most {node.most}" if node.most else ""
            )
        case LoopNode():
            return f"at most {node.most} rounds" + (
                f", until {node.until.text}" if node.until else ""
            )
        case GraphCallNode():
            return "a graph"
    return "the agents have failed"


def outline(graph: Graph, depth: int = 0) -> list[str]:
    """Returns a line per node: what it waits for, its name, what it does, and when."""
    lines = []
    for node in graph.nodes:
        before = ", ".join(graph.nodes[index].name for index in node.waits)
        when = f", when {node.when.text}" if node.when else ""
        when += f", once {node.once.text}" if node.once else ""
        retry = (
            f", up to {node.retry.most} tries while {node.retry.repeated.text}"
            if node.retry
            else ""
        )
        lines.append(
            f"{'  ' * depth}{before}{' -> ' * bool(before)}{node.name}: {about(node)}{when}{retry}"
        )
        if isinstance(node, BodyNode):
            lines += outline(node.body, depth + 1)
    return lines


def mermaid(graph: Graph) -> str:
    """Returns a Mermaid flowchart: boxes are loops, maps and graphs; a dashed arrow has a condition
    on it."""
    return "\n".join(["flowchart TD", *_part(graph, "    "), *_edges(graph, "    ")])


def _part(graph: Graph, indent: str) -> Iterator[str]:
    for node in graph.nodes:
        if isinstance(node, BodyNode):
            yield f"{indent}subgraph {_id(node)} [{_quoted(f'{node.name}: {about(node)}')}]"
            yield from _part(node.body, indent + "    ")
            yield from _edges(node.body, indent + "    ")
            yield f"{indent}end"
        else:
            opened, closed = {
                RoleCallNode: ("([", "])"),
                ToolNode: ("[[", "]]"),
                FailNode: ("{{", "}}"),
            }.get(type(node), ("[", "]"))
            label = (
                node.name if about(node) == f"role {node.name}" else f"{node.name}: {about(node)}"
            )
            yield f"{indent}{_id(node)}{opened}{_quoted(label)}{closed}"


def _edges(graph: Graph, indent: str) -> Iterator[str]:
    for node in graph.nodes:
        asked = (
            [graph.index[name] for name in node.once.names if name in graph.index]
            if node.once
            else []
        )
        for index in dict.fromkeys((*node.waits, *asked)):
            before = graph.nodes[index]
            decides = next(
                (c for c in (node.when, node.once) if c and before.name in c.names), None
            )
            arrow = f"-. {_quoted(decides.text)} .->" if decides else "-->"
            if before.name not in node.hard and not decides:
                arrow = "-.->"
            yield f"{indent}{_id(before)} {arrow} {_id(node)}"


def _id(node: Node) -> str:
    return "node_" + node.address.replace(".", "_")


def _quoted(text: str) -> str:
    """A text as Mermaid takes it in quotes."""
    short = text if len(text) <= 80 else text[:77] + "..."
    return '"' + html.escape(short, quote=False).replace('"', "#quot;") + '"'
