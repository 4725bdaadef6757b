"""What a run says of training processes that could not be started, or have died."""

import pytest
import torch
from ray.exceptions import ActorUnschedulableError, OutOfMemoryError, RayActorError, RayTaskError
from refusals import briefs

from marl_plugins.core.failures import ConfigurationError, RunEnded
from marl_plugins.engine.processes.launch import TrainingProcesses, not_started, run_ended_by
from marl_plugins.engine.processes.training_process import own_part


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
    processes.policy, processes.silent, processes.where = "solver", [], []
    processes.groups = {}
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
    processes.policy, processes.silent, processes.where = "solver", [], []
    processes.groups = {}
    assert str(run_ended_by(processes, "was synced", met)) == (
        "a training process of policy 'solver' died while the policy was synced: The actor died "
        "unexpectedly."
    )
