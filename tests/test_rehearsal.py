"""A workflow's mistakes are found before anything starts, by runs of it without any model, and so
are its scorers'."""

import asyncio
import gc
import inspect
import textwrap
import warnings

import pytest
from refusals import briefs, found_by, refused

from marl_plugins.builtin.rehearsal.check import check_workflow, rehearse
from marl_plugins.builtin.rehearsal.labels import marked
from marl_plugins.builtin.rehearsal.trial import MAX_ROLE_CALLS
from marl_plugins.commands.recipes import show
from marl_plugins.commands.who_saw_whom import DependencyGraph
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.recipe.recipe_yaml import read_recipe
from marl_plugins.core.recipe.shipped import shipped_recipes
from marl_plugins.engine.manager import Plugins
from marl_plugins.engine.plan import user_code_thread
from marl_plugins.engine.plan.build import build_plan, draft_plan
from marl_plugins.engine.plan.rehearsed import RehearsalResult
from marl_plugins.engine.plan.script import WORDS, word
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
    return DependencyGraph.of(rehearsed(folder).fullest)


JUDGE = "return await roles.judge(question=task.prompt, history={})"


# --- good ones
# --------------------------------------------------------------------------------------------------


def test_a_good_workflow_is_planned_without_a_word_and_shows_who_sees_whom(folder):
    assert folder.warnings() == []
    assert graph_of(folder).lines() == ["task -> pro", "pro -> con", "pro, con -> judge"]


@pytest.mark.parametrize(
    "lines",
    [
        [JUDGE.format("pro").replace("history=", "other=con, history=")],
        [JUDGE.format("(pro, 'and', con)")],
        [JUDGE.format("f'{pro} {con}', after=[pro, con]")],
        [JUDGE.format("str(con), after=(con,)")],
        ["tasks = [asyncio.create_task(roles.pro(question=q)) for q in 'ab']",
         "for task_ in tasks:", "    pro = await task_", JUDGE.format("pro")],
        ["async with asyncio.TaskGroup() as group:", "    a = group.create_task(roles.pro(question='a'))",
         "    b = group.create_task(roles.con(question='b'))", JUDGE.format("[a.result(), "
                                                                            "b.result()]")],
        ["a, b = await asyncio.gather(roles.pro(question='a'), "
         "roles.con(question='b'))", JUDGE.format("[a, b]")],
        ["a = await asyncio.wait_for(roles.pro(question='a'), 5)", JUDGE.format("[a, con]")],
        ["a = asyncio.create_task(roles.pro(question='a'))", "a.cancel()", JUDGE.format("con")],
        ["done, left = await asyncio.wait({asyncio.create_task(roles.pro(question=q)) for q in "
         "'ab'},",
         "    return_when=asyncio.FIRST_COMPLETED)", JUDGE.format("con")],
        ["calls = [roles.pro(question='a'), roles.con(question='b')]",
         "said = sorted([await call for call in asyncio.as_completed(calls)], key=lambda a: "
         "a.role)", JUDGE.format("said")],
        ["later = roles.pro(question='')", "con = await roles.con(question='')", "pro = await "
                                                                                 "later", JUDGE.format("[pro]")],
        ["verdict = " + JUDGE.format("con").removeprefix("return "), "return str(verdict) == "
                                                                     "task.label"],
        ["said = [pro, con]", JUDGE.format("said").replace("return", "last ="), "said.append(last)", "return last"],
    ],
)  # fmt: skip
def test_ways_to_call_that_are_right(folder, lines):
    assert folder.ending(*lines).warnings() == []


def test_a_wrapped_workflow_and_a_notebook_are_fine(folder):
    folder.write(
        "workflow.py",
        GOOD.replace("def run", "def inner")
        + "\ndef run(task, roles, tools):\n    return inner(task, roles, tools)\n",
    )

    async def notebook():
        return graph_of(folder)

    assert asyncio.run(notebook()).lines()[-1] == "pro, con -> judge"


# --- what no answer changes
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "part"),
    [
        ([JUDGE.format("pro").replace("judge", "juge")], "the recipe has no role 'juge'; did you "
                                                         "mean 'judge'?"),
        ([JUDGE.format("pro").replace("history", "story")], "['history', 'question'], the workflow "
                                                            "gave ['question', 'story']"),
        (["return await roles.judge(pro)"], "role 'judge' takes its fields by name: "
                                            "roles.judge(FIELD=...)"),
        (["await tools.serch('x')", JUDGE.format("pro")], "no tool 'serch'"),
        (
            [JUDGE.format("task.metadata['subject']")],
            f"KeyError: 'subject'{NONE} (the workflow raises it whatever the agents answer)",
        ),
        ([JUDGE.format("pro, after='pro'")], "after takes a list of actions, as in after=[x]; got "
                                             "'pro'"),
        ([JUDGE.format("pro, after=None")], "after takes a list of actions, as in after=[x]; got "
                                            "None"),
        ([JUDGE.format("pro, after=pro")], "after takes a list of actions, as in after=[x]; got "
                                           "Action"),
        ([JUDGE.format("pro, after=['pro']")], "after takes a list of actions, got str in it"),
        ([JUDGE.format("{'pro': pro}")], "role 'judge', field 'history': a dict that holds actions "
                                         "cannot be shown; give each"),
        ([JUDGE.format("[[pro], [con]]")], "a list that holds actions cannot be shown; give each "
                                           "action a field"),
        ([JUDGE.format("{'said': [pro]}.values()")], "a dict_values that holds actions cannot be "
                                                     "shown"),
        ([JUDGE.format("(str(a) for a in (pro, con))")], "a generator has no text; write a list"),
        (["raise asyncio.CancelledError"], "CancelledError (the workflow raises it whatever the "
                                           "agents answer)"),
        (["found = await asyncio.gather(roles.con(other=''), "
          "return_exceptions=True)", JUDGE.format("con")],
         "role 'con' was called with the wrong fields"),
        (["try: await roles.con(question='', after=pro)", "except Exception: pass", JUDGE.format("con")],
         "after takes a list of actions, as in after=[x]; got Action"),
        (["raise SystemExit(3)"], "SystemExit(3) ends the program; raise an exception that says "
                                  "what is wrong"),
        (["raise KeyboardInterrupt"], "KeyboardInterrupt() ends the program"),
    ],
)  # fmt: skip
def test_what_no_answer_changes_is_wrong(folder, lines, part):
    problem = folder.ending(*lines).problem()
    assert part in problem and problem.startswith(folder.at(LAST))


def test_an_object_that_holds_actions_is_refused(folder):
    folder.ending("class History: pass", "h = History()", "h.turns = [pro]", JUDGE.format("h"))
    assert "a History that holds actions" in folder.problem()


@pytest.mark.parametrize(
    ("code", "line", "part"),
    [
        ("def run(task, roles, tools):\n    return str(roles)", 1, "write `async def run(task, "
                                                                   "roles, tools)`"),
        ("async def run(task, roles, tools):\n    yield 1", 1, "run gives async_generator at once; "
                                                               "write `async def"),
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
        (["verdict = roles.judge(question='', history='')", "return pro"], 6, "role 'judge' is "
                                                                              "called, and nobody "
                                                                              "awaits it"),
        (["return roles.judge(question='', history='')"], 6, "run returns a call that is not "
                                                             "awaited"),
        (["return [roles.judge(question='', history='')]"], 6, "nobody awaits it; write `await` "
                                                               "before it"),
        ([NEW, JUDGE.format("new")], 6, "role 'judge' was given, as 'history', a call that is not "
                                        "awaited"),
        ([NEW, JUDGE.format("[con, new]")], 6, "role 'judge' was given, as 'history', a call"),
        ([NEW, JUDGE.format("f'{new}'")], 6, "role 'pro' is called, and nobody awaits it"),
        ([NEW, JUDGE.format("con, after=[new]")], 6, "role 'judge' was given, in `after`, a call"),
        ([NEW, JUDGE.format("new.text")], 6, "role 'pro' is called, and nobody awaits it"),
        ([BOTH, JUDGE.format("both")], 6, "as 'history', a call"),
        ([BOTH, JUDGE.format("con")], 6, "a task that nobody"),
        ([BOTH, "return both"], 6, "run returns a call"),
        (["new = asyncio.create_task(roles.pro(question=''))", JUDGE.format("con")], 6, "role 'pro' runs as a task"),
        ([*MORE, "new = more()", JUDGE.format("con")], 8,
         "more is called, and nobody awaits it"),
        ([*MORE, "new = asyncio.create_task(more())", JUDGE.format("con")], 6,
         "more runs as a task that nobody awaits when run ends; await it, or cancel it"),
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
        ("con.text.strip, after=[con]", "rehearsal.mistake", "call it: strip()"),
        ("time.sleep, after=[con]", "rehearsal.mistake", "call it: sleep()"),
        ("con.generation, after=[con]", "rehearsal.mistake", "show the action"),
        ("[await tools.python('1')], after=[con]", "rehearsal.mistake", "show its `output`"),
        ("object(), after=[con]", "rehearsal.mistake", "write the text"),
        (
            "f'It said {con.text.strip}', after=[con]",
            "rehearsal.object_shown",
            "<built-in method strip of",
        ),
        ("f'{asyncio.gather}', after=[con]", "rehearsal.object_shown", "<function gather at 0x"),
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
        ("str(con)", "role 'con'"),
        ("pro.text.upper()", "role 'pro'"),
        ("'\\n'.join(str(a) for a in (pro, con))", "roles 'pro', 'con'"),
        ("[str(con)]", "role 'con'"),
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


def test_a_dependency_through_another_action_is_enough(folder):
    assert folder.ending(JUDGE.format("f'{pro}', after=[con]")).warnings() == []


def test_what_a_loop_repeats_is_said_once(folder):
    folder.ending(
        "for _ in range(3):", "    con = await roles.con(question=f'{con}')", JUDGE.format("con")
    )
    assert "role 'con' said, in field 'question'" in folder.warning()


@pytest.mark.parametrize(
    ("lines", "kind", "error"),
    [
        (
            [JUDGE.format("int(str(pro)), after=[pro]")],
            "a word",
            "ValueError: invalid literal for int()",
        ),
        (
            [JUDGE.format("1 / (str(con) == '1' or 1) / (str(con) != '1'), after=[con]")],
            "the number 1",
            "ZeroDivisionError",
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
        ("con, continue_=con", "rehearsal.unshown", "did you mean 'continues'?"),
        ("con, draft=con", "rehearsal.unshown", "write {draft} into its prompt"),
        ("con, hint='be short'", "rehearsal.unshown", "write {hint} into its prompt"),
        ("{enum.Enum('E', {'A': 'x'}).A: 1}, after=[con]", "rehearsal.object_shown", "<e.a: 'x'>"),
    ],
)
def test_a_field_that_says_something_else_than_was_meant_is_said(folder, value, code, part):
    folder.ending("import enum", JUDGE.format(value))
    assert part in folder.warning()
    folder.warned(code, f"workflow.py:{LAST + 1}")


def test_errors_at_two_places_are_two_warnings(folder):
    folder.ending("if str(pro) == '1':", "    raise ValueError('one')", "raise ValueError('word')")
    *raised, uncalled = (w.partition(": ")[0] for w in folder.warnings())
    assert raised == [folder.at(n).rstrip(": ") for n in (8, 7)] and uncalled == folder.at(
        3
    ).rstrip(": ")


def test_a_role_that_nobody_calls_is_said(folder):
    warning = folder.ending("return con").warning()
    assert "role 'judge'" in warning and warning.startswith(folder.at(3))


def test_a_role_that_one_kind_of_answer_calls_is_called(folder):
    assert (
        folder.ending("if str(con) == '1':", f"    {JUDGE.format('con')}", "return con").warnings()
        == []
    )


def test_a_role_that_a_router_names_is_called(folder):
    assert (
        folder.stating("the judge")
        .ending("if 'judge' in str(con):", f"    {JUDGE.format('con')}", "return con")
        .warnings()
        == []
    )


def test_of_an_invented_task_nothing_is_said_that_another_could_change(folder):
    folder.ending("if task.metadata.get('type'):", f"    {JUDGE.format('con')}", "return con")
    plan = folder.plan()
    assert rehearse(plan.run, workflow_of(plan.plugins, plan.run), None) == []
    folder.ending("return con")
    plan = folder.plan()
    assert rehearse(plan.run, workflow_of(plan.plugins, plan.run), None) == []


@pytest.mark.usefixtures("quick")
def test_a_workflow_that_blocks_after_an_answer_is_wrong(folder):
    folder.stating("judge").ending("if str(con) == 'judge':", "    time.sleep(3)", "return con")
    assert folder.codes() == [("rehearsal.blocks", f"workflow.py:{LAST + 1}")]


def test_a_loop_that_no_answer_ends_is_said(folder):
    folder.ending("while True:", "    con = await roles.con(question=con)", JUDGE.format("con"))
    folder.warned("rehearsal.unended", "workflow.py:7")
    assert len(graph_of(folder).nodes) == MAX_ROLE_CALLS


@pytest.mark.parametrize("others", ["word", "number"])
def test_a_loop_that_some_answers_never_end_is_said_with_them(folder, others):
    test, when = ("!= '1'", "a word") if others == "word" else ("== '1'", "the number 1")
    folder.ending(
        f"while str(con) {test}:", "    con = await roles.con(question=con)", JUDGE.format("con")
    )
    said = f"when every answer is {when};"
    assert said in folder.warning() and folder.warning().startswith(folder.at(LAST + 1))


def test_a_loop_that_other_answers_lead_into_and_never_end_is_said(folder):
    folder.stating("judge").ending(
        "while 'judge' in str(con):", "    con = await roles.con(question=con)", JUDGE.format("con")
    )
    assert "when every role says its example;" in folder.warning()


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


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("line", ["time.sleep(2)", "while True: pass"], ids=str)
def test_a_workflow_that_blocks_is_wrong_and_holds_nothing_up(folder, line):
    folder.ending(line, JUDGE.format("con"))
    assert folder.codes() == [("rehearsal.blocks", f"workflow.py:{LAST}")]


@pytest.mark.usefixtures("quick")
def test_the_filters_of_warnings_survive_a_workflow_that_is_left_behind(folder):
    before = list(warnings.filters)
    folder.ending("time.sleep(1)", JUDGE.format("con")).problem()
    assert warnings.filters == before


# --- labels
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("label", "value"),
    [
        ('"blue"', "str(task.label)"),
        ('"blue"', "f'It is {task.label.upper()}.'"),
        ('"42"', "int(task.label)"),
        ("42", "task.label"),
        ("4.2", "f'{task.label:.3f}'"),
        ('["blue", "red"]', "task.label"),
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
    ("label", "value"),
    [
        ('"blue"', "f'It has {len(task.label)} letters'"),
        ('"blue"', "task.label[:2]"),
        ("42", "'even' if task.label % 2 == 0 else 'odd'"),
        ('("blue" if n == "a" else "red")', "'short' if task.label == 'red' else 'long'"),
    ],
)
def test_what_a_role_is_shown_of_a_label_is_said(folder, label, value):
    folder.write("tasks.py", TASKS.replace("LABEL, {", f"{label}, {{"))
    folder.ending(JUDGE.format(f"[con, {value}]")).warned(
        "rehearsal.label_matters", f"workflow.py:{LAST}"
    )


@pytest.mark.parametrize(
    ("lines", "line", "code"),
    [
        (["return task.label"], 6, "rehearsal.label_answer"),
        (
            [JUDGE.format("con").replace("return", "said ="), "return f'{said} {task.label}'"],
            7,
            "rehearsal.label_answer",
        ),
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
        ('"B"', ["place = 'ABCD'.index(task.label)", JUDGE.format("con")]),
        ('"yes"', ["if str(con) == task.label:", "    return con", JUDGE.format("con")]),
        ("True", [JUDGE.format("con")]),
    ],
)
def test_a_workflow_that_needs_a_real_label_is_not_accused(folder, label, lines):
    folder.write("tasks.py", TASKS.replace('"blue"', label))
    assert folder.stating("'yes'").ending(*lines).warnings() == []


def test_marked_labels_have_the_form_of_the_label():
    label = {"a": ["x", "7", 7, 7.5, True, None]}
    found = marked(label)
    assert [type(v) for v in found["a"]] == [type(v) for v in label["a"]]
    assert int(found["a"][1]) == found["a"][2] and found["a"][4:] == [True, None]


SHARED = {
    "a name of the module": "NOW = {}\n\n\nasync def run(task, roles, tools):\n    NOW['task'] = "
    "task\n    "
    "pro = await roles.pro(question=task.prompt)\n    return await "
    "roles.judge(question=NOW['task'].prompt, history=pro)\n",
    "the task": "async def run(task, roles, tools):\n    task.metadata['n'] = "
    "task.metadata.get('n', 0) + 1\n"
    "    pro = await roles.pro(question=task.prompt)\n\n\n\n"
    "    return await roles.judge(question=f'try {task.metadata[\"n\"]}', history=pro)\n",
    "a list of the task": "async def run(task, roles, tools):\n    said = "
    "task.metadata.setdefault('said', [])\n"
    "    pro = await roles.pro(question=task.prompt)\n    said.append(str(pro))\n\n\n"
    "    return await roles.judge(question=task.prompt, history=[pro, *said[:-1]])\n",
    "what was said": "NOW = {}\n\n\nasync def run(task, roles, tools):\n    NOW['pro'] = await "
    "roles.pro(question='')\n    "
    "await roles.pro(question='')\n    return await roles.judge(question=task.prompt, "
    "history=NOW['pro'])\n",
    "what was said, by task": "NOW = {}\n\n"
    "async def run(task, roles, tools):\n    NOW[task.id] = str(await roles.pro(question=''))\n"
    "    pro = await roles.pro(question='')\n\n    return await roles.judge(question=NOW[task.id], "
    "history=pro)\n",
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


@pytest.mark.parametrize(
    "lines",
    [
        ["async def each():", "    yield await roles.pro(question='')", "async for pro in "
                                                                        "each():", "    break",
         "await asyncio.sleep(0)"],
        ["import copy", "roles = copy.deepcopy({'roles': "
                        "copy.copy(roles)})['roles']", "con = await roles.con(question='')"],
        ["con = 'def <function name>(<arguments>), <coroutine object>'"],
        ["pro = 'Answer as {answer}.'", "await roles.pro(question='as {answer}')", "answer = con"],
        ["if len(str(con)) > 10**9:", "    assert False, 'nobody says so'"],
    ],
    ids=["generator left early", "copies", "instruction", "braces before", "assert False"],
)  # fmt: skip
def test_more_that_is_right(folder, lines):
    assert folder.ending(*lines, JUDGE.format("[pro, con]")).warnings() == []


def test_a_semaphore_for_which_trajectories_wait_is_no_problem(folder):
    slots = (
        "SLOTS = asyncio.Semaphore(1)\n\n\nasync def one(roles):\n    async with SLOTS:\n      "
        "  await asyncio.sleep(0)\n"
    )
    folder.ending("await asyncio.gather(*(one(roles) for _ in range(3)))", JUDGE.format("con"))
    folder.write(
        "workflow.py",
        (folder.path / "workflow.py").read_text().replace("\n\nasync", f"\n\n{slots}\n\nasync", 1),
    )
    assert folder.warnings() == []


def test_an_alarm_of_a_grader_is_a_warning(folder):
    folder.write(
        "grader.py",
        "import signal\n\n"
        + GRADER.replace("    return", "    signal.signal(14, print)\n    return"),
    )
    folder.warned("rehearsal.may_raise", "grader.py:4")


def test_a_workflow_with_arguments_is_tried_as_any_other(folder):
    folder.stating("'YES'").ending(
        "if str(con).startswith('YES'):", "    await roles.critic(question='')", JUDGE.format("con")
    )
    body = (
        (folder.path / "workflow.py")
        .read_text()
        .replace("async def run(task, roles, tools)", "async def act(task, roles, tools, n)")
    )
    folder.write("workflow.py", body + "\nfrom functools import partial\nrun = partial(act, n=2)\n")
    assert folder.codes() == [("rehearsal.mistake", "workflow.py:7")]


def test_a_loop_that_shows_all_that_was_said_is_no_error(folder):
    folder.ending("said = [con]", "while True:", "    said.append(await roles.judge(question='', "
                                                 "history=said))",
                  "    if str(said[-1]).startswith('ACCEPT'):", "        return con")  # fmt: skip
    assert briefs(folder.plan().run.warnings)[0] == ("rehearsal.unended", "workflow.py:8")


def test_tasks_of_another_kind_are_tried_with_texts_as_a_run_has_them(folder):
    folder.write("tasks.py", TASKS.replace('{"type": "colour"}', '{"type": "cd"[n > "b"]}'))
    folder.stating("judge").ending(
        "if str(con) == 'judge':", "    assert type(con.text) is str", JUDGE.format("con")
    )
    assert folder.warnings() == []


def test_a_name_that_a_module_lacks_is_not_called_a_missing_file(folder):
    folder.write("parsing.py", "def steps_of(text):\n    return []\n")
    folder.write("workflow.py", "from .parsing import step_of\n\n" + GOOD)
    assert "step_of" in folder.problem() and "no parsing.py" not in folder.problem()


def test_a_default_argument_that_grows_behind_a_branch_is_said(folder):
    folder.stating("judge")
    grows = ("def kept(text, seen=[]):", "    seen.append(text)", "    return seen")
    folder.write("workflow.py", "\n".join(grows) + "\n\n" + BEGIN + "    if 'judge' in str(con):\n")
    source = (
        folder.path / "workflow.py"
    ).read_text() + "        return await roles.judge(question=kept(task.prompt), history=con)\n"
    folder.write("workflow.py", source + "    return await roles.judge(question='', history=con)\n")
    assert ("rehearsal.unlike", "workflow.py:11") in briefs(folder.plan().run.warnings)


@pytest.mark.parametrize("lock", ["Semaphore(1)", "Lock()"])
def test_a_lock_of_the_module_is_no_problem(folder, lock):
    source = GOOD.replace(
        "import asyncio, time\n", f"import asyncio, time\n\nLOCK = asyncio.{lock}\n"
    )
    source = source.replace(
        "    return await",
        "    async with LOCK:\n        await roles.pro(question='')\n    return await",
    )
    folder.write("workflow.py", source)
    assert folder.warnings() == []


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
        ("\ndef score_outcome(t):\n    return 5", 2, "is 5; scores lie in [0, 1]"),
        ("def score_outcome(t):\n    return 5 if t.answer == '1' else 0", 1, "is 5; scores lie in "
                                                                             "[0, 1]"),
        ("def score_outcome(t):\n    return 'good'", 1, "'good'"),
        ("async def score_outcome(t):\n    return [1]", 1, "[1]"),
        ("def score_outcome(t):\n    return t.task.metadata['subject']", 2, f"KeyError: 'subject'{NONE} (score_outcome raises it"),
        ("def score_outcome(t):\n    raise SystemExit", 2, "SystemExit() ends the program"),
        ("async def f(t):\n    return 1\ndef score_outcome(t):\n    f(t)\n    return "
         "1.0", 4, "f is called, and nobody awaits"),
        ("def score_outcome(t):\n    return 1\ndef score_action(a):\n    return 1", 3, "score_action is called with action"),
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
        ("def score_outcome(t):\n    try:\n        raise ConnectionRefusedError\n    except "
         "OSError as e:\n"
         "        raise RuntimeError('no judge') from e", "score_outcome does not run: "
                                                          "RuntimeError: no judge"),
    ],
)  # fmt: skip
def test_a_grader_that_may_work_is_a_warning(folder, code, part):
    folder.write("grader.py", code)
    warning = folder.warning()
    assert part in warning and "grader.py" in warning


@pytest.mark.parametrize(
    "wrong",
    ["t.anwser", "t.actions[0].txt", "anwser(t)", "t.task.metadata['subject']", "t.task.labl"],
)
@pytest.mark.parametrize(
    "start",
    [
        "def score_outcome(t):",
        "async def score_outcome(t):",
        "def score_outcome(t): return 1\ndef score_action(t, seen):",
    ],
)
def test_a_wrong_name_whose_exception_a_grader_catches_is_a_warning(folder, wrong, start):
    wrong = "t.txt" if "action(" in start else wrong
    body = (
        f"    try:\n        return float({wrong} == 'x')\n    except Exception:\n        return "
        "0.0\n"
    )
    folder.write("grader.py", f"{start}\n{body}")
    folder.warned("rehearsal.swallowed", f"grader.py:{start.count(chr(10)) + 3}")


def test_a_wrong_name_in_an_agents_program_is_no_mistake_of_the_grader(folder):
    body = (
        "    try:\n        exec(t.answer, {})\n    except Exception:\n        return 0.0\n    "
        "return 1.0\n"
    )
    folder.write("grader.py", f"def score_outcome(t):\n{body}")
    assert "rehearsal.swallowed" not in [code for code, *_ in briefs(folder.plan().run.warnings)]


def test_what_a_grader_may_meet_and_catches_is_no_problem(folder):
    body = (
        "    try:\n        return float(int(t.answer) == 7)\n    except ValueError:\n        "
        "return float(hasattr(t, 'no'))\n"
    )
    folder.write("grader.py", f"def score_outcome(t):\n{body}")
    assert folder.warnings() == []


SOME_TASKS = TASKS.replace(
    '{"type": "colour"}', '{"type": "colour"} | ({"hint": "sky"} if n == "d" else {})'
)
HINT = [
    "try:",
    "    hint = task.metadata['hint']",
    "except KeyError:",
    "    hint = ''",
    JUDGE.format("[con, hint]"),
]


@pytest.mark.parametrize("some", [True, False])
def test_a_key_that_only_some_tasks_have_is_no_wrong_name(folder, some):
    folder.write("tasks.py", SOME_TASKS if some else TASKS)
    graded = (
        "    try:\n        return float(t.task.metadata['hint'] == 'x')\n    except "
        "KeyError:\n        return 0.0\n"
    )
    folder.write("grader.py", f"def score_outcome(t):\n{graded}")
    warned = [
        ("rehearsal.swallowed", f"workflow.py:{LAST + 1}"),
        ("rehearsal.swallowed", "grader.py:3"),
    ]
    assert briefs(folder.ending(*HINT).plan().run.warnings) == ([] if some else warned)


CALLED = ("def read(text, strict):", "    return text")
READ = (
    "try:",
    "    said = read({})",
    "except Exception:",
    "    said = ''",
    JUDGE.format("[con, said]"),
)


ONE_FOR_EACH = "{r: secrets.randbelow(10**9) / 10**9 for r in {a.role for a in t.actions}}"


@pytest.mark.parametrize(
    ("code", "line", "kind"),
    [
        (
            "import time\ndef score_outcome(t):\n    return time.perf_counter_ns() % 1000 / 1000",
            2,
            "unlike",
        ),
        ("import random\ndef score_outcome(t):\n    return random.Random().random()", 2, "unlike"),
        (f"import secrets\nasync def score_outcome(t):\n    return {ONE_FOR_EACH}", 2, "unlike"),
        ("n = 0\ndef score_outcome(t):\n    global n\n    n += 1\n    return 1 / n", 2, "unlike"),
        (
            "n = []\ndef score_outcome(t):\n    return 1\ndef score_action(a, seen):\n    "
            "n.append(1)\n    return 1 / len(n)",
            4,
            "unlike",
        ),
        ("import random\ndef score_outcome(t):\n    return random.random()", 2, "random"),
        (
            "import random\ndef score_outcome(t):\n    return float(random.choice('ab') == 'c')",
            2,
            "random",
        ),
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


def test_a_grader_is_not_asked_about_failures_and_leaves_nothing_behind(folder):
    folder.write(
        "grader.py",
        "def score_outcome(t):\n    t.actions = ()\n    return {'a': 1}['a' if t.answer else 'b']",
    )
    folder.ending(
        "from marl_plugins.core.failures import AgentFailure",
        JUDGE.format("con"),
        "raise AgentFailure('no_answer', '')",
    )
    assert folder.warnings() == []
    assert len(folder.plan().run.state(RehearsalResult).trajectories[WORDS.when].actions) == 3


def test_a_plugin_that_scores_takes_the_graders_place_and_is_not_called(folder):
    folder.write("grader.py", "def score_outcome(a, b):\n    return 1")
    folder.write(
        "scores.py",
        """
        from marl_plugins import hookimpl

        @hookimpl
        def marl_score_outcome(run, trajectory):
            raise AssertionError("asked while planning")
        """,
    )
    assert folder.plan("--plugin", str(folder.path / "scores.py")).run.warnings == ()


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
        ("None", "rubric.py: "),
    ],
)
def test_a_rubric_that_cannot_work_is_wrong(folder, rule, part):
    folder.write("rubric.py", RUBRIC.format(rule=rule))
    words = ("--plugin", "marl_plugins.coach", "--coach.rubric", str(folder.path / "rubric.py"))
    assert part in folder.problem(*words)


def test_a_criterion_with_other_arguments_is_wrong(folder):
    folder.write("rubric.py", RUBRIC.format(rule="1").replace("action, seen: 1", "action: 1"))
    words = ("--plugin", "marl_plugins.coach", "--coach.rubric", str(folder.path / "rubric.py"))
    problem = folder.problem(*words)
    assert "rubric.py:3: " in problem and "criterion 'rule'" in problem


def test_a_criterion_that_needs_other_answers_is_a_warning(folder):
    folder.write("rubric.py", RUBRIC.format(rule="int(action.text) == 1"))
    words = ("--plugin", "marl_plugins.coach", "--coach.rubric", str(folder.path / "rubric.py"))
    (warning,) = [*map(str, folder.plan(*words).run.warnings)]
    assert "rubric.py:3: " in warning and " is a word: ValueError" in warning


# --- the picture
# --------------------------------------------------------------------------------------------------


def test_a_loop_is_drawn_with_numbers(folder, capsys):
    folder.ending("con = await roles.con(question='', said=[con])", JUDGE.format("[pro, con]"))
    assert graph_of(folder).lines() == [
        "task -> pro",
        "pro -> con 1",
        "con 1 -> con 2",
        "pro, con 2 -> judge",
    ]
    assert show(str(folder.path), as_json=False, as_mermaid=True) == 0
    assert (
        capsys.readouterr().out
        == inspect.cleandoc(
            """
        flowchart TD
            task([task])
            pro_1["pro"]
            con_1["con 1"]
            con_2["con 2"]
            judge_1["judge"]
            task --> pro_1
            pro_1 --> con_1
            con_1 --> con_2
            pro_1 --> judge_1
            con_2 --> judge_1
        """
        )
        + "\n"
    )


def test_a_recipe_is_shown_with_the_tasks_that_its_plugin_gives(folder, capsys):
    """The workflow branches on what only the plugin's tasks have, by a flag that the recipe
    sets."""
    source = TASKS.replace("def load(split):", "def load(split, kind):").replace(
        '"colour"}', "kind}"
    )
    source += (
        "from marl_plugins import hookimpl\n\n@hookimpl\ndef marl_options(parser):\n"
        "    parser.add_argument('--mine.kind', default='none')\n\n@hookimpl\ndef marl_tasks(run, "
        "split):\n"
        "    return load(split, run.args.mine.kind)\n"
    )
    folder.write("plugin.py", source)
    recipe = RECIPE.replace("tasks: tasks.py\n", "plugins: [plugin.py]\n") + "  mine.kind: hard\n"
    folder.write("recipe.yaml", recipe)
    folder.ending(
        "if task.metadata['type'] == 'hard':", f"    {JUDGE.format('[pro, con]')}", "return con"
    )
    assert show(str(folder.path), as_json=False) == 0
    shown = capsys.readouterr().out
    assert "pro, con -> judge" in shown and "never called" not in shown and "KeyError" not in shown


def test_tasks_that_cannot_be_read_are_said_with_what_can_be_shown(folder, capsys):
    folder.write("tasks.py", "def load(split):\n    raise ValueError('no disk')\n")
    assert show(str(folder.path), as_json=False) == 0
    shown = capsys.readouterr().out
    assert "no disk" in shown and "pro, con -> judge" in shown


@pytest.mark.parametrize(
    "name", ["merchant_assistant", "category_assistant", "tiny_merchant", "tiny_category"]
)
def test_no_role_of_the_assistants_seems_idle(name, capsys):
    assert show(f"ecommerce/{name}.yaml", as_json=False) == 0
    shown = capsys.readouterr().out
    assert "-> composer" in shown and "never called" not in shown


def test_nothing_is_drawn_of_a_workflow_that_does_not_run(folder):
    folder.ending("roles.nobody()")
    with pytest.raises(ConfigurationError, match="no role 'nobody'"):
        show(str(folder.path), as_json=False, as_mermaid=True)


# --- what is shipped
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["mathchat/tiny.yaml", "mathchat/tiny_outcome.yaml", "tests/recipes/sums/tiny.yaml"]
)
def test_shipped_recipes_have_nothing_wrong(name):
    assert build_plan(["--recipe", name]).run.warnings == ()


@pytest.mark.parametrize(
    "path",
    [p for p in shipped_recipes() if "tiny" not in p.name],
    ids=lambda p: "/".join(p.parts[-2:]),
)
def test_recipes_for_accelerators_have_nothing_wrong(path):
    """Their prompts are others than those of the tiny ones."""
    plan = draft_plan(["--recipe", str(path)], Plugins(read_recipe(path).plugins))
    assert check_workflow(plan) == []
