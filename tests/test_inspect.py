"""`openrlhf inspect`: lists, queries, comparisons and what is refused."""

import json
import math
from collections import Counter

import inspected_runs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_plugins.cli import main
from marl_plugins.commands.inspect import command
from marl_plugins.commands.inspect.compare import sign_test
from marl_plugins.commands.inspect.index import RunIndex, texts_of
from marl_plugins.commands.inspect.page_writer import Tokens, sampled
from marl_plugins.commands.inspect.shown import trajectory_values
from marl_plugins.commands.inspect.text import whole
from marl_plugins.commands.query import query_of
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.records.read import RunReader
from marl_plugins.engine.records.tables import row_of
from marl_plugins.engine.records.trajectory_record import from_record, to_record


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run's folder and its trajectories."""
    folder = tmp_path_factory.mktemp("inspected") / "run"
    return folder, inspected_runs.write_run(
        folder, samples=3, seed=4, hostile=inspected_runs.HOSTILE
    )


def refused(*words):
    with pytest.raises(ConfigurationError) as caught:
        command.main([*map(str, words)])
    return [(p.code, *(place.name for place in p.where)) for p in caught.value.problems]


def printed(capsys, *words):
    assert main(["inspect", *map(str, words)]) == 0
    return capsys.readouterr().out


# --- the list and its queries
# ----------------------------------------------------------------------------------------------


def test_json_is_one_object_a_line_and_holds_what_was_recorded(run, capsys):
    folder, made = run
    found = [json.loads(line) for line in printed(capsys, folder, "--json").splitlines()]
    assert [(t["step"], t["task"], t["sample"]) for t in found] == [
        (t.step, t.task.id, t.sample) for t in made
    ]
    assert found[-1] == json.loads(json.dumps(trajectory_values(made[-1])))


def test_everything_of_a_trajectory_is_printed_without_control_characters(run, capsys):
    folder, _ = run
    out = printed(capsys, folder, "--full", "--step", "1")
    assert "\x1b" not in out and "\u202e" not in out and "\\x1b]0;ran" in out
    assert all(
        text in out
        for text in (
            "print(6*7)",
            "right 0.5, ends 1",
            "saw: planner.00000001",
            "left out",
        )
    )


QUERIES = [
    ({"task": "t1", "sample": "1"}, lambda t: (t.task.id, t.sample) == ("t1", 1)),
    ({"outcome": "1"}, lambda t: t.outcome == 1),
    ({"failure": "no_answer"}, lambda t: t.agent_failure == "no_answer"),
    ({"left_out": "no_score"}, lambda t: any(a.left_out == "no_score" for a in t.actions)),
    (
        {"role": "reviewer", "score": "0.5:"},
        lambda t: any(a.role == "reviewer" and a.score >= 0.5 for a in t.actions),
    ),
    (
        {"policy": "coder", "advantage": ":-0.5"},
        lambda t: any(a.policy == "coder" and a.advantage <= -0.5 for a in t.actions),
    ),
    ({"find": "IT IS 4[0-2]"}, lambda t: any("it is 42" in a.text for a in t.actions)),
    ({"find": "document.title"}, lambda t: "document.title" in t.actions[0].text),
]


@pytest.mark.parametrize(
    ("words", "wanted"),
    QUERIES,
    ids=[" ".join(f"{k}={v}" for k, v in q.items()) for q, _ in QUERIES],
)
def test_a_query_selects_what_it_says(run, words, wanted):
    folder, made = run
    query = query_of(words)
    index = RunIndex(RunReader(folder), query)
    expected = [(t.step, t.task.id, t.sample) for t in made if wanted(t)]
    assert [entry.key for entry in index.entries] == expected and expected


SPOILT = {
    "times": lambda record: (
        record.update(seconds=math.nan) or record["actions"][0].update(times=[None, None, math.nan])
    ),
    "log-probs": lambda record: [
        action.update(logprobs=[None] * 6) for action in record["actions"]
    ],
    "lost": lambda record: record.update(
        actions=[], outcome=None, infrastructure_failure="engine", detail="it died"
    ),
}
"""What may be missing from a record, or not finite."""


@pytest.mark.parametrize("name", SPOILT)
def test_a_record_of_which_much_is_missing_is_shown(tmp_path, capsys, name):
    inspected_runs.write_run(tmp_path, steps=1, tasks=1, samples=1, evaluated=False)
    (tmp_path / "metrics.jsonl").unlink()
    path = tmp_path / "trajectories.jsonl"
    record = json.loads(path.read_text())
    SPOILT[name](record)
    path.write_text(json.dumps(record) + "\n")
    for flags in (
        [],
        ["--full"],
        ["--html", tmp_path / "page.html"],
    ):
        assert "nan" not in printed(capsys, tmp_path, *flags).split()
    (shown,) = map(json.loads, printed(capsys, tmp_path, "--json").splitlines())
    assert shown["task"] == "t0" and len(shown["actions"]) == len(record["actions"])


# --- two runs
# --------------------------------------------------------------------------------------------------


def test_pairs_are_counted_by_what_became_of_them(tmp_path, capsys):
    a, b = (
        inspected_runs.write_run(tmp_path / name, seed=seed) for name, seed in (("a", 0), ("b", 1))
    )
    found = json.loads(printed(capsys, tmp_path / "a", tmp_path / "b", "--json"))
    change = Counter(
        (y.outcome > x.outcome) - (y.outcome < x.outcome) for x, y in zip(a, b, strict=True)
    )
    assert (len(found["gained"]), len(found["lost"]), found["same"]) == (
        change[1],
        change[-1],
        change[0],
    )
    assert all(
        pair["role"] in ("planner", "coder", "reviewer", "")
        for pair in found["gained"] + found["lost"]
    )
    assert sum(map(sum, found["types"].values())) == found["pairs"] == len(a)
    assert "B is better" in printed(capsys, tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize(("solved", "p"), [(["t0"], 1.0), ([f"t{n}" for n in range(6)], 2**-5)])
def test_a_task_is_one_coin_however_often_it_was_seen(tmp_path, capsys, solved, p):
    """Three steps and two samples of each of six tasks."""
    for name in ("a", "b"):
        inspected_runs.write_run(tmp_path / name, tasks=6)
        path = tmp_path / name / "trajectories.jsonl"
        records = [json.loads(line) for line in path.read_text().splitlines()]
        for record in records:
            if record["task"] in solved:
                record["outcome"] = float(name == "b")
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
    found = json.loads(printed(capsys, tmp_path / "a", tmp_path / "b", "--json"))
    assert len(found["gained"]) == 6 * len(solved)
    assert (found["tasks"], found["p_value"]) == (6, pytest.approx(p))


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (5, 0), (3, 9), (40, 44)])
def test_the_exact_test_is_scipys(gained, lost):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert sign_test(gained, lost) == pytest.approx(expected, rel=1e-9)


def test_a_sample_reaches_from_the_first_steps_to_the_last():
    steps = [step for step in range(300) for _ in range(64)]
    chosen = sampled(steps, 100)
    assert len(chosen) == len(set(chosen)) == 100 and (chosen[0], chosen[-1]) == (0, 297)
    assert sampled(steps[:5], 100) == steps[:5]


# --- what is refused
# --------------------------------------------------------------------------------------------------


PLACES = [
    (),
    ("actions", 0),
    ("actions", -1),
    ("actions", -1, "tools", 0),
    ("tools", 0),
    ("files", 0),
]
VALUES = [None, True, 3, -2.5, "x", [], {}, [None], ["a", 1], {"a": [1]}, [{}]]


@given(st.data())
def test_a_record_is_shown_or_refused_whatever_a_value_in_it_is(run, data):
    """One key of a record, anywhere in it, is lost or gets another value: no way of showing it
    fails in another way."""
    record = json.loads(json.dumps(to_record(data.draw(st.sampled_from(run[1])))))
    part = record
    for key in data.draw(st.sampled_from(PLACES)):
        if not part or (isinstance(key, str) and not part.get(key)):
            break
        part = part[key]
    if isinstance(part, dict):
        key = data.draw(st.sampled_from(sorted(part)))
        part[key] = data.draw(st.sampled_from(VALUES))
        if data.draw(st.booleans()):
            del part[key]
    try:
        trajectory = from_record(record)
    except ValueError:
        return
    shown = trajectory_values(trajectory)
    assert list(whole(shown))
    assert json.dumps(
        [Tokens(run[0], {}).of(action) for action in trajectory.actions],
        allow_nan=False,
    )
    assert list(texts_of(trajectory)) and all(
        row_of(trajectory, action) for action in trajectory.actions
    )
