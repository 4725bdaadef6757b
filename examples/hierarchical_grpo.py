"""Hierarchical GRPO for proposers and solvers: attempts at one proposal are compared with each
other, proposals with proposals.

A = R - mean of the group; of a role in --hierarchical.attempts the group is what saw the same
actions in one trajectory, of any other role it is the role's actions in all samples of the task

openrlhf train --recipe proposer_solver --plugin examples/hierarchical_grpo.py
--hierarchical.attempts solver
"""

from dataclasses import dataclass

from marl_plugins import GroupMean, group_key, hookimpl, mean_by


@dataclass(frozen=True)
class HierarchicalGRPO(GroupMean):
    """Alone in its group: advantage 0."""

    group_by: str = "task+role+turn"
    attempts: tuple[str, ...] = ()

    def group(self, row):
        own = (
            (row.trajectory.sample, row.action.parents) if row.action.role in self.attempts else ()
        )
        return group_key(row, self.group_by), *own

    def shape(self, rows, rewards):
        return rewards - mean_by([self.group(row) for row in rows], rewards.double()).to(
            rewards.dtype
        )


@hookimpl
def marl_options(parser):
    parser.add_argument(
        "--hierarchical.attempts",
        nargs="+",
        default=[],
        metavar="ROLE",
        help="roles that attempt a proposal",
    )


@hookimpl
def marl_estimator(run):
    return HierarchicalGRPO(attempts=tuple(run.args.hierarchical.attempts))
