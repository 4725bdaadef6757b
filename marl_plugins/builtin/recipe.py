"""The recipe takes part as the plugin that is asked last: tasks, workflow, policies, grader and
warm start."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from marl_plugins import hookimpl
from marl_plugins.core.credit import ActionScores
from marl_plugins.core.demonstrations import WarmStartConfig
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.sources import read_sources
from marl_plugins.core.scoring import answer_of, reward_function_score
from marl_plugins.core.threads import DaemonThreads
from marl_plugins.core.trajectory import Action, Task, Trajectory

if TYPE_CHECKING:
    from marl_plugins.core.policy import Policy
    from marl_plugins.core.run import Run
    from marl_plugins.core.scoring import Outcome, Seen
    from marl_plugins.core.section import Section
    from marl_plugins.core.workflow import Workflow


@hookimpl
def marl_sections() -> dict[str, type[Section]]:
    return {"warm_start": WarmStartConfig}


@hookimpl
def marl_policies(run: Run) -> list[Policy]:
    """Returns one policy per name in the mapping, in the order of the roles."""
    names = dict.fromkeys(
        name for role in run.recipe.mapped_roles for name in run.recipe.policies_of(role)
    )
    return [run.recipe_policy(name) for name in names]


@hookimpl
def marl_workflow(run: Run) -> Workflow:
    workflow: Workflow = run.workflow_module.run
    return workflow


@hookimpl
def marl_tasks(run: Run, split: str) -> Sequence[Task]:
    if run.tasks_module is not None and not (split == "eval" and run.args.eval.dataset):
        loaded = run.tasks_module.load(split)
        listed = isinstance(loaded, Iterable)
        tasks: list[Any] = list(loaded) if listed else []
        if wrong := [task for task in tasks if not isinstance(task, Task)] if listed else [loaded]:
            where = at(file=run.folder / str(run.recipe.tasks), hook=f"load({split!r})")
            got, expected = f"{wrong[0]!r:.80}", "a list of marl_plugins.Task, which may be empty"
            raise ConfigurationError(Problem("tasks.type", where, got, expected))
        limit = run.args.data.max_samples if split == "train" else None
        return tasks[:limit]
    return read_sources(run, split)


@hookimpl
def marl_score_action(run: Run, action: Action, seen: Seen) -> Awaitable[float | None] | None:
    function = getattr(run.grader_module, "score_action", None)
    return answer_of(function, action, seen) if function else None


@hookimpl
def marl_score_outcome(run: Run, trajectory: Trajectory) -> Awaitable[Outcome] | None:
    function = getattr(run.grader_module, "score_outcome", None)
    if function is not None:
        return answer_of(function, trajectory)
    if run.reward_module is None:
        return None
    # In a thread, because it may wait for a server; for ever, too.
    reward_func = run.reward_module.reward_func
    return run.state(DaemonThreads).call(reward_function_score, reward_func, trajectory)


@hookimpl
def marl_state(run: Run) -> dict[str, Any]:
    """Returns whether somebody scores actions: a resumed run goes on as it began."""
    return asdict(run.state(ActionScores))


@hookimpl
def marl_restore(run: Run, state: Mapping[str, Any]) -> None:
    kept = run.state(ActionScores)
    kept.known, kept.shown_in, kept.scorers = (
        state["known"],
        state["shown_in"],
        tuple(state["scorers"]),
    )
