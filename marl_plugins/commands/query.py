"""Queries of a run, as words: `step=3:5 role=coder outcome=0 find=boxes`.

The flags of `openrlhf inspect` and `export` and the fragment of a page's address have the same
names.
"""

from __future__ import annotations

import argparse
import math
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.options import Number, Range, score_range, step_range
from marl_plugins.core.problems import Problem, at, meant
from marl_plugins.core.redaction import inert
from marl_plugins.engine.records.read import EVERYTHING, Filter, RunReader

number_range = Range(Number(), -math.inf, math.inf, "numbers being finite")
"""The type of --advantage."""


def pattern(word: str) -> re.Pattern[str]:
    """Compiles a regular expression that ignores case."""
    try:
        return re.compile(word, re.IGNORECASE)
    except re.error as error:
        fix = f"write {re.escape(word)} to look for the text itself"
        raise argparse.ArgumentTypeError(
            f"{word!r}: not a regular expression: {error}; {fix}"
        ) from None


class QueryTerm(NamedTuple):
    """A term of a query.

    Args:
        parse: Makes the value of a word; raises ValueError or argparse.ArgumentTypeError.
    """

    parse: Callable[[str], Any]
    metavar: str
    help: str


TERMS: Mapping[str, QueryTerm] = {
    "step": QueryTerm(step_range, "A:B", "steps A to B only, both included"),
    "task": QueryTerm(str, "ID", "of one task"),
    "sample": QueryTerm(Number(int, least=0), "N", "the task's sample of this number, from 0"),
    "role": QueryTerm(str, "ROLE", "in which a role acted"),
    "policy": QueryTerm(str, "POLICY", "in which a policy acted"),
    "outcome": QueryTerm(score_range, "A:B", "whose outcome is from A to B"),
    "score": QueryTerm(score_range, "A:B", "with an action whose score is from A to B"),
    "advantage": QueryTerm(
        number_range, "A:B", "with an action whose mean advantage is from A to B"
    ),
    "failure": QueryTerm(str, "KIND", "that failed or were lost in this way"),
    "left_out": QueryTerm(str, "REASON", "with an action left out of training for this reason"),
    "find": QueryTerm(
        pattern, "TEXT", "in whose texts a regular expression is found, whatever its case"
    ),
}
"""By name; what is asked of actions (role, policy, score, advantage, left_out) is asked of one and
the same."""


@dataclass(frozen=True)
class Query:
    """A query for trajectories; the default: all of training.

    Args:
        find: A pattern that one of a trajectory's texts must contain.
        words: The terms as they were written, by name.
    """

    wanted: Filter = EVERYTHING
    find: re.Pattern[str] | None = None
    words: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return " ".join(f"{name}={word}" for name, word in self.words.items())


def add_terms(parser: Any, names: Iterable[str] = TERMS) -> None:
    """Adds terms as flags to a parser or a group of one."""
    for name in names:
        flags = [f"--{name}", *(["--steps"] if name == "step" else [])]
        parser.add_argument(*flags, metavar=TERMS[name].metavar, help=TERMS[name].help)


def query_of_flags(options: argparse.Namespace, base: Filter) -> Query:
    """Does what `query_of` does, with the terms that were given as flags."""
    terms = {name: word for name in TERMS if (word := getattr(options, name, None)) is not None}
    return query_of(terms, base)


def query_of(words: Mapping[str, str], base: Filter = EVERYTHING) -> Query:
    """Makes a query of terms.

    Args:
        base: What is asked in addition; the split, that is.

    Raises:
        ConfigurationError: Terms are unknown or have wrong values.
    """
    problems, values, find = [], dict[str, Any](), None
    for name, word in words.items():
        if name not in TERMS:
            problems.append(
                Problem("viewer.term", at(key=name), "no term of a query", fix=meant(name, TERMS))
            )
            continue
        try:
            value = TERMS[name].parse(word)
        except (ValueError, argparse.ArgumentTypeError) as error:
            problems.append(Problem("viewer.value", at(key=name), str(error)))
            continue
        if name == "find":
            find = value
        else:
            values["steps" if name == "step" else name] = value
    if problems:
        raise ConfigurationError(problems)
    return Query(replace(base, **values), find, dict(words))


def terms_of(line: str) -> dict[str, str]:
    """Splits `role=coder find="two words"` into terms; a word without a name is a part of `find`.

    Raises:
        ConfigurationError: A quote is not closed.
    """
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise ConfigurationError(
            Problem("viewer.value", got=f"{line!r}: {error}", fix="close the quote")
        ) from None
    terms: dict[str, str] = {}
    loose = []
    for word in words:
        name, sign, value = word.partition("=")
        if sign and name.isidentifier():
            terms[name] = value
        else:
            loose.append(word)
    return {**terms, **({"find": " ".join(loose)} if loose else {})}


def nothing_found(run: RunReader, query: Query) -> ConfigurationError:
    """Makes the error of a query that leaves nothing."""
    asked = " ".join(f"--{name} {word}" for name, word in query.words.items())
    got = f"no trajectory matches {inert(asked)}" if asked else "holds no trajectories"
    fix = "leave out a filter, or see `openrlhf inspect RUN` for what there is" if asked else ""
    return ConfigurationError(
        Problem("viewer.nothing", at(file=run.file or run.folder), got, fix=fix)
    )
