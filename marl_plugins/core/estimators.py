"""An advantage estimator is four small stages between the rewards of a step's rows and their
advantages.

    shape        one reward per row, of all rows of all policies  ->  one per row         where
        group baselines go
    estimate     rewards and values per token                     ->  advantages, returns per token
    statistics   all rows of all policies                         ->  anything
    apply        advantages and those statistics                  ->  advantages

Stages instead of one function, so that the runtime can take baselines and statistics over all
policies and ranks together, and so that a streaming runtime can see from `scope` and `affine`
whether it may start before the batch is complete.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from marl_plugins.core.credit import Distance, Origin, Scope, sum_over_scope
from marl_plugins.core.options import between
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.rows import Row

if TYPE_CHECKING:
    import argparse

    from torch import Tensor

    from marl_plugins.core.advantages import Moments
    from marl_plugins.core.trajectory import Trajectory

GroupBy = Literal["task", "task+role", "task+role+turn"]
"""Which rows of a task's samples are compared with each other. Rows of one group must have seen
comparable inputs."""

Reach = Literal["action", "group", "batch"]
"""How far what an advantage depends on reaches: the row alone, a group of samples, all rows of the
step."""

Batch = tuple[Sequence[Row], "Tensor", "Tensor"]
"""Rows, their advantages before normalisation (rows, tokens) and their mask (rows, tokens)."""


@dataclass(frozen=True)
class Estimator:
    """The plainest estimator, A_t = G_t: discounted sums of the rewards. Others override the stages
    in which they differ.

    Args:
        gamma: Discount per sampled token.
        return_scope: Which rewards an action's return sums, before anything here begins.
        return_discount, return_distance, return_origin: How they are discounted along the
            dependency graph (`sum_over_scope`).
        scope: How far what an advantage depends on reaches.
        group_by: What makes a group, for an estimator that compares groups; else None.
        needs_critic: Whether `estimate` is given a critic's values
            (`--algo.advantage.estimator gae` starts one per policy).
        affine: Whether what needs the whole step makes (A - mean) / deviation of `estimate`'s
            advantages after `shape_within_tasks`, with what `mean_and_std` returns, the same for
            all rows of a normalisation group.
    """

    gamma: float = 1.0
    return_scope: Scope = "action"
    return_discount: float = 1.0
    return_distance: Distance = "longest"
    return_origin: Origin = "action"
    scope: Reach = "action"
    group_by: GroupBy | None = None
    needs_critic: bool = False
    affine: bool = False

    def write_returns(self, trajectories: Iterable[Trajectory]) -> None:
        """Writes what each action with a reward is credited with."""
        sum_over_scope(
            trajectories,
            self.return_scope,
            self.return_discount,
            self.return_distance,
            self.return_origin,
        )

    @property
    def accumulators(self) -> int:
        """The number of gradients by normalisation group from which a step's gradient can be made
        before the step is complete: one where advantages are final with their tasks, two where they
        are affine, 0 where it cannot."""
        if self.scope != "batch":
            return 1
        return 2 if self.affine else 0

    @property
    def compared(self) -> tuple[str, ...] | None:
        """What rows have in common that are compared with each other, of task, role, turn and
        policy; None: no rows are, so that a number that all have in common stays."""
        return tuple(self.group_by.split("+")) if self.group_by else None

    @property
    def divided(self) -> tuple[str, ...] | None:
        """The same of rows that are divided by one deviation; None: none are, so that a factor
        stays."""
        return None

    def shape(self, rows: Sequence[Row], rewards: Tensor) -> Tensor:
        """Turns rewards (rows,), of all rows of the step, summed over the return scope already,
        into rewards (rows,).

        Raises:
            RunEnded: The rows cannot be compared as asked for.
        """
        return rewards

    def shape_within_tasks(self, rows: Sequence[Row], rewards: Tensor) -> Tensor:
        """Returns the same of all rows of some tasks, without what needs those of other tasks."""
        return self.shape(rows, rewards)

    def estimate(
        self, rewards: Tensor, mask: Tensor, values: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Turns token rewards (rows, tokens), the KL penalty included, and a critic's values (rows,
        tokens), to advantages and returns (rows, tokens); what stands outside the mask does not
        matter."""
        from marl_plugins.core.advantages import masked_returns

        returns = masked_returns(rewards, mask, self.gamma)
        return returns, returns

    def statistics(self, batches: Sequence[Batch]) -> Any:
        """Returns statistics over all rows of the step, of all policies together."""
        return None

    def apply(self, rows: Sequence[Row], advantages: Tensor, statistics: Any) -> Tensor:
        """Turns advantages (rows, tokens) into advantages (rows, tokens); what stands outside the
        mask does not matter."""
        return advantages

    def normalisation_group(self, row: Row) -> str:
        """Returns the name of the rows that share a mean and a deviation with this one."""
        return ""

    def mean_and_std(self, statistics: Any, key: str) -> tuple[float, float]:
        """Returns the mean and deviation of the rows of a normalisation group, whose name is
        `key`."""
        return 0.0, 1.0

    def metrics(self, rows: Sequence[Row]) -> dict[str, float]:
        """Returns numbers about a step's rows, of all policies together, for its metrics."""
        return {}


@dataclass(frozen=True)
class WhitenedAdvantages(Estimator):
    """A_t <- (A_t - mean) / sqrt(max(variance, 1e-8)) over the sampled tokens of all rows of a
    normalisation group.

    Upstream's last step for `reinforce`, `reinforce_baseline` and `gae`
    (experience_maker.py:325-338), to which this is equal for one policy and one group.

    Args:
        divide: Whether to divide by the standard deviation (`--algo.advantage.no_std_norm` does
            not).

    One group for all rows is global normalisation.
    """

    scope: Reach = "batch"
    affine: bool = True
    divide: bool = True

    @property
    def compared(self) -> tuple[str, ...]:
        return super().compared or ()

    @property
    def divided(self) -> tuple[str, ...] | None:
        return self.compared if self.divide else None

    def statistics(self, batches: Sequence[Batch]) -> dict[str, Moments]:
        from marl_plugins.core.advantages import Moments

        total: dict[str, Moments] = {}
        for rows, advantages, mask in batches:
            keys = [self.normalisation_group(row) for row in rows]
            for key in dict.fromkeys(keys):
                chosen = [i for i, k in enumerate(keys) if k == key]
                total[key] = total.get(key, Moments()) + Moments.of(
                    advantages[chosen], mask[chosen]
                )
        return total

    def mean_and_std(self, statistics: dict[str, Moments], key: str) -> tuple[float, float]:
        over = statistics[key]
        return over.mean, over.divisor if self.divide else 1.0

    def apply(
        self, rows: Sequence[Row], advantages: Tensor, statistics: dict[str, Moments]
    ) -> Tensor:
        import torch

        late = [self.mean_and_std(statistics, self.normalisation_group(row)) for row in rows]
        return torch.stack(
            [(a - mean) / deviation for a, (mean, deviation) in zip(advantages, late, strict=True)]
        )


def add_scope_flag(group: argparse._ArgumentGroup, plugin: str) -> None:
    """Adds the flags of returns, which every estimator plugin has: `--<plugin>.scope`, `.discount`,
    `.distance` and `.origin`."""
    group.add_argument(
        f"--{plugin}.scope",
        choices=["action", "policy", "trajectory"],
        default="action",
        help="which rewards an action is credited with: its own, or those of all that depends on "
        "it, by the same policy or by any",
    )
    group.add_argument(
        f"--{plugin}.discount",
        type=between(0, 1),
        default=1.0,
        help="factor of a reward for each edge of the dependency graph between an action and the "
        "one that has it",
    )
    group.add_argument(
        f"--{plugin}.distance",
        choices=["shortest", "longest", "depth"],
        default="longest",
        help="how edges are counted: along the shortest way, along the longest, or as the "
        "difference of depths",
    )
    group.add_argument(
        f"--{plugin}.origin",
        choices=["action", "start"],
        default="action",
        help="where the discount begins: at the action, or at the start of the trajectory, so that "
        "later actions count less",
    )


def scope_flags(plugin: str) -> list[str]:
    """Returns the names of the flags that `add_scope_flag` adds."""
    return [f"{plugin}.{name}" for name in ("scope", "discount", "distance", "origin")]


def returns_of(options: Any) -> dict[str, Any]:
    """Returns the fields of an `Estimator` that an estimator plugin's flags (`run.args.PLUGIN`)
    say."""
    return {
        f"return_{name}": getattr(options, name)
        for name in ("scope", "discount", "distance", "origin")
    }


def idle_scope_flags(plugin: str, options: Any, flags: Collection[str]) -> list[Problem]:
    """Returns the flags of returns that were given and change nothing.

    Args:
        flags: Names of the flags that were given.
    """
    idle = {"distance", "origin"} if options.discount == 1.0 else set()
    if options.scope == "action":
        idle |= {"distance"} | ({"discount"} if options.origin == "action" else set())
    problems = []
    for name in sorted(idle):
        if f"{plugin}.{name}" in flags:
            got = (
                f"would have no effect with --{plugin}.scope {options.scope} and "
                f"--{plugin}.discount {options.discount:g}"
            )
            fix = f"remove it, or give --{plugin}.scope trajectory and --{plugin}.discount 0.9"
            problems.append(
                Problem("estimator.idle_flag", at(flag=f"{plugin}.{name}"), got, fix=fix)
            )
    return problems


def group_key(row: Row, group_by: GroupBy) -> str:
    """Returns the group that a row belongs to."""
    parts = [row.trajectory.task.id, *([row.trajectory.origin] if row.trajectory.origin else [])]
    if "role" in group_by:
        parts.append(row.action.role)
    if "turn" in group_by:
        parts.append(str(row.action.turn))
    return "/".join(parts)


def check_estimator(
    estimator: Estimator, samples: int, roles: int, turns: int = 1, critic: bool = False
) -> list[Problem]:
    """Returns why an estimator cannot be used with this number of samples per task, of trained
    roles, and of turns of one of them.

    Args:
        critic: Whether the run has one.
    """
    where = at(name=type(estimator).__name__)
    if not isinstance(estimator, Estimator):
        expected = "a marl_plugins.Estimator"
        return [Problem("estimator.kind", at(hook="marl_estimator"), where[0].name, expected)]
    problems = [
        Problem(
            "estimator.field",
            where,
            f"{field}={value!r}",
            f"one of {', '.join(map(repr, get_args(kind)))}",
        )
        for field, kind in (
            ("scope", Reach),
            ("return_scope", Scope),
            ("return_distance", Distance),
            ("return_origin", Origin),
            ("group_by", GroupBy),
        )
        if (value := getattr(estimator, field))
        not in (*get_args(kind), *([None] if field == "group_by" else []))
    ]
    for name in ("gamma", "return_discount"):
        value = getattr(estimator, name)
        if not isinstance(value, int | float) or not 0 <= value <= 1:
            problems.append(
                Problem("estimator.gamma", where, f"{name}={value!r}", "a number from 0 to 1")
            )
    if estimator.needs_critic != critic:
        uses, has = ("a critic", "none") if estimator.needs_critic else ("no critic", "one")
        got = f"uses {uses} and the run has {has}, which --algo.advantage.estimator gae decides"
        fix = "set it to gae" if estimator.needs_critic else "leave out the flag, or this estimator"
        problems.append(
            Problem("estimator.critic", where, got, fix=fix, flags=("algo.advantage.estimator",))
        )
    if estimator.group_by is None:
        if estimator.scope == "group":
            fix = "set group_by to task, task+role or task+role+turn"
            problems.append(
                Problem(
                    "estimator.no_group", where, "compares groups and does not say which", fix=fix
                )
            )
        return problems
    if estimator.scope == "action":
        got = f"has group_by={estimator.group_by!r} and scope 'action', which compares nothing"
        return [*problems, Problem("estimator.scope", where, got, fix="change one of the two")]
    if samples < 2:
        got = (
            "compares the samples of a task, of which there is one: "
            f"--rollout.n_samples_per_prompt {samples}"
        )
        fix = "at least 2 are needed, or every advantage is 0"
        flags = ("rollout.n_samples_per_prompt",)
        problems.append(Problem("estimator.samples", where, got, fix=fix, flags=flags))
    if estimator.group_by != "task+role+turn" and turns > 1:
        got = (
            f"groups by {estimator.group_by}, but the {turns} turns of a role saw different inputs"
        )
        problems.append(Problem("estimator.turns", where, got, fix="use task+role+turn"))
    elif estimator.group_by == "task" and roles > 1:
        got = f"groups by task, but {roles} roles saw different inputs"
        problems.append(
            Problem("estimator.roles", where, got, fix="use task+role or task+role+turn")
        )
    return problems
