"""`openrlhf docs [PAGE]`: the documentation as it is installed, on standard output. The page of
problems is made from the package's source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from marl_plugins.commands import problem_codes
from marl_plugins.core.failures import ConfigurationError, nearest
from marl_plugins.core.problems import Problem
from marl_plugins.core.recipe.shipped import data
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser


def main(words: Sequence[str]) -> int:
    """Prints a page, or the list of them.

    Raises:
        ConfigurationError: There is no such page.
    """
    parser = UpstreamParser(
        prog="openrlhf docs",
        description="The documentation, page by page; without a page, the list of them.",
    )
    parser.add_argument("page", nargs="?", help="name of a page, such as recipes or flags")
    options = parser.parse_args(list(words))
    pages: dict[str, Callable[[], str]] = {
        path.stem: partial(path.read_text, encoding="utf-8") for path in data("docs").glob("*.md")
    }
    pages["problems"] = problem_codes.page
    if options.page is None:
        width = max(map(len, pages), default=0)
        for name in sorted(pages):
            text = problem_codes.PAGE if name == "problems" else pages[name]()
            title = text.partition("\n")[0].lstrip("# ")
            print(f"  openrlhf docs {name:<{width}}  {title}")
        return 0
    name = options.page.removeprefix("docs/").removesuffix(".md")
    if name not in pages:
        raise ConfigurationError(
            Problem(
                "docs.unknown",
                got=f"there is no page {options.page!r}{nearest(name, pages)} (openrlhf docs lists "
                "them)",
            )
        )
    print(pages[name](), end="")
    return 0
