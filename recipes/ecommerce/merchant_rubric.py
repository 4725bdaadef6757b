"""The rubric of the merchant assistant."""

from pathlib import Path

from marl_plugins.loading import load_file

rubric = load_file(Path(__file__).with_name("rubric.py"), "marl_recipe_ecommerce_rubric")
RUBRIC = rubric.rubric_of("merchant")
