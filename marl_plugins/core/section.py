"""Models of a recipe's keys, and the sections that plugins own.

A plugin declares its sections in `marl_sections`: `{"coach": CoachConfig}` is the recipe's key
`coach:`, and
`{"tools.sql": SqlToolConfig}` the key `sql:` under `tools:`. In a hook it reads them:
`run.section(CoachConfig)`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, get_args

import pydantic
from pydantic_core import PydanticCustomError


def _flag_value(value: Any) -> Any:
    if value is None or isinstance(value, Mapping):
        raise PydanticCustomError("flag_value", "")  # worded where the key is known
    return value


FlagValue = Annotated[Any, pydantic.AfterValidator(_flag_value)]
"""A flag's value or, as a list, its values."""


class Model(pydantic.BaseModel):
    """Strict, frozen, unknown keys are errors, and so are numbers that are not finite.

    A field with `repr=False` may hold a secret: messages do not show what was given.
    """

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    EXAMPLE: ClassVar[str] = ""
    """What such a mapping looks like, for messages; default: its first key. A field that is a
    mapping has its own (`examples`)."""

    @classmethod
    def shown_as(cls) -> str:
        """Returns what such a mapping looks like."""
        return cls.EXAMPLE or f"{{{next(iter(cls.model_fields), 'NAME')}: ...}}"

    @pydantic.field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_as_number(cls, value: Any, info: pydantic.ValidationInfo) -> Any:
        """YAML's `true` and `yes` would pass for 1."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and annotation is not bool and bool not in get_args(annotation):
            raise PydanticCustomError("truth_value", "expected another value than true or false")
        return value


class Section(Model):
    """A recipe's key that a plugin owns, with all that is below it."""

    GIVES_WORKFLOW: ClassVar[bool] = False
    """Whether a recipe that has it needs no `workflow`, and its roles no prompts."""

    def files(self) -> Mapping[str, str]:
        """Returns the files that it names, relative to the recipe's folder, by what they are: a run
        keeps copies of them, and a resumed run compares their content."""
        return {}

    def modules(self) -> list[str]:
        """Returns those of its files that the run's own Python imports."""
        return [file for file in self.files().values() if file.endswith(".py")]

    def compared(self) -> Mapping[str, pydantic.JsonValue]:
        """Returns what a resumed run must have in common with the saved one, as JSON values."""
        return self.model_dump(mode="json")

    def shown(self) -> Mapping[str, pydantic.JsonValue]:
        """Returns what `openrlhf recipes show` shows, without secrets: all that is not the
        default."""
        return self.model_dump(mode="json", exclude_defaults=True)

    def program(self, run: Any) -> Mapping[str, Any] | None:
        """Returns the key `agent:` for which it stands, as a mapping; None: it stands for none.

        Args:
            run: The run (`marl_plugins.Run`), as far as it is known.

        Raises:
            ConfigurationError: The section is wrong.
        """
        return None
