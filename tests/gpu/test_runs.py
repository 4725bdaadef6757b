"""Whole runs on the stand-in for CUDA: who holds which device, how it is used, what reaches the engines, and how runs end."""

import re
from collections import defaultdict

import pytest
from gpu.conftest import DEVICES

pytestmark = pytest.mark.engines
TRAINED = ("first", "second", "judge")
"""Of the colocated run."""
SAME_BITS = ("policy_loss", "kl", "actor_grad_norm", "return", "response_length", "optimiser_steps")


def of_kind(events, *kinds):
    return [event for event in events if event["event"] in kinds]


def by_device(events):
    found = defaultdict(list)
    for event in sorted(events, key=lambda e: e["at"]):
        found[event["device"]].append(event)
    return dict(found)


# --- how they end ---------------------------------------------------------------------------------------------------------


def test_a_run_ends_well_and_gives_its_devices_back(runs):
    assert runs.codes["colocated"] == 0, runs.text("colocated")[-3000:]
    assert runs.codes["colocated left"]["GPU"] == DEVICES


# --- devices --------------------------------------------------------------------------------------------------------------


def test_every_device_is_held_by_one_policys_processes_and_no_more_than_once(runs):
    found = by_device(of_kind(runs.of("colocated"), "process", "engine"))
    assert all(re.fullmatch(r"\d+", device) for device in found) and len(found) == 3
    for events in found.values():
        assert sorted(e.get("kind", e["event"]) for e in events) == ["PolicyActor", "ReferenceActor", "engine"]
        assert sum(event["share"] for event in events) <= 1


def test_models_are_loaded_once_all_engines_sleep(runs):
    """A policy's states are offloaded as soon as its model is loaded; until then an engine has its device to itself."""
    events = runs.of("colocated")
    started = [event["at"] for event in of_kind(events, "engine")]
    asleep = [next(e["at"] for e in mine if e["event"] == "sleep") for mine in by_device(of_kind(events, "sleep")).values()]
    loaded = [next(e["at"] for e in mine) for mine in by_device(of_kind(events, "offload")).values()]
    assert len(started) == len(asleep) == len(loaded) == 3
    assert max(asleep) < min(loaded)


# --- order ----------------------------------------------------------------------------------------------------------------

LETTERS = {"sleep": "S", "reload": "R", "fit": "F", "offload": "O", "sync": "Y"}


def test_a_device_is_used_for_one_thing_after_the_other(runs):
    """Asleep from the start, and the model's states offloaded; then evaluate, and twice: generate, sleep, log-probs of the policy
    and of the reference, reload, fit, offload, weights awake, sync. At the end evaluate again."""
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
    """The stand-in itself refuses a request, weights and a reset while an engine sleeps, and a step on offloaded states."""
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
            assert any(begin <= event["begun"] and event["at"] <= end for begin, end in asleep), event
            checked += 1
    assert checked >= 3 * 2 * 3


# --- weight sync ----------------------------------------------------------------------------------------------------------


def test_engines_hold_the_trainers_weights_after_every_sync(runs):
    """By CUDA IPC: the same bits, on the same device."""
    events = runs.of("colocated")
    sent, taken = ({e["digest"]: e["device"] for e in of_kind(events, kind)} for kind in ("sync", "weights"))
    assert sent == taken and len(sent) == len(of_kind(events, "sync")) == 2 * 3
    assert not of_kind(events, "nccl group")


# --- the same mathematics -------------------------------------------------------------------------------------------------


def test_ids_rows_and_losses_are_those_of_the_cpu_path(runs, on_cpu):
    """Processes of its own for the reference, offloaded states, sleeping engines and weights by IPC change no number."""
    assert on_cpu.codes["same"] == 0, on_cpu.text("same")[-3000:]
    mine, theirs = runs.lines("colocated", "trajectories.jsonl"), on_cpu.lines("same", "trajectories.jsonl")
    assert theirs
    for a, b in zip(mine, theirs, strict=False):
        assert a["task"] == b["task"] and len(a["actions"]) == len(b["actions"])
        for one, two in zip(a["actions"], b["actions"], strict=True):
            for key in ("ids", "context_ids", "reward", "advantage", "logprobs"):
                if key in one:
                    assert one[key] == two[key], (a["task"], key)
    metrics = [
        [m for m in r.lines(n, "metrics.jsonl") if 0 < m["step"] < 3] for r, n in ((runs, "colocated"), (on_cpu, "same"))
    ]
    for one, two in zip(*metrics, strict=True):
        for policy in TRAINED:
            for name in SAME_BITS:
                key = f"policy/{policy}/{name}"
                assert one[key] == two[key], key
