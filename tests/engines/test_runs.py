"""Whole runs through the real engines: exact records, ragged rows on two ranks, kills and
resumption."""

import json
import shutil
from collections import Counter, defaultdict

import pytest
from engines.relay import Started, wait_until
from simulated import without_logprobs

from marl_plugins.engine.plan.resume import sealed
from marl_plugins.engine.runtime.tiny_model import resolve

TIMED = {"engines/restarted", "tokens_per_second"}


def comparable(metrics):
    """Metrics without what measures time, counts restarts, or depends on it: vLLM's log-probs, and
    so the drift, depend in their last bits on what else was in the batch, which is a matter of
    time. What was sampled does not."""
    return [
        {k: v for k, v in m.items() if "seconds" not in k and "drift" not in k and k not in TIMED}
        for m in metrics
    ]


def test_three_steps_with_every_policy_and_the_table(undisturbed):
    assert [m["step"] for m in undisturbed.metrics] == [1, 2, 3]
    text = undisturbed.log.read_text()
    assert "first prompt of first" in text
    assert text.count("first prompt of second") == 1
    assert "|grad|" in text
    for m in undisturbed.metrics:
        assert (
            m["policy/first/optimiser_steps"] == m["policy/second/optimiser_steps"] == 2
        )  # K = 6 trajectories / 3


def test_rows_are_ragged_and_all_of_them_are_trained(undisturbed):
    counts = [entry["roles"]["second"]["generated"] for entry in undisturbed.ledger]
    assert any(count % 8 for count in counts)  # not a multiple of ranks x micro-batch
    for entry in undisturbed.ledger:
        for role in ("first", "second"):
            assert entry["roles"][role]["trained"] == entry["roles"][role]["generated"] > 0
        if "judge" in entry["roles"]:
            judge = entry["roles"]["judge"]
            assert judge["left_out"] == {"frozen": judge["generated"]}


def test_the_schedule_of_records_is_complete(undisturbed):
    per_step = Counter(t["step"] for t in undisturbed.trajectories)
    assert per_step == {1: 6, 2: 6, 3: 6}
    assert {t["schema"] for t in undisturbed.trajectories} == {1}
    keys = {(t["step"], t["task"], t["sample"], a["action"]) for t, a in undisturbed.actions}
    assert len(keys) == len(undisturbed.actions)


def test_tool_turns_continue_the_sampled_ids(undisturbed):
    """Every later turn names the turn it continues; its own ids are only what the tool's answer
    added."""
    later = [(t, a) for t, a in undisturbed.actions if a["continues"]]
    assert later
    for t, a in later:
        before = next(b for b in t["actions"] if b["action"] == a["continues"])
        assert a["turn"] == before["turn"] + 1
        assert before["tools"]
        assert len(a["shown_ids"]) < 80


def test_what_was_trained_is_what_was_sampled(undisturbed):
    """The trainer's own log-probs of the recorded ids agree with those of the engine that sampled
    them.

    One token of difference in a context, or weights that were not synchronised, would show as a
    difference of order 1.
    """
    for m in undisturbed.metrics:
        assert m["drift/max"] < 0.01, m


def test_versions_follow_the_updates(undisturbed):
    versions = defaultdict(set)
    for t, a in undisturbed.actions:
        versions[t["step"], a["policy"]].add(a["version"])
    for step in (1, 2, 3):
        assert versions[step, "first"] == versions[step, "second"] == {step - 1}
    assert {v for (_, policy), vs in versions.items() for v in vs if policy == "judge"} == {0}


def test_advantages_are_normalised_over_both_policies(undisturbed):
    """Token-weighted mean 0 and variance 1 over all trained tokens of the step, both policies
    together."""
    for step in (1, 2, 3):
        values = []
        for t, a in undisturbed.actions:
            if t["step"] == step and a["advantage"] is not None:
                values += [a["advantage"]] * len(a["ids"])
        mean = sum(values) / len(values)
        variance = sum((v - mean) ** 2 for v in values) / len(values)
        assert abs(mean) < 1e-4
        assert variance == pytest.approx(
            1.0, abs=0.05
        )  # per action, the KL penalty varies within it


def test_the_evaluation_is_counted(undisturbed):
    """Before the first step, every second one, and after the last."""
    found = undisturbed.evaluations
    assert [m["step"] for m in found] == [0, 2, 3]
    assert all(m["eval/lost"] == 0 and m["eval/tasks"] == 3 for m in found)
    assert all(m["eval/low"] <= m["eval/outcome"] <= m["eval/high"] for m in found)


def test_a_plugin_may_ask_a_policy_of_the_run(undisturbed):
    """What it was told is in the records; that it repeats is seen with everything else in the
    resumed run's."""
    assert all("said" in t["outcome_parts"] for t in undisturbed.trajectories)


def test_a_finished_run_leaves_its_report(undisturbed):
    assert "| success on 3 held-out tasks |" in (undisturbed.output / "report.md").read_text()
    assert (undisturbed.output / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_each_policy_is_saved_in_its_own_folder_and_loads(undisturbed):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    for name, start in (("first", "tiny"), ("second", "tiny:seed=1")):
        folder = undisturbed.output / name
        trained, initial = (
            AutoModelForCausalLM.from_pretrained(p) for p in (folder, resolve(start))
        )
        changed = [
            not torch.equal(a.bfloat16(), b.bfloat16())
            for a, b in zip(trained.parameters(), initial.parameters(), strict=True)
        ]
        assert any(changed)
        assert AutoTokenizer.from_pretrained(folder).chat_template
    assert not (undisturbed.output / "judge").exists()  # frozen


def test_nothing_is_left_running(undisturbed):
    assert not undisturbed.processes()


def test_a_killed_engine_is_replaced_and_changes_nothing(killed, undisturbed):
    before = killed.metrics_before
    assert [m["step"] for m in before] == [1, 2]
    assert [m["engines/restarted"] for m in before] == [1, 2]
    assert all(entry["lost"] == {} for entry in killed.ledger[:2])
    assert comparable(before) == comparable(undisturbed.metrics[:2])


def test_a_stopped_engine_is_found_by_the_watchdog(killed):
    text = killed.log.read_text()
    assert "step 1: an engine of policy 'second' died and was replaced; 2 more may be" in text
    assert (
        "step 2: an engine of policy 'first' answered nothing for 60 s (limits.silence_seconds; "
        "process " in text
    )
    assert (
        "(stopped)) and was replaced; " in text
    )  # on a busy machine the new one may be late too, and cost a restart


def test_the_manifest_names_the_last_complete_step(killed):
    manifest = json.loads((killed.output.parent / "checkpoints" / "manifest.json").read_text())
    assert manifest["policies"] == {"first": manifest["step"], "second": manifest["step"]}


def test_the_resumed_run_repeats_the_undisturbed_one(resumed, undisturbed):
    assert "resuming after step 2" in resumed.log.read_text()
    assert resumed.log.read_text().splitlines()[-1].startswith("finished step "), (
        "no complaint of leaks after it"
    )
    assert comparable(resumed.metrics) == comparable(undisturbed.metrics)
    (one, mine), (two, others) = map(
        without_logprobs, (resumed.trajectories, undisturbed.trajectories)
    )
    assert one == two  # sampled ids, rewards, advantages: all of it
    assert mine == pytest.approx(others, abs=1e-2)
    assert resumed.ledger == undisturbed.ledger


def test_and_ends_with_the_same_weights(resumed, undisturbed):
    for name in ("first", "second"):
        one, two = (
            (run.output / name / "model.safetensors").read_bytes() for run in (resumed, undisturbed)
        )
        assert one == two


def test_a_program_and_policies_that_take_turns_on_their_seats_train_the_same(
    tmp_path, relay, undisturbed, template
):
    """Two seats, and one of two policies needs both: in every pass of a step, and to be saved, one
    makes room for the other. A program that asks the endpoint stands in the place of the workflow;
    neither changes anything."""
    flags = ["--reinforce_pp.scope", "action", "--plugin", "marl_plugins.process_groups"]
    run = Started(tmp_path, relay / "program.yaml", *flags, template=template).run()
    metrics = comparable(run.metrics)
    assert all(m.pop("process_groups/changes") >= 2 for m in metrics)
    assert metrics == comparable(undisturbed.metrics)
    assert without_logprobs(run.trajectories)[0] == without_logprobs(undisturbed.trajectories)[0]
    for name in ("first", "second"):
        one, two = (
            (r.output / name / "model.safetensors").read_bytes() for r in (run, undisturbed)
        )
        assert one == two


def test_a_part_of_one_rank_that_is_lost_is_named_at_once(undisturbed, relay, tmp_path, template):
    """The manifest does not list it, so that only loading shows it, while the other rank waits."""
    run = Started(tmp_path, relay, "--reinforce_pp.scope", "action", template=template)
    shutil.copytree(undisturbed.output.parent / "checkpoints", tmp_path / "checkpoints")
    path = tmp_path / "checkpoints" / "manifest.json"
    manifest = json.loads(path.read_text())
    part = tmp_path / "checkpoints" / "second" / "_actor" / f"global_step{manifest['step']}"
    lost = next(p for p in sorted(part.glob("*_optim_states.pt")) if "rank_1_" in p.name)
    lost.unlink()
    del manifest["digest"], manifest["files"][str(lost.relative_to(tmp_path / "checkpoints"))]
    path.write_text(json.dumps(sealed(manifest)))
    run.run("--ckpt.load_enable", code=2)
    assert f"policy 'second': the checkpoint {part} cannot be loaded: " in run.log.read_text()
    assert wait_until(lambda: not run.processes())


def test_saved_weights_evaluate_as_the_run_did(undisturbed, relay, template, tmp_path):
    """Engines only: seeds are those of the run's own evaluations, also where a program asks them in
    place of the workflow."""
    recipe, models = str(relay / "program.yaml"), str(undisturbed.output)
    words = ["eval", "--recipe", recipe, "--models", models, "--only", "first", "second", "--json"]
    code, out, errors = template.run(words, tmp_path)
    assert code == 0, errors[-3000:]
    result = json.loads(out.splitlines()[-1])
    last = undisturbed.evaluations[-1]
    assert {k: result[k] for k in ("outcome", "low", "high", "lost")} == {
        k: last[f"eval/{k}"] for k in ("outcome", "low", "high", "lost")
    }


def test_a_killed_driver_takes_everything_with_it(killed):
    """Last, because Ray's own agents take a minute or two to notice that their node has gone."""
    assert wait_until(lambda: not killed.processes().keys() & killed.at_the_kill.keys()), (
        killed.at_the_kill
    )
