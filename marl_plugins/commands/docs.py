"""`openrlhf docs [PAGE]`: the documentation as it is installed, on standard output."""

from __future__ import annotations

from collections.abc import Sequence

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
    options = parser.parse_args(words)
    pages = {path.stem: path for path in data("docs").glob("*.md")}
    if options.page is None:
        width = max(map(len, pages), default=0)
        for name in sorted(pages):
            text = pages[name].read_text(encoding="utf-8")
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
    print(pages[name].read_text(encoding="utf-8"), end="")
    return 0
