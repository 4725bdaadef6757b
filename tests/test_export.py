"""`openrlhf export`: every recorded action is one row, with the account of the ledger and the ids
of the records."""

import asyncio
import json
from collections import Counter

import pytest
from refusals import refused

from marl_plugins.cli import main
from marl_plugins.commands import export
from marl_plugins.core.failures import InfrastructureFailure
from marl_plugins.engine.records import tables

simulated = pytest.importorskip("simulated_run")
pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of three steps, in whose third one trajectory is lost."""
    folder = tmp_path_factory.mktemp("run")

    def answer(call):
        if call.step == 3 and call.sample == 1 and call.task.endswith("1"):
            raise InfrastructureFailure("calculator", "Connection refused")

    trainer = simulated.simulated_trainer(
        folder, lambda t: 1.0 / (1 + t.sample), answer, steps=3, eval_steps=-1
    )
    asyncio.run(trainer.fit(0))
    return folder


def lines(folder, name):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def actions(folder):
    """Each recorded action with its trajectory's record."""
    return [
        (record, action)
        for record in lines(folder, "trajectories.jsonl")
        for action in record["actions"]
    ]


@pytest.mark.parametrize(
    ("name", "read"), [("rows.parquet", "read_parquet"), ("rows.arrow", "read_feather")]
)
def test_the_table_has_every_action_as_it_was_recorded(recorded, tmp_path, name, read, monkeypatch):
    pandas = pytest.importorskip("pandas")
    monkeypatch.setattr(tables, "PORTION_ROWS", 5)
    assert main(["export", str(recorded), "--to", str(tmp_path / name)]) == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]
    frame = getattr(pandas, read)(tmp_path / name)
    assert list(frame.columns) == list(tables.ACTIONS) and len(frame) > 5
    found = [
        {k: v.tolist() if hasattr(v, "tolist") else v for k, v in row.items()}
        for row in frame.to_dict("records")
    ]
    for row, (record, action) in zip(found, actions(recorded), strict=True):
        assert all(row[name] == record[name] for name in ("step", "task", "sample"))
        same = ("action", "role", "policy", "version", "turn", "finish", "ids", "logprobs", "text")
        assert all(row[name] == action[name] for name in same)
        assert row["trained"] == (action["left_out"] is None)
        if not row["trained"]:
            assert row["left_out"] == action["left_out"]
            continue
        assert row["return"] == action["return"] and row["outcome"] == record["outcome"]
        assert row["advantages"] == action.get(
            "advantages", [action["advantage"]] * len(action["ids"])
        )


def test_its_account_is_the_ledgers(recorded, capsys):
    metrics = lines(recorded, "metrics.jsonl")
    assert main(["export", str(recorded), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    for number, name in (
        ("actions", "rows/generated"),
        ("trained", "rows/trained"),
        ("tokens_sampled", "tokens/sampled"),
    ):
        assert (
            sum(account[number] for account in found.values())
            == sum(step[name] for step in metrics)
            > 0
        )
    assert all(a["actions"] == a["trained"] + sum(a["left_out"].values()) for a in found.values())
    assert main(["export", str(recorded), "--steps", "2", "--json"]) == 0
    of_two = json.loads(capsys.readouterr().out)
    assert (
        sum(a["actions"] for a in of_two.values())
        == Counter(record["step"] for record, _ in actions(recorded))[2]
    )
    assert main(["export", str(recorded)]) == 0
    assert "left out" in capsys.readouterr().out


def test_a_run_that_goes_on_is_read_as_far_as_it_has_got(recorded, tmp_path, capsys):
    text = (recorded / "trajectories.jsonl").read_text()
    (tmp_path / "trajectories.jsonl").write_text(text[: len(text) - 20])
    assert main(["export", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    last = json.loads(text.splitlines()[-1])
    assert sum(a["actions"] for a in found.values()) == len(actions(recorded)) - len(
        last["actions"]
    )


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nowhere"], ("records.unreadable", "nowhere")),
        (["RUN", "--steps", "9:"], ("export.no_actions", "RUN")),
        (["RUN", "--table", "trace"], ("export.no_file", "table", "trace")),
        (["RUN", "--table", "verdicts"], ("export.no_recipe", "table", "verdicts")),
        (["RUN", "--to", "rows.csv"], ("export.form", "to", "rows.csv")),
        (["RUN", "--to", "nowhere/rows.parquet"], ("files.unwritable", "to", "rows.parquet")),
    ],
)
def test_what_cannot_be_done_is_said(recorded, tmp_path, monkeypatch, words, problem):
    monkeypatch.chdir(tmp_path)
    with refused(tuple(recorded.name if part == "RUN" else part for part in problem)):
        export.main([str(recorded) if word == "RUN" else word for word in words])
    assert not list(tmp_path.iterdir())
