"""The rubric of the category assistant."""

from . import rubric

RUBRIC = rubric.rubric_of("category")
