"""Cases are generated problems, each with the prompt that shows it and the verifier that scores an
answer to it.

Sandbox-RL (eqs 1 to 4, 10 to 13) calls such a triple a sandbox. A node of a graph names one
(`case: NAME`); its score is the action's own, and decides what runs next.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from numbers import Real
from pathlib import Path
from typing import Protocol, runtime_checkable

from pydantic import JsonValue

from marl_plugins.core.section import Section


@runtime_checkable
class CaseGenerator(Protocol):
    """A triple of generator, prompt and verifier."""

    def case(self, rng: random.Random, given: JsonValue) -> JsonValue:
        """Returns a problem as a JSON value.

        Args:
            rng: The only source of chance. It depends on the run's seed, the task, the node and the
                round, so that all samples of a task meet the same problem.
            given: What the node gives it (`given:`), as a JSON value; None without it.
        """

    def prompt(self, case: JsonValue) -> Mapping[str, object]:
        """Returns fields of the role's prompt."""

    def verify(self, value: object, case: JsonValue) -> float:
        """Returns the score of what was read in an answer, in [0, 1]."""


def is_score(score: object) -> bool:
    """Returns whether a verifier's answer is a number in [0, 1]."""
    return isinstance(score, Real) and 0.0 <= float(score) <= 1.0


class CaseSection(Section):
    """The section of a recipe that brings cases."""

    def generators(self, folder: Path) -> Mapping[str, CaseGenerator]:
        """Returns the cases by name.

        Args:
            folder: The recipe's.

        Raises:
            ConfigurationError: They cannot be had.
        """
        raise NotImplementedError

    def limit(self) -> float:
        """Returns the seconds that one call of a case's function may take."""
        raise NotImplementedError
