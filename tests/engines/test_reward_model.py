"""A reward model in upstream's own actors, on two ranks: its rewards are those of transformers,
whatever waits together."""

import asyncio
import random
from types import SimpleNamespace

import pytest
import ray
import torch
from plugin_pairs import words
from refusals import refused
from reward_models import other_tokenizer, reference

from marl_plugins.builtin.reward_model.scorer import Scorer, answer_to
from marl_plugins.core.failures import RunPaused
from marl_plugins.engine.plan.build import build_plan

MEAN, STD = 0.5, 2.0
ANSWERS = [
    "",
    "4",
    "the quick brown fox " * 6,
    "größer 漢字",
    *(f"problem {n} " * n for n in range(9)),
]


@pytest.fixture(scope="module", params=["0", "3"], ids=["whole", "ZeRO 3"])
def scorer(cluster, tmp_path_factory, request):
    folder = tmp_path_factory.mktemp("reward_model")
    model = other_tokenizer(folder / "model", mean=MEAN, std=STD)
    flags = [
        "--reward.model_name_or_path",
        model,
        "--reward.num_gpus_per_node",
        "2",
        "--reward.normalize_enable",
    ]
    flags += ["--rollout.micro_batch_size", "2", "--ds.zero_stage", request.param]
    made = Scorer(build_plan([*words(folder, []), *flags]).run)
    made.start()
    yield made
    made.end()


@pytest.mark.usefixtures("cluster")
def test_weights_that_are_cut_off_are_refused(tmp_path):
    model = tmp_path / "model"
    other_tokenizer(model)
    scorer = Scorer(
        build_plan([*words(tmp_path, []), "--reward.model_name_or_path", str(model)]).run
    )
    with (model / "model.safetensors").open("r+b") as file:
        file.truncate((model / "model.safetensors").stat().st_size - 1000)
    with refused(("reward_model.start", "reward.model_name_or_path", str(model))):
        scorer.start()
    scorer.end()


def trajectories():
    return [
        SimpleNamespace(task=SimpleNamespace(prompt=f"2 + {n}?"), answer=a)
        for n, a in enumerate(ANSWERS)
    ]


def test_rewards_are_those_of_transformers_and_do_not_depend_on_company(scorer):
    read = trajectories()
    texts = [f"[user] {t.task.prompt}\n[assistant] {t.answer}".rstrip("\n") + " </s>" for t in read]

    async def together(order):
        found = await asyncio.gather(*(scorer.reward(answer_to(read[n])) for n in order))
        return dict(zip(order, found, strict=True))

    async def alone():
        return {n: await scorer.reward(answer_to(t)) for n, t in enumerate(read)}

    one, order = asyncio.run(alone()), list(range(len(read)))
    random.Random(0).shuffle(order)
    assert asyncio.run(together(order)) == one == asyncio.run(together(order[::-1]))
    plain = torch.tensor(reference(scorer.model, texts, torch.bfloat16), dtype=torch.bfloat16)
    assert list(dict(sorted(one.items())).values()) == ((plain - MEAN) / STD).tolist()
    exact = torch.tensor(reference(scorer.model, texts), dtype=torch.float64)
    assert torch.allclose(
        torch.tensor([one[n] for n in range(len(read))]).double() * STD + MEAN, exact, atol=0.1
    )
    assert exact.std() > 0.3


def test_a_process_that_dies_pauses_the_run(scorer):
    """Last: nothing is scored afterwards."""
    ray.kill(scorer.group._actor_handlers[1])

    async def scored():
        for _ in range(1000):  # some may be, until the signal has arrived
            await scorer.outcome(trajectories()[1])

    with pytest.raises(RunPaused):
        asyncio.run(scored())
