"""The tool `search`: documents of a corpus, by their words (index.py).

tools:
  search: {corpus: documents.jsonl}
  search: {kind: dense, corpus: documents.jsonl, embed: embed.py:embed}
  search: {kind: http, address: "http://127.0.0.1:8000/retrieve"}
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

from marl_plugins import hookimpl
from marl_plugins.asking.flags import address_problems
from marl_plugins.builtin.tools.search.dense import Embed
from marl_plugins.builtin.tools.search.section import SearchToolConfig
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.findings import Finding, check_extra, missing_extra
from marl_plugins.core.loading import load_file
from marl_plugins.core.options import recipe_file
from marl_plugins.core.problems import Problem, at
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
    corpus, config = corpus_of(run), settings_of(run)
    if corpus is None and config.kind != "http":
        return []
    from marl_plugins.builtin.tools.search.index import SharedIndex, search_tool

    return [search_tool(config, corpus, run.state(SharedIndex), embedding(run))]


def embedding(run: Run) -> Embed | None:
    """Returns the function that embeds texts; None where none is needed.

    Raises:
        ConfigurationError: It cannot be imported.
    """
    config = settings_of(run)
    if config.kind != "dense" or not config.embed:
        return None
    where, (file, _, name) = at(key="tools.search.embed"), config.embed.rpartition(":")
    if not file:
        raise ConfigurationError(Problem("search.embed", where, config.embed, "FILE:FUNCTION"))
    try:
        embed: Embed | None = getattr(load_file(run.folder / file), name, None)
    except ConfigurationError as error:
        problems = [problem.within(key="tools.search.embed") for problem in error.problems]
        raise ConfigurationError(problems) from error
    if callable(embed):
        return embed
    raise ConfigurationError(Problem("search.embed", where, f"{file} has no function {name!r}"))


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    """Returns what is wrong with the corpus, as far as it is read now."""
    corpus, config = corpus_of(run), settings_of(run)
    if problems := _keys_of_other_kinds(run, config):
        return problems
    if config.kind == "http":
        return address_problems(config.address, at(key="tools.search.address"))
    if corpus is None:
        return []
    from marl_plugins.builtin.tools.search.corpus import read_corpus

    where = at(flag="search.corpus") if run.args.search.corpus else at(key="tools.search.corpus")
    if config.kind == "bm25":
        problems += missing_extra("search", "bm25s", at(key="tools.search"))
    try:
        read_corpus(corpus, config.index, PLANNED_DOCUMENTS)
    except ConfigurationError as error:
        problems += [
            problem.within(**{place.kind: place.name for place in where})
            for problem in error.problems
        ]
    return problems


def _keys_of_other_kinds(run: Run, config: SearchToolConfig) -> list[Problem]:
    """Returns the keys that a kind of search needs and does not have, or has and does not read."""
    has = {key for key in ("embed", "address") if getattr(config, key)}
    has |= {"corpus"} if corpus_of(run) else set()
    needs = {"bm25": {"corpus"}, "dense": {"corpus", "embed"}, "http": {"address"}}[config.kind]
    if not (has or config.model_fields_set):  # the recipe does not search
        return []
    return [
        Problem(
            "search.keys",
            at(key=f"tools.search.{key}"),
            "is missing" if key in needs else "is not read",
            fix=f"`kind: {config.kind}` reads {' and '.join(sorted(needs))}",
        )
        for key in sorted(has ^ needs)
    ]


@hookimpl
def marl_doctor(run: Run | None) -> list[Finding]:
    used = run is not None and corpus_of(run) is not None and settings_of(run).kind == "bm25"
    return [check_extra("search", ["bm25s"], "the tool `search`", used=used)]


@hookimpl
async def marl_start(run: Run) -> None:
    """Builds the index, or asks the server once.

    Raises:
        ConfigurationError: The server does not answer, or with something else.
    """
    corpus, config = corpus_of(run), settings_of(run)
    if corpus is not None:
        from marl_plugins.builtin.tools.search.index import SharedIndex

        shared, embed = run.state(SharedIndex), embedding(run)
        await asyncio.to_thread(shared.of, corpus, config.index, embed)
    elif config.kind == "http":
        from marl_plugins.builtin.tools.search.server import found_by_server

        try:
            await found_by_server(config, "hello")
        except InfrastructureFailure as failure:
            where = at(key="tools.search.address")
            fix = "is it running, and is this its whole address, as http://HOST:PORT/retrieve?"
            raise ConfigurationError(
                Problem("search.server", where, str(failure), fix=fix)
            ) from failure
