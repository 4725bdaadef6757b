"""What the plan says of memory and time, against numbers worked out by hand and laws that hold for
any run."""

import re

import pytest

from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.estimate import estimate, parameters

PAPER = str(recipes_root() / "mathchat" / "paper.yaml")


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")


def estimated(*words):
    return estimate(build_plan(["--recipe", PAPER, *words]))


def numbers(text):
    return [float(n) for n in re.findall(r"\d+(?:\.\d+)?", text)]


def test_the_papers_setting_by_hand():
    found = estimated()
    # 4 B parameters on two devices with ZeRO 3: 8 GB of weights, gradients and reference each, 80
    # GB of Adam in the host's memory
    assert found["memory"]["coder"].startswith(
        "12 GB a device to train (weights 4 GB, gradients 4 GB, reference 4 GB), 80 GB of"
    )
    assert "8 GB of weights" in found["memory"]["coder"]
    # 7 answers of 4,096 tokens; each token reads 8 GB at 1.675 TB/s and takes 32 x 8 GFLOP at 330
    # TFLOP/s
    generate = 7 * 4096 * (8e9 / 1.675e12 + 32 * 8e9 / 330e12)
    # the coder: 64 x (4,096 of the solver's + 5 x 4,096) tokens, each 6 + 2 + 2 + 2 operations a
    # parameter, on two devices
    train = 64 * 6 * 4096 * 12 * 4e9 / (2 * 330e12)
    assert numbers(found["step"]) == [round(generate), round(train)]
    evaluation = (
        7 * 4096 * (8e9 / 1.675e12 + 800 * 8e9 / 330e12)
    )  # 400 tasks x 4 samples on two engines
    hours = (128 * (generate + train) + 33 * evaluation) / 3600
    assert numbers(found["run"]) == [round(hours, 1), 128, 33]
    assert "H100" in found["assumes"]
    # three policies' 8 GB each into the host's memory and out of it, at 2.3 GB/s
    assert found["sync"].startswith(f"3 x 8 GB through Ray's store, about {8 / 2.3:.1f} s")


def test_adam_that_stays_on_the_device():
    found = estimate(build_plan(["--recipe", "mathchat"]))  # ZeRO 2 on one device each
    assert found["memory"]["solver"].startswith(
        "27 GB a device to train (weights 3 GB, gradients 3 GB, Adam 18 GB, reference 3 GB);"
    )
    assert found["memory"]["solver"].endswith("they take turns")


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("Qwen/Qwen3-4B", 4e9),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", 1.5e9),
        ("Qwen/Qwen2.5-0.5B-Instruct", 0.5e9),
        ("somebody/SmolLM2-135M-Instruct", 135e6),
        ("Qwen/Qwen2.5-7B-Instruct-1M", 7e9),
        ("Qwen/Qwen3-30B-A3B", 30e9),
        ("somebody/model", None),
        ("tiny", None),
    ],
)
def test_the_size_of_a_model_is_in_its_name(name, size):
    assert parameters(name) == size
