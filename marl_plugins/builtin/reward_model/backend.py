"""The processes of a reward model beside those of the policies: counted in the plan, begun and
ended with the run's others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from marl_plugins.core.process_backend import EngineKind, ProcessBackend, TrainingSpec

if TYPE_CHECKING:
    from marl_plugins.builtin.reward_model.scorer import Scorer
    from marl_plugins.core.problems import Problem
    from marl_plugins.core.run import Run


class ScorerConnection:
    """The connection of a run's hooks to what scores; None while there are no processes, as in a
    plan."""

    scorer: Scorer | None = None


class BesideRewardModel(ProcessBackend):
    """A back-end as it is, and the processes of the reward model, which have devices of their own.

    Args:
        policies: Gives the policies their processes.
    """

    def __init__(self, policies: ProcessBackend):
        self.policies = policies
        self.lasting, self.adapters = policies.lasting, policies.adapters
        self._run: Run | None = None

    def problems(self, run: Run) -> Sequence[Problem]:
        return self.policies.problems(run)

    def devices(self, run: Run) -> Mapping[str, int]:
        size = run.args.reward
        return {
            **self.policies.devices(run),
            "reward model": size.num_nodes * size.num_gpus_per_node,
        }

    def engines_of(self, run: Run, policy: str) -> str:
        return self.policies.engines_of(run, policy)

    def engine_kind(self, run: Run, policy: str) -> EngineKind | None:
        return self.policies.engine_kind(run, policy)

    def object_store_bytes(self, run: Run) -> int:
        return self.policies.object_store_bytes(run)

    def check_cluster(self, run: Run) -> None:
        self.policies.check_cluster(run)

    def open(self, run: Run) -> None:
        """Starts the reward model, and waits until it is loaded.

        Raises:
            ConfigurationError: It cannot be loaded, or cannot read what the roles say.
            RunEnded: A process of it died, or was not there in time.
        """
        from marl_plugins.builtin.reward_model.scorer import Scorer

        self._run = run
        run.state(ScorerConnection).scorer = scorer = Scorer(run)
        scorer.start()
        self.policies.open(run)

    def processes_of(self, spec: TrainingSpec) -> Any:
        return self.policies.processes_of(spec)

    def metrics(self) -> dict[str, float]:
        return self.policies.metrics()

    def close(self) -> None:
        self.policies.close()
        if self._run is not None:
            connection = self._run.state(ScorerConnection)
            if connection.scorer is not None:
                connection.scorer.end()
            connection.scorer = None
