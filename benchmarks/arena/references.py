"""Ways of credit that others use, coaches with stated faults, and what could be reached by whoever
knew the truth."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.arena.games import Array, Leaf, Node, Policy
from benchmarks.arena.rollouts import Batch, Draw, Estimate, walk

# --- coaches: of a batch the scores of its actions, (N, D)


def duty(batch: Batch) -> Array:
    """A coach without fault: whether the action was right by itself."""
    return batch.policy.game.duty[batch.leaves]


class Noisy:
    """The same, with normal noise of half a mark in its full range."""

    def __init__(self) -> None:
        self._noise = np.random.default_rng(5)

    def __call__(self, batch: Batch) -> Array:
        scores = duty(batch)
        return np.clip(scores + self._noise.normal(0, 0.5, scores.shape), 0, 1)


def blames_the_next(batch: Batch) -> Array:
    """Gives every action but the first the score of the one before it."""
    scores = duty(batch)
    return np.concatenate([scores[:, :1], scores[:, :-1]], axis=1)


def effect(batch: Batch) -> Array:
    """The exact effect of an action on the outcome, in [0, 1]: 0.5 for none."""
    after, before, _ = batch.policy.values
    return (1 + after[batch.leaves] - before[batch.leaves]) / 2


# --- on plain rollouts: of a batch the advantages of its actions, (N, D)


def broadcast(batch: Batch) -> Array:
    """The outcome itself, without a baseline."""
    game = batch.policy.game
    return np.repeat(game.outcome[batch.leaves][:, None], game.acts.shape[1], 1)


def by_group(batch: Batch, key: Callable[[Leaf, int], object], ddof: int) -> Array:
    """Outcomes minus the mean of their group, over its deviation.

    Args:
        key: Of the action of a leaf at a place.
    """
    game, groups = batch.policy.game, defaultdict[object, list[tuple[int, int]]](list)
    for n, number in enumerate(batch.leaves):
        leaf = game.leaves[number]
        for place in range(len(leaf.nodes)):
            groups[key(leaf, place)].append((n, place))
    advantages = np.zeros((len(batch.leaves), game.acts.shape[1]))
    for places in groups.values():
        outcomes = np.array([game.outcome[batch.leaves[n]] for n, _ in places])
        deviation = outcomes.std(ddof=ddof) if len(outcomes) > ddof else 0.0
        for at, outcome in zip(places, outcomes, strict=True):
            advantages[at] = (outcome - outcomes.mean()) / deviation if deviation else 0.0
    return advantages


def dr_mas(batch: Batch) -> Array:
    """Dr. MAS (arXiv 2602.08847): mean and deviation of each agent over the batch."""
    return by_group(batch, lambda leaf, place: leaf.nodes[place].role, 0)


def at_grpo(batch: Batch) -> Array:
    """AT-GRPO (arXiv 2510.11062): groups of a task, an agent and the how-manieth of its actions."""

    def key(leaf: Leaf, place: int) -> object:
        role = leaf.nodes[place].role
        return leaf.task, role, sum(node.role == role for node in leaf.nodes[:place])

    return by_group(batch, key, 1)


def maremax(batch: Batch) -> Array:
    """CoMLRL's MAReMax: the outcome minus the best of the task's samples, its own among them."""
    outcomes = broadcast(batch)
    best = outcomes.reshape(-1, batch.samples, outcomes.shape[1]).max(1)
    advantages: Array = outcomes - np.repeat(best, batch.samples, 0)
    return advantages


def central_critic(batch: Batch) -> Array:
    """An exact critic of all that has happened."""
    return broadcast(batch) - batch.policy.values[1][batch.leaves]


def local_critic(batch: Batch) -> Array:
    """An exact critic of what the acting role is shown."""
    return broadcast(batch) - batch.policy.values[2][batch.leaves]


def coma(batch: Batch) -> Array:
    """COMA (arXiv 1705.08926) with an exact Q: the most that a critic could give."""
    after, before, _ = batch.policy.values
    return after[batch.leaves] - before[batch.leaves]


# --- with rollouts of their own


def leave_one_out(outcomes: Array) -> Array:
    advantages: Array = (outcomes - outcomes.mean()) * len(outcomes) / (len(outcomes) - 1)
    return advantages


def standardised(outcomes: Array) -> Array:
    """C3's release: the siblings' own mean and deviation, which makes +-1 of a pair."""
    advantages: Array = (outcomes - outcomes.mean()) / np.sqrt(outcomes.var() + 1e-8)
    return advantages


class Sum:
    """Adds up advantages and what they cost."""

    def __init__(self, policy: Policy, draw: Draw):
        self.policy, self.draw = policy, draw
        self.gradient = np.zeros_like(policy.chances)
        self.answers = self.outcomes = 0

    def play(self, task: int, base: Leaf | None = None, keep: range | set[int] = range(0)) -> Leaf:
        number, sampled = walk(self.policy, task, self.draw, base, keep)
        self.answers += sampled
        self.outcomes += 1
        return self.policy.game.leaves[number]

    def add(self, leaf: Leaf, place: int, advantage: float) -> None:
        """Trains the action of a leaf at a place with an advantage."""
        row = leaf.nodes[place].row
        self.gradient[row] -= advantage * self.policy.chances[row]
        self.gradient[row, leaf.choices[place]] += advantage

    def estimate(self, samples: int) -> Estimate:
        count = samples * self.policy.game.tasks
        return Estimate(self.gradient / count, self.answers, self.outcomes)


@dataclass(frozen=True)
class Forks:
    """Each action of a trajectory compared with others in its place, all continued live (C3, arXiv
    2603.06859).

    Args:
        width: Siblings at a place, the trajectory's own among them.
        credit: Outcomes of siblings to advantages.
        later: Whether the actions after the fork are trained too, each weighted by one over the
            number of places at which its trajectory has been forked.
    """

    width: int
    credit: Callable[[Array], Array] = leave_one_out
    later: bool = False

    def __call__(self, policy: Policy, draw: Draw, samples: int) -> Estimate:
        total = Sum(policy, draw)
        for task in range(policy.game.tasks):
            for _ in range(samples):
                base = total.play(task)
                for place in range(len(base.nodes)):
                    others = [total.play(task, base, range(place)) for _ in range(self.width - 1)]
                    leaves = [base, *others]
                    advantages = self.credit(np.array([leaf.outcome for leaf in leaves]))
                    for leaf, advantage in zip(leaves, advantages / self.width, strict=True):
                        for at in range(place, len(leaf.nodes) if self.later else place + 1):
                            total.add(leaf, at, advantage / (at + 1 if self.later else 1))
        return total.estimate(samples)


@dataclass(frozen=True)
class Tree:
    """A tree in which every action has as many children as `fan`, whose value is the mean of their
    leaves (C3, arXiv 2603.06859).

    Args:
        by_level: Every depth weighs the same; else every action does, as in the release, so that
            later roles weigh more.
        deepest: No more children than one from this depth on.
    """

    fan: int = 2
    credit: Callable[[Array], Array] = leave_one_out
    by_level: bool = True
    deepest: int = 7

    def __call__(self, policy: Policy, draw: Draw, samples: int) -> Estimate:
        total, actions = Sum(policy, draw), 0

        def value(node: Node | int, path: tuple[tuple[int, int], ...], weight: float) -> float:
            """The mean outcome below a node that has been reached by (row, choice)."""
            nonlocal actions
            if not isinstance(node, Node):
                total.outcomes += 1
                return policy.game.leaves[node].outcome
            fan = self.fan if len(path) < self.deepest else 1
            choices = [draw.choose(policy.chances_by_row[node.row]) for _ in range(fan)]
            total.answers += fan
            actions += fan
            outcomes = np.array(
                [
                    value(node.children[choice], (*path, (node.row, choice)), weight / fan)
                    for choice in choices
                ]
            )
            if fan > 1:
                share = weight / fan if self.by_level else 1.0
                for choice, advantage in zip(choices, share * self.credit(outcomes), strict=True):
                    total.gradient[node.row] -= advantage * policy.chances[node.row]
                    total.gradient[node.row, choice] += advantage
            return float(outcomes.mean())

        for task in range(policy.game.tasks):
            for _ in range(samples):
                value(policy.game.roots[task], (), 1.0)
        estimate = total.estimate(samples)
        if self.by_level:
            return estimate
        return estimate._replace(gradient=total.gradient / actions)


@dataclass(frozen=True)
class Difference:
    """Difference rewards: the outcome minus that with the action sampled anew.

    Args:
        live: Whether what comes after is sampled anew too; else the others say what they have said,
            whatever they see.
    """

    live: bool

    def __call__(self, policy: Policy, draw: Draw, samples: int) -> Estimate:
        total = Sum(policy, draw)
        for task in range(policy.game.tasks):
            for _ in range(samples):
                base = total.play(task)
                for place in range(len(base.nodes)):
                    others = set(range(len(base.nodes))) - {place}
                    other = total.play(task, base, range(place) if self.live else others)
                    total.add(base, place, base.outcome - other.outcome)
        return total.estimate(samples)


@dataclass(frozen=True)
class Shapley:
    """Shapley values by sampling: what an action adds as it joins those that are said again, in a
    random order; who has not joined says something new."""

    orders: int = 2

    def __call__(self, policy: Policy, draw: Draw, samples: int) -> Estimate:
        total = Sum(policy, draw)
        for task in range(policy.game.tasks):
            for _ in range(samples):
                base = total.play(task)
                for _ in range(self.orders):
                    waiting, joined = [*range(len(base.nodes))], set[int]()
                    before = total.play(task, base, joined).outcome
                    while waiting:
                        place = waiting.pop(draw.choose([1 / len(waiting)] * len(waiting)))
                        joined.add(place)
                        after = total.play(task, base, joined).outcome if waiting else base.outcome
                        total.add(base, place, (after - before) / self.orders)
                        before = after
        return total.estimate(samples)
