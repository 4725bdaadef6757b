"""The stand-in for CUDA itself: what it replaces is still there, and it forgives nothing that a
device would not."""

import ast
import gc
import importlib.util
import inspect
from pathlib import Path

import pytest
import torch

from marl_plugins.engine.hosts.seams import SEAMS
from marl_plugins.engine.processes import engines

PACKAGES = Path(importlib.util.find_spec("openrlhf").origin).parent.parent


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """The module, in a process that is none of a run's, on device 2."""
    spec = importlib.util.spec_from_file_location(
        "stand_in", Path(__file__).parent / "stand_in" / "cuda_stand_in.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("MARL_STAND_IN", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    return module


def test_the_lines_that_it_replaces_are_upstreams(stand_in):
    """A stand-in for code that has changed shows nothing."""
    gone = [
        f"{file}: {line}"
        for file, lines in stand_in.REPLACED.items()
        for line in lines
        if line not in (PACKAGES / file).read_text()
    ]
    assert not gone


def test_a_handle_opens_on_its_device_as_long_as_its_memory_is_there(stand_in, monkeypatch):
    weight = torch.randn(3, 2).to(torch.bfloat16)
    opened, arguments = stand_in.handle_of(weight)
    arguments = list(arguments)
    with pytest.raises(AssertionError, match="index 0"):
        opened(*arguments)
    arguments[6] = 0
    assert torch.equal(opened(*arguments), weight)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with pytest.raises(AssertionError, match="device 2"):
        opened(*arguments)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2")
    del weight
    gc.collect()
    with pytest.raises(AssertionError, match="freed"):
        opened(*arguments)


def test_weights_are_the_same_if_their_bits_are(stand_in):
    state = {"a": torch.randn(4), "b": torch.randn(2, 2).to(torch.bfloat16)}
    same = {name: state[name].clone() for name in ("b", "a")}
    assert stand_in.digest(state) == stand_in.digest(same)
    same["b"][0, 0] += 1
    assert stand_in.digest(state) != stand_in.digest(same)
    assert stand_in.digest(state) != stand_in.digest({"a": state["b"], "b": state["a"]})


# --- what reaches vLLM, DeepSpeed and upstream
# ----------------------------------------------------------------------------


def tree(file):
    return ast.parse((PACKAGES / file).read_text())


def fields(file, *classes):
    """What the constructors of classes take whose fields are annotated; nothing is imported."""
    found = {n.name: n for n in tree(file).body if isinstance(n, ast.ClassDef)}
    return {
        n.target.id for name in classes for n in found[name].body if isinstance(n, ast.AnnAssign)
    }


def test_every_argument_of_an_engine_is_known_to_vllm():
    """Upstream's, and those that our engine adds on a CPU."""
    functions = {
        n.name: n
        for n in tree("openrlhf/trainer/ray/vllm_engine.py").body
        if isinstance(n, ast.FunctionDef)
    }
    function = functions["create_vllm_engines"]
    given = {
        ast.literal_eval(key)
        for n in ast.walk(function)
        if isinstance(n, ast.Dict)
        for key in n.keys
    }
    subscripts = [
        t
        for n in ast.walk(function)
        if isinstance(n, ast.Assign)
        for t in n.targets
        if isinstance(t, ast.Subscript)
    ]
    given |= {ast.literal_eval(t.slice) for t in subscripts}
    taken = {
        "bundle_indices",
        "num_gpus",
        "full_determinism",
        "agent_func_path",
        "remote_rm_url",
        "mm_pad_token_ids",
    }
    given -= {"GPU", "CPU", "image", *taken}  # its own, which the actor's `__init__` takes
    ours = Path(inspect.getfile(engines)).with_name("engine_actor.py").read_text()
    given |= {
        n.slice.value
        for n in ast.walk(ast.parse(ours))
        if isinstance(n, ast.Subscript) and ast.unparse(n.value) == "kwargs"
    }
    known = fields("vllm/engine/arg_utils.py", "EngineArgs", "AsyncEngineArgs")
    assert {"model", "enable_sleep_mode", "kv_cache_memory_bytes"} <= given <= known


def test_every_parameter_of_a_sample_is_known_to_vllm():
    (call,) = (
        n
        for n in ast.walk(ast.parse(inspect.getsource(engines)))
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "SamplingParams"
    )
    given = {keyword.arg for keyword in call.keywords}
    assert {"seed", "logprobs"} <= given <= fields("vllm/sampling_params.py", "SamplingParams")


def parameters(seam):
    """The names of a function's parameters."""
    return seam.form.partition("(")[2].removesuffix(")").split(", ")


def test_engines_are_started_with_upstreams_arguments_in_upstreams_order():
    """The seam's signature is compared with every supported release (tests/test_compat.py)."""
    (call,) = (
        n
        for n in ast.walk(ast.parse(inspect.getsource(engines)))
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "upstream.create_vllm_engines"
    )
    seam = next(seam for seam in SEAMS if seam.form.startswith("create_vllm_engines("))
    given = [ast.unparse(argument).rpartition(".")[2] for argument in call.args]
    other_names = {
        "num_engines": "count",
        "pretrain": "model_name_or_path",
        "full_determinism": "full_determinism_enable",
        "max_model_len": "max_len",
        "shared_pg": "group",
        "vllm_enable_sleep": "enable_sleep",
        "logprobs_mode": "'processed_logprobs'",
    }
    names = parameters(seam)[: len(given)]
    assert given == [other_names.get(name, name) for name in names] and not call.keywords


def test_training_groups_are_made_as_upstream_makes_them():
    """Nodes, devices, class, placement, share and ranks of one sequence, in the order of the
    seam."""
    from marl_plugins.engine.processes import launch

    (call,) = (
        n
        for n in ast.walk(ast.parse(inspect.getsource(launch)))
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "RayActorGroup"
    )
    seam = next(seam for seam in SEAMS if seam.form.startswith("RayActorGroup.__init__("))
    names = [ast.unparse(argument).rpartition(".")[2] for argument in call.args]
    ours = ["num_nodes", "num_gpus_per_node", "kind", "place", "share", "same"]
    assert names == ours and parameters(seam)[1:7] == [
        *(
            "num_nodes",
            "num_gpus_per_node",
            "ray_actor_type",
            "pg",
            "num_gpus_per_actor",
            "duplicate_actors",
        )
    ]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
@pytest.mark.parametrize("offload", [False, True])
def test_deepspeed_knows_every_key_of_its_configuration(stage, offload, monkeypatch):
    """Unknown ones it ignores, or they are errors once a paid hour has begun."""
    monkeypatch.setenv("DS_ACCELERATOR", "cpu")
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from openrlhf.utils.deepspeed.deepspeed_utils import get_eval_ds_config, get_train_ds_config

    for config in (
        get_train_ds_config(offload, offload, stage),
        get_eval_ds_config(offload, stage),
    ):
        zero = config["zero_optimization"]
        known = set(DeepSpeedZeroConfig.model_fields)
        known |= {field.alias for field in DeepSpeedZeroConfig.model_fields.values()}
        assert not zero.keys() - known
        assert DeepSpeedZeroConfig(**{k: v for k, v in zero.items() if v != "auto"}).stage == stage
