"""The tool `search`: documents of a corpus, by their words (index.py).

tools:
  search: {corpus: documents.jsonl}
"""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from marl_plugins import hookimpl
from marl_plugins.builtin.tools.search.section import SearchToolConfig
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.findings import check_extra
from marl_plugins.core.options import recipe_file
from marl_plugins.core.problems import Problem, at

if TYPE_CHECKING:
    import argparse

    from marl_plugins.core.findings import Finding
    from marl_plugins.core.run import Run
    from marl_plugins.core.section import Section
    from marl_plugins.core.tools import Tool

PLANNED_DOCUMENTS = 20_000
"""Documents that a plan reads; the others are checked when the run starts."""


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("tool `search`")
    group.add_argument(
        "--search.corpus",
        type=recipe_file,
        metavar="FILE",
        help="the documents, instead of those of the recipe's `tools: search:`",
    )


@hookimpl
def marl_sections() -> dict[str, type[Section]]:
    return {"tools.search": SearchToolConfig}


def corpus_of(run: Run) -> Path | None:
    """Returns the file of a run's documents; None where nothing names one."""
    if run.args.search.corpus:
        return Path(run.args.search.corpus)
    corpus = settings_of(run).corpus
    return run.folder / corpus if corpus else None


def settings_of(run: Run) -> SearchToolConfig:
    return run.section(SearchToolConfig) or SearchToolConfig()


@hookimpl
def marl_tools(run: Run) -> list[Tool]:
    """Returns the tool, where there are documents for it."""
    corpus = corpus_of(run)
    if corpus is None:
        return []
    from marl_plugins.builtin.tools.search.index import SharedIndex, search_tool

    return [search_tool(settings_of(run), corpus, run.state(SharedIndex))]


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    """Returns what is wrong with the corpus, as far as it is read now."""
    corpus, config = corpus_of(run), settings_of(run)
    if corpus is None:
        if not config.model_fields_set:
            return []
        where, got = at(key="tools.search"), "no documents are named"
        return [
            Problem(
                "search.no_corpus",
                where,
                got,
                fix="corpus: documents.jsonl, or --search.corpus FILE",
            )
        ]
    from marl_plugins.builtin.tools.search.corpus import read_corpus

    where = at(flag="search.corpus") if run.args.search.corpus else at(key="tools.search.corpus")
    problems = []
    if find_spec("bm25s") is None:
        fix = "pip install 'openrlhf-marl[search]'"
        problems.append(
            Problem("search.extra", at(key="tools.search"), "bm25s is not installed", fix=fix)
        )
    try:
        read_corpus(corpus, config.index, PLANNED_DOCUMENTS)
    except ConfigurationError as error:
        problems += [
            problem.within(**{place.kind: place.name for place in where})
            for problem in error.problems
        ]
    return problems


@hookimpl
def marl_doctor(run: Run | None) -> list[Finding]:
    used = run is not None and corpus_of(run) is not None
    return [check_extra("search", ["bm25s"], "the tool `search`", used=used)]


@hookimpl
async def marl_start(run: Run) -> None:
    """Builds the index."""
    corpus = corpus_of(run)
    if corpus is not None:
        from marl_plugins.builtin.tools.search.index import SharedIndex

        await asyncio.to_thread(run.state(SharedIndex).of, corpus, settings_of(run).index)
