"""Team games that are small enough to enumerate, and what is exactly true of a policy in them.

A game is a function `play(ask, task) -> outcome`, in which every `ask` is one action of a role; a
policy is a table of logits, one row for each role and context. A leaf is one way in which a game
can go.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


class Said(NamedTuple):
    """What was chosen, and the number of the action, for the `sees` of those that are shown it."""

    choice: int
    place: int


class Ask(Protocol):
    def __call__(
        self,
        role: str,
        context: Hashable,
        duties: Sequence[float],
        sees: Sequence[Said] = (),
        turn: int = 0,
    ) -> Said:
        """Asks a role.

        Args:
            context: What it is shown; its policy knows no more.
            duties: Of every choice the score of a coach without fault, in [0, 1].
            sees: The actions that it depends on.
        """


Play = Callable[[Ask, int], float]


class Unanswered(Exception):
    """The play has come to an action that has not been chosen yet."""


@dataclass(frozen=True)
class Node:
    """An action that is about to be chosen. `row` is that of the table of logits."""

    row: int
    role: str
    turn: int
    sees: tuple[int, ...]
    duties: tuple[float, ...]
    children: tuple[Node | int, ...] = ()
    """By choice; a number is that of a leaf."""


@dataclass(frozen=True)
class Leaf:
    task: int
    nodes: tuple[Node, ...]
    choices: tuple[int, ...]
    outcome: float

    def reached(self, place: int) -> set[int]:
        """Returns the numbers of the actions that depend on one, itself included."""
        reached = {place}
        for number, node in enumerate(self.nodes):
            if reached.intersection(node.sees):
                reached.add(number)
        return reached


class Game:
    """See the module.

    Args:
        tasks: How many different ones.
        skew: Added to the first logit of every row at the start: the habit of the first choice.

    Leaves are (L,), their actions (L, D) with D that of the longest; logits are (rows, choices),
    -inf where a row has fewer choices.
    """

    def __init__(self, name: str, play: Play, tasks: int, skew: float = 0.0):
        self.name, self.play, self.tasks = name, play, tasks
        self._rows: dict[tuple[str, Hashable], int] = {}
        self.roles: list[str] = []
        """Of every row."""
        self.choices: list[int] = []
        """How many every row has."""
        self.leaves: list[Leaf] = []
        self.roots = [self._grow(task, (), ()) for task in range(tasks)]
        width, length = max(self.choices), max(len(leaf.nodes) for leaf in self.leaves)
        self.mask = np.arange(width) < np.array(self.choices)[:, None]
        draw = np.random.default_rng(0).normal(0, 0.3, self.mask.shape)
        draw[:, 0] += skew
        self.start = np.where(self.mask, draw, -np.inf)
        shape = len(self.leaves), length
        self.row, self.choice = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
        self.acts, self.duty = np.zeros(shape, bool), np.zeros(shape)
        for n, leaf in enumerate(self.leaves):
            for place, (node, choice) in enumerate(zip(leaf.nodes, leaf.choices, strict=True)):
                self.row[n, place], self.choice[n, place] = node.row, choice
                self.acts[n, place], self.duty[n, place] = True, node.duties[choice]
        self.outcome = np.array([leaf.outcome for leaf in self.leaves])
        self.task = np.array([leaf.task for leaf in self.leaves])

    @property
    def best(self) -> float:
        """The mean outcome over the tasks where everything goes as well as it can."""
        best = [self.outcome[self.task == task].max() for task in range(self.tasks)]
        return float(np.mean(best))

    def _grow(self, task: int, nodes: tuple[Node, ...], choices: tuple[int, ...]) -> Node | int:
        """Plays with the first actions chosen; returns what comes next."""
        nodes_so_far, place, following = nodes, 0, []

        def ask(
            role: str,
            context: Hashable,
            duties: Sequence[float],
            sees: Sequence[Said] = (),
            turn: int = 0,
        ) -> Said:
            nonlocal place
            if place == len(choices):
                key = role, context
                if key not in self._rows:
                    self._rows[key] = len(self.roles)
                    self.roles.append(role)
                    self.choices.append(len(duties))
                parents = tuple(said.place for said in sees)
                following.append(Node(self._rows[key], role, turn, parents, tuple(duties)))
                raise Unanswered
            place += 1
            return Said(choices[place - 1], place - 1)

        try:
            outcome = self.play(ask, task)
        except Unanswered:
            node = following[0]
            children = tuple(
                self._grow(task, (*nodes_so_far, node), (*choices, choice))
                for choice in range(len(node.duties))
            )
            return Node(node.row, node.role, node.turn, node.sees, node.duties, children)
        self.leaves.append(Leaf(task, nodes, choices, float(outcome)))
        return len(self.leaves) - 1


class Policy:
    """A policy of a game, and what is exactly true of it. Tasks are equally frequent."""

    def __init__(self, game: Game, logits: Array):
        self.game, self.logits = game, logits
        exponents = np.exp(logits - logits.max(1, keepdims=True))
        self.chances: Array = exponents / exponents.sum(1, keepdims=True)
        self.chances_by_row: list[list[float]] = [
            row[:count].tolist() for row, count in zip(self.chances, game.choices, strict=True)
        ]
        chosen = np.where(game.acts, self.chances[game.row, game.choice], 1.0)
        self.reach: Array = chosen.prod(1)
        """The chance of every leaf in its task, (L,)."""

    @property
    def success(self) -> float:
        """The expected outcome."""
        return float(self.reach @ self.game.outcome) / self.game.tasks

    @cached_property
    def gradient(self) -> Array:
        """The gradient of the expected outcome by the logits."""
        game = self.game
        weights = np.repeat((self.reach * game.outcome)[:, None], game.acts.shape[1], 1)
        return self.scores(np.arange(len(game.leaves)), weights) / game.tasks

    def scores(self, leaves: Integers, weights: Array) -> Array:
        """Returns the sum over the actions of some leaves (N,) of the gradient of the
        log-probability of what was chosen, times a weight each (N, D)."""
        game, total = self.game, np.zeros_like(self.chances)
        acts = game.acts[leaves]
        rows, choices, values = game.row[leaves][acts], game.choice[leaves][acts], weights[acts]
        np.add.at(total, (rows, choices), values)
        return total - np.bincount(rows, values, len(total))[:, None] * self.chances

    @cached_property
    def values(self) -> tuple[Array, Array, Array]:
        """Expected outcomes at every leaf's actions, (L, D) each: after the action (Q), before it
        knowing all that has happened (V), and before it knowing its context alone."""
        game = self.game
        after, before = np.zeros(game.acts.shape), np.zeros(game.acts.shape)
        expected = self.reach * game.outcome
        prefixes: dict[tuple[int, ...], list[int]] = {}
        for n, leaf in enumerate(game.leaves):
            for length in range(len(leaf.choices) + 1):
                prefixes.setdefault((leaf.task, *leaf.choices[:length]), []).append(n)
        for (_, *choices), leaves in prefixes.items():
            value = expected[leaves].sum() / self.reach[leaves].sum()
            length = len(choices)
            if length:
                after[leaves, length - 1] = value
            if length < game.acts.shape[1]:
                before[leaves, length] = value
        rows, places = game.row[game.acts], np.nonzero(game.acts)[0]
        count = len(self.chances)
        total, chance = (np.bincount(rows, by[places], count) for by in (expected, self.reach))
        return after, before, (total / chance)[game.row]


# --- the games


def chain(length: int, needed: int) -> Play:
    """One after the other; the outcome is 1 if enough of them did their duty. Each sees whether all
    before it did."""

    def play(ask: Ask, task: int) -> float:
        seen: list[Said] = []
        for number in range(length):
            right = all(said.choice for said in seen)
            seen.append(ask(f"agent{number}", (task, right), (0, 1), seen[-1:]))
        return float(sum(said.choice for said in seen) >= needed)

    return play


def vote(ask: Ask, task: int) -> float:
    """Three voters of one role in the very same context, and a decider who sees how many said yes.
    In the first task the decider is right to say yes whatever they said."""
    votes = [ask("voter", task, (0, 1)) for _ in range(3)]
    yes = sum(said.choice for said in votes)
    decision = ask("decider", (task, yes), (float(yes < 2), float(yes >= 2)), votes)
    return float(decision.choice == 1 and (task == 0 or yes >= 1))


def loop(memory: bool) -> Play:
    """A worker and a critic, who ends it: up to three rounds, each after the first costs 0.1.

    With a memory both know the round, and their turns are those of one conversation.
    """

    def play(ask: Ask, task: int) -> float:
        quality, cost, seen = 0, 0.0, list[Said]()
        for number in range(3):
            now, turn = (number, number) if memory else (0, 0)
            work = ask("worker", (task, quality, now), (0, 1), seen, turn)
            quality = min(2, quality + work.choice)
            cost += 0.1 if number else 0.0
            if number < 2:
                duties = float(quality == 2), float(quality < 2)
                verdict = ask("critic", (task, quality, now), duties, [work], turn)
                seen = [verdict]
                if verdict.choice == 0:
                    break
        return max(0.0, (0.2, 0.5, 1.0)[quality] * (1.0, 0.6)[task] - cost)

    return play


def graph(ask: Ask, task: int) -> float:
    """A planner, two that work beside each other (one lazy: nothing depends on it; one harmful: its
    first choice spoils all) and one who joins what they did."""
    plan = ask("planner", task, (0, 0.5, 1))
    lazy = ask("lazy", (task, plan.choice > 0), (1, 1), [plan])
    harmful = ask("harmful", (task, plan.choice > 0), (0, 1), [plan])
    joined = ask("joiner", (task, harmful.choice), (0, 1, 0.3), [lazy, harmful])
    if harmful.choice == 0:
        return 0.1 * (joined.choice == 2)
    return (0.0, 0.4, 1.0)[plan.choice] * (0.0, 1.0, 0.3)[joined.choice]


def delayed(ask: Ask, task: int) -> float:
    """Every action is paid at once and the outcome is the mean; what pays the first most takes from
    the last."""
    first = ask("first", task, (0.8, 0.2))
    middle = ask("middle", (task, first.choice), (0.5, 0.6), [first])
    worth = 0.9 if first.choice else 0.1
    last = ask("last", (task, first.choice, middle.choice), (0.0, worth), [middle])
    paid = (0.8, 0.2)[first.choice], 0.5 + 0.1 * middle.choice, worth * last.choice
    return sum(paid) / 3


def two_tasks(ask: Ask, task: int) -> float:
    """One role acts twice, another checks; in the first task nearly everything succeeds, in the
    second little does."""
    one = ask("worker", (task, "start"), (0, 0.5, 1))
    two = ask("worker", (task, one.choice), (0, 0.5, 1), [one], 1)
    check = ask("checker", (task, (one.choice + two.choice) // 2), (0, 1), [two])
    if task == 0:
        return float(one.choice + two.choice + check.choice >= 1)
    return float(one.choice == two.choice == 2 and check.choice == 1)


def pair(ask: Ask, task: int) -> float:
    """A reasoner and an actor with four choices each, one of which is right: the smallest team on
    which trees of forks are tried."""
    one = ask("reasoner", task, (0, 0, 0, 1))
    two = ask("actor", (task, one.choice), (0, 0, 0, 1), [one])
    return float(one.choice == two.choice == 3)


def games() -> list[Game]:
    return [
        Game("chain", chain(5, 5), 2, skew=0.3),
        Game("four of five", chain(5, 4), 2),
        Game("rare", chain(7, 7), 1, skew=0.2),
        Game("vote", vote, 2, skew=0.5),
        Game("loop", loop(memory=False), 2),
        Game("loop, memory", loop(memory=True), 2),
        Game("graph", graph, 2, skew=0.5),
        Game("delayed", delayed, 2),
        Game("two tasks", two_tasks, 2),
        Game("pair", pair, 2),
    ]
