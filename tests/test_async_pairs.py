"""Every capability of docs/async.md's table with `--train.async_enable`: its bits do not depend on
what takes how long."""

import asyncio
import json
import random

import pytest
import simulated_run
import test_best
import test_coach_trained_run
import test_populations
import test_swarm
import virtual_time
from openai_server import verdict
from plugin_pairs import OF_ONE, TIMED, differences, parts, records_of, words
from simulated import without_seconds
from simulated_run import simulated_trainer
from simulated_session import SimulatedEngines, SimulatedProcesses, run_planned

from marl_plugins.core.ledger import Ledger
from marl_plugins.core.run import AnswerLimits, ShareTemperatures
from marl_plugins.core.trajectory import Generation
from marl_plugins.engine.plan.build import build_plan

CAPABILITIES = {
    "best step": lambda folder: test_best.trained(folder, "eval/outcome"),
    "populations": test_populations.trained,
    "swarm": lambda folder: test_swarm.fit(test_swarm.peer(folder, folder / "store")),
    "trained judge": lambda folder: asyncio.run(
        test_coach_trained_run.judged_trainer(folder, test_coach_trained_run.opinion, 2).fit(0)
    ),
}


def lines(folder, name):
    (path,) = folder.rglob(name)
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("name", CAPABILITIES)
def test_a_capability_works_and_its_bits_do_not_depend_on_timing(name, tmp_path, monkeypatch):
    monkeypatch.setitem(simulated_run.DEFAULTS, "queue", 1)
    found = []
    for number in range(2):
        monkeypatch.setitem(simulated_run.DEFAULTS, "delays", bool(number))
        folder = tmp_path / str(number)
        folder.mkdir()
        CAPABILITIES[name](folder)
        trajectories = without_seconds(lines(folder, "trajectories.jsonl"))
        found.append((trajectories, lines(folder, "ledger.jsonl")))
    assert found[0] == found[1]
    trajectories, ledgers = found[0]
    for record in ledgers:
        for account in (
            Ledger.from_record(record),
            *filter(None, [Ledger.from_record(record).received]),
        ):
            for role, count in account.generated.items():
                assert count == account.trained[role] + sum(account.left_out.get(role, {}).values())
            assert "stale" not in str(account.record())
    own = {
        (t["step"], a["version"])
        for t in trajectories
        if "origin" not in t
        for a in t["actions"]
        if a["policy"] == "p"
    }
    assert own == {(step, max(0, step - 2)) for step in range(1, 1 + len(ledgers))}


VERDICT_SECONDS, WORK_SECONDS, STEPS = 30.0, 1.0, 6


@pytest.mark.parametrize("queue", [1, 3])
def test_steps_take_as_long_as_a_slow_coach_and_nothing_piles_up(tmp_path, queue):
    """On virtual time; forward passes, updates and syncs take a second each."""
    judged = {"now": 0, "most": 0}

    async def go():
        trainer = simulated_trainer(
            tmp_path, lambda t: 1.0, steps=STEPS, eval_steps=-1, queue=queue
        )
        policy, hook = trainer.session.policies["p"], trainer.plugins.hook
        forward, update, sync = policy.forward, hook.marl_update, hook.marl_sync

        async def verdict():
            judged["now"] += 1
            judged["most"] = max(judged.values())
            await asyncio.sleep(VERDICT_SECONDS)
            judged["now"] -= 1
            return 0.5

        def late(work):
            async def after(*given, **named):
                await asyncio.sleep(WORK_SECONDS)
                return await work(*given, **named)

            return after

        policy.forward, hook.marl_update, hook.marl_sync = map(late, (forward, update, sync))
        hook.marl_score_action = lambda run, action, seen: verdict()
        await trainer.fit(0)

    _, seconds = virtual_time.run(go())
    assert judged["most"] == 4 * 2  # the trajectories of one step
    syncs, last = STEPS + 1, 2  # one at the start; the last steps' own forward passes and updates
    assert seconds == pytest.approx(
        STEPS * VERDICT_SECONDS + syncs * WORK_SECONDS + queue * last * WORK_SECONDS
    )


# --- as planned, of every part that pairs are made of
# ---------------------------------------------------------------------

COACHES = {
    "coach that is a policy of the run": [
        "--coach.policy",
        "coach",
        "--data.max_len",
        "8192",
        "--rollout.max_new_tokens",
        "64",
    ],
}
"""Flags with `--plugin marl_plugins.coach`."""
CONTROLS = {
    "mean_group of limits": (["mean_group"], "max_tokens"),
    "mean_group of tau": (["cooperation", "mean_group"], "tau"),
}
"""Parts, and what the last one scales."""
OF_COACH = """
model: "tiny:positions=8192"
policies: {coach: {trainable: false}}
"""
REFUSED = {"streaming", "curriculum", "filtering", "determinism"}
ESTIMATORS = {name for name in parts() if name.startswith(OF_ONE)}
EVERY_PART = sorted(
    {*parts(), *COACHES, *CONTROLS} - ESTIMATORS - TIMED - REFUSED - {"async", "swarm"}
    | {f"{OF_ONE}gae", f"{OF_ONE}group_norm"}
)
"""Without `swarm`, whose records name the run that they are of; it is above. Of the estimators one
with a critic and one with groups beside the recipe's own."""


@pytest.fixture
def slow(monkeypatch):
    """Sets what decides how long engines and training processes take; a coach is answered with a
    verdict."""
    draw, longest = random.Random(), [0.0]
    generate, forward, update = (
        SimulatedEngines.generate,
        SimulatedProcesses.forward,
        SimulatedProcesses.update,
    )

    async def answer(self, call, choose):
        await asyncio.sleep(longest[0] * draw.random())
        found = await generate(self, call, choose)
        if call.role:
            return found
        tokenizer = self.owner.tokenizer
        asked = {"messages": [{"content": tokenizer.decode(call.context_ids)}]}
        ids = (*tokenizer.encode(verdict(asked, score=found.ids[0] % 10)), tokenizer.eos_token_id)
        return Generation(ids, (-0.5,) * len(ids), "stop", call.policy, found.version)

    async def slow_forward(self, rows, known=()):
        await asyncio.sleep(longest[0] * draw.random())
        return await forward(self, rows, known)

    async def slow_update(self, prepared, steps, step):
        await asyncio.sleep(longest[0] * draw.random())
        return await update(self, prepared, steps, step)

    monkeypatch.setattr(SimulatedEngines, "generate", answer)
    monkeypatch.setattr(SimulatedProcesses, "forward", slow_forward)
    monkeypatch.setattr(SimulatedProcesses, "update", slow_update)

    def set_to(seed, seconds):
        draw.seed(seed)
        longest[0] = seconds

    return set_to


def planned(folder, name):
    folder.mkdir()
    if name in CONTROLS:
        names, scaled = CONTROLS[name]
        flags = {
            "mean_group.scales": scaled,
            "mean_group.control": "0.5",
            "mean_group.rate": "0.5",
            "max_steps": "4",
        }
        return build_plan(words(folder, [*names, "async"], **flags))
    if name not in COACHES:
        return build_plan([*words(folder, [name, "async"]), "--max_steps", "4"])
    found = [
        *words(folder, ["async"]),
        "--max_steps",
        "4",
        "--plugin",
        "marl_plugins.coach",
        *COACHES[name],
    ]
    with (folder / "recipe" / "both.yaml").open("a") as recipe:
        recipe.write(OF_COACH)
    return build_plan(found)


@pytest.mark.parametrize("name", EVERY_PART)
def test_a_step_is_a_function_of_its_number_with_every_part(name, tmp_path, slow):
    (tmp_path / "store").mkdir()
    found = []
    for seed, seconds in enumerate((0.0, 0.003)):
        slow(seed, seconds)
        plan = planned(tmp_path / f"{seed}", name)
        trainer = run_planned(plan)
        learnt = {policy: p.learnt for policy, p in trainer.session.trained.items()}
        found.append((plan, records_of(plan), learnt))
    (_, first, weights), *others = found
    for plan, each, again in others:
        assert not [*differences(plan, first, each)]
        assert again == weights
    if name == "mean_group of limits":
        shortest = dict[int, int]()
        for t in first["trajectories.jsonl"]:
            said = [len(a["ids"]) for a in t["actions"] if a["policy"] in ("left", "right")]
            shortest[t["step"]] = min([shortest.get(t["step"], said[0]), *said])
        assert (
            shortest[1] == shortest[2] > shortest[3]
        )  # the rollout of step 2 is made before step 1 has ended
    if name == "mean_group of tau":
        run = trainer.run
        taus = run.state(ShareTemperatures)
        assert len({taus["left"], taus["right"]}) == 2 and not run.state(AnswerLimits)
    if name in COACHES:
        scores = [
            a["score"]
            for t in first["trajectories.jsonl"]
            for a in t["actions"]
            if a["policy"] != "earlier"
        ]
        assert len({*scores}) > 1 and None not in scores
