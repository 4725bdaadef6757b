"""A role's node that has a case: what it is shown is generated, and its answer is verified.

    given -> case(rng, given) -> prompt(case) -> the role answers -> read -> verify(value, case) ->
    the action's score

The functions are the recipe's own. Each is called in a thread, with a deadline, because one that
never returns would hold up every trajectory.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from marl_plugins.builtin.graph.expressions import Expression, Scope
from marl_plugins.builtin.graph.values import as_json
from marl_plugins.core.cases import CaseGenerator, is_score
from marl_plugins.core.failures import InfrastructureFailure, RecipeError, place_of
from marl_plugins.core.fields import InvalidCall
from marl_plugins.core.loading import text_of, users_line
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.threads import in_daemon_thread
from marl_plugins.core.trajectory_builder import TrajectoryBuilder

T = TypeVar("T")
AROUND = "rounds and items around"
"""The rounds and items around a node, from the outermost: each the address of its loop or map,
`round` or `index`, and its number. No name that an expression can read."""


@dataclass(frozen=True)
class NodeCase:
    """The case of a node.

    Args:
        name: In the recipe's file of cases.
        given: What its generator is given; None: nothing.
        seconds: Maximum time of one call of its functions.
        address, place: The node's.
    """

    name: str
    generator: CaseGenerator
    given: Expression | None
    seconds: float
    address: str
    place: str

    async def generated(
        self, builder: TrajectoryBuilder, scope: Scope
    ) -> tuple[Any, Mapping[str, Any]]:
        """Returns the problem, a JSON value, and the fields that show it.

        It is the same for all samples of a task, and in every try of the node.

        Raises:
            RecipeError: A function of the case raises something, or gives what is no JSON.
            InfrastructureFailure: One does not return.
        """
        # a copy, which the generator may change
        value = None if self.given is None else json.loads(as_json(self.given.value(scope)))
        seed = derive_seed(
            builder.run_seed,
            "case",
            builder.trajectory.task.id,
            self.address,
            *(number for _, _, number in scope.get(AROUND, ())),
        )
        case = await self._call("case", self.generator.case, random.Random(seed), value)
        if not is_json(case):
            raise self._wrong(
                "case",
                f"gave {case!r:.80}; expected texts, finite numbers, truth values, lists and "
                "mappings",
            )
        fields = await self._call("prompt", self.generator.prompt, case)
        if not isinstance(fields, Mapping) or not all(isinstance(name, str) for name in fields):
            raise self._wrong(
                "prompt", f"gave {fields!r:.80}; expected the fields of a prompt by name"
            )
        return case, fields

    async def verified(self, value: Any, case: Any) -> float:
        """Returns the score of what was read in an answer.

        Raises:
            InvalidCall: The verifier raises something, or gives no number in [0, 1]; no answer
                excuses that.
            InfrastructureFailure: It does not return.
        """
        score = await self._call("verify", self.generator.verify, value, case)
        if not is_score(score):
            message = (
                f"case {self.name!r}: verify gave {score!r:.80} for the value {value!r:.80}; "
                "expected a number in [0, 1]"
            )
            raise InvalidCall(message, place_of(self.generator.verify) or self.place)
        return float(score)

    async def _call(self, name: str, function: Callable[..., T], *arguments: Any) -> T:
        try:
            async with asyncio.timeout(self.seconds) as deadline:
                return await in_daemon_thread(function, *arguments)
        except InfrastructureFailure:
            raise
        except Exception as error:  # the recipe's own code, of any kind
            if deadline.expired():
                message = (
                    f"{name} of case {self.name!r} has not returned after {self.seconds:g} s "
                    "(cases.seconds)"
                )
                raise InfrastructureFailure("case", message) from None
            place = users_line(error, ()) or place_of(function) or self.place
            if name == "verify":
                message = (
                    f"verify raised {type(error).__name__}: {text_of(error)}, for the value "
                    f"{arguments[0]!r:.80}"
                )
                raise InvalidCall(f"case {self.name!r}: {message}", place) from error
            raise RecipeError(
                place, type(error).__name__, f"case {self.name!r}, {name}: {text_of(error)}"
            ) from error

    def _wrong(self, name: str, reason: str) -> RecipeError:
        place = place_of(getattr(self.generator, name)) or self.place
        return RecipeError(place, "TypeError", f"case {self.name!r}: {name} {reason}")


def is_json(value: Any) -> bool:
    """Returns whether a value is the same once it has been written as JSON."""
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
