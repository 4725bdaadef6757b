"""The vocabulary that a workflow may look for in an answer, read from its code: texts, keys,
numbers, patterns, tags.

Read are the file in which the workflow stands, the recipe's files that it imports, and the values
that lie in them: the keys of a table, the members of an enumeration, a compiled pattern, the fields
of a class.
"""

from __future__ import annotations

import ast
import enum
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

from marl_plugins.core.failures import written
from marl_plugins.core.loading import FOLDERS
from marl_plugins.core.workflow import Workflow
from marl_plugins.engine.plan.workflow_file import WorkflowFile

MOST_OF_A_CONTAINER = 50
LONGEST_TEXT_CHARS = 200
DEEPEST = 3
"""Levels of containers that are looked into."""
TESTS = (
    "startswith",
    "endswith",
    "removeprefix",
    "removesuffix",
    "index",
    "find",
    "split",
    "partition",
    "rpartition",
    "count",
)
"""Methods of a text that look for another one in it."""
LOOKUPS = ("get", "pop", "setdefault")
"""Methods of a mapping whose first argument is a key."""
PATTERNS = ("compile", "match", "search", "fullmatch", "findall", "finditer", "split")
SHORT_TEXT = 40
"""Characters of a text that may be what an answer says, wherever it stands in the code."""
MARKUP = ("xml", "lxml", "bs4", "html")
"""Packages that read tags."""
TAG = re.compile(r"<([A-Za-z_][\w-]*)>")
FENCE = "```"


@dataclass
class Vocabulary:
    """The texts and values that a workflow's code looks for, in the order in which it stands there.

    Args:
        others: Short texts of the code of which it is not known what they are for.
        classes: The fields of classes, as they are annotated.
        markup: Whether tags are read by a parser.
        lengths: Whether something is counted, such as the words of an answer.
    """

    texts: dict[str, None] = field(default_factory=dict)
    others: dict[str, None] = field(default_factory=dict)
    keys: dict[str, None] = field(default_factory=dict)
    numbers: dict[float, None] = field(default_factory=dict)
    patterns: dict[re.Pattern[str], None] = field(default_factory=dict)
    tags: dict[str, None] = field(default_factory=dict)
    classes: dict[str, dict[str, ast.expr]] = field(default_factory=dict)
    fenced: bool = False
    markup: bool = False
    lengths: bool = False

    def add_text(self, text: Any) -> None:
        """Adds a text that answers may be compared with."""
        if isinstance(text, str) and text.strip() and len(text) <= LONGEST_TEXT_CHARS:
            self.texts.setdefault(str(text))

    def add_pattern(self, pattern: Any) -> None:
        """Adds a pattern, compiled or not."""
        try:
            compiled = re.compile(pattern)
        except (re.error, TypeError):
            return
        if isinstance(compiled.pattern, str):
            self.patterns.setdefault(compiled)


def vocabulary_of(workflow: Workflow) -> Vocabulary:
    """Returns the vocabulary of a workflow's code."""
    found = Vocabulary()
    if isinstance(workflow, WorkflowFile):  # it says itself what is worth a try
        return found
    modules = list(_modules(workflow))
    for module in modules:
        _read_source(_with_constants(source_of(module), vars(module)), found)
    _read_values(_own_values(workflow), found, 0)
    for module in modules:
        _read_values(
            [value for name, value in vars(module).items() if not name.startswith("__")], found, 0
        )
    return found


def source_of(module: ModuleType | None) -> str:
    """Returns the text of a module's file; empty where there is none."""
    try:
        return inspect.getsource(module) if module else ""
    except (OSError, TypeError):
        return ""


def _modules(workflow: Workflow) -> Iterator[ModuleType]:
    """The module that a workflow stands in, then the user's own that are imported there."""
    first = inspect.getmodule(written(workflow)) or sys.modules.get(type(workflow).__module__)
    found = [first] if first else []
    for module in found:
        yield module
        for value in list(vars(module).values()):
            other = (
                value
                if isinstance(value, ModuleType)
                else sys.modules.get(getattr(value, "__module__", None) or "")
            )
            if other is not None and other.__name__.startswith(FOLDERS) and other not in found:
                found.append(other)


def _own_values(workflow: Any) -> list[Any]:
    """Returns what a workflow that is an object or a closure carries with it."""
    function = workflow.__func__ if isinstance(workflow, MethodType) else workflow
    cells = function.__closure__ or () if isinstance(function, FunctionType) else ()
    owner = getattr(workflow, "__self__", workflow)
    return [*(cell.cell_contents for cell in cells), *getattr(owner, "__dict__", {}).values()]


def _read_values(values: Iterable[Any], found: Vocabulary, level: int) -> None:
    """Add the texts in containers, members of enumerations, patterns, and fields of classes."""
    for value in islice(values, MOST_OF_A_CONTAINER * 10):
        if isinstance(value, re.Pattern):
            found.add_pattern(value)
        elif isinstance(value, type):
            if issubclass(value, enum.Enum):
                for member in value:
                    found.add_text(member.value)
                    found.add_text(member.name)
            elif value.__module__.startswith(FOLDERS):
                found.keys |= dict.fromkeys(inspect.get_annotations(value))
        elif level < DEEPEST and isinstance(value, Mapping | list | tuple | AbstractSet):
            inner = list(islice(value, MOST_OF_A_CONTAINER))
            for item in inner:
                found.add_text(item)
                if type(item) in (int, float):
                    found.numbers.setdefault(item)
            _read_values(value.values() if isinstance(value, Mapping) else inner, found, level + 1)
        elif level and isinstance(value, str):
            found.add_text(value)


class Constants(ast.NodeTransformer):
    """Puts the texts and numbers that names stand for in the places of the names.

    Args:
        values: By name.
    """

    def __init__(self, values: Mapping[str, Any]):
        self.values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        value = self.values.get(node.id)
        known = isinstance(node.ctx, ast.Load) and type(value) in (str, int, float)
        return ast.copy_location(ast.Constant(value), node) if known else node


def _with_constants(source: str, values: Mapping[str, Any]) -> ast.AST:
    """The syntax of a module, whose names that are assigned a constant are that constant."""
    tree = ast.parse(source)
    assigned = {
        node.targets[0].id: node.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
    }
    Constants({**assigned, **values}).visit(tree)
    return tree


def _read_source(tree: ast.AST, found: Vocabulary) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            _read_comparison(node, found)
        elif isinstance(node, ast.MatchValue):
            _add_constants([node.value], found)
        elif isinstance(node, ast.Dict):
            _add_constants([key for key in node.keys if key is not None], found)
        elif isinstance(node, ast.MatchMapping):
            found.keys |= dict.fromkeys(_texts(node.keys))
        elif isinstance(node, ast.Call):
            _read_call(node, found)
        elif isinstance(node, ast.Subscript):
            if isinstance(node.value, ast.Name) and node.value.id == "Literal":
                _add_constants([node.slice], found)
            elif not (isinstance(node.value, ast.Attribute) and node.value.attr == "metadata"):
                found.keys |= dict.fromkeys(_texts([node.slice]))
        elif isinstance(node, ast.ClassDef):
            _read_class(node, found)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
            found.markup = found.markup or any(name.split(".")[0] in MARKUP for name in names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.tags |= dict.fromkeys(TAG.findall(node.value))
            found.fenced = found.fenced or FENCE in node.value
            if (
                node.value.strip()
                and len(node.value) <= SHORT_TEXT
                and len(node.value.splitlines()) == 1
            ):
                found.others.setdefault(node.value)


def _read_class(node: ast.ClassDef, found: Vocabulary) -> None:
    """Add the fields that a class declares, and the constants that it names: members of an
    enumeration."""
    for part in node.body:
        if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name):
            found.keys.setdefault(part.target.id)
            found.classes.setdefault(node.name, {})[part.target.id] = part.annotation
        elif isinstance(part, ast.Assign) and isinstance(part.value, ast.Constant):
            _add_constants([part.value], found)
            for target in part.targets:
                found.add_text(getattr(target, "id", None))


def _read_comparison(node: ast.Compare, found: Vocabulary) -> None:
    parts = [node.left, *node.comparators]
    _add_constants(parts, found)
    if isinstance(node.ops[0], ast.In | ast.NotIn):
        found.keys |= dict.fromkeys(text for text in _texts([node.left]) if text.isidentifier())
    for part in parts:
        negative = isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.USub)
        value = part.operand if isinstance(part, ast.UnaryOp) else part
        if (
            isinstance(value, ast.Constant)
            and isinstance(value.value, int | float)
            and not isinstance(value.value, bool)
        ):
            found.numbers.setdefault(-value.value if negative else value.value)


def _read_call(node: ast.Call, found: Vocabulary) -> None:
    if isinstance(node.func, ast.Name):
        found.lengths = found.lengths or node.func.id == "len"
    if not isinstance(node.func, ast.Attribute) or not node.args:
        return
    name, of = node.func.attr, node.func.value
    if isinstance(of, ast.Name) and of.id == "re" and name in PATTERNS:
        for pattern in _texts(node.args[:1]):
            found.add_pattern(pattern)
    elif name in TESTS:
        _add_constants(node.args, found)
    elif name in LOOKUPS and not (isinstance(of, ast.Attribute) and of.attr == "metadata"):
        found.keys |= dict.fromkeys(_texts(node.args[:1]))


def _add_constants(parts: Iterable[ast.expr], found: Vocabulary) -> None:
    for text in _texts(parts):
        found.add_text(text)


def _texts(parts: Iterable[ast.expr]) -> list[str]:
    """The texts among expressions, and in those that list them."""
    items = [
        item
        for p in parts
        for item in (p.elts if isinstance(p, ast.Tuple | ast.List | ast.Set) else [p])
    ]
    return [
        item.value
        for item in items
        if isinstance(item, ast.Constant) and isinstance(item.value, str)
    ]
