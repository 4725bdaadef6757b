"""Whole runs on the stand-in for CUDA: who holds which device, how it is used, what reaches the
engines, and how runs end."""

import re
from collections import defaultdict

import psutil
import pytest
from gpu.conftest import DEVICES

from benchmarks.gpu import ROWS, answered
from benchmarks.gpu_runs import Hour, Machine, Result

pytestmark = pytest.mark.engines
TRAINED = ("first", "second", "judge")
"""Of the colocated run."""
SAME_BITS = ("policy_loss", "kl", "actor_grad_norm", "return", "response_length", "optimiser_steps")
LOGPROB_TOLERANCE = 1e-3
"""Nats. What else is in an engine's batch decides the last bits of a log-prob, and time decides
that; 7.1e-4 has been seen of engines in bfloat16 (ids have never differed)."""


def of_kind(events, *kinds):
    return [event for event in events if event["event"] in kinds]


def by_device(events):
    found = defaultdict(list)
    for event in sorted(events, key=lambda e: e["at"]):
        found[event["device"]].append(event)
    return dict(found)


# --- how they end
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("colocated", 0),
        ("apart", 1),
        ("shared", 1),
        ("resumed", 1),
        ("paper", 0),
        ("too_few", 2),
        ("no_memory", 2),
    ],
)
def test_every_run_ends_as_it_should_and_gives_its_devices_back(runs, name, code):
    assert runs.codes[name] == code, runs.text(name)[-3000:]
    assert runs.codes[f"{name} left"]["GPU"] == DEVICES


@pytest.mark.parametrize(
    ("name", "when", "plugin", "policy", "saved"),
    [
        ("apart", "awake", "awake", "second", 1),
        ("shared", "asleep", "asleep_syncing", "shared", 1),
        ("resumed", "syncing", "asleep_syncing", "shared", 2),
    ],
)
def test_an_engine_that_is_killed_ends_the_run_with_its_policy_and_a_way_to_go_on(
    runs, name, when, plugin, policy, saved
):
    """Asleep, awake, or while it receives weights: on GPUs engines are not replaced yet, and what
    was saved is all there."""
    said = runs.text(name)
    assert (
        f"policy {policy!r}" in said
        and f"step {saved} is saved" in said
        and "Traceback" not in said
    )
    if when != "syncing":  # there it was one of these, whose engine has noticed
        processes = runs.killed(plugin)[
            when
        ]  # vLLM's own too, which would keep the device's memory
        assert len(processes) > 1 and not any(map(psutil.pid_exists, processes))


def test_a_resumed_run_goes_on_with_the_weights_that_were_saved(runs):
    """Checkpoints that were saved while states were offloaded load again, and the new engine gets
    its weights first."""
    steps = [m for m in runs.lines("shared", "metrics.jsonl") if m["step"]]
    assert [m["step"] for m in steps] == [1, 2]
    (before,) = of_kind(runs.of("shared"), "sync")
    events = sorted(runs.of("resumed"), key=lambda e: e.get("begun", e["at"]))
    first, *_ = of_kind(events, "sync")
    assert first["digest"] == before["digest"]
    kinds = [event["event"] for event in events]
    assert kinds.index("sync") < kinds.index("weights") < kinds.index("fit")


def test_a_critic_is_trained_beside_its_policy(runs):
    for step in (m for m in runs.lines("shared", "metrics.jsonl") if m["step"]):
        assert (
            step["policy/shared/critic_loss"] > 0
            and step["policy/shared/critic_optimiser_steps"] > 0
        )


def test_too_few_devices_are_refused_with_what_fits(runs):
    said = runs.text("too_few")
    assert "needs 12" in said and f"has {DEVICES}" in said
    for words, count in re.findall(r"(--[^()]*) \(needs (\d+)\)", said):
        assert int(count) <= DEVICES, words
    assert not of_kind(runs.of("too_few"), "engine", "process")


def test_an_engine_that_finds_too_little_memory_says_so(runs):
    """vLLM tells its caller to look at a log that is gone; what is in it is said."""
    said, reason = runs.text("no_memory"), "Free memory on device"
    assert repr("shared") in said and reason in said and "Traceback" not in said


# --- devices
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "holders"),
    [
        ("colocated", [["PolicyActor", "ReferenceActor", "engine"]] * 3),
        ("shared", [["CriticActor", "PolicyActor", "ReferenceActor", "engine"]]),
        ("resumed", [["CriticActor", "PolicyActor", "ReferenceActor", "engine"]]),
        ("paper", [["PolicyActor", "ReferenceActor", "engine"]] * 6),
        (
            "apart",
            [
                *(["engine"], ["engine"], ["worker"], ["worker"]),
                *(
                    ["PolicyActor"],
                    ["PolicyActor", "ReferenceActor"],
                    ["ReferenceActor"],
                    ["ReferenceActor"],
                ),
            ],
        ),
    ],
)
def test_every_device_is_held_by_whom_the_plan_says_and_no_more_than_once(runs, name, holders):
    """An engine of two devices holds none in its own process, and one in each of its workers
    (`apart`)."""
    found = by_device(
        e for e in of_kind(runs.of(name), "process", "engine", "worker") if e["share"]
    )
    assert all(re.fullmatch(r"\d+", device) for device in found)
    assert sorted(
        sorted(e.get("kind", e["event"]) for e in events) for events in found.values()
    ) == sorted(holders)
    for events in found.values():
        shares = [event["share"] for event in events]
        assert sum(shares) <= 1 + 1e-9 and (len(shares) == 1) == (shares[0] == 1)


def test_models_are_loaded_once_all_engines_sleep(runs):
    """A policy's states are offloaded as soon as its model is loaded; until then an engine has its
    device to itself."""
    events = runs.of("colocated")
    started = [event["at"] for event in of_kind(events, "engine")]
    asleep = [
        next(e["at"] for e in mine if e["event"] == "sleep")
        for mine in by_device(of_kind(events, "sleep")).values()
    ]
    loaded = [
        next(e["at"] for e in mine) for mine in by_device(of_kind(events, "offload")).values()
    ]
    assert len(started) == len(asleep) == len(loaded) == 3
    assert max(asleep) < min(loaded)


# --- order
# --------------------------------------------------------------------------------------------------

LETTERS = {"sleep": "S", "reload": "R", "fit": "F", "offload": "O", "sync": "Y"}


def test_a_device_is_used_for_one_thing_after_the_other(runs):
    """Asleep from the start, and the model's states offloaded; then evaluate, and twice: generate,
    sleep, log-probs of the policy and of the reference, reload, fit, offload, weights awake, sync.
    At the end evaluate again."""
    for device, events in by_device(runs.of("colocated")).items():
        line = ""
        for event in sorted(events, key=lambda e: e.get("begun", e["at"])):
            if event["event"] == "wake":
                line += "".join({"weights": "w", "kv_cache": "k"}[tag] for tag in event["tags"])
            elif event["event"] == "forward":
                line += {"PolicyActor": "p", "ReferenceActor": "r"}[event["kind"]]
            else:
                line += LETTERS.get(event["event"], "")
        once = re.sub(r"p+", "p", re.sub(r"r+", "r", line))
        evaluation, step = "wkS", "wkSprRFOwY"
        assert once == f"SO{evaluation}{step}{step}{evaluation}", device


def test_nobody_trains_while_an_engine_has_its_cache(runs):
    """The stand-in itself refuses a request, weights and a reset while an engine sleeps, and a step
    on offloaded states."""
    checked = 0
    for events in by_device(runs.of("colocated")).values():
        asleep, since = [], None
        for event in of_kind(events, "sleep", "wake"):
            if event["event"] == "sleep":
                assert event["running"] == 0
                since = event["at"]
            elif since is not None and "kv_cache" in (event["tags"] or ["kv_cache"]):
                asleep.append((since, event["at"]))
                since = None
        for event in of_kind(events, "forward", "fit"):
            assert any(begin <= event["begun"] and event["at"] <= end for begin, end in asleep), (
                event
            )
            checked += 1
    assert checked >= 3 * 2 * 3


# --- weight sync
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "syncs", "engines"),
    [("colocated", 6, 1), ("apart", 2, 2), ("shared", 1, 1), ("resumed", 2, 1), ("paper", 3, 2)],
)
def test_engines_hold_the_trainers_weights_after_every_sync(runs, name, syncs, engines):
    """By CUDA IPC, in large pieces (`shared`), both (`colocated`), and by broadcast (`apart`): the
    same bits in every engine of the policy."""
    events = runs.of(name)
    sent, taken = defaultdict(set), defaultdict(set)
    for event in of_kind(events, "sync"):
        sent[event["digest"]].add(event["device"])
    for event in of_kind(events, "weights"):
        taken[event["digest"]].add(event["device"])
    assert len(sent) == syncs and taken.keys() == sent.keys()
    assert max(map(len, taken.values())) == engines
    if name != "apart":
        assert taken == sent


def test_large_pieces_are_fewer_calls(runs):
    methods = {
        "colocated": "update_weight_cuda_ipc",
        "shared": "call_unpickled",
        "apart": "update_weight",
    }
    found = {
        name: [e["method"] for e in of_kind(runs.of(name), "call")].count(of)
        for name, of in methods.items()
    }
    assert found["colocated"] > 20 * 6 and found["apart"] > 20 * 2 and found["shared"] == 1


def test_every_policy_has_a_group_of_its_own_for_broadcasts(runs):
    groups = defaultdict(list)
    for event in of_kind(runs.of("apart"), "nccl group"):
        groups[event["address"]].append(event)
    assert sorted(len(events) for events in groups.values()) == [2, 3]
    for events in groups.values():
        assert sorted(event["rank"] for event in events) == list(range(events[0]["size"]))
        assert len({event["device"] for event in events}) == len(events)
    assert not any(
        of_kind(runs.of(name), "nccl group") for name in ("colocated", "shared", "paper")
    )


# --- the same mathematics
# -------------------------------------------------------------------------------------------------


def test_ids_rows_and_losses_are_those_of_the_cpu_path(runs, on_cpu):
    """Processes of its own for the reference, offloaded states, sleeping engines and weights by IPC
    change nothing of what is
    trained: ids, context, rewards, advantages and losses have the same bits."""
    assert on_cpu.codes["same"] == 0, on_cpu.text("same")[-3000:]
    mine, theirs = (
        runs.lines("colocated", "trajectories.jsonl"),
        on_cpu.lines("same", "trajectories.jsonl"),
    )
    assert theirs
    for a, b in zip(mine, theirs, strict=False):
        assert a["task"] == b["task"] and len(a["actions"]) == len(b["actions"])
        for one, two in zip(a["actions"], b["actions"], strict=True):
            for key in ("ids", "shown_ids", "reward", "advantage"):
                assert one[key] == two[key], (a["task"], key)
            assert one["logprobs"] == pytest.approx(two["logprobs"], abs=LOGPROB_TOLERANCE), a[
                "task"
            ]
    metrics = [
        [m for m in r.lines(n, "metrics.jsonl") if 0 < m["step"] < 3]
        for r, n in ((runs, "colocated"), (on_cpu, "same"))
    ]
    for one, two in zip(*metrics, strict=True):
        for policy in TRAINED:
            for name in SAME_BITS:
                key = f"policy/{policy}/{name}"
                assert one[key] == two[key], key


# --- the first hour
# --------------------------------------------------------------------------------------------------

READ_FROM = {
    **dict.fromkeys(("three", "shared", "apart", "ours", "upstream"), "colocated"),
    **dict.fromkeys(("lora", "lora_killed", "lora_again", "groups"), "colocated"),
    **dict.fromkeys(("zero3", "packed", "ring"), "paper"),
    "resumed": "shared",
}
"""Runs of `python -m benchmarks.gpu`, and that of these tests whose records stand for them.
`make rehearse` makes them all."""


@pytest.mark.parametrize("row", [row for row in ROWS if row != "ways"])  # no run of ours
def test_every_row_of_the_first_hour_is_read_from_the_records_of_a_run(runs, row, tmp_path):
    hour = Hour(Machine(DEVICES, "the stand-in", "tiny", rehearsal=True), tmp_path, minutes=0.0)
    hour.results = {
        name: Result(0, 1.0, runs.folder / made, runs.folder / f"{made}.txt", [1.0, 2.0])
        for name, made in READ_FROM.items()
    }
    how, answer = answered(ROWS[row], hour)
    assert how == "ok", answer
    assert row not in ("ipc", "broadcast") or "the same bits" in answer
