"""What a run says of training processes that could not be started, or have died."""

import asyncio
from types import SimpleNamespace

import pytest
import torch
from ray.exceptions import ActorUnschedulableError, OutOfMemoryError, RayActorError, RayTaskError
from refusals import briefs
from virtual_time import SimulatedEngine, run

from marl_plugins.core.failures import ConfigurationError, RunEnded
from marl_plugins.core.policy import Policy
from marl_plugins.engine.processes.engines import EnginePool, RestartBudget
from marl_plugins.engine.processes.launch import TrainingProcesses, not_started, run_ended_by
from marl_plugins.engine.processes.training_process import own_part
from marl_plugins.engine.processes.watchdog import Watchdog
from marl_plugins.engine.runtime.policy_engines import PolicyEngines


def test_a_process_that_was_killed_while_it_started_is_no_error_of_the_model():
    """Another exit code, and the same command starts again; one whose start raised is the
    model's."""
    said = str(
        killed := not_started(
            "solver", "some/model", RayActorError(error_msg="The actor never ran.")
        )
    )
    assert isinstance(killed, RunEnded)
    assert "policy 'solver': " in said and "The actor never ran." in said
    raised = not_started(
        "solver",
        "some/model",
        RayActorError(error_msg="ValueError: no such model", actor_init_failed=True),
    )
    assert isinstance(raised, ConfigurationError) and briefs(raised.problems) == [
        ("models.start", "solver")
    ]
    assert "'some/model'" in str(raised) and "ValueError: no such model" in str(raised)
    never = not_started(
        "solver", "some/model", ActorUnschedulableError("worker startup failed.\nTried 5 times.")
    )
    reason = "worker startup failed. Tried 5 times."
    assert isinstance(never, RunEnded) and reason in str(never)
    raised = not_started(
        "solver", "some/model", RayTaskError("load", "Traceback\nKeyError: 'x'", KeyError("x"))
    )
    assert isinstance(raised, ConfigurationError)


def test_a_process_for_which_there_was_no_memory_is_no_error_of_the_model():
    death = OutOfMemoryError(
        "1 worker(s) were killed due to the node running low on memory.\nRefer to the documentation"
    )
    reason = str(death).splitlines()[0]
    assert isinstance(
        killed := not_started("solver", "some/model", death), RunEnded
    ) and reason in str(killed)
    processes = object.__new__(TrainingProcesses)
    processes.policy, processes.silent, processes.engines = "solver", [], []
    assert str(run_ended_by(processes, "was synced", death)).endswith(reason)


@pytest.mark.parametrize(("rank", "left"), [(0, 4), (1, 4), (2, 2), (3, 0)])
def test_of_a_share_of_the_weights_what_deepspeed_never_sets_is_not_looked_at(
    rank, left, monkeypatch
):
    """Ten elements on four ranks: shares of four, the last two of which are filled up with whatever
    is in memory."""
    monkeypatch.setattr("torch.distributed.get_rank", lambda group: rank)
    parameter = torch.nn.Parameter(torch.empty(0))
    assert own_part(parameter) is parameter
    parameter.ds_tensor, parameter.ds_numel, parameter.ds_process_group = (
        torch.full((4,), torch.nan),
        10,
        None,
    )
    parameter.ds_tensor[:left] = 1.0
    assert own_part(parameter).tolist() == [1.0] * left


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_death_is_told_by_its_reason_whoever_met_it(wrapped):
    """The task of an engine fails where the value that it waits for dies with the training process
    that made it."""
    death = RayActorError(error_msg="The actor died unexpectedly.\n\tclass_name: PolicyActor")
    met = (
        RayTaskError("ray::RolloutRayActor.load_state()", "Traceback", death).as_instanceof_cause()
        if wrapped
        else death
    )
    processes = object.__new__(TrainingProcesses)
    processes.policy, processes.silent, processes.engines = "solver", [], []
    assert str(run_ended_by(processes, "was synced", met)) == (
        "a training process of policy 'solver' died while the policy was synced: The actor died "
        "unexpectedly."
    )


@pytest.mark.parametrize("wrapped", [False, True])
def test_an_engine_that_dies_in_a_weight_sync_is_not_taken_for_a_training_process(wrapped):
    """On GPUs training processes call the engines, and their tasks fail with these."""
    death = RayActorError(error_msg="The actor died unexpectedly.")
    death.actor_id = "ab12"
    met = (
        RayTaskError(
            "ray::PolicyActor.broadcast_to_vllm()", "Traceback", death
        ).as_instanceof_cause()
        if wrapped
        else death
    )
    processes = object.__new__(TrainingProcesses)
    processes.policy, processes.silent = "solver", []
    processes.engines = [SimpleNamespace(_actor_id=SimpleNamespace(hex=lambda: "ab12"))]
    assert str(run_ended_by(processes, "was synced", met)).startswith("an engine ")
    processes.engines = []
    assert str(run_ended_by(processes, "was synced", met)).startswith("a training process ")


def test_an_engine_whose_own_process_dies_in_a_weight_sync_ends_the_run_in_words():
    """vLLM's process may die where Ray's actor does not: a training process that calls it then
    fails, and lives."""
    died = type("EngineDeadError", (Exception,), {})("EngineCore encountered an issue.")
    met = RayTaskError(
        "ray::PolicyActor.broadcast_to_vllm()", "Traceback", died
    ).as_instanceof_cause()
    processes = object.__new__(TrainingProcesses)
    processes.policy, processes.silent, processes.engines, processes.silence = (
        "solver",
        [],
        [],
        60.0,
    )
    processes.watchdog = Watchdog(lambda: None)

    async def failing():
        raise met

    with pytest.raises(RunEnded):
        asyncio.run(processes.await_work("was synced", failing()))


def test_an_engine_that_does_not_wake_for_its_weights_ends_the_run():
    """Upstream's own trainer waits for it in the driver, where ending the training processes ends
    no wait."""
    training, policy = object.__new__(TrainingProcesses), object.__new__(PolicyEngines)
    training.policy, training.silence, training.watchdog, training.broadcasts = (
        "solver",
        60.0,
        Watchdog(lambda: None),
        True,
    )
    training.groups = {"policy": SimpleNamespace(async_run_method=lambda method: [])}
    engine = SimulatedEngine("solver", lambda call: 1.0)
    policy.spec, policy.name, policy.device, policy.training = (
        Policy("solver", "tiny"),
        "solver",
        "cuda",
        training,
    )
    policy.args = SimpleNamespace(vllm=SimpleNamespace(enable_sleep=True))
    policy.engines = EnginePool("solver", [engine], None, None, RestartBudget(0), 60.0, 1)

    async def go():
        woken = asyncio.get_running_loop().create_future()
        engine.handle.wake_up = SimpleNamespace(remote=lambda tags: woken)
        engine.kill = lambda: woken.set_exception(RayActorError())
        await policy.sync(3)

    with pytest.raises(RunEnded):
        run(go())
    assert engine.silent
