"""The recipe `ecommerce`: the store that is generated, questions with their truth, and how answers are graded."""

import hashlib
import random
import sqlite3
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_plugins.core.shipped import recipes_root
from marl_plugins.loading import load_file

FOLDER = recipes_root() / "ecommerce"
questions = load_file(FOLDER / "questions.py", "marl_recipe_ecommerce_questions")
grader = load_file(FOLDER / "grader.py", "marl_recipe_ecommerce_grader")
store = questions.store
KINDS = questions.KINDS
QUERIES = sorted(name for name, kind in KINDS.items() if kind.sql)
ASSISTANTS = list(questions.SPECIALISTS)
TASKS = {assistant: questions.load(assistant, "train", 500, 0.76) for assistant in ASSISTANTS}
LABELS = [label for tasks in TASKS.values() for task in tasks for label in task.label]


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
    assert content(year) == content(tmp_path / "again.db") == content(store.database(0)) != content(tmp_path / "other.db")


def test_it_is_the_same_store_on_every_machine(year):
    assert content(year)[:16] == "ca8117fa85a6b002"


def test_money_is_in_whole_cents_and_the_tables_fit_together(year):
    money = "SELECT cost FROM products UNION ALL SELECT price FROM products UNION ALL SELECT price FROM order_lines "
    assert {type(value) for (value,) in rows(year, money + "UNION ALL SELECT amount FROM refunds")} == {int}
    assert rows(year, "PRAGMA foreign_key_check") == []
    (lines,), (sold,) = (
        rows(
            year, "SELECT sum(quantity * price) FROM order_lines JOIN orders ON id = order_id WHERE status <> 'cancelled'"
        ),
        rows(year, "SELECT sum(revenue) FROM sales"),
    )
    assert lines == sold
    paid = rows(year, "SELECT r.amount, l.quantity * l.price FROM refunds r JOIN order_lines l USING (order_id, product)")
    assert paid and all(amount == price for amount, price in paid)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_what_is_planted_can_be_seen(seed):
    """A fall of each kind against the same month without it: in the generator's own expectation, and in the year that was drawn."""
    market, path = store.market_of(seed), store.database(seed)
    assert set(market.causes.values()) == set(store.CAUSES)
    for (category, month), _ in market.causes.items():
        sold = dict(rows(path, "SELECT month, sum(units) FROM sales WHERE category = ? GROUP BY 1", category))
        assert sold[month] < 0.8 * sold[month - 1]
    units_of_demand = sum(dict(rows(path, "SELECT 1, sum(units) FROM sales")).values()) / sum(
        market.demand(p, store.FIRST + store.timedelta(n)) for p in market.products for n in range(store.DAYS)
    )
    lifts = []
    for category, starts, ends, discount in market.campaigns:
        span = [starts + store.timedelta(n) for n in range((ends - starts).days + 1)]
        own = [p for p in market.products if p.category == category]
        usual = sum(p.base * market.season(category, day) * store.WEEKDAYS[day.weekday()] for p in own for day in span)
        query = "SELECT sum(units) FROM sales WHERE category = ? AND day BETWEEN ? AND ?"
        ((during,),) = rows(path, query, category, str(starts), str(ends))
        lifts.append(during / (usual * units_of_demand) / (1 - discount / 100) ** -market.elasticity[category])
    assert 0.85 < sum(lifts) / len(lifts) < 1.15


def test_products_that_come_back_and_products_that_do_not_sell(year):
    market = store.market_of(0)
    dead = {p.name for p in market.products if not p.base}
    assert len(dead) == len(store.CATEGORIES)
    assert not dead & {name for (name,) in rows(year, "SELECT DISTINCT product FROM sales")}
    query = "SELECT p.name, 1.0 * count(r.id) / count(*) FROM products p JOIN order_lines l ON l.product = p.id "
    rates = dict(rows(year, query + "LEFT JOIN refunds r ON r.order_id = l.order_id AND r.product = p.id GROUP BY 1"))
    bad = [rates[p.name] for p in market.products if p.returned == 0.3]
    others = [rates[p.name] for p in market.products if p.base and p.returned < 0.3]
    assert min(bad) > 2 * sum(others) / len(others)


def test_seasons_and_weekdays_are_those_of_the_generator(year):
    market = store.market_of(0)
    for category in store.CATEGORIES:
        expected = [0.0] * 13
        for n in range(store.DAYS):
            day = store.FIRST + store.timedelta(n)
            expected[day.month] += sum(market.demand(p, day) for p in market.products if p.category == category)
        sold = dict(rows(year, "SELECT month, sum(units) FROM sales WHERE category = ? GROUP BY 1", category))
        share = [sold.get(m, 0) / sum(sold.values()) - expected[m] / sum(expected) for m in range(1, 13)]
        assert max(map(abs, share)) < 0.05
    by_day = dict(rows(year, "SELECT strftime('%w', day), sum(units) FROM sales GROUP BY 1"))
    assert max(by_day, key=by_day.get) == "6" and min(by_day, key=by_day.get) == "0"


def test_the_prices_and_discounts_that_pay_follow_from_the_elasticity():
    """Where units fall as price^-e, the best price is cost x e / (e - 1): of one product, on a fine grid."""
    market = store.market_of(0)
    product = next(p for p in market.products if p.base)
    e = market.elasticity[product.category]
    best = product.cost * e / (e - 1) / product.price
    profit = [market.units_a_day(product, best * k) * (product.price * best * k - product.cost) for k in (0.97, 1.0, 1.03)]
    assert max(profit) == profit[1]


# Questions and their truth


def test_there_are_forty_kinds_and_each_is_asked():
    assert len(KINDS) == 40
    assert {label["kind"] for label in LABELS} == set(KINDS)
    assert {kind.specialist for kind in KINDS.values()} == {s for own in questions.SPECIALISTS.values() for s in own}
    assert (
        {name for name, kind in KINDS.items() if kind.form not in ("cause", "change", "order")}
        == set(QUERIES)
        == set(REFERENCE)
    )


@pytest.mark.parametrize("assistant", ASSISTANTS)
def test_router_and_one_specialist_get_the_share_of_the_calls_that_is_asked_for(assistant):
    core = questions.SPECIALISTS[assistant][0]
    for share in (0.6, 0.76, 0.84):
        tasks = questions.load(assistant, "train", 500, share)
        mine = sum(len(t.label) + sum(label["specialist"] == core for label in t.label) for t in tasks)
        assert mine / sum(2 * len(t.label) + 1 for t in tasks) == pytest.approx(share, abs=0.02)


@pytest.mark.parametrize("assistant", ASSISTANTS)
def test_a_task_is_a_function_of_its_id_and_held_out_stores_are_others(assistant):
    again = questions.load(assistant, "train", 500, 0.76)
    assert again == TASKS[assistant]
    held_out = questions.load(assistant, "eval", 500, 0.76)
    assert len(held_out) == 100
    assert not {t.metadata["store"] for t in held_out} & {t.metadata["store"] for t in TASKS[assistant]}
    assert not {t.prompt for t in held_out} & {t.prompt for t in TASKS[assistant]}
    assert {len(t.label) for t in TASKS[assistant]} == {2, 3, 4}
    for task in TASKS[assistant]:
        asked = task.metadata["questions"]
        assert asked[0] == task.prompt and len(asked) == len(task.label) == len(set(asked))
        assert task.metadata["type"] == task.label[0]["specialist"] and not any("{" in q for q in asked)


@pytest.mark.parametrize("assistant", ASSISTANTS)
def test_what_a_question_leaves_out_was_in_the_question_before(assistant):
    left_out = 0
    for task in TASKS[assistant]:
        for one, (label, text) in enumerate(zip(task.label, task.metadata["questions"], strict=True)):
            kind = KINDS[label["kind"]]
            if kind.about and text == kind.later.format(other=text.rpartition("that of ")[2].partition("?")[0]):
                left_out += 1
                assert kind.about - {"other"} <= KINDS[task.label[one - 1]["kind"]].about
                assert "{other}" not in KINDS[task.label[one - 1]["kind"]].opening
    assert left_out > 100


@pytest.mark.parametrize("name", QUERIES)
def test_the_truth_is_the_same_when_it_is_computed_in_python(name):
    """Sums, counts and rankings of the plain tables, without a query of ours."""
    kind, draw, checked = KINDS[name], random.Random(name), 0
    for seed in (0, 1):
        tables = {
            t: read(seed, t)
            for t in ("products", "customers", "orders", "order_lines", "refunds", "campaigns", "categories")
        }
        for _ in range(12):
            context = questions.context_of(draw, seed)
            label = questions.truth(kind, seed, context)
            if label is not None:
                checked += 1
                assert same(label, REFERENCE[name](Tables(tables), SimpleNamespace(**context))), context
    assert checked


def read(seed, table):
    connection = sqlite3.connect(store.database(seed))
    connection.row_factory = sqlite3.Row
    try:
        return [SimpleNamespace(**dict(row)) for row in connection.execute(f"SELECT * FROM {table}")]
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
            line for line in self.lines if category in (None, line.of.kind) and month in (None, int(line.ordered.day[5:7]))
        ]

    def refunded(self, category, month=None):
        return [r for r in self.refunds if r.of.kind == category and month in (None, int(r.day[5:7]))]

    def during(self, category, starts=None, ends=None):
        run = self.runs[category]
        return [line for line in self.sold(category) if (starts or run.starts) <= line.ordered.day <= (ends or run.ends)]


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
        c.category, str(day_of(run.starts) - store.timedelta(28)), str(day_of(run.starts) - store.timedelta(1))
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
    "change": lambda t, c: 100 * revenue(t.sold(c.category, c.month)) / revenue(t.sold(c.category, c.month - 1)) - 100,
    "best_month": lambda t, c: best(month_of, t.sold(c.category), revenue)[0],
    "top_products": lambda t, c: best(lambda line: line.of.name, t.sold(c.category), revenue)[:3],
    "top_categories": lambda t, c: best(lambda line: line.of.kind, t.sold(None, c.month), revenue)[:3],
    "weekday": lambda t, c: best(weekday_of, t.sold(c.category), units)[0],
    "top_city": lambda t, c: best(lambda line: t.city[line.ordered.customer], t.sold(c.category, c.month), units)[0],
    "compare": lambda t, c: max((c.category, c.other), key=lambda name: revenue(t.sold(name, c.month))),
    "dead": lambda t, c: sorted(
        {p.name for p in t.products if p.kind == c.category}
        - {line.of.name for line in t.sold(c.category) if line.ordered.day > RECENT}
    ),
    "campaign": lambda t, c: days(t.runs[c.category]),
    "lift": lift,
    "campaign_revenue": lambda t, c: revenue(t.during(c.category)),
    "best_campaign": lambda t, c: max(t.runs, key=lambda name: units(t.during(name)) / days(t.runs[name])),
    "refunds": lambda t, c: len(t.refunded(c.category, c.month)),
    "returned": lambda t, c: sum((line.order_id, line.product) in t.back for line in t.sold(c.category, c.month)),
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
    "products": lambda t, c: sorted(line.of.name for line in t.order_lines if line.order_id == c.order),
    "city": lambda t, c: t.city[t.order[c.order].customer],
    "day": lambda t, c: t.order[c.order].day,
    "customer": lambda t, c: sum(o.customer == t.order[c.order].customer for o in t.orders),
    "unfinished": lambda t, c: sum(int(o.day[5:7]) == c.month and o.status in ("paid", "shipped") for o in t.orders),
    "refunded": lambda t, c: next((r.state for r in t.refunds if r.order_id == c.order), "none"),
    "margin": lambda t, c: 100 - 100 * t.product[c.product].cost / t.product[c.product].price,
    "dearest": lambda t, c: sorted((p.name for p in t.products if p.kind == c.category), key=lambda n: -t.product[n].price)[
        :3
    ],
    "thin": lambda t, c: sorted(p.name for p in t.products if p.kind == c.category and 1 - p.cost / p.price < 0.35),
    "stock": lambda t, c: t.product[c.product].stock,
    "low": lambda t, c: sorted(p.name for p in t.products if p.kind == c.category and p.stock <= p.reorder_at),
    "cover": lambda t, c: (
        t.product[c.product].stock
        / (units(line for line in t.sold() if line.of.name == c.product and line.ordered.day > RECENT) / 90)
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
    tasks = TASKS[assistant][:100]
    right = ["\n".join(f"{n}: {answer_to(label)}" for n, label in enumerate(task.label, 1)) for task in tasks]
    for task, answer in zip(tasks, right, strict=True):
        outcome, parts = graded(task, answer)
        assert outcome == pytest.approx(1.0) and list(parts) == [f"question_{n + 1}" for n in range(len(task.label))]
        assert graded(task, None)[0] == graded(task, "I do not know.")[0] == 0.0
    others = [graded(task, answer)[0] for task, answer in zip(tasks, right[1:], strict=False)]
    assert sum(others) / len(others) < 0.35


@pytest.mark.parametrize(
    ("label", "text", "expected"),
    [
        ({"form": "number", "value": 4310, "tolerance": 0.0}, "4,310", 1.0),
        ({"form": "number", "value": 4310, "tolerance": 0.0}, "in 2025: 4310", 1.0),
        ({"form": "number", "value": 4310, "tolerance": 0.0}, "4311", 0.0),
        ({"form": "number", "value": -17.73, "tolerance": 0.5}, "It fell: -17.5 %", 1.0),
        ({"form": "number", "value": -17.73, "tolerance": 0.5}, "17.5 %", 0.0),
        ({"form": "number", "value": 5, "tolerance": 0.5}, "", 0.0),
        ({"form": "word", "value": "Oslo", "options": ["Oslo", "Rome"]}, "It was oslo.", 1.0),
        ({"form": "word", "value": "Oslo", "options": ["Oslo", "Rome"]}, "Oslo or Rome", 0.0),
        ({"form": "word", "value": "Oslo", "options": ["Oslo", "Rome"]}, "Oslos", 0.0),
        ({"form": "word", "value": "2025-08-05", "options": []}, "on 2025-08-05", 1.0),
        ({"form": "word", "value": "2025-08-05", "options": []}, "2025-08-05 or 2025-08-06", 0.0),
        ({"form": "set", "value": ["tea-100", "tea-108"], "options": []}, "tea-108 and tea-100", 1.0),
        ({"form": "set", "value": ["tea-100", "tea-108"], "options": []}, "tea-108 and tea-116", 1 / 3),
        ({"form": "ranking", "value": ["a", "b", "c"], "options": ["a", "b", "c", "d"]}, "a, b, c", 1.0),
        ({"form": "ranking", "value": ["a", "b", "c"], "options": ["a", "b", "c", "d"]}, "a, c, b", 1 / 3),
        ({"form": "ranking", "value": ["a", "b", "c"], "options": ["a", "b", "c", "d"]}, "a, b, c, d", 3 / 4),
        ({"form": "change", "values": {"-10": 50, "0": 100, "10": -20}}, "-10 %", 0.5),
        ({"form": "change", "values": {"-10": 50, "0": 100, "10": -20}}, "10 %", 0.0),
        ({"form": "change", "values": {"-10": 50, "0": 100, "10": -20}}, "5 %", 0.0),
        ({"form": "order", "need": 20.0, "margin": 10, "loss": 5}, "10 units", 0.5),
        ({"form": "order", "need": 20.0, "margin": 10, "loss": 5}, "40", 0.5),
        ({"form": "order", "need": 20.0, "margin": 10, "loss": 5}, "9000", 0.0),
    ],
)
def test_a_line_is_graded_by_its_form(label, text, expected):
    assert grader.score({"options": []} | label, text) == pytest.approx(expected)


def test_the_last_line_of_a_number_counts():
    assert grader.lines("1: a\n**2.** b\n 1) c") == {1: "c", 2: "b"}


@given(st.text(max_size=200), st.sampled_from(LABELS))
def test_no_text_is_graded_outside_0_to_1(text, label):
    assert 0.0 <= grader.score(label, text) <= 1.0
