"""What graders are made of (docs/recipes.md, "The grader").

programs.py   whether a program passes checks, without being able to say so itself
"""

from marl_plugins.grading.programs import Checked, Checker

__all__ = ["Checked", "Checker"]
