"""`openrlhf inspect`: lists, queries, comparisons and what is refused."""

import errno
import json
import math
import os
import random
import subprocess
import sys
from collections import Counter
from datetime import UTC, datetime

import inspected_runs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_plugins.cli import main
from marl_plugins.commands.inspect import command
from marl_plugins.commands.inspect.compare import sign_test
from marl_plugins.commands.inspect.follow import RunFollower
from marl_plugins.commands.inspect.index import RunIndex, texts_of
from marl_plugins.commands.inspect.inspect_log import sample_of
from marl_plugins.commands.inspect.page_writer import Tokens
from marl_plugins.commands.inspect.query import Query, query_of, terms_of
from marl_plugins.commands.inspect.sampling import sampled
from marl_plugins.commands.inspect.shown import trajectory_values
from marl_plugins.commands.inspect.text import whole
from marl_plugins.commands.inspect.tokens import TokenTexts
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.redaction import encodable
from marl_plugins.engine.records.read import Filter, RunReader
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


def test_the_list_has_a_line_for_each_trajectory(run, capsys):
    folder, made = run
    lines = printed(capsys, folder).splitlines()
    assert len(lines) == len(made) + 2 and lines[-1] == f"{len(made)} trajectories"
    assert not any(ord(c) < 32 or c in "\u202e\u2066" for line in lines for c in line)


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
            "\n-41\n+42\n",
        )
    )


QUERIES = [
    ({"step": "2:3"}, lambda t: 2 <= t.step <= 3),
    ({"task": "t1", "sample": "1"}, lambda t: (t.task.id, t.sample) == ("t1", 1)),
    ({"outcome": "1"}, lambda t: t.outcome == 1),
    ({"outcome": ":0.5"}, lambda t: t.outcome <= 0.5),
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
    ({"find": "asked of reviewer"}, lambda t: True),
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
    index = RunIndex(RunReader(folder), query.wanted, query.find)
    expected = [(t.step, t.task.id, t.sample) for t in made if wanted(t)]
    assert [entry.key for entry in index.entries] == expected and expected


def test_an_entry_opens_the_trajectory_of_its_line(run):
    folder, made = run
    index = RunIndex(RunReader(folder), Filter())
    for entry, trajectory in zip(index.entries, made, strict=True):
        record = json.loads(
            json.dumps(to_record(trajectory), ensure_ascii=False).encode(
                "utf-8", "backslashreplace"
            )
        )
        assert to_record(index.open(entry)) == record


def test_evaluations_are_shown_in_place_of_training(run, capsys):
    folder, _ = run
    assert printed(capsys, folder, "--evaluations").splitlines()[-1] == "8 trajectories"


@given(
    st.dictionaries(
        st.sampled_from(["role", "task", "find", "step"]),
        st.text("ab =\"'", min_size=1),
        max_size=3,
    )
)
def test_terms_are_read_back_from_the_line_that_was_written(words):
    import shlex

    line = " ".join(f"{name}={shlex.quote(word)}" for name, word in words.items())
    assert terms_of(line) == words


def test_what_is_not_finite_or_missing_is_shown_as_nothing(tmp_path, capsys):
    rng = random.Random(0)
    made = inspected_runs.trajectory(rng, 1, "t0", 0)
    made.outcome, made.actions[0].score, made.actions[0].reward, made.actions[1].parents = (
        math.nan,
        None,
        math.inf,
        ("gone.1",),
    )
    lost = inspected_runs.trajectory(rng, 1, "t1", 0, actions=[])
    lost.outcome, lost.infrastructure_failure, lost.detail = None, "engine", "it died"
    text = "".join(json.dumps(to_record(t)) + "\n" for t in (made, lost))
    (tmp_path / "trajectories.jsonl").write_text(text)
    first, second = (json.loads(line) for line in printed(capsys, tmp_path, "--json").splitlines())
    assert first["outcome"] is first["actions"][0]["reward"] is None and second["actions"] == []
    assert "[engine]" in printed(capsys, tmp_path) and "it died" in printed(
        capsys, tmp_path, "--full"
    )
    assert main(["inspect", str(tmp_path), "--html", str(tmp_path / "page.html")]) == 0


SPOILT = {
    "outcome": lambda record: record.update(outcome=None),
    "times": lambda record: (
        record.update(seconds=math.nan) or record["actions"][0].update(times=[None, None, math.nan])
    ),
    "log-probs": lambda record: [
        action.update(logprobs=[None] * 6) for action in record["actions"]
    ],
    "advantages": lambda record: [
        action.update(advantages=[math.inf, None] * 3) for action in record["actions"]
    ],
    "no actions": lambda record: record.update(actions=[], returned=None),
    "parent": lambda record: record["actions"][3].update(parents=["gone.1"]),
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
        ["--to", tmp_path / "run.json"],
    ):
        assert "nan" not in printed(capsys, tmp_path, *flags).split()
    (shown,) = map(json.loads, printed(capsys, tmp_path, "--json").splitlines())
    assert shown["task"] == "t0" and len(shown["actions"]) == len(record["actions"])


def test_a_record_that_changes_while_it_is_shown_is_refused(tmp_path):
    made = inspected_runs.write_run(tmp_path, steps=1, evaluated=False)
    index = RunIndex(RunReader(tmp_path), Filter())
    path = tmp_path / "trajectories.jsonl"
    path.write_text(
        "resumed\n" + path.read_text()
    )  # its lines are elsewhere, as after a resumption
    for _ in range(2):
        with pytest.raises(ConfigurationError) as caught:
            index.open(index.entries[-1])
        assert [p.code for p in caught.value.problems] == ["records.form"] and len(made) == len(
            index.entries
        )
        path.unlink(missing_ok=True)


# --- a run in progress
# --------------------------------------------------------------------------------------------------


def test_a_run_in_progress_is_followed_line_by_line(tmp_path):
    inspected_runs.write_run(tmp_path, steps=1)
    path, query = tmp_path / "trajectories.jsonl", Query()
    index = RunIndex(RunReader(tmp_path), query.wanted)
    follower, before = RunFollower(index, query), len(index.entries)
    more = json.dumps(to_record(inspected_runs.trajectory(random.Random(1), 2, "t0", 0)))
    with path.open("a") as file:
        file.write(more[:100])
    assert not follower.update(query) and len(index.entries) == before
    with path.open("a") as file:
        file.write(more[100:] + "\n")
    assert (
        follower.update(query)
        and index.entries[-1].key == (2, "t0", 0)
        and index.open(index.entries[-1]).step == 2
    )
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:3]))  # as a resumed run cuts its records
    assert follower.update(query) and len(index.entries) == 3


def test_half_a_last_line_is_left_out(tmp_path, capsys):
    made = inspected_runs.write_run(tmp_path, steps=1)
    path = tmp_path / "trajectories.jsonl"
    path.write_bytes(path.read_bytes()[:-40])
    assert printed(capsys, tmp_path).splitlines()[-1] == f"{len(made) - 1} trajectories"


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


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (5, 0), (3, 9), (40, 44)])
def test_the_exact_test_is_scipys(gained, lost):
    stats = pytest.importorskip("scipy.stats")
    expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert sign_test(gained, lost) == pytest.approx(expected, rel=1e-9)


# --- a page of a part
# --------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(1, 5), min_size=1, max_size=60), st.integers(1, 40))
def test_a_sample_takes_its_share_of_each_step(steps, most):
    class Entry:
        def __init__(self, step):
            self.step = step

    entries = [Entry(step) for step in sorted(steps)]
    chosen = sampled(entries, most)
    counts = Counter(entry.step for entry in chosen)
    assert len(chosen) == len(set(map(id, chosen))) <= most and [e.step for e in chosen] == sorted(
        e.step for e in chosen
    )
    if len(entries) > most >= len(set(steps)):
        share = most // len(set(steps))
        assert all(counts[step] == min(share, steps.count(step)) for step in set(steps))


# --- a log of Inspect
# --------------------------------------------------------------------------------------------------


def test_inspects_library_reads_the_log_back(tmp_path, capsys):
    log = pytest.importorskip("inspect_ai.log", reason="pip install inspect_ai")
    made = inspected_runs.write_run(
        tmp_path / "run", steps=2, hostile=inspected_runs.HOSTILE, evaluated=False
    )
    lost = inspected_runs.trajectory(random.Random(1), 3, "t0", 0)
    lost.outcome, lost.infrastructure_failure, lost.detail = None, "engine", "it died"
    with (tmp_path / "run" / "trajectories.jsonl").open("a") as file:
        file.write(json.dumps(to_record(lost)) + "\n")
    printed(capsys, tmp_path / "run", "--to", tmp_path / "run.eval")
    read = log.read_eval_log(str(tmp_path / "run.eval"), resolve_attachments="full")
    assert len({(s.id, s.epoch) for s in read.samples}) == len(read.samples) == len(made) + 1
    assert (
        read.eval.dataset.samples * read.eval.config.epochs
        == read.results.total_samples
        == len(read.samples)
    )
    took = datetime.fromisoformat(read.stats.completed_at) - datetime.fromisoformat(
        read.stats.started_at
    )
    metrics = RunReader(tmp_path / "run").metrics()
    assert took.total_seconds() == pytest.approx(
        sum(line["seconds/rollout"] for line in metrics), abs=1e-3
    )
    by_name = {
        (s.metadata["step"], s.metadata["task"], s.metadata["sample"]): s for s in read.samples
    }
    for t in (*made, lost):
        sample = by_name[t.step, t.task.id, t.sample]
        credits = [event for event in sample.events if event.event == "info"]
        assert [event.span_id for event in credits] == [a.path for a in t.actions]
        assert [event.data["advantage"] for event in credits] == [a.advantage for a in t.actions]
        said = [
            event.output.choices[0].message.text
            for event in sample.events
            if event.event == "model"
        ]
        assert said == [encodable(a.text) for a in t.actions]
        assert [e.result for e in sample.events if e.event == "tool"] == [
            r.output for a in t.actions for r in a.tool_results
        ]
        assert bool(sample.error) == bool(t.infrastructure_failure)
        assert {name: score.value for name, score in sample.scores.items()} == (
            {} if t.outcome is None else {"outcome": t.outcome}
        )


def test_without_inspects_library_the_extra_is_named(run, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "inspect_ai.log", None)
    assert refused(run[0], "--to", tmp_path / "run.eval") == [("viewer.log_extra", "to")]


# --- what is refused
# --------------------------------------------------------------------------------------------------


def test_wrong_words_are_refused_with_their_place(run):
    folder, _ = run
    assert refused(folder, "--find", "(", "--step", "x", "--outcome", "3") == [
        ("viewer.value", "step"),
        ("viewer.value", "outcome"),
        ("viewer.value", "find"),
    ]
    assert refused(folder, "--advantage", "2:1") == [("viewer.value", "advantage")]
    assert refused(folder, "--to", "run.csv") == [("viewer.log_suffix", "to")]
    assert refused(folder, "--role", "nobody") == [("viewer.nothing", str(folder))]
    with pytest.raises(ConfigurationError) as caught:
        command.main([str(folder), "--role", "codr"])
    assert "'coder'" in caught.value.problems[0].fix
    assert refused(folder, folder, folder) == [("viewer.runs", "openrlhf inspect")]
    assert refused(folder, folder, "--full") == [("viewer.two_runs", "full", "follow", "to")]
    with pytest.raises(ConfigurationError) as caught:
        query_of({"roel": "coder"})
    assert [(p.code, p.where[0].name) for p in caught.value.problems] == [("viewer.term", "roel")]
    with pytest.raises(ConfigurationError) as caught:
        terms_of('find="a')
    assert [p.code for p in caught.value.problems] == ["viewer.value"]


def test_runs_that_share_nothing_are_refused(run, tmp_path):
    folder, _ = run
    inspected_runs.write_run(tmp_path / "other", steps=1, tasks=1)
    (path := tmp_path / "other" / "trajectories.jsonl").write_text(
        path.read_text().replace('"task": "t', '"task": "u')
    )
    assert [code for code, *_ in refused(folder, tmp_path / "other")] == ["viewer.unpaired"]


def test_no_run_and_no_records_are_refused(tmp_path):
    assert [code for code, *_ in refused(tmp_path / "gone")] == ["records.unreadable"]
    assert [code for code, *_ in refused(tmp_path)] == ["records.unreadable"]
    (tmp_path / "trajectories.jsonl").write_text("")
    assert [code for code, *_ in refused(tmp_path)] == ["viewer.nothing"]
    (tmp_path / "trajectories.jsonl").write_text(
        '{"schema": 2, "step": 1, "actions": []}\n{"schema": 1, "step": 1}\n'
    )
    assert [code for code, *_ in refused(tmp_path)] == ["records.form", "records.form"]


def test_what_is_wrong_with_many_lines_alike_is_said_once(run, tmp_path):
    text = (run[0] / "trajectories.jsonl").read_text()
    (tmp_path / "trajectories.jsonl").write_text(text.replace('"schema": 1', '"schema": 2'))
    with pytest.raises(ConfigurationError) as caught:
        command.main([str(tmp_path), "--json"])
    (problem,) = caught.value.problems
    assert problem.count == text.count("\n")


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
    assert list(whole(shown)) and sample_of(shown, datetime.now(UTC)).id
    assert json.dumps(
        [Tokens(TokenTexts(run[0]), {}).of(action) for action in trajectory.actions],
        allow_nan=False,
    )
    assert list(texts_of(trajectory)) and all(
        row_of(trajectory, action) for action in trajectory.actions
    )


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_nobody_takes_ends_the_command_in_a_sentence(run, unbuffered):
    """A full disk, and a reader that is gone."""

    def ended(stdout):
        words = [sys.executable, "-m", "marl_plugins", "inspect", str(run[0])]
        env = os.environ | {"PYTHONUNBUFFERED": unbuffered}
        return subprocess.run(words, stdout=stdout, stderr=subprocess.PIPE, text=True, env=env)

    with open("/dev/full", "w") as full:
        got = ended(full)
    assert (
        got.returncode == 2
        and got.stderr.count("\n") == 1
        and os.strerror(errno.ENOSPC) in got.stderr
    )
    reader, writer = os.pipe()
    os.close(reader)
    got = ended(writer)
    os.close(writer)
    assert (got.returncode, got.stderr) == (0, "")


def test_a_page_that_cannot_be_written_leaves_the_old_one(run, tmp_path, monkeypatch):
    folder, _ = run
    page = tmp_path / "page.html"
    page.write_text("old")
    for flag, name in (("--html", "page.html"), ("--to", "run.eval")):
        assert refused(folder, flag, tmp_path / "no" / name)[0][0] == "viewer.unwritable"
    os.mkfifo(tmp_path / "pipe.html")
    assert refused(folder, "--html", tmp_path / "pipe.html")[0][0] == "viewer.unwritable"
    assert (tmp_path / "pipe.html").is_fifo()
    (tmp_path / "pipe.html").unlink()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    assert refused(folder, "--html", page)[0][0] == "viewer.unwritable"
    assert page.read_text() == "old" and [path.name for path in tmp_path.iterdir()] == ["page.html"]
    monkeypatch.setattr("os.unlink", full)  # as on a file system that is read only
    assert refused(folder, "--html", page)[0][0] == "viewer.unwritable"
