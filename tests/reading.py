"""A recipe's file as the plan reads it."""

from marl_plugins.core.recipe.recipe_yaml import read_recipe
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.plan.sections import load_recipe


def load(path):
    """The recipe, its sections by name, and where its keys stand."""
    tree = read_recipe(path)
    return *load_recipe(tree, Plugins(tree.plugins)), tree.origins
