"""The keys of a graph's file: what may stand where, before names and expressions are looked at.

A value is an expression, or a list or mapping of expressions; it is checked with the graph
(compiler.py).
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

import pydantic

from marl_plugins.core.section import Model

Value = Any | bool
Number = Annotated[float, pydantic.Field(ge=0)]


class Unset:
    """The value of a key that is not there; null is an expression, too."""


class GraphPart(Model, defer_build=True):
    """A part of a graph. Models are built once they are used."""


class ReadConfig(GraphPart):
    """The way in which an answer is read."""

    EXAMPLE: ClassVar[str] = "{as: json.queries, keys: {queries: list}, default: []}"

    form: str = pydantic.Field("raw", alias="as")
    """`raw`, `json` (an object), `json.KEY`, `tag.NAME` (the last `<NAME>...</NAME>`), `code` or
    `code.LANGUAGE` (the last fenced block), `number` (the whole answer is one). `read: FORM` is
    short for `read: {as: FORM}`."""
    keys: dict[str, Literal["text", "number", "whole", "truth", "list", "mapping"]] = (
        pydantic.Field({}, examples=["{queries: list}"])
    )
    """Keys that the JSON object must have, with the kind of each."""
    default: Value = Unset
    """The value of an answer that does not have the form; without it, that is the text itself.
    `.ok` says which it was."""
    most: int | None = pydantic.Field(None, ge=1)
    """Maximum length of the list or text that is read."""


class RetryConfig(GraphPart):
    """Another try of a node."""

    EXAMPLE: ClassVar[str] = "{most: 2, while: not draft.ok}"

    most: int = pydantic.Field(ge=2)
    """Maximum number of tries, the first included."""
    repeated: Value = pydantic.Field(alias="while")
    """Another try follows as long as it holds; the node's own name is its last try."""
    cooldown: int = pydantic.Field(0, ge=0)
    """The number of other nodes that have to run before the next try, as long as any can."""


class ChooseConfig(GraphPart):
    """The role that chooses what runs next."""

    EXAMPLE: ClassVar[str] = "{role: manager}"

    role: str
    """A role whose prompt has a field `options`: the names of the nodes that may run, of which it
    answers one. Any other answer is the first of them."""
    fields: dict[str, Value] = pydantic.Field({}, alias="with", examples=["{goal: task.prompt}"])
    """The other fields of its prompt."""


class GraphConfig(GraphPart):
    """A graph."""

    EXAMPLE: ClassVar[str] = "{nodes: {answer: {role: solver}}, give: answer}"

    nodes: dict[str, dict[str, Any]] = pydantic.Field(
        min_length=1, examples=["{answer: {role: solver}}"]
    )
    """Each node by its name."""
    give: Value
    """What the graph comes to. Of a whole workflow, a node's name alone gives the role's answer
    itself, `NODE.value` what was read in it."""
    budget: dict[str, Number] = pydantic.Field({}, examples=["{calls: 10}"])
    """What there is of each resource; a node that costs more than is left is skipped."""
    stop: Value = Unset
    """Once it holds, nothing more is started. `done` is the number of nodes that have run,
    `left.RESOURCE` what is left."""
    choose: ChooseConfig | None = None
    """One node at a time runs, and a role chooses which."""


class GraphFile(GraphConfig):
    """A graph in a file of its own."""

    graphs: dict[str, dict[str, Any]] = pydantic.Field({}, examples=["{check: {nodes: ...}}"])
    """Graphs that nodes may call by these names."""


class NodeConfig(GraphPart):
    """The keys that every node may have."""

    when: Value = Unset
    """The node runs where it holds, and is skipped otherwise. It is asked one time, when what the
    node names has settled."""
    once: Value = Unset
    """The node runs as soon as it holds. It is asked again whenever a node settles, and waits for
    none that it names. Where it never holds the node is skipped at the end."""
    otherwise: Value = Unset
    """The node's value where it is skipped; what names the node then runs."""
    after: list[str] = pydantic.Field([])
    """Nodes that have to run first, and are recorded as dependencies although nothing of them is
    shown."""
    retry: RetryConfig | None = None
    """Another try, see below."""
    priority: float = 0.0
    """Of the nodes that may start in a round, those with the highest are first: the budget covers
    them before others, and `choose` has them first among its options."""
    cost: dict[str, Number] = pydantic.Field({}, examples=["{calls: 1}"])
    """What a try takes of the graph's budget."""


class RoleNode(NodeConfig):
    """A call of a role."""

    role: str
    """Name of the role."""
    fields: dict[str, Value] = pydantic.Field({}, alias="with", examples=["{problem: task.prompt}"])
    """The fields of its prompt. A list with a text in it is joined with blank lines; any other list
    and a mapping are shown as JSON."""
    read: ReadConfig = ReadConfig()
    """How the answer is read; the node's value is what was read."""
    case: str | None = pydantic.Field(None, examples=["addition"])
    """Name of the case that the role is shown: its `prompt` gives fields beside those of `with`,
    its `verify` scores what was read."""
    given: Value = Unset
    """What the case is made of, apart from chance."""
    continues: Value = Unset
    """A node, or a loop's value, that is the role's last answer, whose conversation goes on; where
    it is `None`, one is opened."""


class ToolSpec(NodeConfig):
    """A call of a tool, by the workflow itself."""

    tool: str
    """Name of the tool, or `NAME.FUNCTION`."""
    call: Value = Unset
    """The text of the call, of a tool without a function."""
    fields: dict[str, Value] = pydantic.Field(
        {}, alias="with", examples=["{city: task.metadata.city}"]
    )
    """The arguments of the function."""


class LetSpec(NodeConfig):
    """A value."""

    let: Value
    """The node's value."""


class MapConfig(GraphConfig):
    """A graph that runs for each item of a list, at the same time."""

    EXAMPLE: ClassVar[str] = "{over: queries, as: query, most: 3, nodes: {...}, give: hit}"

    over: Value
    """The list. Within, `index` is an item's number, from 0."""
    item: str = pydantic.Field("item", alias="as")
    """What an item is called within."""
    most: int | None = pydantic.Field(None, ge=1)
    """Maximum number of items; the others are left out. Required where the list comes from
    agents."""


class MapSpec(NodeConfig):
    """A graph for each item of a list; its value is the list of what each gives, without those that
    give nothing."""

    map: MapConfig
    """See below."""


class LoopConfig(GraphConfig):
    """A graph that runs round after round."""

    EXAMPLE: ClassVar[str] = "{most: 3, nodes: {...}, until: tests.ok, give: code}"

    most: int = pydantic.Field(ge=1)
    """Maximum number of rounds. Within, `round` is a round's number, from 0."""
    start: dict[str, Value] = pydantic.Field({}, examples=["{advice: \"''\"}"])
    """Values that go from round to round, as they are in the first."""
    until: Value = Unset
    """After a round in which it holds there is no other one."""
    next: dict[str, Value] = pydantic.Field({}, examples=["{advice: review}"])
    """What such a value is in the next round; others stay as they are."""


class LoopSpec(NodeConfig):
    """A graph, round after round; its value is what the last one gives, `.rounds` their number."""

    loop: LoopConfig
    """See below."""


class GraphNode(NodeConfig):
    """A graph of `graphs:`, or in another file of the same folder, which sees what `with` gives it
    and the task."""

    graph: str
    """Its name, or its file."""
    fields: dict[str, Value] = pydantic.Field({}, alias="with", examples=["{draft: plan}"])
    """What it sees, by the names that it has there."""


class FailSpec(NodeConfig):
    """The end of the trajectory as a failure of the agents (`no_answer`)."""

    fail: Value
    """Why, for people."""
