"""The one reader of a run's folder: against plain JSON, with filters, half lines, damage, runs in
progress and resumed ones."""

import asyncio
import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.ledger import Ledger
from marl_plugins.engine.records.read import Filter, RunReader
from marl_plugins.engine.records.write import FILES, cut_back

simulated = pytest.importorskip("simulated_run")
STEPS = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of four steps with an evaluation after every one, in whose third step a trajectory is
    lost."""
    folder = tmp_path_factory.mktemp("run")

    def answer(call):
        if call.step == 3 and call.sample == 1 and call.task.endswith("1"):
            raise InfrastructureFailure("calculator", "Connection refused")

    trainer = simulated.simulated_trainer(
        folder, lambda t: 1.0 / (1 + t.sample), answer, steps=STEPS, eval_steps=1
    )
    asyncio.run(trainer.fit(0))
    return folder


def plain(folder, name="trajectories.jsonl"):
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def keys(trajectories):
    return [(t.step, t.task.id, t.sample) for t in trajectories]


FILTERS = st.builds(
    Filter,
    steps=st.tuples(st.integers(0, 5), st.none() | st.integers(0, 5)),
    task=st.sampled_from([None, "t0", "t1", "q1", "nowhere"]),
    outcome=st.sampled_from([None, (0.0, 0.5), (0.6, 1.0), (0.5, 0.5)]),
    failure=st.sampled_from([None, "calculator", "no_answer"]),
    role=st.sampled_from([None, "a", "b"]),
    policy=st.sampled_from([None, "p", "q"]),
    left_out=st.sampled_from([None, "infrastructure:calculator", "frozen"]),
)


@given(FILTERS)
def test_a_filter_selects_what_plain_json_says(folder, wanted):
    first, last = wanted.steps

    def has(action):
        fields = (("role", wanted.role), ("policy", wanted.policy), ("left_out", wanted.left_out))
        return all(value is None or action[name] == value for name, value in fields)

    expected = [
        record
        for record in plain(folder)
        if first <= record["step"] <= (10**9 if last is None else last)
        and wanted.task in (None, record["task"])
        and wanted.failure in (None, record["agent_failure"], record["infrastructure_failure"])
        and (
            not wanted.outcome
            or (
                record["outcome"] is not None
                and wanted.outcome[0] <= record["outcome"] <= wanted.outcome[1]
            )
        )
        and (
            (wanted.role, wanted.policy, wanted.left_out) == (None,) * 3
            or any(map(has, record["actions"]))
        )
    ]
    run = RunReader(folder)
    assert keys(run.trajectories(wanted)) == [(r["step"], r["task"], r["sample"]) for r in expected]
    assert [a.path for _, a in run.actions(wanted)] == [
        a["action"] for r in expected for a in r["actions"] if has(a)
    ]


def test_an_evaluation_is_read_once_from_its_two_files(folder):
    """All of the first and the last one, and some tasks of the others; nothing twice."""
    found = keys(RunReader(folder).trajectories(Filter(split="eval")))
    kept = [(r["step"], r["task"], r["sample"]) for r in plain(folder, "evaluations.jsonl")]
    last = [(r["step"], r["task"], r["sample"]) for r in plain(folder, "evaluation-last.jsonl")]
    assert found == [key for key in kept if key[0] != STEPS] + last and len(set(found)) == len(
        found
    )
    assert keys(RunReader(folder / "evaluations.jsonl").trajectories()) == kept
    some = keys(RunReader(folder).trajectories(Filter(split="eval", steps=(1, 2))))
    assert some == [key for key in kept if 1 <= key[0] <= 2]


def test_an_evaluation_before_which_none_is_left_is_kept_whole(tmp_path):
    """A run that was killed after its first evaluation, and is resumed before it."""
    trainer = simulated.simulated_trainer(tmp_path, lambda t: 1.0, steps=1)
    asyncio.run(trainer.fit(0))
    evaluated = [*RunReader(tmp_path).trajectories(Filter(split="eval", steps=(0, 0)))]
    cut_back(tmp_path, -1)
    trainer.records.step(0, {}, [], None, evaluated)
    assert {r["task"] for r in plain(tmp_path, "evaluations.jsonl")} == {f"e{n}" for n in range(10)}


counts = st.dictionaries(st.text(min_size=1, max_size=5), st.integers(1, 9), max_size=3)


@given(
    st.integers(0, 9),
    counts,
    counts,
    st.dictionaries(st.sampled_from("abc"), counts),
    st.booleans(),
)
def test_a_ledger_is_read_back(step, lost, failed, roles, auxiliary):
    ledger = Ledger(step, 7, Counter(lost), Counter(failed))
    for role, reasons in roles.items():
        ledger.left_out |= {role: Counter(reasons)} if reasons else {}
        ledger.trained[role] = 2
        ledger.generated[role] = 2 + sum(reasons.values())
    ledger.beside = Ledger.from_record(ledger.record()) if auxiliary else None
    again = Ledger.from_record(json.loads(json.dumps(ledger.record())))
    assert again.record() == ledger.record() and again.left_out == ledger.left_out


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("lines", [1, 2])
def test_what_is_recorded_twice_is_named(folder, tmp_path, name, lines):
    """A line, or two lines of a step, that stand in a file twice, anywhere."""
    whole = (folder / name).read_bytes().splitlines(keepends=True)
    steps = [json.loads(line)["step"] for line in whole]
    for at in range(len(whole) - lines + 1):
        if len(set(steps[at : at + lines])) > 1:
            continue
        (tmp_path / name).write_bytes(
            b"".join(whole[: at + lines] + whole[at : at + lines] + whole[at + lines :])
        )
        with pytest.raises(ConfigurationError) as error:
            cut_back(tmp_path, STEPS)
        (problem, *_) = error.value.problems
        assert problem.code == "records.twice" and problem.names("line") == (
            f"{tmp_path / name}:{at + lines + 1}",
        )


def test_all_that_is_wrong_is_said_at_once_and_the_rest_is_read(folder, tmp_path):
    lines = (folder / "trajectories.jsonl").read_text().splitlines()
    lines[1], lines[3] = lines[1][:50], json.dumps({**json.loads(lines[3]), "schema": 9})
    path = tmp_path / "trajectories.jsonl"
    path.write_text("\n".join(lines))
    found = []
    with pytest.raises(ConfigurationError) as error:
        found.extend(RunReader(tmp_path).trajectories())
    assert len(found) == len(lines) - 2
    found = [(p.code, *p.names("line")) for p in error.value.problems]
    assert found == [("records.damaged", f"{path}:2"), ("records.form", f"{path}:4")]
