"""Real training processes that come and go: nobody else notices."""

import asyncio
import copy
import os
import signal

import psutil
import pytest
import ray
import torch
from engines.relay import wait_until
from engines.test_policies import arguments, launch, recorded_rows, step, wait, weights
from transformers import AutoTokenizer

from marl_plugins.builtin.gae import Gae
from marl_plugins.builtin.reinforce_pp import ReinforcePlusPlus
from marl_plugins.core.policy import Policy
from marl_plugins.engine.processes.engines import RestartBudget
from marl_plugins.engine.processes.pieces import joined
from marl_plugins.engine.processes.watchdog import locate
from marl_plugins.engine.runtime.experience import estimate
from marl_plugins.engine.runtime.policy import UpstreamPolicy, wait_until_loaded
from marl_plugins.process_groups.backend import SharedSeats
from marl_plugins.process_groups.room import SeatRoom
from marl_plugins.process_groups.seats import Seat, Seating
from marl_plugins.process_groups.worker import RemotePolicyActor

FLAGS = ["--actor.adam.lr", "1e-3", "--algo.kl.init_coef", "0.05", "--actor.lr_scheduler", "cosine"]


def states(policy):
    """Of all processes of a policy, in parts, as they are when Ray has them."""
    streams = [handle.get_state.remote() for handle in policy.training.handles()]
    return [[*stream] for stream in streams]


def three_steps(policy):
    """Metrics and weights of steps 3 to 5, and of a forward pass after them."""
    found = [
        (asyncio.run(step(policy, recorded_rows(13, seed=n), 2, n)), weights(policy))
        for n in (3, 4, 5)
    ]
    forwarded = asyncio.run(policy.forward(recorded_rows(5, seed=9)))
    return found, forwarded.tokens


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("zero", "dtype", "ranks"),
    [(0, "bf16", 1), (1, "fp32", 1), (2, "bf16", 2), (3, "bf16", 2)],
)
def test_another_process_goes_on_with_the_state_bit_for_bit(relay, monkeypatch, zero, dtype, ranks):
    """Steps 3 to 5 in the process that did the first two, and in another one that was given its
    state."""
    monkeypatch.setattr("marl_plugins.engine.processes.launch.RemotePolicyActor", RemotePolicyActor)
    flags = [
        "--ds.zero_stage",
        str(zero),
        "--actor.num_gpus_per_node",
        str(ranks),
        "--train.micro_batch_size",
        "3",
    ]
    args = copy.deepcopy(arguments(relay, *flags, *FLAGS))
    args.train.batch_size, args.ds.param_dtype = 3 * ranks, dtype
    one = launch(args)
    wait(one)
    for n in (1, 2):
        asyncio.run(step(one, recorded_rows(13, seed=n), 2, n))
    kept = states(one)
    sizes = [sum(a.nbytes for part in ray.get(s) for a in part.values()) for s in kept]
    parameters = sum(w.numel() for w in weights(one).values())
    assert all(
        size > 12 * parameters / ranks for size in sizes
    )  # Adam's moments and float32 weights
    undisturbed, tokens = three_steps(one)
    one.kill()

    two = launch(args)
    wait(two)
    ray.get(
        [
            handle.set_state.remote(*state)
            for handle, state in zip(two.training.handles(), kept, strict=True)
        ]
    )
    again, same_tokens = three_steps(two)
    two.kill()
    for (metrics, one_weights), (same, two_weights) in zip(undisturbed, again, strict=True):
        assert same == metrics
        assert all(torch.equal(value, two_weights[name]) for name, value in one_weights.items())
    assert torch.equal(tokens.log_probs, same_tokens.log_probs) and torch.equal(
        tokens.kl, same_tokens.kl
    )
    assert not torch.equal(*(w["model.norm.weight"] for _, w in (undisturbed[0], undisturbed[2])))


def policies(args, backend=None):
    """Started policies without engines."""
    args.vllm.num_engines = 0
    tokenizer = AutoTokenizer.from_pretrained(args.actor.model_name_or_path)
    made = [
        UpstreamPolicy(
            Policy(n, "tiny"), args, "cpu", tokenizer, 100, RestartBudget(0), 600.0, backend=backend
        )
        for n in "pq"
    ]
    for policy in made:
        policy.launch()
        policy.load()
    wait_until_loaded(made, 600.0)
    return made


async def two_joint_steps(made, estimator, after_pass=lambda: None):
    """Metrics and weights of two steps of all policies together, as the trainer takes them."""
    found = []
    for n in (1, 2):
        rows = {
            policy.name: recorded_rows(5 + 3 * n, seed=10 * n + place)
            for place, policy in enumerate(made)
        }
        forwarded = await asyncio.gather(*(policy.forward(rows[policy.name]) for policy in made))
        after_pass()
        prepared = estimate(forwarded, estimator)
        metrics = await asyncio.gather(
            *(policy.update(p, 2, n) for policy, p in zip(made, prepared, strict=True))
        )
        after_pass()
        pieces = [await policy.processes.weights() for policy in made]
        weights = [joined(await asyncio.gather(*some)) for some in pieces]
        found.append((metrics, weights))
    return found


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("name", "seats"), [("reinforce", 1), ("gae", 2)])
def test_policies_that_share_seats_compute_what_they_compute_alone(relay, name, seats):
    """Only one of the policies at a time has processes; with a critic that is two each."""
    flags = [*FLAGS, "--algo.advantage.estimator", name, "--ds.zero_stage", "2"]
    flags += ["--critic.adam.lr", "1e-3"] if name == "gae" else []
    args = copy.deepcopy(arguments(relay, *flags))
    if name == "gae":
        args.critic.model_name_or_path = args.actor.model_name_or_path
    estimator = Gae(gamma=0.9, lambd=0.8) if name == "gae" else ReinforcePlusPlus(gamma=0.9)
    alone = policies(args)
    expected = asyncio.run(two_joint_steps(alone, estimator))
    for policy in alone:
        policy.kill()

    backend = SharedSeats(Seating(seats))
    backend.room = room = SeatRoom(Seating(seats), name == "gae", 600.0, state=1e8)
    room.open()
    sharing = policies(args, backend)
    assert not any(list(policy.training.handles()) for policy in sharing)

    def check():
        assert [len(list(policy.training.handles())) for policy in sharing].count(seats) == 1
        assert sum(len(list(policy.training.handles())) for policy in sharing) == seats

    async def go():
        found = await two_joint_steps(sharing, estimator, check)
        metrics = room.metrics()
        ((handle, ready),) = room._spares[Seat(0, 0), "policy"]
        await ready
        os.kill(pid := (await locate(handle)).pid, signal.SIGKILL)
        assert wait_until(lambda: not psutil.pid_exists(pid))
        leaving = next(policy for policy in sharing if not list(policy.training.handles()))
        await leaving.forward(recorded_rows(3, seed=1))
        return found, metrics

    found, metrics = asyncio.run(go())
    for policy in sharing:
        policy.kill()
    room.close()
    assert found == expected
    # The first one, and in each of four passes the one that was not last in the pass before.
    assert metrics["process_groups/changes"] == 5
    assert metrics["process_groups/seconds"] > 0
