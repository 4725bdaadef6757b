"""The calls that this package makes of upstream, vLLM and DeepSpeed, and the signatures that they
meet there. Read, never imported.

every_call(files)                                  Call(file, line, target, arguments), by imports
    and by actors' methods
Sources({"openrlhf": root, ...}).signature(name)   of a dotted name: a function, a method, a class;
    None where it is neither
"""

import ast
import functools
from inspect import Parameter, Signature
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("openrlhf", "vllm", "deepspeed")
OF_RAY = "__ray_metadata__.modified_class."
"""Where Ray keeps the class that it has decorated."""


class Call(NamedTuple):
    """A call in the code: what is called, by its dotted name (a method of an actor: `*.name`), and
    with what."""

    place: str
    target: str
    positional: int
    keywords: tuple[str, ...] = ()
    more: bool = False
    """Whether `*` or `**` give it more than the text says."""

    def fits(self, signature):
        """Whether a signature takes these arguments."""
        bind = signature.bind_partial if self.more else signature.bind
        try:
            bind(*[None] * self.positional, **dict.fromkeys(self.keywords))
        except TypeError:
            return False
        return True


def every_call(files):
    """What files call of PACKAGES, and of actors."""
    for file in files:
        tree = ast.parse(file.read_text())
        names = imported(tree)
        for owner, node in with_owners(tree):
            if target := target_of(node, names, owner):
                of_name = (
                    node.func.attr.startswith("async_run_method")
                    if isinstance(node.func, ast.Attribute)
                    else 0
                )
                given = [a for a in node.args[int(of_name) :] if not isinstance(a, ast.Starred)]
                keywords = tuple(k.arg for k in node.keywords if k.arg)
                more = len(given) + int(of_name) < len(node.args) or len(keywords) < len(
                    node.keywords
                )
                yield Call(f"{file.name}:{node.lineno}", target, len(given), keywords, more)


def with_owners(tree):
    """Every call, with the class in which it is."""
    owners = {id(n): c for c in ast.walk(tree) if isinstance(c, ast.ClassDef) for n in ast.walk(c)}
    return [(owners.get(id(n)), n) for n in ast.walk(tree) if isinstance(n, ast.Call)]


def imported(tree):
    """The dotted names of PACKAGES that a module's names stand for."""
    found = {}
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.ImportFrom)
            and not node.level
            and (node.module or "").split(".")[0] in PACKAGES
        ):
            found |= {
                alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names
            }
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] in PACKAGES:
                    found[alias.asname or alias.name.split(".")[0]] = (
                        alias.name if alias.asname else alias.name.split(".")[0]
                    )
    return found


def target_of(node, names, owner):
    """What a call calls; "" where that is nothing of PACKAGES."""
    words = ast.unparse(node.func).replace(OF_RAY, "")
    first, _, rest = words.partition(".")
    last = words.split(".")[-1]
    if words.startswith("super().") and owner is not None:
        bases = [
            ast.unparse(base).replace("." + OF_RAY.rstrip("."), "").partition(".")
            for base in owner.bases
        ]
        found = (
            ".".join(filter(None, (names[head], more, last)))
            for head, _, more in bases
            if head in names
        )
        return next(found, "")
    if last == "async_init_model_from_pretrained":  # launcher.py: handed on to every actor
        return "*.init_model_from_pretrained"
    if last in ("async_run_method", "async_run_method_batch") and isinstance(
        node.args[0], ast.Constant
    ):
        return f"*.{node.args[0].value}"
    if last == "remote" and first != "ray" and words.count(".") >= 2:
        method = words.split(".")[-2]
        return "" if method.startswith("__ray_") or "(" in method else f"*.{method}"
    return ".".join(filter(None, (names[first], rest))) if first in names else ""


@functools.cache
def definitions(file):
    """Functions, classes and imports of a module, also those under an `if` or `try`."""
    found, left = [], list(ast.parse(file.read_text()).body)
    while left:
        node = left.pop(0)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ImportFrom):
            found.append(node)
        elif isinstance(node, ast.If | ast.Try):
            left += [
                *node.body,
                *node.orelse,
                *(n for h in getattr(node, "handlers", ()) for n in h.body),
            ]
    return found


class Sources:
    """Packages on disk.

    Args:
        roots: The folder of each package.
    """

    def __init__(self, roots):
        self.roots = roots

    def module(self, name):
        """The definitions of a module; None where there is none."""
        package, *parts = name.split(".")
        base = Path(self.roots[package], *parts)
        file = next(
            (f for f in (base.with_suffix(".py"), base / "__init__.py") if f.is_file()), None
        )
        return file and definitions(file)

    def signature(self, name):
        """What a dotted name takes, without `self`."""
        parts = name.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            if nodes := self.module(".".join(parts[:cut])):
                return self._in(".".join(parts[:cut]), nodes, parts[cut:])
        return None

    def _in(self, module, nodes, parts):
        first, *rest = parts
        for node in nodes:
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and node.name == first
                and not rest
            ):
                return taken(node, method=False)
            if isinstance(node, ast.ClassDef) and node.name == first:
                return self._of_class(module, nodes, node, rest[0] if rest else "__init__")
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == first:
                        source = self._source(module, node)
                        return source and self.signature(".".join([source, alias.name, *rest]))
        return None

    def _source(self, module, node):
        """The module that an import in another module names; None outside of these packages."""
        if not node.level:
            return node.module if node.module.split(".")[0] in self.roots else None
        package, *parts = module.split(".")
        is_package = Path(self.roots[package], *parts).is_dir()
        kept = [package, *parts][: len(parts) + 1 - node.level + is_package]
        return ".".join([*kept, *([node.module] if node.module else [])])

    def _of_class(self, module, nodes, node, method):
        """A method's parameters; of a class without `__init__`, its annotated fields."""
        for each in node.body:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name == method:
                static = any(ast.unparse(d) == "staticmethod" for d in each.decorator_list)
                return taken(each, method=not static)
        fields = [
            Parameter(n.target.id, Parameter.KEYWORD_ONLY, default=0)
            for n in node.body
            if isinstance(n, ast.AnnAssign)
        ]
        inherited = [
            self._in(module, nodes, [*ast.unparse(base).split(".")[:1], method])
            for base in node.bases
        ]
        found = next((signature for signature in inherited if signature), None)
        if method == "__init__" and fields:
            return Signature([*fields, *(found.parameters.values() if found else ())])
        return found


def taken(node, method):
    """The signature of a function's definition."""
    a, positional = node.args, [*node.args.posonlyargs, *node.args.args][int(method) :]
    required = len(positional) - len(a.defaults)
    kind = Parameter.POSITIONAL_OR_KEYWORD
    found = [
        Parameter(p.arg, kind, default=Parameter.empty if i < required else 0)
        for i, p in enumerate(positional)
    ]
    found += [Parameter(a.vararg.arg, Parameter.VAR_POSITIONAL)] if a.vararg else []
    for p, default in zip(a.kwonlyargs, a.kw_defaults, strict=True):
        found.append(
            Parameter(
                p.arg, Parameter.KEYWORD_ONLY, default=Parameter.empty if default is None else 0
            )
        )
    return Signature(
        [*found, *([Parameter(a.kwarg.arg, Parameter.VAR_KEYWORD)] if a.kwarg else [])]
    )
