"""The contract tests of a shipped plugin with one plan for all of them, because planning takes most
of their time.

Each test has a run of its own of that plan, in which nothing of another test's is left
(simulated_session.fresh).
"""

from functools import cache
from pathlib import Path

from simulated_session import fresh

from marl_plugins.contracts import PluginContract
from marl_plugins.engine.plan.build import build_plan


@cache
def plan_of(*words):
    return build_plan(words)


class PlannedOnce(PluginContract):
    """With a recipe of few tasks, where the plugin needs none of its own."""

    recipe = str(Path(__file__).parent / "recipes" / "sums" / "tiny.yaml")

    def planned(self):
        return fresh(plan_of("--recipe", self.recipe, "--plugin", self.plugin, *self.flags))
