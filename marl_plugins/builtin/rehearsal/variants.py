"""Variants that a workflow names itself, each of which the rehearsal runs.

def variants():                                # beside run in workflow.py, or an attribute of a
                                               plugin's workflow
    return {
        "billing": {"router": '{"team": "billing"}'},                       # what roles say;
            several texts: in turn
        "not found": {"router": '{"team": "billing"}', "tools.lookup": "no such order"},
        "retry": run_with_a_failure,                                        # or a workflow of its
            own
    }
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from marl_plugins.core.failures import place_of, written
from marl_plugins.core.problems import Problem, meant
from marl_plugins.core.workflow import Workflow
from marl_plugins.engine.plan.apart import failures_kept, run_apart, where_of
from marl_plugins.engine.plan.parts import arity_problem
from marl_plugins.engine.plan.script import TOOL, WORDS, Script

Variants = dict[str, Script | Workflow]


def variants_of(workflow: Workflow, speakers: Collection[str]) -> tuple[Variants, list[Problem]]:
    """Returns the variants of a workflow, and what is wrong with them.

    Args:
        speakers: The roles, and the tools as `tools.NAME`.
    """
    function: Any = getattr(workflow, "variants", None) or getattr(
        inspect.getmodule(written(workflow)), "variants", None
    )
    if function is None:
        return {}, []
    place = place_of(function)
    if problem := arity_problem(function, 0):
        return {}, [replace(problem, fix="variants is called without arguments")]
    failures: list[Any] = []
    given: list[Any] = []

    def call(caught: Any) -> None:
        with failures_kept(failures, place, caught):
            given.append(function())

    run_apart(call)
    if failures:
        return {}, [Problem("rehearsal.variants", where_of(f.place), f.said) for f in failures]
    if not isinstance(given[0], Mapping):
        return {}, [_wrong(place, repr(given[0])[:80], "a mapping of names to variants")]
    found: Variants = {}
    problems: list[Problem] = []
    for name, variant in given[0].items():
        if callable(variant):
            found[name] = variant
        elif isinstance(variant, Mapping) and all(map(_said, variant.values())):
            problems += [
                _wrong(
                    place,
                    repr(by),
                    f"a role or tools.NAME in variant {name!r}",
                    meant(str(by), speakers),
                )
                for by in variant
                if by not in speakers
            ]
            said = {
                by: (text,) if isinstance(text, str) else tuple(text)
                for by, text in variant.items()
            }
            found[name] = Script(f"the variant is {name!r}", WORDS.text, said)
        else:
            problems.append(
                _wrong(
                    place,
                    repr(variant)[:80],
                    f"variant {name!r} to be texts by role, or a workflow",
                )
            )
    return found, problems


def speakers_of(roles: Collection[str], tools: Collection[str]) -> list[str]:
    """Returns the speakers that a variant may name."""
    return [*roles, *(f"{TOOL}{name}" for name in tools)]


def _said(value: object) -> bool:
    return isinstance(value, str) or (
        isinstance(value, list | tuple) and bool(value) and all(isinstance(v, str) for v in value)
    )


def _wrong(place: str, got: str, expected: str, fix: str = "") -> Problem:
    return Problem("rehearsal.variants", where_of(place), got, expected, fix)
