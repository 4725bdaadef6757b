"""Every argument that reaches upstream, vLLM, DeepSpeed and the actors is known there, in every
release that is supported."""

import ast
import importlib.util
from pathlib import Path

import pytest
from gpu.calls import Call, Sources, every_call, taken

import marl_plugins
from marl_plugins.engine.hosts.releases import CHECKED, TRAINED, WINDOWED, concerns
from marl_plugins.engine.hosts.trees import open_tree

OURS = Path(marl_plugins.__file__).parent
INSTALLED = {
    name: Path(importlib.util.find_spec(name).origin).parent
    for name in ("openrlhf", "vllm", "deepspeed")
}
ACTORS = (
    *("trainer.ray.vllm_engine.RolloutRayActor", "trainer.ray.ppo_actor.PolicyModelActor"),
    *("trainer.ray.ppo_critic.CriticModelActor", "trainer.ray.launcher.ReferenceModelActor"),
)
FILES = sorted(file for file in OURS.rglob("*.py") if "upstream_ci" not in file.parts)


@pytest.fixture(scope="module")
def calls():
    return list(every_call(FILES))


@pytest.fixture(scope="module")
def ours():
    """Parameters of the methods of our actors' classes, and of what is mixed into them."""
    found = {}
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and node.name.endswith(
                ("Actor", "Process", "Trainer")
            ):
                for method in node.body:
                    if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                        found.setdefault(method.name, []).append(taken(method, method=True))
    return found


def signatures(call, sources, ours):
    """Of what a call may reach."""
    if not call.target.startswith("*."):
        return [sources.signature(call.target)]
    name = call.target.removeprefix("*.")
    return [
        *(sources.signature(f"openrlhf.{actor}.{name}") for actor in ACTORS),
        *ours.get(name, []),
    ]


@pytest.mark.parametrize("version", [v for v in (*CHECKED, TRAINED) if concerns(WINDOWED, v)])
def test_every_call_of_upstream_vllm_and_deepspeed_fits_what_it_calls(version, calls, ours):
    with open_tree(version) as tree:
        sources = Sources({**INSTALLED, "openrlhf": tree.package})
        bad = [
            call
            for call in calls
            if not any(s and call.fits(s) for s in signatures(call, sources, ours))
        ]
    assert not bad
    assert len(calls) > 50


@pytest.mark.parametrize(
    "call",
    [
        Call("", "openrlhf.trainer.ray.vllm_engine.create_vllm_engines", 16),
        Call("", "openrlhf.trainer.ray.launcher.RayActorGroup", 2, ("cls",)),
        Call("", "openrlhf.trainer.ppo_utils.experience.Experience", 0, ("row",)),
        Call("", "vllm.SamplingParams", 0, ("temperatur",)),
        Call("", "deepspeed.zero.GatheredParameters", 0),
        Call("", "*.update_weight", 1),
        Call("", "*.go_to_sleep", 0),
    ],
)
def test_a_call_that_does_not_fit_is_found(call, ours):
    assert not any(s and call.fits(s) for s in signatures(call, Sources(INSTALLED), ours))
