"""A workflow's mistakes are found before anything starts, by runs of it without any model, and so
are its scorers'."""

import gc
import textwrap
import warnings

import pytest
from refusals import briefs, found_by, refused

from marl_plugins.builtin.rehearsal.check import rehearse
from marl_plugins.builtin.rehearsal.trial import MAX_ROLE_CALLS
from marl_plugins.commands.who_saw_whom import DependencyGraph
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.plan import user_code_thread
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.rehearsed import RehearsalResult
from marl_plugins.engine.plan.script import word
from marl_plugins.engine.plan.workflow_file import workflow_of

NONE = "; the task has no such metadata: every field of the data but prompt and label is in it"

RECIPE = """
name: debate
roles:
  pro: {prompt: any.md}
  con: {prompt: any.md}
  judge: {prompt: judge.md, system: system.md}
workflow: workflow.py
tasks: tasks.py
grader: grader.py
model: tiny
flags:
  rollout.batch_size: 4
  rollout.max_new_tokens: 8
  train.batch_size: 4
  train.micro_batch_size: 4
  data.max_len: 256
"""
TASKS = """
from marl_plugins.core.trajectory import Task

LABEL = "blue"

def load(split):
    names = "abcd" if split == "train" else "ef"
    return [Task(n, f"Which colour is {n}?", LABEL, {"type": "colour"}) for n in names]
"""
BEGIN = """\
import asyncio, time

async def run(task, roles, tools):
    pro = await roles.pro(question=task.prompt)
    con = await roles.con(question=task.prompt, other=pro)
"""
GOOD = BEGIN + "    return await roles.judge(question=task.prompt, history=[pro, con])\n"
LAST = 6
"""The line of the judge's call."""
GRADER = (
    "def score_outcome(trajectory):\n    return float(trajectory.answer == trajectory.task.label)\n"
)


class Folder:
    """A recipe's folder, and what is wrong with it."""

    def __init__(self, path):
        self.path = path
        files = {
            "recipe.yaml": RECIPE,
            "tasks.py": TASKS,
            "workflow.py": GOOD,
            "grader.py": GRADER,
            "any.md": "{question}",
            "judge.md": "{question}\n{history}",
            "system.md": "You judge: {question}",
            "another_set.md": "{other} {said} {story}",
        }
        for name, text in files.items():
            self.write(name, text)

    def write(self, name, text):
        (self.path / name).write_text(textwrap.dedent(text))

    def ending(self, *lines):
        """A workflow that goes on like this after both have spoken."""
        self.write("workflow.py", BEGIN + "".join(f"    {line}\n" for line in lines))
        return self

    def plan(self, *words):
        return build_plan(["--recipe", str(self.path), *words])

    def problems(self, *words):
        with pytest.raises(ConfigurationError) as error:
            self.plan(*words)
        return [*map(str, error.value.problems)]

    def problem(self, *words):
        (problem,) = self.problems(*words)
        return problem

    def refused(self, *expected):
        """Expects a plan with these problems."""
        with refused(*expected):
            self.plan()

    def codes(self):
        return found_by(self.plan)

    def warned(self, *expected):
        """Expects a plan with this one warning: its code and the names of its places."""
        assert briefs(self.plan().run.warnings) == [expected]

    def warnings(self):
        return [*map(str, self.plan().run.warnings)]

    def warning(self):
        (warning,) = self.warnings()
        return warning

    def stating(self, text):
        """Gives the role `con` an example."""
        self.write("recipe.yaml", RECIPE.replace("con: {", f"con: {{example: {text}, "))
        return self

    def at(self, line, name="workflow.py"):
        return f"{self.path / name}:{line}: "


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """What blocks is found by `quick`; all else is as slow as the machine is."""
    monkeypatch.setattr(user_code_thread, "USER_CODE_SECONDS", 100.0)


@pytest.fixture
def quick(monkeypatch, patient):
    monkeypatch.setattr(user_code_thread, "USER_CODE_SECONDS", 0.5)


def rehearsed(folder):
    plan = folder.plan()
    rehearse(plan.run, workflow_of(plan.plugins, plan.run), plan.tasks("train")[0])
    return plan.run.state(RehearsalResult)


def graph_of(folder):
    return DependencyGraph(rehearsed(folder).fullest)


JUDGE = "return await roles.judge(question=task.prompt, history={})"


# --- good ones
# --------------------------------------------------------------------------------------------------


def test_a_good_workflow_is_planned_without_a_word_and_shows_who_sees_whom(folder):
    assert folder.warnings() == []
    assert graph_of(folder).lines() == ["task -> pro", "pro -> con", "pro, con -> judge"]


@pytest.mark.parametrize(
    "lines",
    [
        [JUDGE.format("f'{pro} {con}', after=[pro, con]")],
        ["async with asyncio.TaskGroup() as group:", "    a = group.create_task(roles.pro(question='a'))",
         "    b = group.create_task(roles.con(question='b'))", JUDGE.format("[a.result(), "
                                                                            "b.result()]")],
        ["a, b = await asyncio.gather(roles.pro(question='a'), "
         "roles.con(question='b'))", JUDGE.format("[a, b]")],
        ["a = asyncio.create_task(roles.pro(question='a'))", "a.cancel()", JUDGE.format("con")],
        ["done, left = await asyncio.wait({asyncio.create_task(roles.pro(question=q)) for q in "
         "'ab'},",
         "    return_when=asyncio.FIRST_COMPLETED)", JUDGE.format("con")],
        ["calls = [roles.pro(question='a'), roles.con(question='b')]",
         "said = sorted([await call for call in asyncio.as_completed(calls)], key=lambda a: "
         "a.role)", JUDGE.format("said")],
        ["later = roles.pro(question='')", "con = await roles.con(question='')", "pro = await "
                                                                                 "later", JUDGE.format("[pro]")],
        ["said = [pro, con]", JUDGE.format("said").replace("return", "last ="), "said.append(last)", "return last"],
    ],
)  # fmt: skip
def test_ways_to_call_that_are_right(folder, lines):
    assert folder.ending(*lines).warnings() == []


# --- what no answer changes
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ([JUDGE.format("pro").replace("judge", "juge")], "the recipe has no role 'juge'; did you "
                                                         "mean 'judge'?"),
        ([JUDGE.format("pro").replace("history", "story")], "['history', 'question'], the workflow "
                                                            "gave ['question', 'story']"),
        (["await tools.serch('x')", JUDGE.format("pro")], "no tool 'serch'"),
        ([JUDGE.format("pro, after=pro")], "after takes a list of actions, as in after=[x]; got "
                                           "Action"),
        ([JUDGE.format("{'pro': pro}")], "role 'judge', field 'history': a dict that holds actions "
                                         "cannot be shown; give each"),
        (["try: await roles.con(question='', after=pro)", "except Exception: pass", JUDGE.format("con")],
         "after takes a list of actions, as in after=[x]; got Action"),
        (["raise SystemExit(3)"], "SystemExit(3) ends the program; raise an exception that says "
                                  "what is wrong"),
    ],
)  # fmt: skip
def test_what_no_answer_changes_is_wrong(folder, lines, part):
    problem = folder.ending(*lines).problem()
    assert part in problem and problem.startswith(folder.at(LAST))


@pytest.mark.parametrize(
    ("code", "line", "part"),
    [
        ("def run(task, roles, tools):\n    return str(roles)", 1, "write `async def run(task, "
                                                                   "roles, tools)`"),
        ("async def run(task, roles):\n    return ''", 1, "run is called with task, roles and "
                                                          "tools"),
        ("import asyncio\nasync def run(task, roles, tools):\n    async with asyncio.TaskGroup() "
         "as g:\n        "
         "g.create_task(roles.con(question=''))\n        g.create_task(roles.pro())", 5, "['question'], the workflow gave []"),
    ],
)  # fmt: skip
def test_workflows_that_cannot_be_one(folder, code, line, part):
    folder.write("workflow.py", code)
    problem = folder.problem()
    assert part in problem and problem.startswith(folder.at(line))


def test_a_workflow_that_calls_no_role(folder):
    folder.write("workflow.py", "async def run(task, roles, tools):\n    return task.prompt")
    folder.refused(("rehearsal.no_call", "workflow.py:1"))


NEW = "new = roles.pro(question='')"
BOTH = "both = asyncio.gather(roles.pro(question=''), roles.con(question=''))"
MORE = ("async def more():", "    return await roles.pro(question='')")


@pytest.mark.parametrize(
    ("lines", "line", "part"),
    [
        (["verdict = roles.judge(question='', history='')", "return str(verdict)"], 6, "role 'judge' is called, and nobody awaits"),
        (["return roles.judge(question='', history='')"], 6, "run returns a call that is not "
                                                             "awaited"),
        ([NEW, JUDGE.format("new")], 6, "role 'judge' was given, as 'history', a call that is not "
                                        "awaited"),
        ([BOTH, JUDGE.format("con")], 6, "a task that nobody"),
        (["new = asyncio.create_task(roles.pro(question=''))", JUDGE.format("con")], 6, "role 'pro' runs as a task"),
        ([*MORE, "new = more()", JUDGE.format("con")], 8,
         "more is called, and nobody awaits it"),
    ],
)  # fmt: skip
def test_a_call_that_nobody_awaits_is_wrong_wherever_it_ends_up(folder, capfd, lines, line, part):
    folder.ending(*lines)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        problem = folder.problem()
        gc.collect()
    assert part in problem and problem.startswith(folder.at(line))
    assert "never" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("value", "code", "part"),
    [
        ("task.prompt.strip, after=[con]", "rehearsal.mistake", "call it: strip()"),
        ("con.generation, after=[con]", "rehearsal.mistake", "show the action"),
        ("[await tools.python('1')], after=[con]", "rehearsal.mistake", "show its `output`"),
        (
            "f'It said {con.text.strip}', after=[con]",
            "rehearsal.object_shown",
            "<built-in method strip of",
        ),
        (
            "{'tool': await tools.python('1')}, after=[con]",
            "rehearsal.object_shown",
            "toolresult(tool=",
        ),
    ],
)
def test_what_has_no_text_of_its_own_is_not_shown(folder, value, code, part):
    assert part in folder.ending(JUDGE.format(value)).problem()
    assert folder.codes() == [(code, f"workflow.py:{LAST}")]


# --- what is said as a warning
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "sources"),
    [
        ("f'{pro}'", "role 'pro'"),
        ("pro.text.upper()", "role 'pro'"),
        ("'\\n'.join(str(a) for a in (pro, con))", "roles 'pro', 'con'"),
        ("{'con': str(con)}", "role 'con'"),
        ("f'{con}', after=[pro]", "role 'con'"),
    ],
)
def test_an_answer_that_is_shown_without_a_dependency_is_said(folder, value, sources):
    warning = folder.ending(JUDGE.format(value)).warning()
    assert (
        warning.startswith(folder.at(LAST))
        and f"what {sources} said, in field 'history'" in warning
    )
    assert "after=[...]" in warning


@pytest.mark.parametrize(
    ("lines", "kind", "error"),
    [
        (
            [JUDGE.format("int(str(pro)), after=[pro]")],
            "a word",
            "ValueError: invalid literal for int()",
        ),
    ],
)
def test_what_one_kind_of_answer_raises_is_said(folder, lines, kind, error):
    warning = folder.ending(*lines).warning()
    assert warning.startswith(folder.at(LAST)) and f" is {kind}: {error}" in warning


@pytest.mark.parametrize(
    ("value", "code", "part"),
    [
        ("con, aftr=[pro]", "rehearsal.unshown", "did you mean 'after'?"),
        ("con, draft=con", "rehearsal.unshown", "write {draft} into its prompt"),
        ("{enum.Enum('E', {'A': 'x'}).A: 1}, after=[con]", "rehearsal.object_shown", "<e.a: 'x'>"),
    ],
)
def test_a_field_that_says_something_else_than_was_meant_is_said(folder, value, code, part):
    folder.ending("import enum", JUDGE.format(value))
    assert part in folder.warning()
    folder.warned(code, f"workflow.py:{LAST + 1}")


def test_a_role_that_nobody_calls_is_said(folder):
    warning = folder.ending("return con").warning()
    assert "role 'judge'" in warning and warning.startswith(folder.at(3))


def test_of_an_invented_task_nothing_is_said_that_another_could_change(folder):
    folder.ending("if task.metadata.get('type'):", f"    {JUDGE.format('con')}", "return con")
    plan = folder.plan()
    assert rehearse(plan.run, workflow_of(plan.plugins, plan.run), None) == []
    folder.ending("return con")
    plan = folder.plan()
    assert rehearse(plan.run, workflow_of(plan.plugins, plan.run), None) == []


def test_a_loop_that_no_answer_ends_is_said(folder):
    folder.ending("while True:", "    con = await roles.con(question=con)", JUDGE.format("con"))
    folder.warned("rehearsal.unended", "workflow.py:7")
    assert len(graph_of(folder).nodes) == MAX_ROLE_CALLS


def test_a_loop_of_many_rounds_that_an_answer_ends_sooner_is_fine(folder):
    rounds = MAX_ROLE_CALLS + 100
    folder.ending(
        f"for _ in range({rounds}):", "    con = await roles.con(question=con)", "    if str(con) "
                                                                                 "== '1':", "        break",
        JUDGE.format("con"),
    )  # fmt: skip
    assert folder.warnings() == []


def test_a_workflow_that_waits_is_left_there(folder, monkeypatch):
    monkeypatch.setattr("marl_plugins.builtin.rehearsal.trial.ROLE_SECONDS", 0.2)
    folder.ending("await asyncio.sleep(30)", JUDGE.format("con")).warned(
        "rehearsal.waits", f"workflow.py:{LAST}"
    )


def test_what_a_workflow_would_call_after_it_has_waited_is_not_known(folder, monkeypatch):
    monkeypatch.setattr("marl_plugins.builtin.rehearsal.trial.ROLE_SECONDS", 0.2)
    waits = BEGIN.replace("tools):\n", "tools):\n    await asyncio.sleep(30)\n")
    folder.write("workflow.py", waits + f"    {JUDGE.format('con')}\n")
    folder.warned("rehearsal.waits", "workflow.py:4")


@pytest.mark.usefixtures("quick")
def test_a_workflow_that_blocks_is_wrong_and_holds_nothing_up(folder):
    folder.ending("while True: pass", JUDGE.format("con"))
    assert folder.codes() == [("rehearsal.blocks", f"workflow.py:{LAST}")]


# --- labels
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ('"blue"', "str(task.label)"),
        ('{"answer": "blue"}', "task.label['answer']"),
        ('"blue"', "con if str(con) == '1' else task.label"),
    ],
)
def test_a_label_that_is_shown_to_a_role_is_wrong(folder, label, value):
    folder.write("tasks.py", TASKS.replace('"blue"', label))
    folder.ending(
        JUDGE.format(value)
        if "task.label" not in value
        else JUDGE.format(value).replace("history", "after=[con], history")
    )
    problem = folder.problem()
    assert problem.startswith(folder.at(LAST)) and "the task's label, in field 'history'" in problem


@pytest.mark.parametrize(
    ("lines", "line", "code"),
    [
        (["return task.label"], 6, "rehearsal.label_answer"),
        (
            [JUDGE.format("con").replace("return", "said ="), "return task.label[0]"],
            7,
            "rehearsal.label_matters",
        ),
    ],
)
def test_a_label_that_is_the_answer_is_said(folder, lines, line, code):
    folder.ending(JUDGE.format("con").replace("return", "judge ="), *lines)
    expected = (code, f"workflow.py:{line + 1}")
    assert expected in (
        folder.codes() if code == "rehearsal.label_answer" else briefs(folder.plan().run.warnings)
    )


@pytest.mark.parametrize(
    ("label", "lines"),
    [
        ('"blue"', ["assert task.label in ('blue', 'red')", JUDGE.format("con")]),
        ('"yes"', ["if str(con) == task.label:", "    return con", JUDGE.format("con")]),
        ("True", [JUDGE.format("con")]),
    ],
)
def test_a_workflow_that_needs_a_real_label_is_not_accused(folder, label, lines):
    folder.write("tasks.py", TASKS.replace('"blue"', label))
    assert folder.stating("'yes'").ending(*lines).warnings() == []


SHARED = {
    "a name of the module": "NOW = {}\n\n\nasync def run(task, roles, tools):\n    NOW['task'] = "
    "task\n    "
    "pro = await roles.pro(question=task.prompt)\n    return await "
    "roles.judge(question=NOW['task'].prompt, history=pro)\n",
    "a list of the task": "async def run(task, roles, tools):\n    said = "
    "task.metadata.setdefault('said', [])\n"
    "    pro = await roles.pro(question=task.prompt)\n    said.append(str(pro))\n\n\n"
    "    return await roles.judge(question=task.prompt, history=[pro, *said[:-1]])\n",
    "what is raised": "NOW = set()\n\nasync def run(task, roles, tools):\n    pro = await "
    "roles.pro(question=task.prompt)\n"
    "    NOW.add(task.id)\n    said = await roles.judge(question=task.prompt, history=pro)\n    "
    "NOW.remove(task.id)\n"
    "    return said\n",
}


@pytest.mark.parametrize("what", SHARED)
def test_what_trajectories_share_at_the_same_time_is_said(folder, what):
    """Each of them alone is right."""
    folder.write("workflow.py", SHARED[what])
    assert ("rehearsal.shared", "workflow.py:7") in briefs(folder.plan().run.warnings)


def test_the_rehearsal_changes_no_task(folder):
    folder.ending("task.metadata.setdefault('seen', []).append(1)", JUDGE.format("con"))
    plan = folder.plan()
    assert all(t.metadata == {"type": "colour"} and t.label == "blue" for t in plan.tasks("train"))
    trajectories = plan.run.state(RehearsalResult).trajectories
    assert [(t.task.label, t.answer) for t in trajectories.values()] == [
        ("blue", word(3)),
        ("blue", "1"),
    ]


# --- scorers
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "line", "part"),
    [
        ("def score_outcome(a, b):\n    return 1", 1, "missing a required argument: 'b'; "
                                                      "score_outcome is called with trajectory"),
        ("def score_outcome(t):\n    return 5 if t.answer == '1' else 0", 1, "is 5; scores lie in "
                                                                             "[0, 1]"),
        ("def score_outcome(t):\n    return t.task.metadata['subject']", 2, f"KeyError: 'subject'{NONE} (score_outcome raises it"),
        ("async def f(t):\n    return 1\ndef score_outcome(t):\n    f(t)\n    return "
         "1.0", 4, "f is called, and nobody awaits"),
        ("def score_outcome(t):\n    return 1\ndef score_action(a, seen):\n    return "
         "-1", 3, " is -1; scores lie in [0, 1]"),
        ("def score_outcome(t):\n    return 1\ndef score_action(a, seen):\n    return seen.label "
         "== ''", 4, "no attribute 'label'"),
    ],
)  # fmt: skip
def test_a_grader_that_cannot_work_is_wrong(folder, code, line, part):
    folder.write("grader.py", code)
    problem = next(p for p in folder.problems() if part in p)
    assert problem.startswith(folder.at(line, "grader.py"))


@pytest.mark.parametrize(
    ("code", "part"),
    [
        ("def score_outcome(t):\n    return float(int(t.answer) == 7)", "score_outcome does not "
                                                                        "run when every answer is "
                                                                        "a word"),
        ("def score_outcome(t):\n    raise ConnectionRefusedError('no judge')", "score_outcome "
                                                                                "does not run: "
                                                                                "ConnectionRefused"),
    ],
)  # fmt: skip
def test_a_grader_that_may_work_is_a_warning(folder, code, part):
    folder.write("grader.py", code)
    warning = folder.warning()
    assert part in warning and "grader.py" in warning


ONE_FOR_EACH = "{r: secrets.randbelow(10**9) / 10**9 for r in {a.role for a in t.actions}}"


@pytest.mark.parametrize(
    ("code", "line", "kind"),
    [
        (
            "import time\ndef score_outcome(t):\n    return time.perf_counter_ns() % 1000 / 1000",
            2,
            "unlike",
        ),
        (f"import secrets\nasync def score_outcome(t):\n    return {ONE_FOR_EACH}", 2, "unlike"),
        (
            "n = []\ndef score_outcome(t):\n    return 1\ndef score_action(a, seen):\n    "
            "n.append(1)\n    return 1 / len(n)",
            4,
            "unlike",
        ),
        ("import random\ndef score_outcome(t):\n    return random.random()", 2, "random"),
    ],
)
def test_a_grader_that_does_not_repeat_is_a_warning(folder, code, line, kind):
    folder.write("grader.py", code)
    folder.warned(f"rehearsal.{kind}", f"grader.py:{line}")


def test_a_grader_that_gives_no_score_is_a_warning(folder):
    folder.write("grader.py", "def score_outcome(t):\n    t.answer == t.task.label")
    folder.warned("rehearsal.no_score", "grader.py:1")


def test_a_grader_that_a_service_may_answer_is_no_problem(folder):
    folder.write(
        "grader.py",
        """
        from marl_plugins.core.failures import InfrastructureFailure
        async def score_outcome(t):
            raise InfrastructureFailure("judge", "is down")
        """,
    )
    assert folder.warnings() == []


@pytest.mark.usefixtures("quick")
def test_a_grader_that_blocks_is_wrong(folder):
    folder.write("grader.py", "import time\ndef score_outcome(t):\n    time.sleep(2)\n    return 1")
    problem = folder.problem()
    assert (
        problem.startswith(folder.at(3, "grader.py"))
        and "score_outcome" in problem
        and "0.5 s" in problem
    )


RUBRIC = """\
from marl_plugins.coach.rubric import Criterion

RULES = [Criterion("speaks", 1, lambda action, seen: bool(action.text)), Criterion("rule", 1, lambda action, seen: {rule})]
RUBRIC = {{"pro": RULES, "con": RULES, "judge": RULES}}
"""


@pytest.mark.parametrize(
    ("rule", "part"),
    [
        ("5", "gave 5.0; expected 0 to 1"),
        ("seen.label == ''", "rubric.py:3: AttributeError: 'Seen' object has no attribute 'label'"),
    ],
)
def test_a_rubric_that_cannot_work_is_wrong(folder, rule, part):
    folder.write("rubric.py", RUBRIC.format(rule=rule))
    words = ("--plugin", "marl_plugins.coach", "--coach.rubric", str(folder.path / "rubric.py"))
    assert part in folder.problem(*words)
