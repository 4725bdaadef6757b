"""The contract tests for plugin authors: what is shipped keeps them, and a plugin that breaks one is told which."""

import textwrap

import pytest

from marl_plugins.contracts import PluginContract

GROUPS = ["--rollout.n_samples_per_prompt", "4", "--rollout.batch_size", "32", "--groups.by", "task+role+turn"]


class TestCoach(PluginContract):
    plugin = "marl_plugins.coach"


class TestRewardBackprop(PluginContract):
    plugin = "marl_plugins.reward_backprop"


class TestFilter(PluginContract):
    plugin = "marl_plugins.filter_agents_data"


class TestReinforce(PluginContract):
    plugin = "marl_plugins.reinforce_pp"
    flags = ("--reinforce_pp.normalise", "role")


class TestFlashReinforce(PluginContract):
    plugin = "marl_plugins.reinforce_pp"
    flags = ("--algo.advantage.estimator", "flash_reinforce")


class TestGroupNorm(PluginContract):
    plugin = "marl_plugins.groups"
    flags = ("--algo.advantage.estimator", "group_norm", *GROUPS)


class TestRloo(PluginContract):
    plugin = "marl_plugins.groups"
    flags = ("--algo.advantage.estimator", "rloo", *GROUPS)


class TestGae(PluginContract):
    plugin = "marl_plugins.gae"
    flags = ("--algo.advantage.estimator", "gae")


BROKEN = {
    "scores_lie_between_0_and_1": """
        @hookimpl
        def marl_score_outcome(trajectory):
            return 7.0
    """,
    "it_starts_and_stops": """
        class Log:
            file = None

        @hookimpl
        def marl_stop(run):
            run.state(Log).file.close()
    """,
    "importing_it_is_light": "import torch",
    "credit_keeps_what_was_sampled": """
        @hookimpl
        def marl_credit(trajectories):
            for t in trajectories:
                t.actions[0].score = 1.0
            return trajectories
    """,
    "credit_does_not_depend_on_the_order_of_arrival": """
        @hookimpl
        def marl_credit(trajectories):
            for n, t in enumerate(trajectories):
                t.actions[-1].reward = 0.1 * n
            return trajectories
    """,
    "select_chooses_among_the_rows": """
        @hookimpl
        def marl_select(rows):
            return rows[1:]
    """,
    "advantages_do_not_depend_on_the_order_of_rows": """
        from marl_plugins.core.estimators import Estimator

        class Running(Estimator):
            def shape(self, rows, rewards):
                return rewards - rewards.cummax(0).values

        @hookimpl
        def marl_estimator(run):
            return Running(scope="batch")
    """,
    "advantages_do_not_depend_on_batches": """
        from marl_plugins.core.estimators import Estimator

        class PerBatch(Estimator):
            def apply(self, rows, advantages, statistics):
                return advantages - advantages.mean()

        @hookimpl
        def marl_estimator(run):
            return PerBatch(scope="batch")
    """,
    "advantages_are_finite_where_all_rewards_are_the_same": """
        from marl_plugins.core.estimators import Estimator

        class Divides(Estimator):
            def shape(self, rows, rewards):
                return (rewards - rewards.mean()) / (rewards.max() - rewards.min())

        @hookimpl
        def marl_estimator(run):
            return Divides(scope="batch")
    """,
    "an_advantage_reaches_no_further_than_its_scope": """
        from marl_plugins.core.estimators import Estimator

        class Says(Estimator):
            def shape(self, rows, rewards):
                return rewards - rewards.mean()

        @hookimpl
        def marl_estimator(run):
            return Says(scope="action")
    """,
    "metrics_are_numbers": """
        @hookimpl
        def marl_log(metrics):
            metrics["mine"] = "many"
    """,
    "state_comes_back_from_json": """
        class Seen(list):
            pass

        @hookimpl
        def marl_credit(run, trajectories):
            run.state(Seen).append(len(trajectories))
            return trajectories

        @hookimpl
        def marl_state(run):
            return {"seen": run.state(Seen)}

        @hookimpl
        def marl_restore(run, state):
            run.state(Seen)
    """,
}


@pytest.mark.parametrize("contract", BROKEN)
def test_a_plugin_that_breaks_a_contract_is_told(contract, tmp_path):
    body = textwrap.dedent(BROKEN[contract]).strip()
    if "hookimpl" not in body:
        body += "\n\n@hookimpl\ndef marl_log(step): pass"
    file = tmp_path / f"{contract}.py"
    file.write_text(f"from marl_plugins import hookimpl\n{body}\n")
    kit = type("Kit", (PluginContract,), {"plugin": str(file)})()
    kit.test_it_is_active_in_a_run()
    with pytest.raises(AssertionError):
        getattr(kit, f"test_{contract}")()


def test_every_contract_is_seen_to_fail():
    contracts = {name.removeprefix("test_") for name in vars(PluginContract) if name.startswith("test_")}
    assert contracts - {"it_is_active_in_a_run"} == set(BROKEN)
