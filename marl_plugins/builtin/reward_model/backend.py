"""The processes of a reward model beside those of the policies: counted in the plan, begun and
ended with the run's others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from marl_plugins.core.process_backend import ProcessBackend

if TYPE_CHECKING:
    from marl_plugins.builtin.reward_model.scorer import Scorer
    from marl_plugins.core.run import Run


class ScorerConnection:
    """The connection of a run's hooks to what scores; None while there are no processes, as in a
    plan."""

    scorer: Scorer | None = None


@ProcessBackend.register
class BesideRewardModel:
    """A back-end as it is, and the processes of the reward model, which have devices of their own.

    Args:
        policies: Gives the policies their processes.
    """

    def __init__(self, policies: ProcessBackend):
        self.policies = policies
        self.connection = ScorerConnection()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.policies, name)

    def devices(self, run: Run) -> Mapping[str, int]:
        size = run.args.reward
        return {
            **self.policies.devices(run),
            "reward model": size.num_nodes * size.num_gpus_per_node,
        }

    def open(self, run: Run) -> None:
        """Starts the reward model, and waits until it is loaded.

        Raises:
            ConfigurationError: It cannot be loaded, or cannot read what the roles say.
            RunEnded: A process of it died, or was not there in time.
        """
        from marl_plugins.builtin.reward_model.scorer import Scorer

        self.connection = run.state(ScorerConnection)
        self.connection.scorer = scorer = Scorer(run)
        scorer.start()
        self.policies.open(run)

    def close(self) -> None:
        self.policies.close()
        if self.connection.scorer is not None:
            self.connection.scorer.end()
        self.connection.scorer = None
