"""What no word and no number leads to is reached by what the recipe states: examples of roles, and
variants of the workflow. The rest is named."""

import hashlib

import pytest
from refusals import brief
from routers import HEAD, TAIL, Triage

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe.schema import RoleConfig
from marl_plugins.engine.plan import user_code_thread
from marl_plugins.engine.plan.lengths import answers_shown
from marl_plugins.engine.plan.rehearsed import RehearsalResult
from marl_plugins.engine.plan.script import example_scripts


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """Nothing here blocks; it is as slow as the machine is."""
    monkeypatch.setattr(user_code_thread, "USER_CODE_SECONDS", 100.0)


def refused(folder, *words):
    """What was refused, as `brief` shows it, and as sentences."""
    with pytest.raises(ConfigurationError) as error:
        folder.plan(*words)
    return [brief(problem) for problem in error.value.problems], "\n".join(
        map(str, error.value.problems)
    )


def warned(folder):
    return [brief(problem) for problem in folder.plan().run.warnings]


# --- examples


def test_all_first_examples_are_said_together_then_each_further_one():
    stated = {"router": ["to a", "to b"], "a": ["done"], "judge": []}
    roles = {name: RoleConfig(example=texts) for name, texts in stated.items()}
    assert [script.lines for script in example_scripts(roles)] == [
        {"router": ("to a",), "a": ("done",)},
        {"router": ("to b",), "a": ("done",)},
    ]
    assert example_scripts({"judge": RoleConfig()}) == []
    (script,) = example_scripts({"a": RoleConfig(example="<tool_call>{}</tool_call>")})
    assert script.line("a", 0, 1) != script.line("a", 1, 2)


def test_what_examples_lead_to_is_reached_and_left_for_scorers(tmp_path):
    run = Triage(tmp_path).plan().run
    assert run.warnings == ()
    left = run.state(RehearsalResult)
    said = left.trajectories["every role says its example"]
    assert [action.role for action in said.actions] == ["router", "registry", "resolver"]
    assert answers_shown(run, "resolver") == 8  # of registry, which only an example leads to


def test_a_line_to_which_no_example_leads_is_named(tmp_path):
    folder = Triage(tmp_path, examples=['{"team": "registry"}'])
    assert warned(folder) == [("rehearsal.not_reached", "workflow.py:15")]


def test_what_an_example_raises_is_wrong(tmp_path):
    folder = Triage(tmp_path)
    line = folder.edit(METRICS, METRICS + "; 1 / 0")
    found, said = refused(folder)
    assert found == [("rehearsal.may_raise", f"workflow.py:{line}")]
    assert "when role 'router' says '{\"team\": \"metrics\"}'" in said


# --- what stands behind a router is checked

RESOLVER = "return await roles.resolver(incident=task.prompt, finding=finding)"
METRICS = "finding = await roles.metrics(incident=task.prompt, after=[route])"
BEHIND = {
    "an unknown role": (RESOLVER, RESOLVER.replace("resolver", "resolvr"), "rehearsal.mistake", "did you mean 'resolver'?"),
    "no await": (METRICS, METRICS.replace("await ", ""), "rehearsal.mistake", "write `await` "
                                                                              "before it"),
    "the label": (RESOLVER, RESOLVER.replace("=finding", "=task.label, "
                                                         "after=[finding]"), "rehearsal.label", "the task's label"),
    "a role in a swallowed exception": (
        METRICS, f"try: {METRICS.replace('metrics', 'metric')}\n        except Exception: finding "
                 "= ''", "rehearsal.mistake",
        "no role 'metric'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", BEHIND)
def test_a_mistake_behind_a_router_is_found(tmp_path, mistake):
    old, new, code, part = BEHIND[mistake]
    folder = Triage(tmp_path)
    line = folder.edit(old, new)
    found, said = refused(folder)
    assert found == [(code, f"workflow.py:{line}")] and part in said


def test_a_dependency_that_is_lost_behind_a_router_is_said(tmp_path):
    folder = Triage(tmp_path)
    line = folder.edit(RESOLVER, RESOLVER.replace("=finding", "=f'found: {finding}'"))
    assert warned(folder) == [("rehearsal.dependency", f"workflow.py:{line}")]


@pytest.mark.parametrize(
    ("score", "problem", "part"),
    [
        ("7", ("rehearsal.mistake", "grader.py:1"), "is 7; scores lie in [0, 1]"),
    ],
)
def test_a_grader_behind_a_router_is_tried(tmp_path, score, problem, part):
    folder = Triage(tmp_path, "JSON")
    folder.write("grader.py", f"def score_outcome(trajectory):\n    return {score}\n")
    found, said = refused(folder)
    assert found == [problem] and part in said


FAILING = (
    f"    try:\n        {RESOLVER}\n    except AgentFailure:\n        return await "
    "roles.resolver(incident='', finding='')"
)


def test_what_a_workflow_does_when_a_role_fails_is_tried(tmp_path):
    tail = TAIL.replace(f"    {RESOLVER}", FAILING)
    assert warned(Triage(tmp_path, "JSON", tail)) == []


def test_a_mistake_in_what_a_workflow_does_when_a_role_fails_is_found(tmp_path):
    folder = Triage(tmp_path, "JSON", TAIL.replace(f"    {RESOLVER}", FAILING))
    line = folder.edit("incident='', finding=''", "incident='', findng=''")
    assert refused(folder)[0] == [("rehearsal.mistake", f"workflow.py:{line}")]


def test_what_demonstrations_say_leads_where_nothing_else_does(tmp_path):
    folder = Triage(
        tmp_path,
        "    import hashlib\n    team = TEAMS[hashlib.md5(str(route).encode()).hexdigest()]\n",
    )
    digests = repr(
        {
            hashlib.md5(f"team {n}".encode()).hexdigest(): t
            for n, t in enumerate(("registry", "metrics", "?"))
        }
    )
    folder.edit(
        '{"registry": "registry", "databases": "registry", "metrics": "metrics", "other": '
        '"nobody"}',
        digests,
    )
    folder.write(
        "demonstrations.py",
        """
        from marl_plugins.core.demonstrations import Demonstration

        def demonstrate(task, rng):
            yield Demonstration("router", {"incident": task.prompt}, [f"team {rng.randrange(3)}"])
        """,
    )
    recipe = folder.path / "recipe.yaml"
    recipe.write_text(
        recipe.read_text() + "warm_start: {demonstrations: demonstrations.py, steps: 1}\n"
    )
    assert "rehearsal.not_reached" not in [code for code, *_ in warned(folder)]


HIDDEN = "    import hashlib\n    team = hashlib.sha256(str(route).encode()).hexdigest()[:8]\n"


VARIANTS = (
    "\ndef variants():\n    return {'first': {'router': 'one'}, 'second': {'router': ['two']}}\n"
)


@pytest.fixture
def hidden(tmp_path):
    """Makes a recipe whose branches only the digests of two texts lead to."""
    one, two = (hashlib.sha256(text.encode()).hexdigest()[:8] for text in ("one", "two"))
    tail = TAIL.replace('"registry":', f'"{one}":').replace('"metrics":', f'"{two}":')
    return lambda more="", tail=tail: Triage(tmp_path, HIDDEN, tail + more)


@pytest.mark.parametrize(
    ("more", "codes"),
    [("", ["rehearsal.always_fails", "rehearsal.not_reached"]), (VARIANTS, [])],
    ids=["without", "with"],
)
def test_what_variants_say_leads_where_nothing_else_does(hidden, more, codes):
    assert [code for code, *_ in warned(hidden(more))] == codes


def test_what_a_variant_raises_is_wrong(hidden):
    folder = hidden(VARIANTS)
    line = folder.edit(METRICS, METRICS + "; 1 / 0")
    found, said = refused(folder)
    assert found == [("rehearsal.may_raise", f"workflow.py:{line}")]
    assert "does not run when the variant is 'second': ZeroDivisionError" in said


@pytest.mark.parametrize(
    ("variants", "part"),
    [
        ("return {'a': 5}", "variant 'a' to be texts by role, or a workflow, got 5"),
        (
            "return {'a': {'ruter': 'x'}}",
            "expected a role or tools.NAME in variant 'a', got 'ruter'; did you mean 'router'?",
        ),
    ],
)
def test_variants_that_are_none_are_refused(tmp_path, variants, part):
    folder = Triage(tmp_path, "JSON")
    folder.write(
        "workflow.py",
        (tmp_path / "workflow.py").read_text() + f"\ndef variants():\n    {variants}\n",
    )
    found, said = refused(folder)
    assert [code for code, *_ in found] == ["rehearsal.variants"] and part in said


def test_what_is_drawn_at_random_is_said(tmp_path):
    folder = Triage(tmp_path, "JSON")
    line = folder.edit(METRICS, f"random.random(); {METRICS}")
    assert warned(folder) == [("rehearsal.random", f"workflow.py:{line}")]


@pytest.mark.parametrize(
    "value",
    [
        "random.Random().random()",
        "TEAMS.setdefault(str(len(TEAMS)), 'x') + str(len(TEAMS))",
    ],
)
def test_what_is_shown_differently_the_next_time_is_said(tmp_path, value):
    folder = Triage(tmp_path, "JSON")
    folder.write(
        "workflow.py",
        HEAD.replace("incident=task.prompt", f"incident=str({value})") + "    return route\n",
    )
    assert ("rehearsal.unlike", "workflow.py:8") in warned(folder)


@pytest.mark.parametrize(
    "call",
    [
        "roles.metrics(incident=tsk.prompt)",
        "roles.metrics(incident=task.promt)",
        "tools.pyton('1')",
    ],
)
def test_a_wrong_name_is_said_also_where_its_exception_is_caught(tmp_path, call):
    """It is no role that is never called."""
    tried = f"try: finding = await {call}\n        except Exception: finding = ''"
    folder = Triage(tmp_path, "    team = str(route)\n", examples=("metrics", "registry"))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        recipe.read_text().replace(
            "registry: {prompt: any.md}", "registry: {prompt: any.md, tools: [python]}"
        )
    )
    line = folder.edit(METRICS, tried)
    assert warned(folder) == [("rehearsal.swallowed", f"workflow.py:{line}")]


def test_a_field_that_is_none_is_said(tmp_path):
    folder = Triage(tmp_path, "JSON")
    line = folder.edit(METRICS, METRICS.replace("task.prompt", "task.metadata.get('host')"))
    assert warned(folder) == [("rehearsal.none_shown", f"workflow.py:{line}")]
