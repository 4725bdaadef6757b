"""Whole runs on the stand-in for CUDA: who holds which device, how it is used, what reaches the
engines, and how runs end."""

import itertools
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
        ("apart", 0),
        ("shared", 0),
        ("resumed", 0),
        ("paper", 0),
        ("adapters", 0),
        ("seated", 0),
        ("too_few", 2),
        ("no_memory", 2),
    ],
)
def test_every_run_ends_as_it_should_and_gives_its_devices_back(runs, name, code):
    assert runs.codes[name] == code, runs.text(name)[-3000:]
    assert runs.codes[f"{name} left"]["GPU"] == DEVICES


@pytest.mark.parametrize(
    ("name", "deaths"),
    [
        ("colocated", {"first": 1, "second": 2}),
        ("apart", {"second": 1}),
        ("adapters", {"first": 1}),
    ],
)
def test_an_engine_that_is_killed_is_replaced_on_its_own_devices(runs, name, deaths):
    """Awake, asleep, or while it takes weights; on devices that it shares, and on its own; and the
    one in its place again."""
    said = runs.text(name)
    for policy, count in deaths.items():
        assert said.count(f"an engine of policy {policy!r} died and was replaced") == count
    engines = by_device(of_kind(runs.of(name), "engine", "worker"))
    assert sorted(len(events) - 1 for events in engines.values() if len(events) > 1) == sorted(
        deaths.values()
    )


def test_nothing_is_left_of_an_engine_that_was_killed(runs):
    """Its actor is dead at once; vLLM's own process would keep the device's memory."""
    for processes in runs.killed("awake_asleep_again").values():
        assert len(processes) > 1 and not any(map(psutil.pid_exists, processes))


def test_a_resumed_run_goes_on_with_the_weights_that_were_saved(runs):
    """Checkpoints that were saved while states were offloaded load again, and the new engine gets
    its weights first."""
    steps = [m["step"] for m in runs.lines("shared", "metrics.jsonl") if m["step"]]
    assert steps == [1, 2]
    *_, before = of_kind(runs.of("shared"), "sync")
    first, *_ = of_kind(runs.of("resumed"), "sync")
    assert first["digest"] == before["digest"]


def test_a_critic_is_trained_beside_its_policy(runs):
    for step in (m for m in runs.lines("shared", "metrics.jsonl") if m["step"]):
        assert (
            step["policy/shared/critic_loss"] > 0
            and step["policy/shared/critic_optimiser_steps"] > 0
        )


def test_too_few_devices_are_refused(runs):
    said = runs.text("too_few")
    assert "needs 12" in said and f"has {DEVICES}" in said
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
        (
            "colocated",
            [["PolicyActor", "ReferenceActor", *["engine"] * engines] for engines in (1, 2, 3)],
        ),
        ("shared", [["CriticActor", "PolicyActor", "ReferenceActor", "engine"]]),
        ("resumed", [["CriticActor", "PolicyActor", "ReferenceActor", "engine"]]),
        ("paper", [["PolicyActor", "ReferenceActor", "engine"]] * 6),
        ("adapters", [[*["AdapterActor"] * 3, "SharedActor", "engine", "engine"]]),
        (
            "apart",
            [
                *(["engine"], ["engine", "engine"], ["worker"], ["worker"]),
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
    (`apart`). One that is replaced has been there twice."""
    found = by_device(
        e for e in of_kind(runs.of(name), "process", "engine", "worker") if e["share"]
    )
    assert all(re.fullmatch(r"\d+", device) for device in found)
    assert sorted(
        sorted(e.get("kind", e["event"]) for e in events) for events in found.values()
    ) == sorted(holders)
    for events in found.values():
        shares = {event.get("kind", event["event"]): event["share"] for event in events}
        assert sum(shares.values()) <= 1 + 1e-9 and (len(shares) == 1) == (events[0]["share"] == 1)


def test_models_are_loaded_once_all_engines_sleep(runs):
    """A policy's states are offloaded as soon as its model is loaded; until then an engine has its
    device to itself."""
    events = runs.of("colocated")
    started = [mine[0]["at"] for mine in by_device(of_kind(events, "engine")).values()]
    asleep = [
        next(e["at"] for e in mine if e["event"] == "sleep")
        for mine in by_device(of_kind(events, "sleep")).values()
    ]
    loaded = [
        next(e["at"] for e in mine) for mine in by_device(of_kind(events, "offload")).values()
    ]
    assert len(started) == len(asleep) == len(loaded) == 3
    assert max(asleep) < min(loaded)


def test_engines_and_the_processes_of_all_policies_take_turns_on_one_device(runs):
    """No training process has its model there while an engine wakes, nor while another one loads:
    it is gone by then."""
    events = [e for e in runs.of("seated") if "at" in e]
    loads, wakes = of_kind(events, "load"), of_kind(events, "wake")
    engines = of_kind(events, "engine")
    assert len(engines) == 3 and {e["device"] for e in [*loads, *wakes, *engines]} == {"0"}
    assert len({e["pid"] for e in loads}) == len(loads) >= 3 * 4 and len(wakes) >= 3 * 3
    assert not [e for e in [*loads, *wakes] if e["beside"]]
    assert "(raylet)" not in runs.text("seated")  # which complains of whom a signal ends
    asleep = {}
    for event in of_kind(events, "engine", "sleep"):
        asleep.setdefault(event["pid"], []).append(event["at"])
    begun = sorted(times[:2] for times in asleep.values())
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(begun)), (
        "an engine started while another one was awake"
    )


# --- order
# --------------------------------------------------------------------------------------------------

LETTERS = {"sleep": "S", "reload": "R", "fit": "F", "offload": "O", "sync": "Y"}


def test_a_device_is_used_for_one_thing_after_the_other(runs):
    """Asleep from the start, and the model's states offloaded; weights into Ray's store, awake and
    taken over; then evaluate, and twice: generate, sleep, log-probs of the policy and of the
    reference, reload, fit, offload, sync. At the end evaluate again."""
    lines = []
    for events in by_device(runs.of("colocated")).values():
        line = ""
        for event in sorted(events, key=lambda e: e.get("begun", e["at"])):
            if event["event"] == "wake":
                line += "".join({"weights": "w", "kv_cache": "k"}[tag] for tag in event["tags"])
            elif event["event"] == "forward":
                line += {"PolicyActor": "p", "ReferenceActor": "r"}[event["kind"]]
            else:
                line += LETTERS.get(event["event"], "")
        once = re.sub(r"p+", "p", re.sub(r"r+", "r", line))
        lines.append(once)
    step = "kSprRFOYw"
    assert f"SOYwkSw{step}{step}kS" in lines  # of the engine that was not killed


def test_nobody_trains_while_an_engine_has_its_cache(runs):
    """The stand-in itself refuses a request, weights and a reset while an engine sleeps, and a step
    on offloaded states."""
    checked = 0
    for events in by_device(runs.of("colocated")).values():
        asleep, since = [], None
        for event in of_kind(events, "sleep", "wake"):
            if event["event"] == "sleep":
                assert event["running"] == 0
                since = since or event["at"]  # one that replaces another falls asleep as well
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
    [
        ("colocated", 9, 1),
        ("apart", 6, 3),
        ("shared", 2, 1),
        ("resumed", 2, 1),
        ("paper", 3, 2),
        ("seated", 9, 1),
    ],
)
def test_engines_hold_the_trainers_weights_after_every_sync(runs, name, syncs, engines):
    """The same bits in every engine of the policy, on shared devices and on others (`apart`, where
    a follower holds earlier versions too)."""
    events = runs.of(name)
    sent, taken = defaultdict(set), defaultdict(set)
    for event in of_kind(events, "sync"):
        sent[event["digest"]].add(event["device"])
    for event in of_kind(events, "weights"):
        taken[event["digest"]].add(event["device"])
    assert len(sent) == syncs and taken.keys() == sent.keys()
    assert max(map(len, taken.values())) >= engines
    if name in ("colocated", "shared", "resumed", "seated"):
        assert taken == sent


def test_a_follower_holds_versions_of_the_policy_that_it_follows(runs):
    """Bit for bit, its earlier ones, of which one is drawn at each sync."""
    events = runs.of("apart")
    of_trainers = by_device(of_kind(events, "sync"))
    held = by_device(of_kind(events, "weights"))
    versions = [[e["digest"] for e in mine] for mine in of_trainers.values()]
    of_followers = [
        [e["digest"] for e in mine]
        for mine in held.values()
        if [e["digest"] for e in mine] not in versions
    ]
    assert any(set(drawn) <= set(mine) for drawn in of_followers for mine in versions)


def test_engines_move_between_policies_that_share_devices_with_training(runs):
    """An engine takes over another policy's weights, and its own again."""
    events = runs.of("paper")
    own = {
        device: {e["digest"] for e in mine}
        for device, mine in by_device(of_kind(events, "sync")).items()
    }
    foreign = [e for e in of_kind(events, "weights") if e["digest"] not in own[e["device"]]]
    assert foreign and runs.codes["paper"] == 0


def test_a_sync_is_a_call_for_each_piece(runs):
    for name in ("colocated", "apart", "shared", "resumed", "paper", "seated"):
        events = runs.of(name)
        calls = [e["method"] for e in of_kind(events, "call")]
        loads = len(of_kind(events, "weights"))
        assert set(calls) <= {"load_piece", "end_with_actor", "call_unpickled"}
        assert calls.count("load_piece") <= loads + 1


# --- the same mathematics
# -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "same"), [("colocated", "same"), ("seated", "same"), ("adapters", "adapters")]
)
def test_ids_rows_and_losses_are_those_of_the_cpu_path(runs, on_cpu, name, same):
    """Processes of its own for the reference, offloaded states, engines that sleep, are killed and
    replaced, training processes that come and go change nothing of what is trained: ids, context, rewards, advantages and losses have
    the same bits."""
    assert on_cpu.codes[same] == 0, on_cpu.text(same)[-3000:]
    mine, theirs = (
        runs.lines(name, "trajectories.jsonl"),
        on_cpu.lines(same, "trajectories.jsonl"),
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
        for r, n in ((runs, name), (on_cpu, same))
    ]
    for one, two in zip(*metrics, strict=True):
        for policy in TRAINED:
            for metric in SAME_BITS:
                key = f"policy/{policy}/{metric}"
                assert one[key] == two[key], key


# --- the first hour
# --------------------------------------------------------------------------------------------------

READ_FROM = {
    **dict.fromkeys(("three", "shared", "apart", "ours", "upstream"), "colocated"),
    **dict.fromkeys(("lora", "lora_killed", "lora_again", "groups", "invariant"), "colocated"),
    **dict.fromkeys(("zero3", "packed", "ring", "tree"), "paper"),
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
