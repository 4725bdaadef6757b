"""Every capability of docs/async.md's table with `--train.async_enable`, as the capability's own tests run it."""

import asyncio
import json

import pytest
import simulated_run
import test_best
import test_coach_trained_run
import test_opponent_pool
import test_populations
import test_replay
import test_swarm
import test_transfer
from simulated import without_seconds
from simulated_run import simulated_trainer

from marl_plugins.core.ledger import Ledger
from marl_plugins.hosts import upstream_cli
from marl_plugins.manager import Plugins


def named(*plugins):
    """Runs plugins with their own defaults."""

    def run(folder):
        trainer = simulated_trainer(folder, lambda t: float(t.sample == 0), eval_steps=2, plugins=plugins)
        parser = upstream_cli.Parser()
        Plugins(plugins).options(parser)
        for name, value in vars(parser.parse_args([])).items():
            group, _, flag = name.partition(".")
            vars(vars(trainer.run.args).setdefault(group, simulated_run.SimpleNamespace()))[flag] = value
        trainer.plugins.hook.marl_log = trainer.plugins.named.hook.marl_log
        asyncio.run(trainer.fit(0))

    return run


CAPABILITIES = {
    "best step": lambda folder: test_best.trained(folder, "eval/outcome"),
    "followers and opponent pool": test_opponent_pool.resumed,
    "populations": test_populations.trained,
    "replay": test_replay.trained,
    "swarm": lambda folder: test_swarm.fit(test_swarm.peer(folder, folder / "store")),
    "transfer": test_transfer.trained,
    "trained judge": lambda folder: asyncio.run(
        test_coach_trained_run.judged_trainer(folder, test_coach_trained_run.opinion, 2).fit(0)
    ),
    "competence": named("marl_plugins.competence"),
    "cooperation": named("marl_plugins.cooperation"),
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
        for account in Ledger.from_record(record), *filter(None, [Ledger.from_record(record).received]):
            for role, count in account.generated.items():
                assert count == account.trained[role] + sum(account.left_out.get(role, {}).values())
            assert "stale" not in str(account.record())
    own = {(t["step"], a["version"]) for t in trajectories if "origin" not in t for a in t["actions"] if a["policy"] == "p"}
    assert own == {(step, max(0, step - 2)) for step in range(1, 1 + len(ledgers))}
