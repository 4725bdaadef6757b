"""The ways of credit of marl_plugins, by its own functions: trajectories to rewards, hooks of
credit, returns, rows, selection and the four stages of an estimator."""

from __future__ import annotations

import argparse
import asyncio
import inspect
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import torch

from benchmarks.arena.games import Array, Leaf, Policy
from benchmarks.arena.rollouts import Batch, Draw, Estimate, walk
from marl_plugins.core.credit import rewards_from_scores
from marl_plugins.core.estimators import Estimator
from marl_plugins.core.policy import Policy as RunPolicy
from marl_plugins.core.rows import Row, rows_of
from marl_plugins.core.trajectory import Action, Generation, Task, Trajectory

State = TypeVar("State")
Score = Callable[[Batch], Array]
"""A coach: of a batch the scores of its actions, (N, D), in [0, 1]."""


class ArenaRun:
    """What hooks ask of a run: the flags of one plugin, and a state of each kind."""

    def __init__(self, plugin: Any, words: Sequence[str] = ()):
        parser = argparse.ArgumentParser()
        plugin.marl_options(parser)
        self.args = SimpleNamespace()
        for name, value in vars(parser.parse_args(words)).items():
            section, _, key = name.partition(".")
            vars(self.args).setdefault(section, SimpleNamespace())
            setattr(getattr(self.args, section), key, value)
        self.plugins: Sequence[str] = ()
        self.policies: list[RunPolicy] = []
        self.trained_roles: Collection[str] = ()
        self._states: dict[type, Any] = {}

    def state(self, kind: type[State]) -> State:
        state: State = self._states.setdefault(kind, kind())
        return state


def trajectory_of(leaf: Leaf, sample: int = 0) -> Trajectory:
    """Returns a leaf as a trajectory.

    What an action has said is empty where a faultless coach gives it nothing: that is a fault which
    the rules of reward_backprop see.
    """
    trajectory = Trajectory(Task(f"task{leaf.task}", "prompt"), sample, 1, outcome=leaf.outcome)
    trajectory.actions = [
        Action(
            path=f"{node.role}.{place}",
            role=node.role,
            policy=node.role,
            turn=node.turn,
            shown_ids=(node.row,),
            generation=Generation((choice,), (0.0,), "stop", node.role, 0),
            text="said" if node.duties[choice] else "",
            parents=tuple(f"{leaf.nodes[other].role}.{other}" for other in node.sees),
        )
        for place, (node, choice) in enumerate(zip(leaf.nodes, leaf.choices, strict=True))
    ]
    return trajectory


class Credit:
    """From trajectories to advantages, as a step of a run goes about it.

    Args:
        plugin: Its hooks of credit and selection are called, with the flags in `words`.
    """

    def __init__(
        self, estimator: Estimator, plugin: object | None = None, words: Sequence[str] = ()
    ):
        self.estimator, self.plugin = estimator, plugin
        self.run = ArenaRun(plugin, words) if plugin else None
        self.steps = 0

    def hook(self, name: str, **arguments: Any) -> Any:
        function = getattr(self.plugin, name, None)
        if function is None:
            return None
        names = inspect.signature(function).parameters
        result = function(**{key: arguments[key] for key in names})
        return asyncio.run(result) if inspect.iscoroutine(result) else result

    def rows(self, trajectories: Sequence[Trajectory], scored: bool) -> Sequence[Row]:
        """Returns the rows that are trained."""
        self.steps += 1
        for trajectory in trajectories:
            trajectory.step = self.steps
        rewards_from_scores(trajectories, scored)
        for name in ("marl_credit", "marl_credit_step"):
            self.hook(name, trajectories=trajectories, run=self.run)
        self.estimator.write_returns(trajectories)
        rows = rows_of(trajectories, {a.policy for t in trajectories for a in t.actions})
        kept: Sequence[Row] | None = self.hook("marl_select", rows=rows, run=self.run, steps=1)
        return rows if kept is None else kept

    def advantages(self, rows: Sequence[Row], values: Sequence[float] | None = None) -> list[float]:
        """Returns what the rows' actions are trained with.

        Args:
            values: A critic's, where the estimator needs one.
        """
        mask = torch.ones(len(rows), 1)
        rewards = torch.tensor([row.reward for row in rows], dtype=torch.float32)
        shaped = self.estimator.shape(rows, rewards)[:, None]
        critic = None if values is None else torch.tensor(values, dtype=torch.float32)[:, None]
        raw, _ = self.estimator.estimate(shaped, mask, critic)
        final = self.estimator.apply(rows, raw, self.estimator.statistics([(rows, raw, mask)]))
        return [row.weight * a for row, a in zip(rows, final[:, 0].tolist(), strict=True)]


class Advantages:
    """Advantages of a batch (N, D) of one game by the package; see `Credit`.

    An estimator that needs a critic is given the exact values of the contexts.

    Args:
        score: The coach; None: nobody scores actions.
    """

    def __init__(
        self,
        estimator: Estimator,
        plugin: object | None = None,
        words: Sequence[str] = (),
        score: Score | None = None,
    ):
        self.credit, self.score = Credit(estimator, plugin, words), score
        self._made: dict[tuple[int, int], Trajectory] = {}
        """By leaf and number of the copy: to make them takes longer than all that follows."""

    def trajectories(self, batch: Batch) -> list[Trajectory]:
        """Returns the batch as the rollout of a step leaves it."""
        copies, trajectories = Counter[int](), []
        for n, leaf in enumerate(batch.leaves.tolist()):
            key = leaf, copies[leaf]
            copies[leaf] += 1
            if key not in self._made:
                self._made[key] = trajectory_of(batch.policy.game.leaves[leaf])
            trajectory = self._made[key]
            trajectory.sample = n % batch.samples
            for action in trajectory.actions:
                action.score, action.left_out, action.terms, action.notes = None, None, {}, {}
            trajectories.append(trajectory)
        return trajectories

    def __call__(self, batch: Batch) -> Array:
        game = batch.policy.game
        trajectories = self.trajectories(batch)
        if self.score:
            for trajectory, scores in zip(trajectories, self.score(batch), strict=True):
                for action, score in zip(trajectory.actions, scores, strict=False):
                    action.score = float(score)
        rows = self.credit.rows(trajectories, self.score is not None)
        number = {trajectory: n for n, trajectory in enumerate(trajectories)}
        places = [(number[row.trajectory], place_of(row.action)) for row in rows]
        values = None
        if self.credit.estimator.needs_critic:
            context = batch.policy.values[2]
            values = [float(context[batch.leaves[n], place]) for n, place in places]
        advantages = np.zeros((len(trajectories), game.acts.shape[1]))
        for place, advantage in zip(places, self.credit.advantages(rows, values), strict=True):
            advantages[place] = advantage
        return advantages


def place_of(action: Action) -> int:
    return int(action.path.rpartition(".")[2])


class ArenaStep:
    """A step of a run (`marl_plugins.Step`) whose rollout is a game's."""

    number = 1

    def __init__(self, policy: Policy, draw: Draw):
        self.policy, self.draw = policy, draw
        self.leaves: dict[Trajectory, Leaf] = {}
        self.answers = 0
        self.tasks = [Task(str(task), "prompt") for task in range(policy.game.tasks)]

    async def trajectory(self, task: Task, place: int, sample: int) -> Trajectory:
        return self._said(place, sample, *walk(self.policy, place, self.draw))

    async def fork(self, trajectory: Trajectory, path: str, number: int) -> Trajectory:
        """What did not see the action says again what it has said."""
        base, place = self.leaves[trajectory], int(path.rpartition(".")[2])
        reached = base.reached(place)
        kept = set(range(len(base.nodes))) - reached
        leaf = walk(self.policy, base.task, self.draw, base, kept)
        fork = self._said(base.task, trajectory.sample, *leaf)
        fork.forked = path, number
        for at, action in enumerate(fork.actions):
            action.replayed = at in kept
        return fork

    def _said(self, task: int, sample: int, leaf: int, sampled: int) -> Trajectory:
        trajectory = trajectory_of(self.policy.game.leaves[leaf], sample)
        self.leaves[trajectory] = self.policy.game.leaves[leaf]
        self.answers += sampled
        return trajectory


class OfStep:
    """The estimate of a plugin that makes the rollout of its step itself.

    Args:
        words: Its flags.
    """

    def __init__(self, plugin: Any, words: Sequence[str] = ()):
        self.plugin, self.words = plugin, words

    def __call__(self, policy: Policy, draw: Draw, samples: int) -> Estimate:
        credit = Credit(self.plugin.marl_estimator(None), self.plugin, self.words)
        step, game = ArenaStep(policy, draw), policy.game
        assert credit.run
        credit.run.args.rollout = SimpleNamespace(n_samples_per_prompt=samples)
        credit.run.policies = [RunPolicy(role, "tiny") for role in set(game.roles)]
        credit.run.trained_roles = set(game.roles)

        async def rollout() -> list[Trajectory]:
            source = self.plugin.marl_step(credit.run, step).source()
            return [trajectory async for group in source for trajectory in group]

        trajectories = asyncio.run(rollout())
        rows = credit.rows(trajectories, scored=False)
        gradient = np.zeros_like(policy.chances)
        for row, advantage in zip(rows, credit.advantages(rows), strict=True):
            node = step.leaves[row.trajectory].nodes[place_of(row.action)]
            gradient[node.row] -= advantage * policy.chances[node.row]
            gradient[node.row, row.action.generation.ids[0]] += advantage
        return Estimate(gradient / samples / game.tasks, step.answers, len(trajectories))
