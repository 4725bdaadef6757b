"""Which processes share devices, how many devices and CPUs a run needs, and what the plan refuses
before a paid hour begins."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.describe import describe
from marl_plugins.engine.plan.devices import needed_cpus, needed_devices
from marl_plugins.engine.processes.cluster import _check_devices, _options
from marl_plugins.engine.processes.launch import _strategy
from marl_plugins.engine.processes.placement import nodes_for

SUMS = str(Path(__file__).parent / "recipes" / "sums" / "recipe.yaml")
ALONE = """
extends: recipe.yaml
flags: {train.colocate_all: false, vllm.enable_sleep: false, ds.enable_sleep: false, vllm.tensor_parallel_size: 2}
"""


@pytest.fixture(autouse=True)
def on_gpus(monkeypatch):
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")


@pytest.fixture
def alone(tmp_path):
    """The recipe with devices for training and engines of two devices each."""
    folder = shutil.copytree(Path(SUMS).parent, tmp_path / "sums")
    (folder / "alone.yaml").write_text(ALONE)
    return str(folder / "alone.yaml")


def plan(*words, recipe=SUMS):
    return build_plan(["--recipe", recipe, *words])


def codes(*words, recipe=SUMS):
    with pytest.raises(ConfigurationError) as caught:
        plan(*words, recipe=recipe)
    return {problem.code for problem in caught.value.problems}


GAE = ["--algo.advantage.estimator", "gae"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--ref.num_gpus_per_node", "8"], "devices.reference"),
        (["--policy.coder.ref.num_gpus_per_node", "2"], "devices.reference"),
        (["--ds.param_dtype", "fp16"], "devices.dtype"),
        (["--ds.ring_attn_size", "2"], "devices.ring_size"),
        ([*GAE, "--critic.num_gpus_per_node", "2"], "devices.colocated"),
    ],
)
def test_what_would_fail_in_the_first_minutes_on_a_gpu_is_refused(words, code):
    assert codes(*words) == {code}


def test_a_reference_on_the_policys_devices_is_as_large_as_the_policy(alone):
    sharing = ["--train.colocate_actor_ref", "--ref.num_gpus_per_node", "2"]
    assert codes(*sharing, recipe=alone) == {"devices.reference"}
    assert plan(*sharing, "--algo.kl.init_coef", "0", recipe=alone)  # there is no reference
    assert plan(*sharing[1:], recipe=alone)  # on devices of its own it may have any size


@pytest.mark.parametrize("ranks", [1, 4])
def test_critic_and_reference_are_as_large_as_the_policy_unless_something_is_said(ranks, alone):
    words = [*GAE, "--actor.num_gpus_per_node", str(ranks)]
    run = plan(*words, "--policy.coder.critic.num_gpus_per_node", "3", recipe=alone).run
    engines = 2
    assert needed_devices(run) == {
        "solver": 3 * ranks + engines,
        "coder": 2 * ranks + 3 + engines,
        "verifier": 3 * ranks + engines,
    }
    assert sum(needed_devices(plan(*GAE).run).values()) == 3


def test_every_device_needs_a_cpu(alone):
    found = plan(recipe=alone)
    assert needed_devices(found.run) == {"solver": 4, "coder": 4, "verifier": 4}
    assert needed_cpus(found.run) == describe(found)["cpus"] == 12


@pytest.mark.parametrize(
    ("gpus", "cpus", "code"),
    [(3, 3, None), (2, 64, "devices.too_few"), (8, 2, "devices.too_few_cpus")],
)
def test_a_cluster_with_too_few_devices_or_cpus_is_refused_at_the_start(
    gpus, cpus, code, monkeypatch, capsys
):
    """Ray would wait for them for ever."""
    for resources in ("cluster_resources", "available_resources"):
        monkeypatch.setattr(ray, resources, lambda: {"GPU": float(gpus), "CPU": float(cpus)})
    node = {"NodeID": "here", "Alive": True, "Resources": {"GPU": 1.0}}
    monkeypatch.setattr(ray, "nodes", lambda: [node])
    if code is None:
        _check_devices(plan().run)
        assert not capsys.readouterr().err
        _check_devices(
            plan(
                "--vllm.tensor_parallel_size",
                "3",
                "--actor.num_gpus_per_node",
                "3",
                "--mapping",
                "shared",
            ).run
        )
        assert "over the network" in capsys.readouterr().err
        return
    with pytest.raises(ConfigurationError) as caught:
        _check_devices(plan().run)
    assert [problem.code for problem in caught.value.problems] == [code]


def test_a_ray_of_our_own_counts_a_cpu_for_every_device(alone, monkeypatch, tmp_path):
    """Whatever the machine has; Ray would wait for CPUs that it does not count."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    run = plan(recipe=alone).run
    assert _options(run, False, None, str(tmp_path))["num_cpus"] > needed_cpus(run) == 12


@pytest.mark.parametrize("shared", [10**9, 10**12])
def test_weights_that_the_host_cannot_hold_are_refused(shared, alone, monkeypatch, tmp_path):
    """Ray would move them to the disk without a word."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: SimpleNamespace(free=shared))
    memory = SimpleNamespace(total=10**12 if shared == 10**9 else 10**9)
    monkeypatch.setattr("psutil.virtual_memory", lambda: memory)
    run = plan("--actor.model_name_or_path", "some/Model-8B", recipe=alone).run
    with refused(("sync.object_store",)):
        _options(run, False, None, str(tmp_path))


@given(st.integers(1, 4), st.integers(1, 8), st.integers(1, 4))
def test_deepspeed_gets_a_batch_that_fits_any_number_of_ranks(micro, groups, same):
    """Its configuration asserts batch = micro-batch x accumulation x ranks, whichever of a policy's
    models the ranks load."""
    args = ARGS
    args.train.micro_batch_size, args.ds.ring_attn_size = micro, same
    config = _strategy(args, groups * same).get_ds_eval_config()
    assert config["train_batch_size"] == config["train_micro_batch_size_per_gpu"] * groups * same


with pytest.MonkeyPatch.context() as patch:
    patch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    ARGS = plan().run.policy_args["solver"]


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 9), min_size=1),
    st.dictionaries(st.sampled_from("mnopq"), st.integers(0, 16), min_size=1),
)
def test_policies_have_a_node_each_where_they_fit(needed, free):
    nodes = nodes_for(needed, free)
    used = {node: sum(needed[p] for p in nodes if nodes[p] == node) for node in free}
    assert all(used[node] <= free[node] for node in free)
    homeless = [needed[p] for p in needed if p not in nodes and needed[p]]
    if len(free) == 1:
        assert not nodes
    elif homeless:  # none of them would fit on what is left
        assert min(homeless) > max(free[node] - used[node] for node in free)
    if len(free) > len(needed) and len(set(free.values())) == 1 and not homeless:
        assert len(set(nodes.values())) == len(nodes)
