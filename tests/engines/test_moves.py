"""Real engines that change policy: they answer as the other policy's own do, and nothing is
answered by two policies at once."""

import asyncio
import os
import random
import signal
import time
from pathlib import Path

import psutil
import pytest
import safetensors.torch
import torch
from engines.relay import wait_until
from transformers import AutoModelForCausalLM

from marl_plugins.builtin.routing import least_loaded
from marl_plugins.core.failures import RunEnded
from marl_plugins.core.workflow import Call, Sampling
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.signature import differences
from marl_plugins.engine.processes.engines import RestartBudget, sampling_params
from marl_plugins.engine.runtime.policy import UpstreamPolicy, wait_until_loaded
from marl_plugins.engine.runtime.session import Session

SUMS = Path(__file__).resolve().parent.parent / "recipes" / "sums" / "tiny.yaml"
ENGINES = {"solver": 2, "coder": 1}


@pytest.fixture(scope="module")
def policies(cluster):
    """Two policies of one architecture and other weights, with their engines at version 7."""
    plan = build_plan(
        ["--recipe", str(SUMS), "--plugin", "marl_plugins.balance", "--vllm.num_engines", "2"]
    )
    session, restarts, started = Session(plan), RestartBudget(1), {}
    for policy in plan.run.policies:
        if policy.name in ENGINES:
            args, tokenizer = session.args[policy.name], session.chats[policy.name].tokenizer
            args.vllm.num_engines = ENGINES[policy.name]
            started[policy.name] = UpstreamPolicy(
                policy, args, "cpu", tokenizer, 100, restarts, 600.0
            )
    for policy in started.values():
        policy.launch()
    for policy in started.values():
        policy.load()
    wait_until_loaded(list(started.values()), 600.0)
    yield started
    for policy in started.values():
        policy.kill()


def calls(policy, count=8, tokens=24):
    draw = random.Random(3)
    contexts = [
        tuple(draw.randrange(3, 259) for _ in range(draw.randint(2, 30))) for _ in range(count)
    ]
    sampling = Sampling(1.0, 1.0, tokens, 384)
    return [
        Call(policy, ids, sampling, tokens, n, "r", f"t{n}", 0, "a", 1, n)
        for n, ids in enumerate(contexts)
    ]


async def answers(policy, engine=None):
    """To eight requests; by one of its engines, where one is given."""
    choose = least_loaded if engine is None else lambda engines: engine
    found = await asyncio.gather(
        *(policy.engines.generate(call, choose) for call in calls(policy.name))
    )
    assert {(g.policy, g.version) for g in found} == {(policy.name, policy.version)}
    return [g.ids for g in found], [p for g in found for p in g.logprobs]


async def delay_steps(policy, seconds):
    """Has each step of a policy's engines, a token of every answer, take so much longer: what is to
    happen meanwhile has time."""

    def delay(worker):
        runner = worker.model_runner
        step = type(runner).execute_model
        runner.execute_model = lambda *given, **named: (
            time.sleep(seconds) or step(runner, *given, **named)
        )

    await asyncio.gather(
        *(engine.handle.in_workers.remote(delay) for engine in policy.engines.engines)
    )


def same(one, other):
    assert one[0] == other[0]
    assert one[1] == pytest.approx(other[1], abs=1e-3)


def test_an_engine_answers_as_the_own_ones_of_the_policy_that_it_goes_to(policies):
    async def go():
        solver, coder = policies.values()
        assert not differences(solver.engines.signature, coder.engines.signature)
        for policy in policies.values():
            assert await policy.sync(7)
        own = {name: await answers(policy) for name, policy in policies.items()}
        assert own["solver"][0] != own["coder"][0]
        traveller = solver.engines.engines[1]
        busy = asyncio.create_task(answers(solver, traveller))
        await asyncio.sleep(0.05)
        await solver.engines.lend(traveller, coder.engines)
        same(await busy, own["solver"])  # it has answered first
        assert [len(p.engines.engines) for p in policies.values()] == [1, 2]
        same(await answers(coder, traveller), own["coder"])
        assert await coder.sync(8)  # a guest is given the new weights like the others
        same(await answers(coder, traveller), own["coder"])
        await coder.engines.lend(traveller, solver.engines)
        same(await answers(solver, traveller), own["solver"])
        assert not solver.engines.away and traveller in solver.engines.engines

    asyncio.run(go())


def test_what_is_sampled_over_a_change_of_policy_belongs_to_none(policies):
    """Both have the same version: only the epoch tells."""

    async def go():
        solver, coder = policies.values()
        assert await solver.sync(9) and await coder.sync(9)
        weights = await coder.processes.weights()
        handle = solver.engines.engines[0].handle
        (call,) = calls("solver", 1, 300)
        params = sampling_params(call)
        params.min_tokens = 300
        await delay_steps(solver, 0.02)
        sampling = handle.sample.remote(list(call.context_ids), params)
        await handle.load_state.remote(weights, "coder", 9)
        *_, policy, version = await sampling
        await delay_steps(solver, 0)
        assert (policy, version) == ("solver", -1)
        with pytest.raises(
            RunEnded, match="weights of policy 'coder', version 9, where policy 'solver', version 9"
        ):
            await solver.engines.generate(call, lambda engines: engines[0])
        await solver.restore_engine(handle)
        await answers(solver, solver.engines.engines[0])

    asyncio.run(go())


def test_an_engine_that_dies_on_its_way_is_replaced_where_it_went(policies):
    async def go():
        solver, coder = policies.values()
        traveller = solver.engines.engines[1]
        os.kill(pid := traveller.where.pid, signal.SIGKILL)
        assert wait_until(lambda: not psutil.pid_exists(pid))
        await solver.engines.lend(traveller, coder.engines)
        guest = coder.engines.engines[1]
        assert guest is not traveller and guest.home is solver.engines
        same(await answers(coder, guest), await answers(coder, coder.engines.engines[0]))
        await coder.engines.lend(guest, solver.engines)
        assert [len(p.engines.engines) for p in policies.values()] == [
            2,
            1,
        ] and not solver.engines.away

    asyncio.run(go())


def logprobs_of(model, call, ids):
    """The log-probs of sampled tokens by transformers."""
    with torch.no_grad():
        logits = model(torch.tensor([[*call.context_ids, *ids]])).logits[
            0, len(call.context_ids) - 1 : -1
        ]
    return logits.log_softmax(-1).gather(1, torch.tensor(ids)[:, None])[:, 0].tolist()


async def in_progress(policy, tokens):
    """The number of answers that have so many tokens and have not come to their end."""
    counts = [
        engine.handle.__ray_call__.remote(
            lambda actor: sum(request.tokens >= tokens for request in actor.requests)
        )
        for engine in policy.engines.engines
    ]
    return sum(await asyncio.gather(*counts))


def test_each_token_of_an_answer_in_which_weights_change_is_by_those_of_its_version(policies):
    """They change twice, in the middle of answers of which some have ended by then, some wait and
    some are asked for meanwhile."""

    async def go():
        solver, coder = policies.values()
        weights = {9: await solver.weights(), 10: await coder.weights()}
        weights[11] = weights[9]
        assert await solver.sync(9)
        asked = calls("solver", 40, 300)
        await delay_steps(solver, 0.02)
        requests = [
            asyncio.create_task(solver.engines.generate(call, least_loaded)) for call in asked[:30]
        ]
        for version, tokens in ((10, 20), (11, 60)):
            async with asyncio.timeout(120):
                while await in_progress(solver, tokens) < 4 or not (  # noqa: ASYNC110
                    version == 10 or any(one.done() for one in requests)
                ):
                    await asyncio.sleep(0.01)
            await solver.engines.pause()
            requests += [
                asyncio.create_task(solver.engines.generate(c, least_loaded))
                for c in asked[len(requests) :][:5]
            ]
            await solver.hold(weights[version], version)
            await solver.engines.resume()
        await delay_steps(solver, 0)
        return weights, asked, await asyncio.gather(*requests)

    weights, asked, found = asyncio.run(go())
    model = AutoModelForCausalLM.from_pretrained(
        policies["solver"].args.actor.model_name_or_path, dtype=torch.float32
    )
    by_version = {}
    for version, blob in weights.items():
        model.load_state_dict(safetensors.torch.load(blob), strict=False)
        by_version[version] = [
            logprobs_of(model, call, g.ids) for call, g in zip(asked, found, strict=True)
        ]
    apart, other = [], []
    for n, g in enumerate(found):
        for token, (version, logprob) in enumerate(zip(g.token_versions, g.logprobs, strict=True)):
            apart.append(abs(by_version[version][n][token] - logprob))
            other.append(abs(by_version[10 if version != 10 else 9][n][token] - logprob))
    assert any(g.changes for g in found) and {g.newest for g in found} > {11}
    assert max(apart) < 0.05 and sum(other) / len(other) > 0.1
