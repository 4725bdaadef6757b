"""The codes of all problems, read from the calls of `Problem` in the installed package: what
`openrlhf docs problems` prints. Nothing is imported."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent
TEMPLATE = ("got", "expected", "fix")
PAGE = """\
# Problems and their codes

What is wrong with a recipe, a command line or a plugin is reported before anything
starts, and the exit code is 2. A problem has a code that does not change with its wording, the
place, what was got, what was expected, and the fix:

    error: recipe.yaml:15: --actor.adam.rl: unknown flag; did you mean 'actor.adam.lr'?

With `--json` the problems are one object on standard output, `{"problems": [...]}`, each with
`code`, `where` (a list of `kind` and `name`, from the outermost place to the innermost), `got`,
`expected`, `fix`, `severity`, `flags` and the `sentence`. The warnings of
`openrlhf train --dry-run --json` have the same form; a warning prevents nothing.

A plugin makes problems of its own (`openrlhf docs hooks`). A plain sentence of a plugin or a recipe
has the code `other`.

## All codes

A word in capitals stands for what is known when the problem is found.

"""

Texts = Mapping[str, ast.expr]


def page() -> str:
    """The page, in Markdown."""
    return f"{PAGE}{table()}\n"


def calls() -> Iterator[tuple[ast.Call, Texts]]:
    """Yields each call of `Problem`, with the texts that names stand for there: what the function
    around it last assigned them."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        nodes = [n for n in ast.walk(tree) if isinstance(n, (*functions, ast.Assign, ast.Call))]
        values: dict[str, ast.expr] = {}
        for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
            if isinstance(node, functions):
                values = {}
            elif isinstance(node, ast.Assign):
                assigned = values | _assigned(node)
                values = {name: text for name, text in assigned.items() if text is not None}
            elif isinstance(node.func, ast.Name) and node.func.id == "Problem":
                yield node, values


def code_of(call: ast.Call) -> str:
    """The code, which is written out in every call.

    Raises:
        ValueError: It is not.
    """
    code = _arguments(call)["code"]
    if not (isinstance(code, ast.Constant) and isinstance(code.value, str)):
        raise ValueError(ast.unparse(call))
    return code.value


def table() -> str:
    """All codes as Markdown, each with its sentences and fixes."""
    rows: dict[str, dict[tuple[str, str], None]] = defaultdict(dict)
    for call, values in calls():
        parts = {
            name: _template(value, values)
            for name, value in _arguments(call).items()
            if name in TEMPLATE
        }
        sentence = parts.get("got", "")
        if parts.get("expected"):
            sentence = f"expected {parts['expected']}, got {sentence}"
        rows[code_of(call)][sentence, parts.get("fix", "")] = None
    lines = ["| code | sentence, after the place | fix |", "|---|---|---|"]
    for code, sentences in sorted(rows.items()):
        first = f"`{code}`"
        for sentence, fix in sentences:
            lines.append(f"| {first} | {_cell(sentence)} | {_cell(fix)} |")
            first = ""
    return "\n".join(lines)


def _arguments(call: ast.Call) -> dict[str, ast.expr]:
    """The parts of a problem, by name."""
    positional = dict(zip(("code", "where", *TEMPLATE), call.args, strict=False))
    return positional | {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}


def _template(node: ast.expr | None, values: Texts) -> str:
    """A text with a word in capitals for what is only known when something is wrong."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part, values) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _template(node.value, {})
    if isinstance(node, ast.Name) and node.id in values:
        return _template(values[node.id], {})
    if isinstance(node, ast.Name | ast.Attribute):
        return (node.id if isinstance(node, ast.Name) else node.attr).strip("_").upper()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "meant":
        return "did you mean NAME?"
    return "..."


def _assigned(node: ast.Assign) -> dict[str, ast.expr | None]:
    """The text that each name of an assignment stands for; None where it is no text."""
    target = node.targets[0] if len(node.targets) == 1 else None
    pairs = [(target, node.value)]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs = list(zip(target.elts, node.value.elts, strict=False))
    return {
        name.id: value if isinstance(value, ast.Constant | ast.JoinedStr) else None
        for name, value in pairs
        if isinstance(name, ast.Name)
    }


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
