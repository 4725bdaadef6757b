"""The recipe's `coach:`: several coaches as one, stages, and what models may use before a
verdict."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Literal

import pydantic

from marl_plugins import FlagValue, Model, Section
from marl_plugins.asking.endpoint import shown_flag
from marl_plugins.coach.flags import OF_AN_ENDPOINT

Factor = Annotated[float, pydantic.Field(ge=0)]
may_differ = tuple(
    f"coach.{name}" for name in (*OF_AN_ENDPOINT, "deadline") if name not in ("form", "body")
)
"""Flags that a resumed run may change freely: where a model answers, how fast, and what it may
cost."""


class CoachMemberConfig(Model):
    """A coach among several: it has one of `rubric`, `model` and `policy`."""

    EXAMPLE: ClassVar[str] = "{rubric: strict.py}"

    rubric: str | None = None
    """As `--coach.rubric`."""
    model: str | None = None
    """As `--coach.model`."""
    policy: str | None = None
    """As `--coach.policy`."""
    weight: float = pydantic.Field(1.0, gt=0)
    """Of its score in a mean of the members that answered."""
    flags: dict[str, FlagValue] = pydantic.Field(
        {}, examples=["{base_url: http://127.0.0.1:8000/v1}"]
    )
    """Differences from the coach's flags, without `coach.`: `{base_url: "http://127.0.0.1:8000/v1",
    api_key_env: OTHER_KEY}`."""


class CoachStageConfig(Model):
    """A stage of the training, and what the coach asks for in it. All stages but the last have
    `until_outcome` or `until_step`."""

    EXAMPLE: ClassVar[str] = "{until_outcome: 0.5, weights: {runs: 3}}"

    until_outcome: float | None = pydantic.Field(None, gt=0, le=1)
    """The stage lasts while the smoothed mean outcome of training is below it, and comes back when
    that falls 0.05 below."""
    until_step: int | None = pydantic.Field(None, ge=1)
    """The last step of the stage."""
    weights: dict[str, Factor] = pydantic.Field({}, examples=["{runs: 3}"])
    """Factors of a rubric's points, by the criterion's name."""
    ask: str = ""
    """What counts now, in words for models."""


class CoachConfig(Section):
    """Several coaches as one, and what they ask for first (docs/coach.md)."""

    EXAMPLE: ClassVar[str] = "{members: {strict: {rubric: strict.py}, large: {model: qwen3-32b}}}"

    members: dict[str, CoachMemberConfig] | None = pydantic.Field(
        None, min_length=1, examples=["{strict: {rubric: strict.py}, large: {model: qwen3-32b}}"]
    )
    """Each coach by its name, instead of the coach in the flags. A coach on the command line
    replaces them."""
    combine: Literal["mean", "median", "worst"] = "mean"
    """How the members' scores become one; `worst` is the lowest."""
    disagreement: Literal["ignore", "weigh"] = "ignore"
    """`weigh`: the more the members disagree on an action, the closer its score comes to the mean
    of its role in the step."""
    stages: list[CoachStageConfig] = []
    """The stages of the training, in order."""
    tools: list[Literal["python"]] = []
    """`python`: models may run [programs before a verdict](coach.md#programs-before-a-verdict)."""
    max_calls: int = pydantic.Field(3, ge=1)
    """Most programs for one verdict."""

    def files(self) -> dict[str, str]:
        files: dict[str, str] = {}
        for name, member in (self.members or {}).items():
            named = {"rubric": member.rubric} | {
                flag: member.flags.get(flag) for flag in ("prompt", "last_prompt")
            }
            files |= {f"{what} of coach {name}": str(file) for what, file in named.items() if file}
        return files

    def compared(self) -> dict[str, Any]:
        """Returns all but the flags that a resumed run may change."""
        values = self.model_dump(
            mode="json", exclude_none=True, exclude_defaults=not self.model_fields_set
        )
        return self._with_flags(values, lambda name: f"coach.{name}" not in may_differ)

    def shown(self) -> dict[str, Any]:
        return self._with_flags(
            self.model_dump(mode="json", exclude_defaults=True), lambda name: True
        )

    def _with_flags(self, values: dict[str, Any], kept: Callable[[str], bool]) -> dict[str, Any]:
        """Returns the section's values with the members' flags that are kept, without what is
        secret in them."""
        for member in values.get("members", {}).values():
            if "flags" in member:
                member["flags"] = {
                    n: shown_flag(f"coach.{n}", v) for n, v in member["flags"].items() if kept(n)
                }
        return values
