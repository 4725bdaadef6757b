"""`--train.async_enable` through the real engines: versions, and a driver that is killed while a
rollout waits.

A program that says nothing of who saw whom stands in the place of the workflow, and its answers are
delayed at random: what is the same in two runs is so whatever the timing.
"""

import signal
from collections import defaultdict

import pytest
from engines.relay import Started
from simulated import without_logprobs

WORDS = ["--train.async_enable", "--sequences", "trees"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory, relay, template):
    return Started(
        tmp_path_factory.mktemp("async"), relay / "silent.yaml", *WORDS, template=template
    ).run()


def test_what_a_program_has_seen_is_derived(whole):
    """Also of requests that were on their way at the same time."""
    for t in whole.trajectories:
        firsts = {a["action"] for a in t["actions"] if a["role"] == "first"}
        seconds = [a for a in t["actions"] if a["role"] == "second" and not a["turn"]]
        assert all(set(a["derived"]) <= firsts for a in seconds if "derived" in a)
    assert sum("derived" in a for _, a in whole.actions) > len(whole.trajectories)


def test_a_step_is_sampled_by_the_weights_of_two_steps_before(whole):
    versions = defaultdict(set)
    for t, a in whole.actions:
        versions[t["step"]] |= {a["version"]} if a["policy"] == "first" else set()
    assert versions == {1: {0}, 2: {0}, 3: {1}}
    assert [m["policy/first/lag"] for m in whole.metrics] == [0, 1, 1]
    assert all(0 < m["policy/first/ess"] <= 1.0001 for m in whole.metrics)
    assert whole.metrics[0]["drift/max"] < 0.01  # the same weights; later ones differ by an update
    assert all(
        entry["roles"]["second"]["trained"] == entry["roles"]["second"]["generated"]
        for entry in whole.ledger
    )


def test_a_run_that_is_killed_while_a_rollout_waits_repeats_the_undisturbed_one(
    whole, relay, template, tmp_path
):
    """On seats on which policies take turns: their processes come and go while engines sample the
    next rollout."""
    words = [*WORDS, "--plugin", str(relay / "dies.py")]
    words += ["--plugin", "marl_plugins.process_groups", "--process_groups.seats", "2"]
    run = Started(tmp_path, relay / "silent.yaml", *words, template=template)
    run.run(code=-signal.SIGKILL)
    assert len((tmp_path / "checkpoints" / "waiting" / "step2.jsonl").read_text().splitlines()) == 1
    run.run("--ckpt.load_enable")
    (one, mine), (two, others) = map(without_logprobs, (run.trajectories, whole.trajectories))
    assert one == two and mine == pytest.approx(others, abs=1e-2)
    assert run.ledger == whole.ledger
    for name in ("first", "second"):
        mine, theirs = (
            (each.output / name / "model.safetensors").read_bytes() for each in (run, whole)
        )
        assert mine == theirs
