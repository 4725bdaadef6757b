"""What is forked: recorded trajectories, as the run's own session can say them again, with whose
weights; and what cannot be, with the reason."""

from __future__ import annotations

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from marl_plugins import hookimpl
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.exchange import AnswerWords, RefusedRecord
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.run import Run
from marl_plugins.core.tools import Tool, ToolCall
from marl_plugins.core.trajectory import (
    EVALUATION,
    Action,
    Generation,
    Task,
    ToolResult,
    Trajectory,
)
from marl_plugins.engine.plan.engines_only import only_players, with_folders, with_models
from marl_plugins.engine.records.read import Filter, RunReader, Steps
from marl_plugins.engine.runtime.exchange import ids_of
from marl_plugins.engine.runtime.forking import Original, unforkable

if TYPE_CHECKING:
    from marl_plugins.engine.runtime.session import Session

HERE = at(command="openrlhf fork")
Choice = tuple[Trajectory, list[Action]]
"""A trajectory, with those of its actions that are forked."""


def chosen(options: argparse.Namespace) -> list[Choice]:
    """Reads what the flags name.

    Raises:
        ConfigurationError: There is none, or it was lost or made elsewhere.
    """
    reader = RunReader(options.run)
    if options.scan:
        return scanned(reader, options)
    mine = recorded(reader, options.step, options.evaluations)
    own_last = sorted(mine, key=lambda t: not t.origin)
    named_so = [t for t in own_last if (t.task.id, t.sample) == (options.task, options.sample)]
    if not named_so:
        what = "evaluation after step" if options.evaluations else "step"
        got = f"{what} {options.step[0]} has no task {options.task!r} with sample {options.sample}"
        fix = "openrlhf inspect RUN lists what there is"
        raise ConfigurationError(Problem("fork.record", HERE, got, fix=fix))
    trajectory = named_so[-1]
    why = unforkable(trajectory)
    if trajectory.outcome is None:
        why = why or "has no outcome that forks could change"
    if not options.models and any(a.generation.changes for a in trajectory.actions):
        why = why or "has answers of weights that changed meanwhile; say whose are meant (--models)"
    if why:
        raise ConfigurationError(
            Problem("fork.record", HERE, f"trajectory {trajectory.name} {why}")
        )
    actions = trajectory.actions if options.all else [named(trajectory, options.action)]
    return [(trajectory, list(actions))]


def scanned(reader: RunReader, options: argparse.Namespace) -> list[Choice]:
    """Draws actions with a score, of the last step or of those that are named."""
    last = max((int(metrics["step"]) for metrics in reader.metrics()), default=0)
    pool = [
        (t, a)
        for t in recorded(reader, options.step or (last, last), options.evaluations)
        if not unforkable(t) and t.outcome is not None
        for a in t.actions
        if a.score is not None
    ]
    if len(pool) < options.scan:
        got = f"there are {len(pool)} actions with a score"
        fix = "--step A:B for more steps; a coach or a grader of actions gives scores"
        raise ConfigurationError(Problem("fork.scan", HERE, got, fix=fix))
    by_trajectory: dict[Trajectory, list[Action]] = {}
    for number in sorted(random.Random(0).sample(range(len(pool)), options.scan)):
        trajectory, action = pool[number]
        by_trajectory.setdefault(trajectory, []).append(action)
    return list(by_trajectory.items())


def recorded(reader: RunReader, steps: Steps, evaluation: bool) -> Iterator[Trajectory]:
    """Yields trajectories as they were sampled: each at its task's place, an evaluation's in no
    step."""
    places: dict[int, dict[str, int]] = defaultdict(dict)
    selection = Filter(steps, split="eval" if evaluation else "train", received=True)
    for trajectory in reader.trajectories(selection):
        if not trajectory.forked:
            of_step = places[trajectory.step]
            trajectory.place = of_step.setdefault(trajectory.task.id, len(of_step))
            trajectory.step = EVALUATION if evaluation else trajectory.step
            yield trajectory


def named(trajectory: Trajectory, name: str) -> Action:
    """Returns an action by its path, or as ROLE.N, the N-th of a role in the record's order."""
    actions = {numbered(trajectory, a): a for a in trajectory.actions}
    actions |= {a.path: a for a in trajectory.actions}
    if name in actions:
        return actions[name]
    known = [f"{a.path} ({numbered(trajectory, a)})" for a in trajectory.actions]
    raise ConfigurationError(
        Problem(
            "fork.action", HERE, f"there is no action {name!r}", fix=f"one of {', '.join(known)}"
        )
    )


def numbered(trajectory: Trajectory, action: Action) -> str:
    """Returns an action's name as ROLE.N."""
    mine = [a.path for a in trajectory.actions if a.role == action.role]
    return f"{action.role}.{mine.index(action.path) + 1}"


# Whose weights


def with_weights(
    run: Run, options: argparse.Namespace, choices: Sequence[Choice]
) -> tuple[Run, str]:
    """Returns a run's players with the weights that are meant, and whose they are. A policy that is
    not trained has those of the recipe."""
    players = only_players(run)
    playing = {p.name for p in players.policies}
    trained = {p.name for p in run.policies if (p.trainable or p.follows) and p.name in playing}
    versions = {a.generation.version for t, _ in choices for a in t.actions if a.policy in trained}
    step = options.models
    if step is None and len(versions) == 1:  # the one that has sampled all of it
        (step,) = map(str, versions)
    if step == "0" or (step is None and not trained):
        return players, "the recipe's own models"
    if step is not None and step.isdecimal():
        copies = {
            p.name: Path(run.policy_args[p.follows or p.name].ckpt.path) / f"global_step{step}_hf"
            for p in players.policies
            if p.name in trained
        }
        if all((folder / "config.json").is_file() for folder in copies.values()):
            models = {name: str(folder.absolute()) for name, folder in copies.items()}
            return with_folders(players, models), f"the copies of step {step}"
        if options.models:
            got, fix = f"{options.run} keeps no copies of step {step}", "--ckpt.save_hf keeps them"
            raise ConfigurationError(Problem("fork.models", HERE, got, fix=fix))
    folder = Path(options.models or options.run)
    only = [
        name for name in playing if name in trained or (folder / name / "config.json").is_file()
    ]
    return with_models(players, folder, sorted(only)), f"the last weights in {folder}, those of now"


# As the session says it


def originals(
    session: Session, options: argparse.Namespace, choices: Sequence[Choice]
) -> list[Original]:
    """Returns the trajectories as the session says them again.

    Raises:
        ConfigurationError: The run has other tasks, roles or policies than the record.
    """
    kept = session.eval_tasks if options.evaluations else session.train_tasks
    tasks = {task.id: task for task in kept}
    made, rollout = [], session.rollout
    for trajectory, _ in choices:
        task = tasks.get(trajectory.task.id)
        if task is None or same_of(task) != same_of(trajectory.task):
            what = "no" if task is None else "another"
            raise ConfigurationError(
                Problem(
                    "fork.task",
                    HERE,
                    f"task {trajectory.task.id!r:.80} is {what} task of the recipe now",
                )
            )
        for action in trajectory.actions:
            members = session.cast.members.get(action.role, ())
            if action.policy not in {spec.policy for spec in members}:
                got = f"role {action.role!r} is not played by policy {action.policy!r} now"
                raise ConfigurationError(Problem("fork.roles", HERE, got))
        if trajectory.is_evaluation:
            temperature = session.plan.run.args.eval.temperature
            roles = rollout.evaluated(task, trajectory.place, temperature)
        else:
            roles = session.cast(task, trajectory.step, trajectory.place)
        made.append(Original(rollout, trajectory, task, roles))
    return made


def same_of(task: Task) -> str:
    """Returns what a record says of its task, as JSON."""
    return json.dumps([task.prompt, task.label, task.metadata], sort_keys=True, default=str)


def spoken(original: Original, action: Action, text: str) -> Generation:
    """Returns an answer with words of the user's. What looks like a control token stays text.

    Raises:
        ConfigurationError: They are too long, or are not what their ids say.
    """
    role = original.players[action.role]
    chat: ChatFormat = role.chat
    room = role.sampling.max_len - len(action.context_ids)
    most = min(room, role.sampling.max_new_tokens or room)
    # not validated: how long it may be depends on the role
    words = AnswerWords.model_construct(
        role=action.role, shown="", text=text, end="eos", logprob=0.0
    )
    try:
        ids = ids_of(words, chat, most)
    except RefusedRecord as error:
        raise ConfigurationError(Problem("fork.say", HERE, str(error))) from None
    return Generation(ids, (0.0,) * len(ids), "stop", action.policy, action.generation.version)


def recorded_tools(choices: Sequence[Choice]) -> object:
    """Returns a plugin whose tools answer calls from the records and make none."""
    results: dict[tuple[str, int, int], list[tuple[str, ToolResult]]] = {}
    for t, _ in choices:
        calls = [("", result) for result in t.tool_results]
        calls += [(a.path, result) for a in t.actions for result in a.tool_results]
        results[t.task.id, t.sample, t.step] = calls

    async def answer(tool: Tool, call: ToolCall) -> ToolResult:
        """Returns the recorded answer to a call of an action, or the one answer to its text."""
        recorded = results[call.task, call.sample, call.step]
        same = [(path, r) for path, r in recorded if (r.tool, r.call) == (tool.name, call.text)]
        known = [r for path, r in same if path == call.action] or [r for _, r in same]
        if len({result.output for result in known}) != 1:
            detail = f"tool {tool.name} has no recorded answer to {call.text!r:.80}"
            raise InfrastructureFailure("unlike", detail)
        return known[0]

    @hookimpl(wrapper=True)
    def marl_tools(run: Run) -> Any:
        answers = yield
        silent: dict[str, Any] = {"open": None, "in_workspace": False, "workspaces": None}
        return [
            [replace(tool, run=partial(answer, tool), **silent) for tool in tools]
            for tools in answers
        ]

    return SimpleNamespace(marl_tools=marl_tools)


def check_tools(run: Run, tools: Mapping[str, Tool]) -> None:
    """Checks that recorded calls may be made again.

    Raises:
        ConfigurationError: One may have effects outside.
    """
    names = [name for role in run.recipe.roles.values() for name in role.tools]
    if outside := [name for name in dict.fromkeys(names) if tools[name].outside]:
        got = f"calls of tool {outside[0]!r} may have effects outside, and would be made again"
        raise ConfigurationError(
            Problem("fork.tools", HERE, got, fix="--tools recorded answers them from the record")
        )
