"""`--train.enable_ema`: the average against float64 and upstream's own, evaluated beside the
weights, which come back."""

from types import SimpleNamespace

import pytest
import torch
from plugin_pairs import words
from simulated_session import recorded, run_planned

from marl_plugins.builtin.ema.worker import WeightAverage
from marl_plugins.engine.hosts import cpu
from marl_plugins.engine.plan.build import build_plan


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """A group of one rank."""
    torch.distributed.init_process_group(
        "gloo", store=torch.distributed.HashStore(), rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def trainer_of(module, beta):
    args = SimpleNamespace(train=SimpleNamespace(ema_beta=beta))
    return SimpleNamespace(args=args, actor=SimpleNamespace(model=SimpleNamespace(module=module)))


def updates(module, count, size):
    draw = torch.Generator().manual_seed(0)
    for _ in range(count):
        with torch.no_grad():
            for p in module.parameters():
                p.add_((size * torch.randn(p.shape, generator=draw)).to(p.dtype))
        yield module.weight.detach().double()


@pytest.mark.usefixtures("alone")
def test_the_average_is_that_in_float64_and_comes_back():
    module = torch.nn.Linear(7, 5).to(torch.bfloat16)
    module.bias.requires_grad_(False)
    kept, wanted = WeightAverage(trainer_of(module, 0.9)), module.weight.detach().double()
    for now in updates(module, 20, 0.1):
        wanted = 0.9 * wanted + 0.1 * now
        kept.stepped()
        again = WeightAverage(kept.trainer)
        again.restore(kept.state())
        kept = again
    assert kept.state().keys() == {"weight"}
    assert torch.allclose(kept.average["weight"].double(), wanted.flatten(), rtol=1e-6, atol=1e-7)
    before = [p.detach().clone() for p in module.parameters()]
    with kept.in_place():
        averaged = module.weight.detach().clone()
    assert torch.equal(averaged, wanted.float().to(torch.bfloat16))
    assert all(torch.equal(p, old) for p, old in zip(module.parameters(), before, strict=True))


@pytest.mark.usefixtures("alone")
def test_upstreams_own_average_is_the_same_in_float32_and_stands_still_in_bfloat16():
    cpu.install()
    from openrlhf.utils.deepspeed.deepspeed import DeepspeedStrategy

    moved = {}
    for dtype in (torch.float32, torch.bfloat16):
        torch.manual_seed(0)
        module, theirs = torch.nn.Linear(64, 64).to(dtype), torch.nn.Linear(64, 64).to(dtype)
        theirs.load_state_dict(module.state_dict())
        first, ours = module.weight.detach().double(), WeightAverage(trainer_of(module, 0.992))
        strategy = SimpleNamespace(
            time_steps={"ema": 0}, accumulated_gradient=1, use_dynamic_batch=False, stage=0
        )
        wanted = first
        for now in updates(module, 200, 1e-3):
            ours.stepped()
            DeepspeedStrategy.moving_average(strategy, module, theirs, 0.992, "cpu")
            wanted = 0.992 * wanted + 0.008 * now
        error = {
            "ours": (ours.average["weight"].view(64, 64).double() - wanted).norm(),
            "theirs": (theirs.weight.double() - wanted).norm(),
        }
        moved[dtype] = {name: float(e / (wanted - first).norm()) for name, e in error.items()}
    print(moved)
    assert moved[torch.float32]["ours"] < 1e-4 and moved[torch.float32]["theirs"] < 1e-4
    assert moved[torch.bfloat16]["ours"] < 1e-4 and moved[torch.bfloat16]["theirs"] > 0.5


def test_the_average_is_evaluated_after_the_weights_which_come_back(tmp_path):
    plan = build_plan([*words(tmp_path, ["ema"]), "--max_steps", "3"])
    trainer = run_planned(plan)
    assert all(p.held == p.learnt for p in trainer.session.trained.values())
    found = recorded(plan, "metrics.jsonl")
    assert [(m["step"], "ema/outcome" in m, "eval/outcome" in m) for m in found] == [
        (0, False, True),
        *((n, True, True) for n in (1, 2, 3)),
    ]
    assert not [name for m in found for name in m if name.startswith("ema/eval/")]
