"""`openrlhf export --table rejudged`: the recorded actions of a run, judged again."""

import json
from pathlib import Path

import pytest
from openai_server import Reply, openai_server, verdict
from refusals import found_by
from simulated import make_trajectory

from marl_plugins.cli import dispatch, main
from marl_plugins.core.trajectory import ToolResult
from marl_plugins.engine.records.trajectory_record import to_record

ROOT = Path(__file__).resolve().parent.parent
RECIPE = str(ROOT / "recipes" / "mathchat" / "tiny.yaml")
ROLES = {"solver": [], "coder": ["solver"], "verifier": ["coder"]}
RUBRIC = """
from marl_plugins.coach.rubric import Criterion

def length(action, seen):
    return min(1, len(action.text) / 10)

def is_right(action, seen):
    return action.text == seen.label

RUBRIC = {
    "solver": [Criterion("length", 1, length)],
    "coder": [Criterion("always", 1, lambda action, seen: True)],
    "verifier": [Criterion("never", 1, lambda action, seen: False), Criterion("right", 1, is_right, needs_label=True)],
}
"""


def recorded(step, sample, texts, scores, outcome, answer="x"):
    """A finished trajectory of the recipe's roles, as a run records it."""
    trajectory = make_trajectory(ROLES, sample=sample)
    trajectory.step, trajectory.outcome, trajectory.answer, trajectory.actions_scored = (
        step,
        outcome,
        answer,
        True,
    )
    for action, text, score in zip(trajectory.actions, texts, scores, strict=True):
        action.text, action.score, action.shown = text, score, (("user", "Do it."),)
    trajectory.actions[1].tool_results = (ToolResult("python", "1", "1", True),)
    return trajectory


def write(folder, *trajectories):
    folder.mkdir(exist_ok=True)
    file = folder / "trajectories.jsonl"
    file.write_text("".join(json.dumps(to_record(t)) + "\n" for t in trajectories))
    return file


@pytest.fixture
def run(tmp_path):
    """Three steps: long answers of the solver were scored high; the verifier was right in two of
    three."""
    lost = recorded(1, 3, "abc", [0.5, 0.5, 0.5], None)
    lost.lose("engine", "gone")
    write(
        tmp_path / "run",
        recorded(1, 0, ("x" * 2, "a", "label"), [0.1, 0.4, 1.0], 1.0),
        recorded(1, 1, ("x" * 4, "b", "other"), [0.3, 0.6, 0.5], 0.0),
        lost,
        recorded(2, 0, ("x" * 6, "c", "label"), [0.5, None, 0.0], 0.0),
        recorded(3, 0, ("x" * 9, "d", "label"), [0.0, 0.0, 0.0], 1.0),
    )
    (tmp_path / "rules.py").write_text(RUBRIC)
    return tmp_path / "run"


def problems(*words):
    return found_by(dispatch, ["export", *map(str, words), "--table", "rejudged"])


def account(capsys, *words):
    assert main(["export", *map(str, words), "--table", "rejudged", "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_scores_are_compared_with_the_recorded_ones_by_role(run, capsys):
    before = (run / "trajectories.jsonl").read_bytes()
    words = ["--recipe", RECIPE, "--coach.rubric", run.parent / "rules.py"]
    roles = account(capsys, run, *words, "--steps", "1:2")
    solver, coder, verifier = (roles[role] for role in ("solver", "coder", "verifier"))
    assert (solver["actions"], solver["missing"]) == (3, {})
    assert solver["recorded"] == pytest.approx(0.3) and solver["score"] == pytest.approx(0.4)
    assert solver["spread"] == pytest.approx(0.1633, abs=1e-3)
    assert solver["correlation"] == pytest.approx(1.0)
    assert coder["recorded"] == pytest.approx(0.5)  # of the two that have a score
    assert coder["correlation"] is coder["agreement"] is solver["agreement"] is None
    # With the label: 0.5, 0, 0.5, of which those of at least a half are called right.
    assert verifier["score"] == pytest.approx(1 / 3)
    assert verifier["agreement"] == pytest.approx(2 / 3)
    only = account(capsys, run, *words, "--steps", "1:2", "--role", "verifier")
    assert only == {"verifier": verifier}
    assert (run / "trajectories.jsonl").read_bytes() == before
    assert [path.name for path in run.iterdir()] == ["trajectories.jsonl"]


def test_the_table_and_the_file_itself(run, capsys, tmp_path):
    words = ["--recipe", RECIPE, "--coach.rubric", str(run.parent / "rules.py")]
    file = str(run / "trajectories.jsonl")
    assert main(["export", file, *words, "--table", "rejudged"]) == 0
    out = capsys.readouterr()
    (solver,) = (line for line in out.out.splitlines() if line.startswith("solver "))
    assert "correlation" in out.out and solver.split()[2] == "4" and solver.split()[-1] == "-"
    assert out.err == ""  # no progress bar where nobody watches
    words += ["--table", "rejudged", "--to", str(tmp_path / "new.jsonl")]
    assert main(["export", file, *words]) == 0
    rows = [json.loads(line) for line in (tmp_path / "new.jsonl").read_text().splitlines()]
    assert len(rows) == 12
    assert [(r["recorded"], r["score"]) for r in rows if r["role"] == "solver"][:2] == [
        (0.1, 0.2),
        (0.3, 0.4),
    ]


def test_a_recipe_without_a_coach_gets_it_and_its_own_rules_are_the_default(run, capsys):
    assert account(capsys, run, "--recipe", RECIPE)["solver"]["actions"] == 4
    words = [run, "--recipe", ROOT / "tests" / "recipes" / "sums" / "tiny.yaml"]
    assert problems(*words) == [("coach.none", "marl_plugins.coach")]
    rules = ["--coach.rubric", run.parent / "rules.py"]
    assert account(capsys, *words, *rules)["solver"]["actions"] == 4


def test_a_model_is_asked_within_its_limits_and_missing_verdicts_are_counted(run, capsys, tmp_path):
    (run / "coach_spent.json").write_text('{"tokens_in": 7, "tokens_out": 0}')

    def answer(body, n):
        prompt = body["messages"][0]["content"]
        if "The member: coder" in prompt:
            return Reply("too long", 413)
        assert "<user> Do it." in prompt or "tries out" in prompt
        return verdict(body, 8, correct="no")

    with openai_server(answer) as (url, bodies):
        model = [run, "--recipe", RECIPE, "--coach.model", "m"]
        words = [*model, "--coach.base_url", url, "--ckpt.output_dir", run, "--coach.record"]
        words += [tmp_path / "new.jsonl", "--coach.concurrency", "2", "--table", "rejudged"]
        assert main(["export", *map(str, words), "--json"]) == 0
        out = capsys.readouterr()
        roles = json.loads(out.out)
        assert bodies.connections() == 0
        replayed = account(capsys, *model, "--coach.replay", tmp_path / "new.jsonl")
    assert roles["coder"] | {"recorded": None} == {
        **{"actions": 4, "missing": {"coach_refused": 4}, "recorded": None, "score": None},
        **{"spread": None, "correlation": None, "agreement": None},
    }
    assert roles["verifier"]["agreement"] == 0.5  # it is told that all are wrong
    assert "requests 12" in out.err
    # the run's account is not touched
    assert json.loads((run / "coach_spent.json").read_text())["tokens_in"] == 7
    assert len((tmp_path / "new.jsonl").read_text().splitlines()) == 8
    assert replayed["solver"] == roles["solver"]
    assert replayed["coder"]["missing"] == {"coach_replay": 4}


def test_an_endpoint_that_refuses_ends_it_with_its_reason(run, capsys):
    refuses = lambda body, n: verdict(body, 7) if n == 1 else Reply("no", 401)  # noqa: E731
    with openai_server(refuses) as (url, _):
        words = ["--recipe", RECIPE, "--coach.model", "m", "--coach.base_url", url]
        assert main(["export", str(run), "--table", "rejudged", *words]) == 1
    assert "refuses the key (401)" in capsys.readouterr().err
