"""The peers of a swarm that a run is: one, or one for each member of a population; and the state
that it keeps of the exchange."""

from __future__ import annotations

import secrets

from marl_plugins import Run, Trajectory


class Swarm:
    """The state of a run's exchange with its peers."""

    def __init__(self) -> None:
        self.run = secrets.token_hex(4)
        """The run's own id: a fresh run under an old name collides with nothing."""
        self.round = 0
        """Of the store, in which the last step has published."""
        self.seen: set[str] = set()
        """Names of the records that were taken or refused (`noted`), of rounds that may still be
        asked for."""
        self.outcomes: dict[str, list[float]] = {}
        """By source, the mean outcomes of the last rounds (capability.py)."""
        self.metrics: dict[str, float] = {}
        """Of the step."""


def members_of(run: Run) -> list[str]:
    """Returns the members of the run's populations, by name."""
    return sorted({name for team in run.recipe.populations.values() for name in team})


def learners_of(run: Run) -> list[str]:
    """Returns who takes in groups of others: every member that is trained; without a population the
    run, as an empty name."""
    if not (members := members_of(run)):
        return [""]
    trained = {policy.name for policy in run.policies if policy.trainable}
    return [name for name in members if name in trained]


def member_of(trajectory: Trajectory, members: list[str]) -> str:
    """Returns the member that plays in a trajectory; empty if there is none, or several do."""
    playing = {action.policy for action in trajectory.actions}.intersection(members)
    return playing.pop() if len(playing) == 1 else ""


def peer_of(peer: str, member: str) -> str:
    """Returns what the store calls a member of a run: `alice.a1`; without a member it is the run's
    own name."""
    return f"{peer}.{member}" if member else peer


def noted(path: str, learner: str) -> str:
    """Returns how `Swarm.seen` names a record that a learner is done with."""
    return f"{path} {learner}".rstrip()
