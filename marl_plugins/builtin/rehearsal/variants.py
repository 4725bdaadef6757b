"""Variants that a workflow names itself, each of which the rehearsal runs.

def variants():  # beside run in workflow.py, or an attribute of a plugin's workflow
    return {
        "billing": {"router": '{"team": "billing"}'},  # what roles say; several texts: in turn
        "not found": {"router": '{"team": "billing"}', "tools.lookup": "no such order"},
        "retry": run_with_a_failure,  # or a workflow of its own
    }
"""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping

from marl_plugins.core.failures import place_of, written
from marl_plugins.core.problems import Problem, meant
from marl_plugins.core.workflow import Workflow
from marl_plugins.engine.plan.script import Script
from marl_plugins.engine.plan.user_code_thread import called, where_of


def variants_of(
    workflow: Workflow, speakers: Collection[str]
) -> tuple[list[Script], list[Problem]]:
    """Returns the variants of a workflow, and what is wrong with them.

    Args:
        speakers: The roles, and the tools as `tools.NAME`.
    """
    module = inspect.getmodule(written(workflow))
    function = getattr(workflow, "variants", None) or getattr(module, "variants", None)
    if function is None:
        return [], []
    place = place_of(function)
    answers, failures = called(function, place)
    if failures:
        return [], [Problem("rehearsal.variants", where_of(f.place), f.said) for f in failures]
    if not isinstance(answers[0], Mapping):
        return [], [_wrong(place, repr(answers[0])[:80], "a mapping of names to variants")]
    variants, problems = list[Script](), list[Problem]()
    for name, variant in answers[0].items():
        when = f"the variant is {name!r}"
        if callable(variant):
            variants.append(Script(when, workflow=variant))
        elif isinstance(variant, Mapping) and all(map(_said, variant.values())):
            for by in variant.keys() - speakers:
                expected = f"a role or tools.NAME in variant {name!r}"
                problems.append(_wrong(place, repr(by), expected, meant(str(by), speakers)))
            lines = {by: (s,) if isinstance(s, str) else tuple(s) for by, s in variant.items()}
            variants.append(Script(when, lines=lines))
        else:
            expected = f"variant {name!r} to be texts by role, or a workflow"
            problems.append(_wrong(place, repr(variant)[:80], expected))
    return variants, problems


def _said(value: object) -> bool:
    texts = value if isinstance(value, list | tuple) else [value]
    return bool(texts) and all(isinstance(text, str) for text in texts)


def _wrong(place: str, got: str, expected: str, fix: str = "") -> Problem:
    return Problem("rehearsal.variants", where_of(place), got, expected, fix)
