"""`marl_plugins.determinism` on the stand-in for CUDA: what reaches every process, and that engines
are tried. Whether kernels are deterministic only a GPU can show."""

import pytest
from gpu.conftest import several, started

pytestmark = pytest.mark.engines
WORDS = [
    *("--plugin", "marl_plugins.determinism"),
    *("--eval.steps", "-1"),
    *("--balance.in_flight", "1"),  # the stand-in's engines are the CPU's
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deterministic")
    return several(folder, {"told": started("colocated", "--max_steps", "1", *WORDS)})


def test_every_process_has_what_was_set_and_says_so(run):
    assert run.codes["told"] == 0, run.text("told")[-3000:]
    lines = run.lines("told", "run/determinism.jsonl")
    seen = {(line["policy"], line["process"]): line["seen"] for line in lines}
    policies = ("first", "second", "judge")
    assert seen.keys() == {(p, kind) for p in policies for kind in ("engine", "training")}
    assert {each["environment"]["VLLM_BATCH_INVARIANT"] for each in seen.values()} == {"1"}
    assert all(line["equal"] for line in lines if line["process"] == "engine")
    for policy in policies:
        training = seen[policy, "training"]
        assert training["deterministic_algorithms"]
        assert training["environment"]["CUBLAS_WORKSPACE_CONFIG"]
        assert training["environment"]["NCCL_ALGO"] == "Ring"
    in_workers = [event for event in run.of("told") if event["event"] == "batch invariant"]
    assert [event["asked"] for event in in_workers] == [True] * len(policies)
