"""Public environments in place of workflow, tasks and grader: `env:` in a recipe
(docs/environments.md).

    env: {textarena: Nim-v0, python: venv/bin/python}

An episode is a trajectory. It is played by a program (`agent:`), which asks the run's endpoint for
what the players say: a player is a role. The program runs in the environment's own Python.

section.py   the recipe's key      servers.py   OpenEnv's servers      check.py   what is tried
    before a run, and `openrlhf environments`
drivers/     the programs: playing.py an episode, and for each kind a file that makes environments;
    keeper.py keeps a server running
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from marl_plugins import (
    ConfigurationError,
    Problem,
    Section,
    StepPart,
    Task,
    applies_if,
    at,
    hookimpl,
)
from marl_plugins.environments.section import EVALUATION, EnvConfig, server_command
from marl_plugins.environments.servers import ServerPool

if TYPE_CHECKING:
    from marl_plugins import Command, Run, Step, Trajectory


@hookimpl
def marl_commands() -> list[Command]:
    from marl_plugins import Command

    def main(words: Sequence[str]) -> int:
        from marl_plugins.environments.check import main

        return main(words)

    return [
        Command("environments", "textarena:ALL", "plays a package's environments, offline", main)
    ]


@hookimpl
def marl_sections() -> dict[str, type[Section]]:
    return {"env": EnvConfig}


def plays(run: Run) -> bool:
    """Returns whether a run's recipe has an environment."""
    return environment_of(run) is not None


def environment_of(run: Run) -> EnvConfig | None:
    """Returns the recipe's environment, if it has one."""
    config = run.section(EnvConfig)
    return config if config is not None and config.kinds else None


def start_servers(config: EnvConfig, run: Run, servers: int) -> None:
    """Starts servers until there are so many.

    Raises:
        ConfigurationError: They cannot be started.
    """
    server = config.openenv
    if server is None:
        return
    try:
        run.state(ServerPool).start(
            server_command(server, config.interpreter(run.folder)),
            servers=servers,
            sessions=server.sessions,
            folder=run.folder / server.folder,
            environment=server.environment,
            restarts=server.restarts,
        )
    except OSError as error:
        got = f"cannot be started: {error}"
        raise ConfigurationError(Problem("env.server", at(key="env.openenv"), got)) from error


@hookimpl
@applies_if(plays)
def marl_tasks(run: Run, split: str) -> list[Task] | None:
    config = environment_of(run)
    if config is None:
        return None
    first, count = (0, config.episodes) if split == "train" else (EVALUATION, config.eval_episodes)
    limit = run.args.data.max_samples if split == "train" else None
    place = 0 if split == "train" else config.episodes
    return [
        Task(
            f"{config.name}#{first + n}",
            f"{config.name}, seed {first + n}",
            None,
            {"seed": first + n, "place": place + n},
        )
        for n in range(count)
    ][:limit]


def ending(trajectory: Trajectory) -> Mapping[str, Any]:
    """Returns how an episode has ended, as its program says; nothing where it does not."""
    try:
        said = json.loads(trajectory.answer or "")
    except ValueError:
        return {}
    return said if isinstance(said, dict) and "rewards" in said else {}


@hookimpl
@applies_if(plays)
def marl_score_outcome(
    run: Run, trajectory: Trajectory
) -> Awaitable[Mapping[str, float | None] | None] | None:
    config = environment_of(run)
    if config is None:
        return None
    low, high = config.rewards

    async def score() -> Mapping[str, float | None] | None:
        rewards = ending(trajectory).get("rewards", {})
        return {
            role: None if reward is None else min(1.0, max(0.0, (reward - low) / (high - low)))
            for role, reward in rewards.items()
        } or None

    return score()


class EpisodeCounts(StepPart):
    """Counts how the episodes of a step have ended."""

    def __init__(self, roles: Sequence[str]) -> None:
        self.counts = Counter({f"env/invalid/{role}": 0 for role in roles} | {"env/unended": 0})
        self.turns: list[int] = []

    def arrived(self, trajectory: Trajectory) -> None:
        end = ending(trajectory)
        if end:
            self.turns.append(end["turns"])
            self.counts["env/unended"] += not end["ended"]
            if end.get("invalid"):
                self.counts[f"env/invalid/{end['invalid']}"] += 1

    def metrics(self) -> Mapping[str, float]:
        """Returns how many episodes were left, and ended by whose invalid move; their mean
        length."""
        mean = {"env/turns": fmean(self.turns)} if self.turns else {}
        return {name: float(count) for name, count in self.counts.items()} | mean


@hookimpl
def marl_step(run: Run, step: Step) -> StepPart | None:
    config = environment_of(run)
    return None if config is None else EpisodeCounts(config.roles(run))


@hookimpl(tryfirst=True)  # the rehearsal needs a server
def marl_rehearse(plan: Any) -> list[Problem]:
    config = environment_of(plan.run)
    if config is None:
        return []
    from marl_plugins.environments.check import check_environment

    start_servers(config, plan.run, 1)
    problems = check_environment(config, plan.run)
    if any(problem.severity == "error" for problem in problems):
        raise ConfigurationError(problems)  # a rehearsal would only say the same
    return problems


@hookimpl
async def marl_start(run: Run, purpose: str) -> None:
    config = environment_of(run)
    if config is None or config.openenv is None:
        return
    start_servers(config, run, config.openenv.servers)
    await asyncio.to_thread(run.state(ServerPool).wait, config.openenv.ready_seconds)


@hookimpl
async def marl_stop(run: Run) -> None:
    config = environment_of(run)
    if config is not None and config.openenv is not None:
        run.state(ServerPool).stop()
