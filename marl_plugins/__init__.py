"""Multi-agent reinforcement learning as plugins for an unmodified OpenRLHF.

What recipes and plugins import is here, `from marl_plugins import Task, hookimpl`, and in the
libraries `marl_plugins.grading`, `.sandbox`, `.asking` and `.contracts`; docs/hooks.md says what
each name is. A name is imported from where it lies when it is first asked for. Everything else may
change from one release to the next. `marl_plugins.core.hookspecs` is the reference of the hooks.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from marl_plugins.core.version import __version__ as __version__

if TYPE_CHECKING:
    import pluggy

    from marl_plugins.builtin.cases.gym import gym_score, gym_task
    from marl_plugins.builtin.groups import GroupMean, mean_by
    from marl_plugins.builtin.tools.python import find_programs, python_tool_of
    from marl_plugins.builtin.tools.sql.queries import query_database, sql_tool
    from marl_plugins.builtin.tools.sql.section import SqlToolConfig
    from marl_plugins.coach.rubric import Criterion
    from marl_plugins.core.command import Command, Parser
    from marl_plugins.core.concurrency import all_of
    from marl_plugins.core.demonstrations import Demonstration
    from marl_plugins.core.estimators import Estimator, group_key
    from marl_plugins.core.exchange import (
        Exchange,
        RefusedRecord,
        TrajectoryWords,
        all_or_none,
        read_words,
    )
    from marl_plugins.core.failures import (
        AgentFailure,
        ConfigurationError,
        InfrastructureFailure,
        RunEnded,
        RunPaused,
        nearest,
    )
    from marl_plugins.core.files import json_value, replace_bytes
    from marl_plugins.core.findings import Finding, check_extra
    from marl_plugins.core.loading import load_file
    from marl_plugins.core.options import above, at_least, between, recipe_file
    from marl_plugins.core.policy import Policy
    from marl_plugins.core.problems import Problem, at, first_of, meant
    from marl_plugins.core.processes import Engine, Engines, Follower, PolicyProcesses, PreparedRows
    from marl_plugins.core.recipe.tasks import read_tasks
    from marl_plugins.core.redaction import inert
    from marl_plugins.core.roles import Call
    from marl_plugins.core.rows import Row
    from marl_plugins.core.run import (
        Answer,
        AnswerLimits,
        Run,
        ShareTemperatures,
        use_tool,
    )
    from marl_plugins.core.scoring import (
        Seen,
        SeenLast,
        checked_score,
        score_trajectory,
        set_outcome,
    )
    from marl_plugins.core.section import FlagValue, Model, Section
    from marl_plugins.core.seeds import derive_seed
    from marl_plugins.core.steps import Step, StepPart
    from marl_plugins.core.tools import Function, Tool, ToolCall
    from marl_plugins.core.trajectory import Action, Generation, Task, ToolResult, Trajectory
    from marl_plugins.engine.plan.rehearsed import RehearsalResult
    from marl_plugins.engine.plan.resolve_plugins import arity_problem
    from marl_plugins.engine.plan.signature import engine_differences
    from marl_plugins.engine.processes.backend import OwnProcesses
    from marl_plugins.engine.processes.extension import Extension
    from marl_plugins.engine.processes.launch import TrainingProcesses
    from marl_plugins.engine.records.behaviour import Behaviour
    from marl_plugins.engine.records.intervals import t_quantile
    from marl_plugins.engine.records.read import Filter, RunReader
    from marl_plugins.engine.runtime.tiny_model import made_once
    from marl_plugins.reward_backprop import BackpropState
    from marl_plugins.reward_backprop.backward import Attribution

    hookimpl = pluggy.HookimplMarker("marl")
    """Marks a function of a plugin as the implementation of the hook of the same name."""


__all__ = [
    "Action",
    "AgentFailure",
    "Answer",
    "AnswerLimits",
    "Attribution",
    "BackpropState",
    "Behaviour",
    "Call",
    "Command",
    "ConfigurationError",
    "Criterion",
    "Demonstration",
    "Engine",
    "Engines",
    "Estimator",
    "Exchange",
    "Extension",
    "Filter",
    "Finding",
    "FlagValue",
    "Follower",
    "Function",
    "Generation",
    "GroupMean",
    "InfrastructureFailure",
    "Model",
    "OwnProcesses",
    "Parser",
    "Policy",
    "PolicyProcesses",
    "PreparedRows",
    "Problem",
    "RefusedRecord",
    "RehearsalResult",
    "Row",
    "Run",
    "RunEnded",
    "RunPaused",
    "RunReader",
    "Section",
    "Seen",
    "SeenLast",
    "ShareTemperatures",
    "SqlToolConfig",
    "Step",
    "StepPart",
    "Task",
    "Tool",
    "ToolCall",
    "ToolResult",
    "TrainingProcesses",
    "Trajectory",
    "TrajectoryWords",
    "above",
    "all_of",
    "all_or_none",
    "applies_if",
    "arity_problem",
    "at",
    "at_least",
    "between",
    "check_extra",
    "checked_score",
    "derive_seed",
    "engine_differences",
    "find_programs",
    "first_of",
    "group_key",
    "gym_score",
    "gym_task",
    "hookimpl",
    "inert",
    "json_value",
    "load_file",
    "made_once",
    "mean_by",
    "meant",
    "nearest",
    "python_tool_of",
    "query_database",
    "read_tasks",
    "read_words",
    "recipe_file",
    "replace_bytes",
    "score_trajectory",
    "set_outcome",
    "sql_tool",
    "t_quantile",
    "use_tool",
]

OFFERED = {
    "core.trajectory": ("Action", "Generation", "Task", "ToolResult", "Trajectory"),
    "core.rows": ("Row",),
    "core.demonstrations": ("Demonstration",),
    "core.tools": ("Function", "Tool", "ToolCall"),
    "core.roles": ("Call",),
    "core.scoring": ("Seen", "SeenLast", "checked_score", "score_trajectory", "set_outcome"),
    "core.estimators": ("Estimator", "group_key"),
    "core.run": ("Answer", "AnswerLimits", "Run", "ShareTemperatures", "use_tool"),
    "core.policy": ("Policy",),
    "core.section": ("FlagValue", "Model", "Section"),
    "core.options": ("above", "at_least", "between", "recipe_file"),
    "core.loading": ("load_file",),
    "core.steps": ("Step", "StepPart"),
    "core.exchange": ("Exchange", "RefusedRecord", "TrajectoryWords", "all_or_none", "read_words"),
    "core.seeds": ("derive_seed",),
    "core.concurrency": ("all_of",),
    "core.processes": ("Engine", "Engines", "Follower", "PolicyProcesses", "PreparedRows"),
    "core.problems": ("Problem", "at", "first_of", "meant"),
    "core.failures": (
        "AgentFailure",
        "ConfigurationError",
        "InfrastructureFailure",
        "RunEnded",
        "RunPaused",
        "nearest",
    ),
    "core.files": ("json_value", "replace_bytes"),
    "core.redaction": ("inert",),
    "core.command": ("Command", "Parser"),
    "core.findings": ("Finding", "check_extra"),
    "core.recipe.tasks": ("read_tasks",),
    "engine.plan.resolve_plugins": ("arity_problem",),
    "engine.plan.rehearsed": ("RehearsalResult",),
    "engine.plan.signature": ("engine_differences",),
    "engine.processes.backend": ("OwnProcesses",),
    "engine.processes.extension": ("Extension",),
    "engine.processes.launch": ("TrainingProcesses",),
    "engine.records.behaviour": ("Behaviour",),
    "engine.records.intervals": ("t_quantile",),
    "engine.records.read": ("Filter", "RunReader"),
    "engine.runtime.tiny_model": ("made_once",),
    "builtin.cases.gym": ("gym_score", "gym_task"),
    "builtin.groups": ("GroupMean", "mean_by"),
    "builtin.tools.python": ("find_programs", "python_tool_of"),
    "builtin.tools.sql.queries": ("query_database", "sql_tool"),
    "builtin.tools.sql.section": ("SqlToolConfig",),
    "coach.rubric": ("Criterion",),
    "reward_backprop": ("BackpropState",),
    "reward_backprop.backward": ("Attribution",),
}
"""The names that are offered, by the module in which each lies; above for type checkers."""
MODULE_OF = {name: f"marl_plugins.{module}" for module, names in OFFERED.items() for name in names}


def __getattr__(name: str) -> Any:
    """Returns an offered name from where it lies; `hookimpl` with the first plugin, because a help
    text needs no pluggy."""
    if name in MODULE_OF:
        return getattr(import_module(MODULE_OF[name]), name)
    if name != "hookimpl":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import pluggy

    globals()[name] = pluggy.HookimplMarker("marl")
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


F = TypeVar("F", bound=Callable[..., Any])


def applies_if(condition: Callable[[Any], bool]) -> Callable[[F], F]:
    """Marks an implementation that some runs do without: it is called where `condition(run)` holds,
    and counts there only.

    Of `run`, `args` and `recipe` are known when it is asked. Example:

        @hookimpl
        @applies_if(lambda run: run.args.brevity.compare)
        def marl_credit_step(trajectories): ...
    """

    def mark(function: F) -> F:
        function.__dict__["applies_if"] = condition
        return function

    return mark
