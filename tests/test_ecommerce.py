"""The recipe `ecommerce`: the store that is generated, questions with their truth, and how answers
are graded."""

import asyncio
import functools
import hashlib
import json
import random
import sqlite3
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest
from simulated import CharacterChat

from marl_plugins.coach.rubric import RubricCoach, load_rubric
from marl_plugins.core.loading import load_file
from marl_plugins.core.recipe.prompts import followup_renderer, prompt_renderer
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.core.scoring import score_trajectory
from marl_plugins.core.tools import ToolCall
from marl_plugins.core.trajectory import Generation
from marl_plugins.core.workflow import RoleSpec, Sampling, run_workflow
from marl_plugins.engine.plan.build import build_plan

FOLDER = recipes_root() / "ecommerce"
questions = load_file(FOLDER / "questions.py")
grader = load_file(FOLDER / "grader.py")
store = questions.store
KINDS = questions.KINDS
QUERIES = sorted(name for name, kind in KINDS.items() if kind.sql)
ASSISTANTS = list(questions.SPECIALISTS)


@functools.cache
def tasks_of(assistant):
    return questions.load(assistant, "train", 500, 0.76)


def labels():
    return [label for name in ASSISTANTS for task in tasks_of(name) for label in task.label]


# The store


def content(path):
    connection = sqlite3.connect(path)
    try:
        return hashlib.sha256("\n".join(connection.iterdump()).encode()).hexdigest()
    finally:
        connection.close()


@pytest.fixture(scope="module")
def year(tmp_path_factory):
    path = tmp_path_factory.mktemp("store") / "0.db"
    store.write(store.Market(0), path)
    return path


def rows(path, query, *values):
    connection = sqlite3.connect(path)
    try:
        return connection.execute(query, values).fetchall()
    finally:
        connection.close()


def test_a_store_is_a_function_of_its_seed(year, tmp_path):
    store.write(store.Market(0), tmp_path / "again.db")
    store.write(store.Market(1), tmp_path / "other.db")
    assert (
        content(year)
        == content(tmp_path / "again.db")
        == content(store.database(0))
        != content(tmp_path / "other.db")
    )


def test_money_is_in_whole_cents_and_the_tables_fit_together(year):
    money = (
        "SELECT cost FROM products UNION ALL SELECT price FROM products UNION ALL SELECT price "
        "FROM order_lines "
    )
    assert {
        type(value) for (value,) in rows(year, money + "UNION ALL SELECT amount FROM refunds")
    } == {int}
    assert rows(year, "PRAGMA foreign_key_check") == []
    (lines,), (sold,) = (
        rows(
            year,
            "SELECT sum(quantity * price) FROM order_lines JOIN orders ON id = order_id WHERE "
            "status <> 'cancelled'",
        ),
        rows(year, "SELECT sum(revenue) FROM sales"),
    )
    assert lines == sold
    paid = rows(
        year,
        "SELECT r.amount, l.quantity * l.price FROM refunds r JOIN order_lines l USING (order_id, "
        "product)",
    )
    assert paid and all(amount == price for amount, price in paid)


# Questions and their truth


@pytest.mark.parametrize("assistant", ASSISTANTS)
def test_a_task_is_a_function_of_its_id_and_held_out_stores_are_others(assistant):
    again = questions.load(assistant, "train", 500, 0.76)
    assert again == tasks_of(assistant)
    held_out = questions.load(assistant, "eval", 500, 0.76)
    assert len(held_out) == 100
    assert not {t.metadata["store"] for t in held_out} & {
        t.metadata["store"] for t in tasks_of(assistant)
    }
    assert not {t.prompt for t in held_out} & {t.prompt for t in tasks_of(assistant)}
    assert {len(t.label) for t in tasks_of(assistant)} == {2, 3, 4}
    for task in tasks_of(assistant):
        asked = task.metadata["questions"]
        assert task.prompt.endswith(asked[0]) and len(asked) == len(task.label) == len(set(asked))
        assert task.metadata["type"] == task.label[0]["specialist"] and not any(
            "{" in q for q in asked
        )


@pytest.mark.parametrize("name", QUERIES)
def test_the_truth_is_the_same_when_it_is_computed_in_python(name):
    """Sums, counts and rankings of the plain tables, without a query of ours."""
    kind, draw, checked = KINDS[name], random.Random(name), 0
    for seed in (0, 1):
        tables = {
            t: read(seed, t)
            for t in (
                "products",
                "customers",
                "orders",
                "order_lines",
                "refunds",
                "campaigns",
                "categories",
            )
        }
        for _ in range(12):
            context = questions.context_of(draw, seed)
            label = questions.truth(kind, seed, context)
            if label is not None:
                checked += 1
                assert same(label, REFERENCE[name](Tables(tables), SimpleNamespace(**context))), (
                    context
                )
    assert checked


@functools.cache
def read(seed, table):
    connection = sqlite3.connect(store.database(seed))
    connection.row_factory = sqlite3.Row
    try:
        return [
            SimpleNamespace(**dict(row)) for row in connection.execute(f"SELECT * FROM {table}")
        ]
    finally:
        connection.close()


class Tables:
    """The plain tables, joined in Python."""

    def __init__(self, tables):
        self.__dict__.update(tables)
        category = {c.id: c.name for c in self.categories}
        self.product = {p.name: p for p in self.products}
        by_id = {p.id: p for p in self.products}
        self.order = {o.id: o for o in self.orders}
        self.city = {c.id: c.city for c in self.customers}
        for p in self.products:
            p.kind = category[p.category] if isinstance(p.category, int) else p.kind
        for line in (*self.order_lines, *self.refunds):
            line.of = by_id[line.product]
            line.ordered = self.order[line.order_id]
        self.lines = [line for line in self.order_lines if line.ordered.status != "cancelled"]
        self.back = {(r.order_id, r.product) for r in self.refunds}
        self.runs = {category[c.category]: c for c in self.campaigns}

    def sold(self, category=None, month=None):
        return [
            line
            for line in self.lines
            if category in (None, line.of.kind) and month in (None, int(line.ordered.day[5:7]))
        ]

    def refunded(self, category, month=None):
        return [
            r for r in self.refunds if r.of.kind == category and month in (None, int(r.day[5:7]))
        ]

    def during(self, category, starts=None, ends=None):
        run = self.runs[category]
        return [
            line
            for line in self.sold(category)
            if (starts or run.starts) <= line.ordered.day <= (ends or run.ends)
        ]


def revenue(lines):
    return sum(line.quantity * line.price for line in lines)


def units(lines):
    return sum(line.quantity for line in lines)


def profit(lines):
    return sum(line.quantity * (line.price - line.of.cost) for line in lines)


def best(key, lines, value):
    groups = {}
    for line in lines:
        groups.setdefault(key(line), []).append(line)
    return sorted(groups, key=lambda name: -value(groups[name]))


def day_of(text):
    return store.date.fromisoformat(text)


def days(run):
    return (day_of(run.ends) - day_of(run.starts)).days + 1


def lift(t, c):
    run = t.runs[c.category]
    before = t.during(
        c.category,
        str(day_of(run.starts) - store.timedelta(28)),
        str(day_of(run.starts) - store.timedelta(1)),
    )
    return 100 * (units(t.during(c.category)) / days(run)) / (units(before) / 28) - 100


def month_of(line):
    return questions.MONTHS[int(line.ordered.day[5:7]) - 1]


def weekday_of(line):
    return questions.DAYS[day_of(line.ordered.day).isoweekday() % 7]


RECENT = str(store.TODAY - store.timedelta(90))
REFERENCE = {
    "units": lambda t, c: units(t.sold(c.category, c.month)),
    "revenue": lambda t, c: revenue(t.sold(c.category, c.month)),
    "buyers": lambda t, c: len({line.order_id for line in t.sold(c.category, c.month)}),
    "profit": lambda t, c: profit(t.sold(c.category, c.month)),
    "change": lambda t, c: (
        100 * revenue(t.sold(c.category, c.month)) / revenue(t.sold(c.category, c.month - 1)) - 100
    ),
    "best_month": lambda t, c: best(month_of, t.sold(c.category), revenue)[0],
    "top_products": lambda t, c: best(lambda line: line.of.name, t.sold(c.category), revenue)[:3],
    "top_categories": lambda t, c: best(lambda line: line.of.kind, t.sold(None, c.month), revenue)[
        :3
    ],
    "weekday": lambda t, c: best(weekday_of, t.sold(c.category), units)[0],
    "top_city": lambda t, c: best(
        lambda line: t.city[line.ordered.customer], t.sold(c.category, c.month), units
    )[0],
    "compare": lambda t, c: max(
        (c.category, c.other), key=lambda name: revenue(t.sold(name, c.month))
    ),
    "dead": lambda t, c: sorted(
        {p.name for p in t.products if p.kind == c.category}
        - {line.of.name for line in t.sold(c.category) if line.ordered.day > RECENT}
    ),
    "campaign": lambda t, c: days(t.runs[c.category]),
    "lift": lift,
    "campaign_revenue": lambda t, c: revenue(t.during(c.category)),
    "best_campaign": lambda t, c: max(
        t.runs, key=lambda name: units(t.during(name)) / days(t.runs[name])
    ),
    "refunds": lambda t, c: len(t.refunded(c.category, c.month)),
    "returned": lambda t, c: sum(
        (line.order_id, line.product) in t.back for line in t.sold(c.category, c.month)
    ),
    "refund_sum": lambda t, c: sum(r.amount for r in t.refunded(c.category, c.month)),
    "reason": lambda t, c: best(lambda r: r.reason, t.refunded(c.category), len)[0],
    "worst_product": lambda t, c: best(
        lambda line: line.of.name,
        t.sold(c.category),
        lambda own: sum((line.order_id, line.product) in t.back for line in own) / len(own),
    )[0],
    "status": lambda t, c: t.order[c.order].status,
    "total": lambda t, c: revenue(line for line in t.order_lines if line.order_id == c.order),
    "lines": lambda t, c: sum(line.order_id == c.order for line in t.order_lines),
    "products": lambda t, c: sorted(
        line.of.name for line in t.order_lines if line.order_id == c.order
    ),
    "city": lambda t, c: t.city[t.order[c.order].customer],
    "day": lambda t, c: t.order[c.order].day,
    "customer": lambda t, c: sum(o.customer == t.order[c.order].customer for o in t.orders),
    "unfinished": lambda t, c: sum(
        int(o.day[5:7]) == c.month and o.status in ("paid", "shipped") for o in t.orders
    ),
    "refunded": lambda t, c: next((r.state for r in t.refunds if r.order_id == c.order), "none"),
    "margin": lambda t, c: 100 - 100 * t.product[c.product].cost / t.product[c.product].price,
    "dearest": lambda t, c: sorted(
        (p.name for p in t.products if p.kind == c.category), key=lambda n: -t.product[n].price
    )[:3],
    "thin": lambda t, c: sorted(
        p.name for p in t.products if p.kind == c.category and 1 - p.cost / p.price < 0.35
    ),
    "stock": lambda t, c: t.product[c.product].stock,
    "low": lambda t, c: sorted(
        p.name for p in t.products if p.kind == c.category and p.stock <= p.reorder_at
    ),
    "cover": lambda t, c: (
        t.product[c.product].stock
        / (
            units(
                line for line in t.sold() if line.of.name == c.product and line.ordered.day > RECENT
            )
            / 90
        )
    ),
}


def same(label, value):
    if label["form"] == "number":
        return label["value"] == pytest.approx(value, abs=1e-3)
    return label["value"] == value


# Grading


def answer_to(label):
    """What a right line says."""
    match label["form"]:
        case "change":
            return max(label["values"], key=label["values"].get)
        case "order":
            return str(label["need"])
    value = label["value"]
    return ", ".join(value) if isinstance(value, list) else str(value)


def graded(task, answer):
    trajectory = SimpleNamespace(task=task, answer=answer)
    return grader.score_outcome(trajectory), trajectory.outcome_parts


@pytest.mark.parametrize("assistant", ASSISTANTS)
def test_the_truth_is_graded_as_right_and_another_tasks_as_wrong(assistant):
    tasks = tasks_of(assistant)[:100]
    right = [
        "\n".join(f"{n}: {answer_to(label)}" for n, label in enumerate(task.label, 1))
        for task in tasks
    ]
    for task, answer in zip(tasks, right, strict=True):
        outcome, parts = graded(task, answer)
        assert outcome == pytest.approx(1.0) and list(parts) == [
            f"question_{n + 1}" for n in range(len(task.label))
        ]
        assert graded(task, None)[0] == graded(task, "I do not know.")[0] == 0.0
    others = [graded(task, answer)[0] for task, answer in zip(tasks, right[1:], strict=False)]
    assert sum(others) / len(others) < 0.35


@pytest.mark.parametrize(
    ("label", "text", "expected"),
    [
        ({"form": "number", "value": 4310, "tolerance": 0.0}, "4,310", 1.0),
        ({"form": "number", "value": -17.73, "tolerance": 0.5}, "-17.5 %", 1.0),
        ({"form": "number", "value": -17.73, "tolerance": 0.5}, "17.5 %", 0.0),
        ({"form": "word", "value": "Oslo", "options": ["Oslo", "Rome"]}, "oslo.", 1.0),
        ({"form": "word", "value": "Oslo", "options": ["Oslo", "Rome"]}, "Oslo or Rome", 0.0),
        (
            {"form": "set", "value": ["tea-100", "tea-108"], "options": []},
            "tea-108, tea-100",
            1.0,
        ),
        (
            {"form": "ranking", "value": ["a", "b", "c"], "options": ["a", "b", "c", "d"]},
            "a, b, c",
            1.0,
        ),
        (
            {"form": "ranking", "value": ["a", "b", "c"], "options": ["a", "b", "c", "d"]},
            "a, c, b",
            1 / 3,
        ),
        ({"form": "change", "values": {"-10": 50, "0": 100, "10": -20}}, "-10 %", 0.5),
        ({"form": "change", "values": {"-10": 50, "0": 100, "10": -20}}, "10 %", 0.0),
        ({"form": "order", "need": 20.0, "margin": 10, "loss": 5}, "10", 0.5),
        ({"form": "order", "need": 20.0, "margin": 10, "loss": 5}, "9000", 0.0),
    ],
)
def test_a_line_is_graded_by_its_form(label, text, expected):
    assert grader.score({"options": []} | label, text) == pytest.approx(expected)


# The recipes, with scripted agents


def planned(file, *flags):
    """The plan; on any machine for the devices that the file is for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MARL_PLUGINS_DEVICE", "cpu" if file.startswith("tiny") else "cuda")
        return build_plan(["--recipe", str(FOLDER / f"{file}.yaml"), *flags])


FILES = ("merchant_assistant", "category_assistant", "tiny_merchant", "tiny_category")


@functools.cache
def plan_of(file):
    return planned(file, "--ecommerce.tasks", "300")


class Script:
    """Agents that are right, but for what `wrong` says: by role a function of the right answer."""

    def __init__(self, task, short, **wrong):
        self.task, self.short, self.wrong = task, short, wrong
        self.seed, draw = questions.identified(task.id)[1:]
        self.context = questions.context_of(draw, self.seed)
        self.labels = iter([label for label in task.label for _ in range(2)])
        self.label = None

    def say(self, role, messages):
        text = getattr(self, role, self.specialist)(messages)
        return self.wrong.get(role, str)(text)

    def router(self, messages):
        asked = [text for chat_role, text in messages if chat_role == "u"]
        self.label = self.task.label[len(asked) - 1]
        return self.label["specialist"]

    def specialist(self, messages):
        kind, label = KINDS[self.label["kind"]], self.label
        if self.short:
            return f"<lookup>{' '.join([kind.name, *(str(self.context[key]) for key in kind.parameters)])}</lookup>"
        if messages[-1][1].startswith("Question") or "Question:" in messages[-1][1]:
            if kind.form == "cause":
                return "I look.\n```sql\nSELECT * FROM stockouts\n```"
            if kind.form == "change":
                return " ".join(
                    f"<what_if>{self.context['category']} {value}</what_if>"
                    for value in list(label["values"])[:4]
                )
            if kind.form == "order":
                return (
                    "```sql\nSELECT stock, lead_days FROM products WHERE name = ?\n"
                    + json.dumps([self.context["product"]])
                    + "\n```"
                )
            query, values = kind.bound(self.context)
            return f"```sql\n{query.strip()}\n{json.dumps(values)}\n```"
        return f"The answer is {answer_to(label)}."

    def composer(self, messages):
        said = [
            questions.shown(label["value"]) if self.short else answer_to(label)
            for label in self.task.label
        ]
        return "\n".join(f"{n}: {text}" for n, text in enumerate(said, 1))


def played(plan, task, script):
    """A trajectory of scripted agents, scored by the recipe's rubric and grader."""
    run, chat = plan.run, CharacterChat()
    tools = {
        tool.name: tool for answer in plan.plugins.hook.marl_tools(run=run) for tool in answer or ()
    }
    coach = RubricCoach(load_rubric(Path(run.args.coach.rubric), list(run.recipe.roles)))

    async def generate(call):
        messages = [
            (part[0], part[2:])
            for part in chat.text(call.context_ids).split("^")
            if part[1:2] == ":"
        ]
        ids = (
            *chat.encode(
                script.say(call.role, messages[:-1] if messages[-1] == ("a", "") else messages)
            ),
            ord("^"),
        )
        return Generation(ids, tuple(-0.5 for _ in ids), "stop", call.policy, 0)

    async def share(action, seen):
        return (await coach.judge(action, seen)).share

    roles = {
        name: RoleSpec(
            name,
            name,
            prompt_renderer(run.prompt(name), run.system(name)),
            chat,
            Sampling(1.0, 1.0, None, 99_000),
            tuple(tools[t] for t in config.tools),
            config.max_turns,
            render_next=followup_renderer(run.followup(name)) if run.followup(name) else None,
            endless_tools_fail=config.endless_tools == "fail",
        )
        for name, config in run.recipe.roles.items()
    }

    async def play():
        trajectory = await run_workflow(
            run.workflow_module.run,
            task,
            0,
            step=1,
            run_seed=0,
            roles=roles,
            tools=tools,
            generate=generate,
            seconds=60,
        )
        scored = plan.plugins.hook.marl_score_outcome
        await score_trajectory(
            trajectory,
            share,
            lambda t: scored(run=run, trajectory=t),
            roles=list(run.recipe.roles),
            seconds=60,
        )
        return trajectory

    return asyncio.run(play())


@pytest.mark.parametrize("file", FILES)
def test_agents_that_are_right_are_scored_as_right(file):
    plan, core = plan_of(file), questions.SPECIALISTS[plan_of(file).run.args.ecommerce.assistant][0]
    calls, kinds = Counter(), set()
    for task in plan.tasks("train")[:60]:
        trajectory = played(plan, task, Script(task, file.startswith("tiny")))
        assert trajectory.outcome == pytest.approx(1.0), trajectory.answer
        assert [(a.role, a.score, a.text) for a in trajectory.actions if a.score != 1.0] == []
        assert all(result.ok for a in trajectory.actions for result in a.tool_results)
        assert 5 <= len(trajectory.actions) <= (5 if file.startswith("tiny") else 4 + 4 * 2 + 1)
        calls.update(
            a.role for a in trajectory.actions if a.before is None or a.before.call != a.call
        )
        kinds |= {label["kind"] for label in task.label}
    assert (calls["router"] + calls[core]) / calls.total() == pytest.approx(0.76, abs=0.05)
    assert len(kinds) >= (4 if file.startswith("tiny") else 12)


@pytest.mark.parametrize("file", ["merchant_assistant", "category_assistant"])
def test_a_slip_of_one_role_costs_that_role_its_score(file):
    plan = plan_of(file)
    task = next(
        t
        for t in plan.tasks("train")
        if t.label[0]["form"] == "number" and len({q["specialist"] for q in t.label}) > 1
    )
    other = next(
        s for s in questions.SPECIALISTS[task.id.split("-")[0]] if s != task.label[0]["specialist"]
    )

    def scores(**wrong):
        trajectory = played(plan, task, Script(task, False, **wrong))
        by_role = {}
        for action in sorted(trajectory.actions, key=lambda a: a.turn):
            by_role.setdefault(action.role, []).append(action.score)
        return trajectory, by_role

    _, routed = scores(router=lambda text: f"{other} {text}")
    assert routed["router"][0] == 0.8
    trajectory, claimed = scores(composer=lambda text: text.replace("1: ", "1: 7"))
    assert claimed["composer"][0] < 0.8 and trajectory.outcome < 1.0
    assert (
        trajectory.outcome_parts["question_1"] == 0.0
        and trajectory.outcome_parts["question_2"] == 1.0
    )
    first = task.label[0]["specialist"]
    _, broken = scores(**{first: lambda text: text.replace("FROM ", "FROM the_")})
    assert min(broken[first]) <= 0.7
    _, invented = scores(
        **{first: lambda text: text.replace("The answer", "123456789 is not it. The answer")}
    )
    assert min(invented[first]) == 0.8


def test_the_tools_of_the_recipe():
    plan = plan_of("merchant_assistant")
    tools = {
        tool.name: tool for answer in plan.plugins.hook.marl_tools(run=plan.run) for tool in answer
    }

    def call(name, text, task="merchant-0-0"):
        result = asyncio.run(tools[name].run(ToolCall(text, task, 0, 1)))
        return result.ok, result.output

    count = rows(
        store.database(0), "SELECT sum(units) FROM sales WHERE category = 'tea' AND month = 5"
    )[0][0]
    assert call("lookup", " units tea 5 ") == (True, str(count))
    assert call("lookup", "units tea 5", "merchant-1-0") != call("lookup", "units tea 5")
    for wrong in ("unit tea 5", "units tea", "units moon 5", ""):
        assert call("lookup", wrong)[0] is False
    ok, said = call("what_if", "tea -10")
    assert ok and str(round(store.market_of(0).profit("tea", -10))) in said
    assert call("what_if", "moon -10")[0] is call("what_if", "tea -1000")[0] is False
    assert call("query", "SELECT date('now')") == (True, "date('now')\n2025-12-31")
    assert tools["lookup"].find("a <lookup>units tea 5</lookup> b <lookup>x</lookup>") == [
        "units tea 5",
        "x",
    ]


@pytest.mark.parametrize("file", ["tiny_merchant", "tiny_category"])
def test_what_the_tiny_models_are_shown_is_what_they_are_asked(file):
    """Without slips demonstrations are what scripted agents say, in the same conversations, letter
    for letter."""
    plan = plan_of(file)
    module = plan.run.demonstrations_module
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "SLIPS", dict.fromkeys(module.SLIPS, 0.0))
        for task in plan.tasks("train")[:10]:
            trajectory = played(plan, task, Script(task, True))
            told = {}
            for action in trajectory.actions:
                if not any(other.before is action for other in trajectory.actions):
                    told[action.role] = action.messages
            shown = {}
            for one in module.demonstrate(task, random.Random(0)):
                opening = prompt_renderer(plan.run.prompt(one.role), None)(one.fields)[-1][
                    "content"
                ]
                users = [opening, *one.shown]
                shown[one.role] = tuple(
                    pair
                    for user, said in zip(users, one.said, strict=True)
                    for pair in (("user", user), ("assistant", said))
                )
                longest = max(map(len, one.said))
                assert longest <= plan.run.role(one.role).max_new_tokens
            assert shown == told
