"""The rubric of the merchant assistant."""

from . import rubric

RUBRIC = rubric.rubric_of("merchant")
