"""Cases in a recipe: `cases: cases.py`, a file of generated problems that nodes of a graph name
(docs/graphs.md, Cases).

section.py   the section     gym.py   data sets of reasoning-gym as cases
    and as tasks
"""

from __future__ import annotations

from marl_plugins import hookimpl
from marl_plugins.builtin.cases.section import CasesConfig
from marl_plugins.core.section import Section


@hookimpl
def marl_sections() -> dict[str, type[Section]]:
    return {"cases": CasesConfig}
