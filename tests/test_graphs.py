"""Workflows as graphs in YAML: what they read, run, record and refuse."""

import asyncio
import textwrap

import pytest
from random_graphs import compiled, played, roles
from simulated import CharacterChat, simulated_engine

from marl_plugins.builtin.graph.expressions import BadExpression, Expression
from marl_plugins.builtin.graph.reading import ReadForm
from marl_plugins.builtin.graph.values import Absence, Result
from marl_plugins.core.failures import ConfigurationError, RecipeError
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.tools import Function, Tool
from marl_plugins.core.trajectory import EVALUATION, Generation, ToolResult
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.plan.fingerprint import fingerprint
from marl_plugins.engine.plan.workflow_file import workflow_files, workflow_of


def value(text, **names):
    scope = {
        name: found if isinstance(found, Result | Absence) else Result(found)
        for name, found in names.items()
    }
    return Expression(text, "graph.yaml:1", "here").value(scope)


# --- expressions
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "names", "expected"),
    [
        ("a + 1", {"a": 2}, 3),
        ("a.x['y'][1:]", {"a": {"x": {"y": [1, 2, 3]}}}, [2, 3]),
        ("a and b or 'none'", {"a": "", "b": 1}, "none"),
        ("-a if not a > 3 else [a, {'k': a}]", {"a": 4}, [4, {"k": 4}]),
        ("1 < a <= 3 and a in [2, 3] and b is None", {"a": 3, "b": None}, True),
        ("join([a, {'x': 1}], ', ')", {"a": "b"}, 'b, {"x": 1}'),
        ("most_common(['b', 'a', 'b', 'a'])", {}, "a"),
        ("most_common([a, None, {'x': 1}, None, 'three', a])", {"a": 3}, 3),
        ("most_common([None])", {}, None),
        ("matches('^y', lower(strip(a)))", {"a": " Yes "}, True),
        ("round(mean([1, 2]) * 2) % 2 + len(unique([1, 1])) // 1", {}, 2),
        ("first(a, b, 'none')", {"a": Absence(""), "b": Result(7)}, 7),
        ("first(a.text, 'none')", {"a": Absence("")}, "none"),
        ("[ran(a), ran(b)]", {"a": Absence(""), "b": 0}, [False, True]),
        ("a.text + a.output", {"a": Result(1, "one", " two")}, "one two"),
        ("[a.text, a.ok]", {"a": {"text": "one"}}, ["one", True]),
        ("most_common([9, 10])", {}, 10),
    ],
)
def test_expressions_are_pythons(text, names, expected):
    assert value(text, **names) == expected


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a.append('z')",
            "[x for x in a]",
            "2 ** 9",
            "a.__class__",
            "open('x')",
        ),
    ],
)
def test_what_is_no_expression_is_refused(text):
    with pytest.raises(BadExpression):
        Expression(text, "graph.yaml:1", "here")


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a * 100000", {"a": "ha"}),
        ("a % 5", {"a": "%99999999d"}),
        ("int(a)", {"a": "9" * 5000}),
        ("a + a", {"a": "x" * 600_000}),
    ],
)
def test_values_that_an_expression_does_not_take_are_named_with_the_line(text, names):
    with pytest.raises(RecipeError) as caught:
        value(text, **names)
    assert caught.value.place == "graph.yaml:1"


# --- reading
# --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reading", "text", "expected"),
    [
        (ReadForm("json", "q"), 'So: {"q": ["a"]} and more', (["a"], True)),
        (ReadForm("json", "q", most=1), '{"q": ["a", "b"]}', (["a"], True)),
        (ReadForm("json", "q", {"q": "list"}), '{"q": "a"}', ('{"q": "a"}', False)),
        (
            ReadForm("json", "", {"n": "number", "b": "truth"}),
            '{"n": 1, "b": true}',
            ({"n": 1, "b": True}, True),
        ),
        (ReadForm("json", "", {"n": "number"}), '{"n": true}', ('{"n": true}', False)),
        (ReadForm("json"), 'a {brace} then {"x": {"y": 1}}', ({"x": {"y": 1}}, True)),
        (
            ReadForm("json"),
            "${}^{14}C$, " + "\\frac{1}{2} " * 20 + '{ "x": 1}',
            ({"x": 1}, True),
        ),
        (ReadForm("json"), '{"x": 1e999}', ('{"x": 1e999}', False)),
        (ReadForm("tag", "a"), "<a>1</a> <a>2 <a>3</a></a>", ("3", True)),
        (ReadForm("code", "python"), "```python\n1\n```\n```sh\n2\n```", ("1", True)),
        (ReadForm("code"), "```python\n1", ("```python\n1", False)),
        (ReadForm("number"), " -3 \n", (-3, True)),
        (ReadForm("number"), "0.50", (0.5, True)),
        (ReadForm("number", default=Expression("0", "", "")), "three", (0, False)),
    ],
)
def test_answers_are_read(reading, text, expected):
    assert reading.read(text, {}) == expected


# --- running
# --------------------------------------------------------------------------------------------------


def says(**texts):
    """An engine whose roles say these texts, one after the other."""
    left = {role: list(said) if isinstance(said, list) else [said] for role, said in texts.items()}

    async def generate(call):
        said = left[call.role].pop(0) if len(left[call.role]) > 1 else left[call.role][0]
        ids = (*CharacterChat.encode(said), ord("^"))
        return Generation(ids, tuple(-0.5 for _ in ids), "stop", call.policy, 0)

    return generate


def ran(folder, text, engine, tools=None):
    """A trajectory of a graph, with the node of each action."""
    workflow, problems = compiled(folder, textwrap.dedent(text), tools=tools)
    assert not problems, [*map(str, problems)]
    trajectory = asyncio.run(played(workflow, engine, tools or {}))
    by_path = {a.path: a.notes["graph"]["node"] for a in trajectory.actions}
    return trajectory, {
        by_path[a.path]: [by_path[p] for p in a.parents] for a in trajectory.actions
    }


def test_a_skipped_node_skips_what_names_it_and_hands_on_who_decided(tmp_path):
    text = """
        nodes:
          one: {role: a, with: {q: task.prompt}}
          two: {role: b, with: {q: task.prompt}, when: one == 'yes'}
          three: {role: b, with: {q: two}}
          four: {role: a, with: {q: "first(three, two, 'none')"}}
          five: {let: "9", when: ran(two), otherwise: 7}
          six: {role: b, with: {q: five}}
        give: four
    """
    no, parents = ran(tmp_path, text, says(a="no", b="x"))
    assert parents == {"one": [], "four": ["one"], "six": ["one"]}
    assert [a.shown[0][1] for a in no.actions if a.notes["graph"]["node"] in ("four", "six")] in (
        ["none", "7"],
        ["7", "none"],
    )
    yes, parents = ran(tmp_path, text, says(a="yes", b="x"))
    assert parents == {
        "one": [],
        "two": ["one"],
        "three": ["two"],
        "four": ["three"],
        "six": ["two"],
    }
    assert yes.answer == "yes" and yes.returned == next(
        a.path for a in yes.actions if a.notes["graph"]["node"] == "four"
    )


def test_an_evaluation_is_told_from_training_in_loops_and_sub_graphs_too(tmp_path):
    text = """
        graphs:
          inner:
            nodes: {two: {role: b, with: {q: task.prompt}, when: training}}
            give: two
        nodes:
          rounds:
            loop: {most: 2, nodes: {sub: {graph: inner}, one: {role: a, with: {q: str(training)}}}, give: one}
        give: rounds
    """
    workflow, problems = compiled(tmp_path, textwrap.dedent(text))
    assert not problems
    for step, nodes in (
        (1, ["rounds.one", "rounds.sub.two"] * 2),
        (EVALUATION, ["rounds.one"] * 2),
    ):
        trajectory = asyncio.run(played(workflow, says(a="x", b="y"), step=step))
        assert sorted(a.notes["graph"]["node"] for a in trajectory.actions) == sorted(nodes)
        shown = {a.shown[0][1] for a in trajectory.actions if a.role == "a"}
        assert shown == {str(step == 1)}


def test_a_loop_ends_and_hands_on_who_ended_it(tmp_path):
    text = """
        nodes:
          rounds:
            loop:
              most: 4
              start: {told: "'begin'"}
              nodes:
                say: {role: a, with: {q: "[told, str(round)]"}}
                check: {role: b, with: {q: say}, read: number}
              until: check == 1
              next: {told: say}
              give: say
          after: {role: b, with: {q: "str(rounds.rounds)"}}
        give: rounds
    """
    trajectory, _ = ran(tmp_path, text, says(a=["one", "two"], b=["0", "1", "fine"]))
    notes = [(a.notes["graph"]["node"], a.notes["graph"]["round"]) for a in trajectory.actions]
    assert (
        notes.count(("rounds.say", 0)) == notes.count(("rounds.say", 1)) == 1
        and ("rounds.say", 2) not in notes
    )
    by_node = {(a.notes["graph"]["node"], a.notes["graph"]["round"]): a for a in trajectory.actions}
    second = by_node["rounds.say", 1]
    assert set(second.parents) == {by_node["rounds.say", 0].path, by_node["rounds.check", 0].path}
    last = by_node["after", None]
    assert last.shown[0][1] == "2" and by_node["rounds.check", 1].path in last.parents
    assert trajectory.answer == "two"


def test_what_a_model_writes_is_not_what_a_loop_says_of_itself(tmp_path):
    text = """
        nodes:
          twice:
            loop:
              most: 2
              nodes: {x: {role: a, with: {q: task.prompt}, read: json}, own: {let: x.result}}
              give: own
          again: {let: twice}
        give: join([twice.rounds, again.rounds, again.ok, twice['rounds']], ' ')
    """
    trajectory, _ = ran(tmp_path, text, says(a='{"result": {"rounds": 99, "ok": 0}}'))
    assert trajectory.answer == "2 2 True 99"


def test_a_map_keeps_the_order_and_leaves_out_what_gave_nothing(tmp_path):
    text = """
        nodes:
          list: {role: a, with: {q: task.prompt}, read: {as: json.items, keys: {items: list}, most: 3, default: []}}
          each:
            map:
              over: list
              as: it
              nodes:
                look: {tool: shout, call: it}
                keep: {let: look.output, when: "it != 'b'"}
              give: keep
          end: {role: b, with: {q: join(each)}}
        give: end.value
    """

    async def shout(call):
        await asyncio.sleep(0.001 if call.text == "a" else 0)
        return ToolResult("shout", call.text, call.text.upper(), ok=True)

    tools = {"shout": Tool("shout", shout, lambda text: [])}
    trajectory, parents = ran(
        tmp_path, text, says(a='{"items": ["a", "b", "c", "d"]}', b="done"), tools
    )
    assert trajectory.actions[-1].shown[0][1] == "A\nC" and parents["end"] == ["list"]
    assert trajectory.answer == "done" and trajectory.returned is None
    empty, parents = ran(tmp_path, text, says(a="rubbish", b="done"), tools)
    assert parents["end"] == ["list"] and empty.actions[0].notes["graph"] == {
        "node": "list",
        "round": None,
        "legal": False,
    }


def test_functions_of_tools_graphs_conversations_and_failures(tmp_path):
    text = """
        nodes:
          first_word: {role: a, with: {q: task.prompt}}
          check: {graph: checked, with: {text: first_word}}
          again: {role: a, with: {q: check}, continues: first_word}
          end: {fail: "'no: ' + again.text", when: again == 'x'}
        give: again
        graphs:
          checked:
            nodes:
              now: {tool: clock.at, with: {place: text}}
              told: {role: b, with: {q: "{'time': now.output}"}}
            give: told
    """

    async def at(call):
        return ToolResult(
            "clock", call.text, f"noon in {call.function.arguments['place']}", ok=True
        )

    tools = {"clock": Tool("clock", at, functions=(Function("at", "", {"type": "object"}),))}
    trajectory, parents = ran(tmp_path, text, says(a=["Rome", "x"], b="fine"), tools)
    assert parents == {
        "first_word": [],
        "check.told": ["first_word"],
        "again": ["first_word", "check.told"],
    }
    told = next(a for a in trajectory.actions if a.role == "b")
    assert told.shown[0][1] == '{"time": "noon in Rome"}'
    assert trajectory.agent_failure == "no_answer" and trajectory.detail == "no: x"
    assert trajectory.actions[-1].before is trajectory.actions[0]


def test_other_graphs_may_have_files_of_their_own(tmp_path):
    (tmp_path / "checked.yaml").write_text(
        "nodes: {told: {role: b, with: {q: text}}}\ngive: told\n"
    )
    text = (
        "nodes: {x: {role: a, with: {q: task.prompt}}, y: {graph: checked.yaml, with: {text: "
        "x}}}\ngive: y\n"
    )
    workflow, problems = compiled(tmp_path, text)
    assert not problems and workflow.files == ["graph.yaml", "checked.yaml"]
    (tmp_path / "checked.yaml").write_text("nodes: {told: {graph: graph.yaml}}\ngive: told\n")
    assert [p.code for p in compiled(tmp_path, text)[1]] == ["graph.recursion"]


def test_an_agents_failure_stops_what_names_it_and_the_first_is_raised(tmp_path):
    text = """
        nodes:
          slow: {role: a, with: {q: "'1'"}}
          late: {fail: "'late'", when: "ran(slow)"}
          soon: {fail: "'soon'"}
          rest: {role: b, with: {q: slow}}
          never: {role: b, with: {q: "[first(soon, 'x'), 'never']"}}
        give: rest
    """
    trajectory, parents = ran(tmp_path, text, says(a="x", b="y"))
    assert trajectory.detail == "late" and set(parents) == {"slow", "rest"}


@pytest.mark.parametrize(
    ("priorities", "runs"),
    [((0, 0, 0), "xy"), ((0, 2, 1), "yz"), ((3, 1, 2), "xz")],
)
def test_a_budget_covers_nodes_of_higher_priority_first(tmp_path, priorities, runs):
    nodes = "\n".join(
        f"  {name}: {{role: a, with: {{q: \"'{name}'\"}}, cost: {{calls: 1}}, priority: {priority}}}"
        for name, priority in zip("xyz", priorities, strict=True)
    )
    text = f"budget: {{calls: 2}}\nnodes:\n{nodes}\ngive: first(x, y, z)\n"
    _, parents = ran(tmp_path, text, says(a="1"))
    assert "".join(sorted(parents)) == runs


def test_a_last_try_counts_that_came_to_nothing(tmp_path):
    """Both are to be tried again, of which the budget covers one."""
    text = """
        budget: {calls: 3}
        nodes:
          one: {let: "0", cost: {calls: 1}, retry: {most: 2, while: one == 0}}
          two: {let: "0", cost: {calls: 1}, retry: {most: 2, while: two == 0}, otherwise: 7}
          said: {role: a, with: {q: "[one, two]"}}
        give: said
    """
    trajectory, _ = ran(tmp_path, text, says(a="x"))
    assert trajectory.actions[0].messages[0][1].endswith("[0, 0]")


@pytest.mark.parametrize(
    ("read", "over"),
    [
        ("json.queries", "x"),
        ("json", "x['queries']"),
        ("{as: json, keys: {queries: text}}", "via"),
        ("{as: json.plan, keys: {plan: list}}", "first(x)"),
    ],
)
def test_a_map_over_what_agents_made_no_list_is_their_failure(tmp_path, read, over):
    text = f"""
        nodes:
          x: {{role: a, with: {{q: task.prompt}}, read: {read}}}
          via: {{let: x.text}}
          y: {{map: {{over: "{over}", most: 3, nodes: {{z: {{let: item}}}}, give: z}}}}
        give: str(y)
    """
    trajectory, _ = ran(tmp_path, text, says(a='{"queries": "Paris"}'))
    assert trajectory.agent_failure == "no_answer"


def test_a_map_takes_lists_that_expressions_make_of_a_text(tmp_path):
    text = """
        nodes:
          x: {role: a, with: {q: task.prompt}, read: json}
          y: {map: {over: "lines(x.plan) + [x.n]", most: 3, nodes: {z: {let: item}}, give: z}}
        give: join(y, '+')
    """
    trajectory, _ = ran(tmp_path, text, says(a='{"plan": "one\\ntwo", "n": "three"}'))
    assert trajectory.answer == "one+two+three"


def test_a_stop_between_two_tries_leaves_the_last_one(tmp_path):
    text = """
        stop: done >= 1
        nodes:
          draft: {role: a, with: {q: task.prompt}, retry: {most: 3, while: not draft.ok, cooldown: COOLDOWN}, read: tag.text}
          other: {role: b, with: {q: "'x'"}}
          never: {role: b, with: {q: draft}}
        give: first(never, draft, other)
    """
    for cooldown in "02":
        trajectory, parents = ran(
            tmp_path, text.replace("COOLDOWN", cooldown), says(a="words", b="x")
        )
        assert trajectory.answer == "words" and set(parents) == {"draft", "other"}


def test_a_list_with_a_text_in_it_is_shown_as_texts(tmp_path):
    text = """
        nodes:
          check: {role: a, with: {q: "[1, 2]"}, read: json}
          better: {role: b, with: {q: "['one', check, [1]]"}}
        give: better
    """
    trajectory, _ = ran(tmp_path, text, says(a='{"fine": true}', b="x"))
    assert [a.shown[0][1] for a in trajectory.actions] == [
        "[1, 2]",
        'one\n\n{"fine": true}\n\n[1]',
    ]


@pytest.mark.parametrize(
    ("node", "kind"),
    [
        ("{map: {over: task.prompt, most: 3, nodes: {x: {let: item}}, give: x}}", "TypeError"),
        ("{let: said + 1}", "TypeError"),
        ("{let: int(said)}", "ValueError"),
        ("{role: b, with: {q: said}, continues: said + 'x'}", "TypeError"),
    ],
)
def test_what_an_expression_does_not_take_ends_the_run_with_its_line(tmp_path, node, kind):
    workflow, problems = compiled(
        tmp_path, f"nodes:\n  said: {{role: a, with: {{q: task.prompt}}}}\n  y: {node}\ngive: y\n"
    )
    assert not problems
    with pytest.raises(RecipeError) as caught:
        asyncio.run(played(workflow, says(a="text", b="x"), {}))
    assert caught.value.place == f"{tmp_path}/graph.yaml:3" and caught.value.kind == kind


def test_a_tool_that_raises_ends_the_run_as_in_python_and_nothing_is_left_running(tmp_path):
    text = (
        "nodes: {t: {tool: bad, call: \"'x'\"}, slow: {role: a, with: {q: \"'1'\"}}}\ngive: slow\n"
    )

    async def bad(call):
        raise ZeroDivisionError("a bug")

    async def engine(call):
        await asyncio.sleep(30)

    tools = {"bad": Tool("bad", bad, lambda text: [])}
    workflow, _ = compiled(tmp_path, text, tools=tools)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(asyncio.wait_for(played(workflow, engine, tools), 10))


# --- what is refused
# --------------------------------------------------------------------------------------------------

BROKEN = """\
nodes:
  one: {role: a, tool: echo}
  two: {role: solvr, with: {q: task.prompt}}
  three: {role: a, with: {question: task.prompt}}
  four: {role: a, with: {q: hello}}
  five: {let: six}
  six: {let: five}
  seven: {let: task.label}
  eight: {tool: ecko, call: "'x'"}
  nine: {loop: {nodes: {x: {let: 1}}, give: x}}
  ten: {let: "[x for x in seven]", cost: {calls: 1}}
  eleven: {role: a, with: {q: task.prompt}, wen: true}
  twelve: {role: a, with: {q: task.promt}, read: jsn.x}
  thirteen: {map: {over: three, nodes: {x: {let: item}}, give: x}}
  round: {let: 1}
  fifteen: {graph: nowhere}
  sixteen: {role: b, with: {q: "'x'"}, continues: three, after: [seventeen]}
  seventen: {let: 1}
  eighteen: {loop: {most: 2, start: {a: 1}, next: {b: 2}, nodes: {y: {let: a}}, give: y}}
  nineteen: {tool: echo}
  twenty: {tool: echo.say, with: {x: "'y'"}}
  twentyone: {let: four.txt}
give: four
choose: {role: chooser, with: {q: four}}
"""


def test_all_that_is_wrong_with_a_graph_is_said_at_once_by_file_and_line(tmp_path):
    _, problems = compiled(tmp_path, BROKEN)
    found = {(p.code, int(p.names("line")[0].rpartition(":")[2])) for p in problems}
    assert found == {
        ("graph.kind", 2),
        ("graph.role", 3),
        ("graph.unknown_name", 5),
        ("graph.cycle", 6),
        ("graph.label", 8),
        ("graph.tool", 9),
        ("recipe.missing_key", 10),
        ("graph.expression", 11),
        ("graph.budget", 11),
        ("recipe.unknown_key", 12),
        ("graph.attribute", 13),
        ("graph.read", 13),
        ("graph.most", 14),
        ("graph.name", 15),
        ("graph.graph", 16),
        ("graph.after", 17),
        ("graph.next", 19),
        ("graph.call", 20),
        ("graph.function", 21),
        ("graph.attribute", 22),
        ("graph.choose", 24),
    }
    assert all(p.names("line")[0].startswith(f"{tmp_path}/graph.yaml:") for p in problems)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("nodes: {x: {let: 1, once: ran(x)}}\ngive: x", "graph.cycle"),
        ("nodes: {x: {let: y.z}, y: {graph: other.yaml}}\ngive: x", "graph.file"),
        (
            "nodes: {x: {role: a, with: {q: task.prompt}, read: {as: json, keys: {ok: truth}}}}\ngive: x",
            "graph.read",
        ),
        (
            "nodes: {x: {role: a, with: {q: task.prompt}, read: json}, y: {let: x.score}}\ngive: y",
            "graph.attribute",
        ),
        ("[1]", "recipe.value"),
        ("nodes: {x: {let: 1}", "recipe.not_yaml"),
    ],
)
def test_what_else_is_refused(tmp_path, text, code):
    _, problems = compiled(tmp_path, text)
    assert code in [p.code for p in problems]


# --- as the workflow of a recipe
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delays", [False, True])
def test_mathchat_in_yaml_is_mathchat_in_python(tmp_path, delays):
    """Trajectory for trajectory: paths, parents, contexts, texts, answers."""
    folder = recipes_root() / "mathchat"
    python = load_file(folder / "workflow.py").run
    fields = {
        "solver": ["problem"],
        "coder": ["problem", "solution"],
        "verifier": ["problem", "solution", "computed"],
    }
    graph, problems = compiled(tmp_path, (folder / "graph.yaml").read_text(), fields)
    assert not problems
    specs = roles(fields)

    def content(trajectory):
        actions = [
            (a.path, a.role, {*a.parents}, a.context_ids, a.generation, a.text, a.turn)
            for a in trajectory.actions
        ]
        return actions, trajectory.answer, trajectory.returned

    for n in range(10 if delays else 30):
        one, other = (
            asyncio.run(played(workflow, simulated_engine(delays=delays), {}, specs, task=f"t{n}"))
            for workflow in (python, graph)
        )
        assert content(one) == content(other) and len(one.actions) == 3


def test_a_recipe_with_a_graph_is_planned_as_with_its_workflow_in_python():
    plan = build_plan(["--recipe", "mathchat/tiny_graph.yaml"])
    other = build_plan(["--recipe", "mathchat/tiny.yaml"])
    assert [p.code for p in plan.run.warnings] == [p.code for p in other.run.warnings]
    files = fingerprint(plan)["files"]
    assert files["workflow"][0] == "graph.yaml" and workflow_files(plan.plugins, plan.run) == [
        "graph.yaml"
    ]
    assert workflow_of(plan.plugins, plan.run) is workflow_of(plan.plugins, plan.run)


RECIPE = """
name: asking
roles:
  a: {prompt: a.md}
  b: {prompt: b.md}
workflow: graph.yaml
tasks: tasks.py
grader: grader.py
plugins: [tool.py]
model: tiny
flags: {rollout.batch_size: 4, rollout.max_new_tokens: 8, train.batch_size: 4, train.micro_batch_size: 4, data.max_len: 256}
"""
TASKS = """
from marl_plugins.core.trajectory import Task

def load(split):
    return [Task(n, f"What is {n}?", "blue", {"copy": "blue"}) for n in ("abcd" if split == "train" else "ef")]
"""
TOOL = """
from marl_plugins import hookimpl
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import ToolResult

async def run(call):
    return ToolResult("visible", call.text, "", ok=True)

@hookimpl
def marl_tools(run):
    return [Tool("visible", globals()["_run"], lambda text: [])]

_run = run
"""


@pytest.fixture
def recipe(tmp_path):
    """A recipe's folder, with a tool of its own; `write(graph)` returns the warnings of its plan,
    or all that is wrong."""
    grader = (
        "def score_outcome(trajectory):\n    return float(trajectory.answer == "
        "trajectory.task.label)\n"
    )
    files = {
        "recipe.yaml": RECIPE,
        "tasks.py": TASKS,
        "tool.py": TOOL,
        "grader.py": grader,
        "a.md": "{q}",
        "b.md": "{q}",
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    def write(graph):
        (tmp_path / "graph.yaml").write_text(textwrap.dedent(graph))
        try:
            return build_plan(["--recipe", str(tmp_path)]).run.warnings
        except ConfigurationError as error:
            return error.problems

    write.folder = tmp_path
    return write


GOOD = """
nodes:
  one: {role: a, with: {q: task.prompt}}
  tests: {tool: visible, call: one}
  two: {role: b, with: {q: one}, when: "not tests.ok and matches('zebra', one)"}
give: first(two, one)
"""


def test_every_branch_is_entered_by_the_rehearsal(recipe):
    assert recipe(GOOD) == ()
    wrong = recipe(GOOD.replace("q: one}, when", "q: one + 1}, when"))
    line = (f"{recipe.folder}/graph.yaml:5",)
    assert ("rehearsal.may_raise", line) in [
        (problem.code, problem.names("line")) for problem in wrong
    ]


def test_conditions_that_no_invented_answer_meets_are_forced(recipe):
    text = """
        nodes:
          rounds:
            loop:
              most: 3
              nodes:
                x: {role: a, with: {q: task.prompt}}
                y: {role: b, with: {q: x}, read: tag.v}
              until: y == '<end>' and len(y) > 9
              give: x
          late: {role: b, with: {q: rounds}, once: done > 9}
        give: first(late, rounds)
    """
    assert recipe(text) == ()
    (wrong,) = recipe(text.replace("q: rounds}", "q: rounds + 1}"))
    assert (wrong.code, wrong.names("line")) == (
        "rehearsal.may_raise",
        (f"{recipe.folder}/graph.yaml:11",),
    )


@pytest.mark.parametrize(
    "call", ["{role: b, with: {text: one}}", "{role: b, with: {q: one}, continues: one}"]
)
def test_a_call_that_cannot_be_meant_is_refused_by_the_rehearsal(recipe, call):
    problems = recipe(
        f"nodes:\n  one: {{role: a, with: {{q: task.prompt}}}}\n  two: {call}\ngive: two\n"
    )
    assert [(problem.code, problem.names("line")) for problem in problems] == [
        ("rehearsal.mistake", (f"{recipe.folder}/graph.yaml:3",))
    ]
