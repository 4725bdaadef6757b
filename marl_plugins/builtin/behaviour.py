"""Behaviour of the roles over time, and the alarm for reward hacking, as metrics of every step
(engine/records/behaviour.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from marl_plugins import hookimpl
from marl_plugins.engine.records.behaviour import Behaviour

if TYPE_CHECKING:
    from marl_plugins.core.run import Run


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    metrics |= run.state(Behaviour).observe(metrics, list(run.recipe.roles))


@hookimpl
def marl_state(run: Run) -> dict[str, Any]:
    return run.state(Behaviour).record()


@hookimpl
def marl_restore(run: Run, state: Mapping[str, Any]) -> None:
    run.state(Behaviour).restore(state)
