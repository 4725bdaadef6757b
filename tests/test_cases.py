"""Cases: problems that a graph's nodes generate, show and verify."""

import asyncio
import textwrap
from types import SimpleNamespace

import pytest
from random_graphs import compiled, played, roles

from marl_plugins.builtin.cases.section import CasesConfig
from marl_plugins.core.failures import ConfigurationError, RecipeError
from marl_plugins.core.fields import InvalidCall
from marl_plugins.core.trajectory import EVALUATION, Generation
from marl_plugins.engine.plan.build import build_plan

SOLVER = {"solver": ["problem"]}


def sums(verify=lambda value, case: float(value == case["sum"]), case=None, prompt=None):
    """The sum of what is given and a random number."""

    def generate(rng, given):
        number = rng.randint(1, 99)
        return {"text": f"{given}+{number}", "sum": (given or 0) + number}

    shown = prompt or (lambda case: {"problem": case["text"]})
    return SimpleNamespace(case=case or generate, prompt=shown, verify=verify)


def says(answer):
    """An engine whose answer is a function of what is shown."""

    async def generate(call):
        ids = (*answer("".join(map(chr, call.context_ids))).encode(), ord("^"))
        return Generation(ids, tuple(-0.5 for _ in ids), "stop", call.policy, 0)

    return generate


def workflow_of(tmp_path, graph, seconds=60.0, **cases):
    workflow, problems = compiled(
        tmp_path,
        textwrap.dedent(graph),
        SOLVER,
        {},
        cases=cases or {"addition": sums()},
        case_seconds=seconds,
    )
    assert not problems, problems
    return workflow


def play(workflow, answer="0", **options):
    engine = says(answer if callable(answer) else lambda shown: answer)
    return asyncio.run(played(workflow, engine, {}, roles(SOLVER), **options))


ONE = "nodes: {a: {role: solver, case: addition, read: {as: number, default: 0}}}\ngive: a"
CHAIN = """
nodes:
  a: {role: solver, case: addition, read: {as: number, default: 0}}
  b: {role: solver, case: addition, given: a, when: a.score >= 0.5, read: {as: number, default: 0}}
  c: {role: solver, with: {problem: "'no case'"}, when: ran(b)}
give: first(b, a)
"""


def problem_of(trajectory, index=0):
    return trajectory.actions[index].shown[-1][1]


def test_a_case_is_the_tasks_nodes_and_rounds_and_not_the_samples(tmp_path):
    workflow = workflow_of(tmp_path, ONE)
    first = play(workflow, task="t")
    assert problem_of(first) == problem_of(play(workflow, task="t", step=9))
    assert len({problem_of(play(workflow, task=f"t{n}")) for n in range(20)}) > 5
    loops = """
    nodes:
      r:
        loop:
          most: 3
          nodes:
            m:
              map:
                over: "[1, 2]"
                nodes: {x: {role: solver, case: addition}, y: {role: solver, case: addition}}
                give: x.score
          give: m
    give: r.value
    """
    shown = [problem_of(t := play(workflow_of(tmp_path, loops)), n) for n in range(12)]
    assert len(t.actions) == 12 and len({*shown}) >= 10, "one of a hundred problems each"
    assert shown == [problem_of(play(workflow_of(tmp_path, loops)), n) for n in range(12)]


def test_scores_are_the_actions_own_and_trigger_others(tmp_path):
    workflow = workflow_of(tmp_path, CHAIN)
    wrong = play(workflow, "0")
    assert [(a.score, a.notes["graph"]["score"]) for a in wrong.actions] == [
        (0.0, 0.0)
    ] and wrong.actions_scored
    found = play(
        workflow_of(
            tmp_path, CHAIN, addition=sums(verify=lambda value, case: 1.0 if value == 7 else 0.2)
        ),
        "7",
    )
    a, b, c = found.actions
    assert [a.score, b.score, c.score] == [1.0, 1.0, None] and problem_of(found, 1).startswith("7+")
    assert a.path in b.parents and c.path in found.descendants(b.path)


def test_another_try_meets_the_same_problem(tmp_path):
    graph = (
        "nodes: {a: {role: solver, case: addition, retry: {most: 3, while: a.score < "
        "1}}}\ngive: a.score"
    )
    found = play(workflow_of(tmp_path, graph))
    assert (
        len(found.actions) == 3
        and len({problem_of(found, n) for n in range(3)}) == 1
        and found.answer == "0.0"
    )


def test_an_evaluation_scores_outcomes_alone_and_branches_as_training_does(tmp_path):
    workflow = workflow_of(tmp_path, CHAIN, addition=sums(verify=lambda value, case: 1))
    found = play(workflow, step=EVALUATION)
    assert [a.score for a in found.actions] == [None] * 3 and not found.actions_scored
    assert [a.notes["graph"].get("score") for a in found.actions] == [1.0, 1.0, None]


def raises(*arguments):
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("score", [1.2, -0.1, float("nan"), None, "1", [1]])
def test_what_is_no_score_ends_the_run_with_the_verifiers_line(tmp_path, score):
    def verify(value, case):
        return score

    with pytest.raises(InvalidCall) as caught:
        play(workflow_of(tmp_path, ONE, addition=sums(verify=verify)))
    assert caught.value.place.startswith(f"{__file__}:")


def test_a_verifier_that_raises_ends_the_run_with_its_line(tmp_path):
    with pytest.raises(InvalidCall) as caught:
        play(workflow_of(tmp_path, ONE, addition=sums(verify=raises)))
    assert caught.value.place == f"{__file__}:{raises.__code__.co_firstlineno + 1}"


@pytest.mark.parametrize("name", ["case", "prompt", "verify"])
def test_a_function_that_never_returns_costs_its_trajectory_and_holds_up_nobody(tmp_path, name):
    import threading

    held = threading.Event()
    case = sums()
    setattr(case, name, lambda *arguments: held.wait())
    found = play(workflow_of(tmp_path, ONE, seconds=0.5, addition=case))
    held.set()
    assert found.infrastructure_failure == "case" and name in found.detail and found.outcome is None


@pytest.mark.parametrize("made", [{1: 2}, (1, 2), {1}, float("inf"), object(), {"x": [b""]}])
def test_a_case_that_is_no_json_ends_the_run(tmp_path, made):
    with pytest.raises(RecipeError):
        play(workflow_of(tmp_path, ONE, addition=sums(case=lambda rng, given: made)))


@pytest.mark.parametrize(
    ("node", "codes"),
    [
        ("{role: solver, case: additon}", ["graph.case"]),
        ("{role: solver, with: {problem: \"'x'\"}, given: 1}", ["graph.case"]),
        ("{role: solver, case: addition, given: nowhere}", ["graph.unknown_name"]),
        ("{role: solver, case: [addition]}", ["recipe.value"]),
        ("{tool: echo, call: \"'x'\", case: addition}", ["recipe.unknown_key"]),
    ],
)
def test_a_node_whose_case_is_not_there_is_refused_by_line(tmp_path, node, codes):
    _, problems = compiled(
        tmp_path, f"nodes:\n  a: {node}\ngive: a", SOLVER, cases={"addition": sums()}
    )
    assert [(p.code, p.names("line")) for p in problems] == [
        (c, (f"{tmp_path}/graph.yaml:2",)) for c in codes
    ]


# --- what is refused
# --------------------------------------------------------------------------------------------------


RECIPE = """
name: sums
roles:
  solver: {prompt: solver.md}
workflow: graph.yaml
cases: cases.py
tasks: tasks.py
model: tiny
flags: {rollout.batch_size: 4, rollout.max_new_tokens: 8, train.batch_size: 4, train.micro_batch_size: 4, data.max_len: 256}
"""
TASKS = """
from marl_plugins.core.trajectory import Task

def load(split):
    return [Task(n, f"graph {n}") for n in ("abcd" if split == "train" else "")]
"""
CASES = """
class Addition:
    def case(self, rng, given):
        return [given or 0, rng.randint(1, 9)]

    def prompt(self, case):
        return {"problem": "+".join(map(str, case))}

    def verify(self, value, case):
        return float(value == sum(case))

addition = Addition()
"""


@pytest.fixture
def planned(tmp_path):
    """A recipe with cases; called with other files, it returns the codes and places of all problems
    and warnings."""

    def plan(**files):
        written = {
            "recipe.yaml": RECIPE,
            "tasks.py": TASKS,
            "cases.py": CASES,
            "graph.yaml": CHAIN,
            "solver.md": "{problem}",
        }
        for name, text in (
            written | {name.replace("_", "."): text for name, text in files.items()}
        ).items():
            (tmp_path / name).write_text(text)
        try:
            found = build_plan(["--recipe", str(tmp_path)])
        except ConfigurationError as error:
            return [(p.code, *map(str, p.names("line"))) for p in error.problems]
        assert found.run.section(CasesConfig).generators(tmp_path).keys() == {"addition"}
        return [(p.code, *map(str, p.names("line"))) for p in found.run.warnings]

    plan.folder = tmp_path
    return plan


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (("return float(value == sum(case))", "return 1.2"), "rehearsal.mistake"),
        (("return float(value == sum(case))", "return float('nan')"), "rehearsal.mistake"),
        (("return float(value == sum(case))", "return value / 0"), "rehearsal.mistake"),
        (("return float(value == sum(case))", "return float(int(value) == 1)"), None),
        (("def verify(self, value, case)", "def verify(self, value)"), "rehearsal.mistake"),
        (("def verify(self", "async def verify(self"), "rehearsal.mistake"),
        (("def verify(self", "def verifies(self"), "graph.case"),
        (("addition = Addition()", ""), "graph.case"),
        (("return [given or 0, rng.randint(1, 9)]", "return {1, 2}"), "rehearsal.raises"),
        (("return [given or 0", "return [nowhere"), "rehearsal.raises"),
        (('return {"problem"', 'return {"question"'), "rehearsal.mistake"),
        (("class Addition", "clas Addition"), "code.syntax"),
    ],
)
def test_what_is_wrong_with_cases_is_said_before_the_start(planned, changed, expected):
    assert changed[0] in CASES
    codes = [code for code, *_ in planned(cases_py=CASES.replace(*changed))]
    assert (expected in codes) if expected else codes == []


def test_a_verifier_that_never_returns_is_found_before_the_start(planned, monkeypatch):
    monkeypatch.setattr("marl_plugins.engine.plan.user_code_thread.USER_CODE_SECONDS", 0.3)
    monkeypatch.setattr("marl_plugins.builtin.rehearsal.trial.ROLE_SECONDS", 0.3)
    slow = CASES.replace(
        "return float(value == sum(case))", "import time\n        time.sleep(5)\n        return 0.0"
    )
    assert "rehearsal.blocks" in [code for code, *_ in planned(cases_py=slow)]
