"""Buckets of parameters, and what the plan says of a weight sync in large pieces."""

import asyncio
import math
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.flat_sync.worker import Bucket, buckets

SUMS = Path(__file__).parent / "recipes" / "sums"
SHAPES = st.lists(st.integers(0, 5), min_size=0, max_size=3).map(torch.Size)
DTYPES = st.sampled_from([torch.float32, torch.bfloat16])
PARAMETERS = st.lists(st.tuples(DTYPES, SHAPES), max_size=20)


@given(PARAMETERS, st.integers(1, 300))
def test_every_parameter_travels_once_in_a_bucket_of_its_dtype_and_comes_out_as_it_was(
    parameters, limit
):
    values = {str(n): torch.randn(shape).to(dtype) for n, (dtype, shape) in enumerate(parameters)}
    made = list(
        buckets(((name, value.dtype, value.shape) for name, value in values.items()), limit)
    )
    assert sorted(name for bucket in made for name in bucket.shapes) == sorted(values)
    for bucket in made:
        flat = bucket.pack([values[name] for name in bucket.shapes])
        assert flat.dtype is bucket.dtype and flat.shape == bucket.empty("cpu").shape
        assert len(bucket.shapes) == 1 or flat.nbytes <= limit
        assert all(torch.equal(value, values[name]) for name, value in bucket.unpack(flat))
    sizes = {
        dtype: sum(v.nbytes for v in values.values() if v.dtype is dtype)
        for dtype in (torch.float32, torch.bfloat16)
    }
    assert len(made) <= sum(math.ceil(2 * size / limit) + 1 for size in sizes.values())


def test_the_number_of_buckets_depends_on_bytes_and_not_on_the_number_of_parameters():
    def count(parts):
        return len(
            list(
                buckets(
                    ((str(n), torch.bfloat16, torch.Size([2**20 // parts])) for n in range(parts)),
                    2**19,
                )
            )
        )

    assert {count(parts) for parts in (64, 256, 4096)} == {4}


def test_what_cannot_be_synced_in_large_pieces_is_refused(monkeypatch):
    words = ["--recipe", str(SUMS / "tiny.yaml"), "--plugin", "marl_plugins.flat_sync"]
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cpu")
    assert "flat_sync.cpu" in {warning.code for warning in build_plan(words).run.warnings}
    monkeypatch.setenv("MARL_PLUGINS_DEVICE", "cuda")
    words[1] = str(SUMS / "recipe.yaml")
    assert "flat_sync.unrecorded" not in {
        warning.code for warning in build_plan(words).run.warnings
    }
    for other in (
        ["--ds.zero_stage", "3"],
        ["--actor.num_gpus_per_node", "2", "--vllm.num_engines", "2"],
    ):
        assert "flat_sync.unrecorded" in {
            warning.code for warning in build_plan([*words, *other]).run.warnings
        }
    with pytest.raises(
        ConfigurationError, match=r"flat_sync: --vllm\.sync_with_ray uses groups of Ray's"
    ):
        build_plan([*words, "--vllm.sync_with_ray"])
    with pytest.raises(ConfigurationError, match=r"--flat_sync\.mb"):
        build_plan([*words, "--flat_sync.mb", "0"])


def test_a_bucket_survives_the_way_to_vllms_own_process(monkeypatch):
    """vLLM's transport (msgpack) makes dicts of dataclasses, and lists of tuples."""
    monkeypatch.setenv(
        "VLLM_ALLOW_INSECURE_SERIALIZATION", "1"
    )  # upstream's setting (vllm_engine.py:99)
    from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder, run_method

    from marl_plugins.engine.processes.engine_actor import RolloutActor

    class Engine:
        async def collective_rpc(self, method, args):
            method, args = MsgpackDecoder().decode(MsgpackEncoder().encode((method, args)))
            return [run_method("the worker", method, tuple(args), {})]

    actor = object.__new__(RolloutActor)
    actor.llm, bucket = Engine(), Bucket(torch.bfloat16, {"a": torch.Size([2, 3])})
    handles = {"GPU-0": (math.prod, ("file", 1, None))}
    found = asyncio.run(actor.in_workers(lambda worker, *given: (worker, *given), bucket, handles))
    assert found == [("the worker", bucket, handles)]
