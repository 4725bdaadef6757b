"""The codes of all problems, read from the calls of `Problem` in the package: for docs/problems.md
and the tests of it."""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "marl_plugins"
TEMPLATE = ("got", "expected", "fix")


def calls():
    """Yields each call with its module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "Problem"
            ):
                yield path, node


def arguments(call):
    """The parts of a problem, by name."""
    positional = dict(zip(("code", "where", *TEMPLATE), call.args, strict=False))
    return positional | {keyword.arg: keyword.value for keyword in call.keywords}


def code_of(call):
    """The code, which is written out in every call."""
    code = arguments(call)["code"]
    assert isinstance(code, ast.Constant) and isinstance(code.value, str), ast.unparse(call)
    return code.value


def template(node, values):
    """A text with a word in capitals for what is only known when something is wrong."""
    if node is None:
        return ""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(template(part, values) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return template(node.value, {})
    if isinstance(node, ast.Name) and node.id in values:
        return template(values[node.id], {})
    if isinstance(node, ast.Name | ast.Attribute):
        return (node.id if isinstance(node, ast.Name) else node.attr).strip("_").upper()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "meant":
        return "did you mean NAME?"
    return "..."


def texts_of(path):
    """By line of a call: the texts that names stand for, as the function around it last said."""
    found = {}
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            values = {}
            for node in sorted(
                (n for n in ast.walk(function) if isinstance(n, ast.Assign | ast.Call)),
                key=lambda n: (n.lineno, n.col_offset),
            ):
                if isinstance(node, ast.Assign):
                    values = {
                        name: text
                        for name, text in (values | _assigned(node)).items()
                        if text is not None
                    }
                elif isinstance(node.func, ast.Name) and node.func.id == "Problem":
                    found[node.lineno, node.col_offset] = dict(values)
    return found


def _assigned(node):
    (target,) = node.targets if len(node.targets) == 1 else (None,)
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs = zip(target.elts, node.value.elts, strict=False)
    else:
        pairs = [(target, node.value)]
    return {
        name.id: value if isinstance(value, ast.Constant | ast.JoinedStr) else None
        for name, value in pairs
        if isinstance(name, ast.Name)
    }


def table():
    """All codes as Markdown, each with its sentences and fixes."""
    rows, known = defaultdict(dict), {}
    for path, call in calls():
        values = known.setdefault(path, texts_of(path)).get((call.lineno, call.col_offset), {})
        said = {
            name: template(value, values)
            for name, value in arguments(call).items()
            if name in TEMPLATE
        }
        sentence = (
            f"expected {said['expected']}, got {said.get('got', '')}"
            if said.get("expected")
            else said.get("got", "")
        )
        rows[code_of(call)][sentence, said.get("fix", "")] = None
    lines = ["| code | sentence, after the place | fix |", "|---|---|---|"]
    for code, found in sorted(rows.items()):
        shown = [f"| `{code}` | {_cell(sentence)} | {_cell(fix)} |" for sentence, fix in found]
        lines += [shown[0], *(line.replace(f"`{code}`", "") for line in shown[1:])]
    return "\n".join(lines)


def _cell(text):
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
