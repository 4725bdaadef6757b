"""What the person asks: 40 kinds of questions, each with its right answer, and conversations of two
to four of them.

    KINDS      what is asked, which specialist it takes, and the query that answers it, as
               prompts/kinds.yaml has them
    truth      the right answer to one of them in one store
    make       a task: the questions that a person asks one after the other, drawn from the task's
               id

A question that follows another may leave out what has been said: "and how many of those came
back?".
"""

import functools
import json
import re
import sqlite3
from dataclasses import dataclass
from pathlib import Path
from random import Random

import yaml

from marl_plugins import Task, query_database

from . import store

FILE = Path(__file__).with_name("prompts") / "kinds.yaml"
MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
SPECIALISTS = {
    "merchant": ("sales", "marketing", "aftersales"),
    "category": ("order", "pricing", "inventory"),
}
"""Of each assistant; the first one is asked most."""
TURNS, SHORT_TURNS = (2, 3, 4), (2,)
TRAIN_STORES, EVAL_STORES = range(4), range(1000, 1002)


@dataclass(frozen=True)
class Kind:
    """One kind of question, as prompts/kinds.yaml has it; `line` is where."""

    name: str
    line: int
    specialist: str
    form: str
    opening: str
    later: str
    sql: str = ""
    short: str = ""
    tolerance: float = 0.0
    options: tuple[str, ...] = ()

    @property
    def about(self) -> set[str]:
        """What has to be known to answer it."""
        return set(re.findall(r"{(\w+)}", self.opening))

    @property
    def parameters(self) -> list[str]:
        """What its query asks for, in the order of the first mention."""
        return list(dict.fromkeys(re.findall(r":([a-z]+)", self.sql)))

    def bound(self, values) -> tuple[str, list]:
        """Its query with `?` for its parameters, and their values in turn."""
        return re.sub(r":[a-z]+", "?", self.sql), [
            values[name] for name in re.findall(r":([a-z]+)", self.sql)
        ]


def read_kinds() -> dict[str, Kind]:
    """The kinds by name, in the order of the file."""
    document = yaml.compose(FILE.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    lines = {key.value: key.start_mark.line + 1 for key, _ in document.value}
    found = yaml.safe_load(FILE.read_text(encoding="utf-8"))
    return {
        name: Kind(name, lines[name], **keys | {"options": tuple(keys.get("options", ()))})
        for name, keys in found.items()
    }


KINDS = read_kinds()
LOOKUPS = tuple(name for name, kind in KINDS.items() if kind.short)
"""The kinds whose queries agents may call by name."""


def wrong_queries(limits) -> list[str]:
    """What is wrong with the queries, as SQLite finds it before it runs one."""
    found = []
    for kind in (kind for kind in KINDS.values() if kind.sql):
        query, values = kind.bound(dict.fromkeys(kind.parameters))
        if problem := query_database(
            store.database(0), f"EXPLAIN {query.strip()}\n{json.dumps(values)}", limits
        ).problem:
            found.append(f"{FILE}:{kind.line}: {kind.name}.sql: {problem}")
    return found


@functools.cache
def rows(name: str, seed: int, given: tuple[tuple[str, object], ...]) -> list[tuple[object, ...]]:
    """A query's answer in a store."""
    connection = sqlite3.connect(store.database(seed))
    try:
        text, values = KINDS[name].bound(dict(given))
        return connection.execute(text.replace("'now'", f"'{store.TODAY}'"), values).fetchall()
    finally:
        connection.close()


def truth(kind: Kind, seed: int, context: dict[str, object]) -> dict[str, object] | None:
    """The right answer as JSON values, or None where the question has none that is clear: nothing
    there, or a tie."""
    market, label = (
        store.market_of(seed),
        {"kind": kind.name, "form": kind.form, "options": list(kind.options)},
    )
    if kind.form == "cause":
        found = market.causes.get((context["category"], context["month"]))
        return label | {"value": found} if found else None
    if kind.form == "change":
        sign = -1 if kind.name == "discount" else 1
        return label | {
            "values": {
                o: round(market.profit(context["category"], sign * int(o))) for o in kind.options
            }
        }
    if kind.form == "order":
        (product,) = (p for p in market.products if p.name == context["product"])
        need = market.units_a_day(product) * 2 * product.lead_days - product.stock
        terms = {
            "need": round(need, 2),
            "margin": product.price - product.cost,
            "loss": round(store.HOLDING * product.cost),
        }
        return label | terms if need > 5 else None
    needed = tuple((key, context[key]) for key in kind.parameters)
    answer = rows(kind.name, seed, needed)
    if not answer or answer[0][0] is None:
        return None
    if kind.form == "number":
        value = answer[0][0]
        return label | {
            "value": round(value, 4),
            "tolerance": max(abs(value) * kind.tolerance, 0.5 if kind.tolerance else 0.0),
        }
    names = {"month": MONTHS, "weekday": DAYS}.get(kind.form, ())
    first = [str(names[row[0]] if names else row[0]) for row in answer]
    label["options"] = label["options"] or list(names)
    if kind.form == "set":
        return label | {"value": first}
    top = 3 if kind.form == "ranking" else 1
    values = [row[-1] for row in answer[: top + 1]]
    if len(answer[0]) > 1 and len(set(values)) < len(values):
        return None
    return label | {
        "form": "ranking" if top == 3 else "word",
        "value": first[:3] if top == 3 else first[0],
    }


def context_of(draw: Random, seed: int) -> dict[str, object]:
    """What a conversation is about: a category and a month (often one in which its sales fell), a
    product, an order."""
    market = store.market_of(seed)
    category, month = (
        draw.choice(sorted(market.causes))
        if draw.random() < 0.4
        else (draw.choice(store.CATEGORIES), draw.randint(2, 12))
    )
    own = [p for p in market.products if p.category == category and p.base]
    return {
        "category": category,
        "month": month,
        "other": draw.choice([name for name in store.CATEGORIES if name != category]),
        "product": draw.choice(own).name,
        "order": store.FIRST_ORDER + draw.randrange(store.ORDERS),
    }


def share_of_core(share: float, turns: tuple[int, ...]) -> float:
    """How often a question has to be for the first specialist, for router and it to get a share of
    all calls.

    With T questions there are T calls of the router, T of specialists and one of the composer.
    """
    mean = sum(turns) / len(turns)
    return share * (2 * mean + 1) / mean - 1


def reachable(short: bool) -> tuple[float, float]:
    """The least and the greatest share of the calls that router and first specialist can get."""
    turns = SHORT_TURNS if short else TURNS
    mean = sum(turns) / len(turns)
    return mean / (2 * mean + 1), 2 * mean / (2 * mean + 1)


def identified(task: str) -> tuple[str, int, Random]:
    """Assistant and store of a task, and what is drawn for it: first of all what it is about."""
    assistant, seed, _ = task.split("-")
    return assistant, int(seed), Random(task)


def make(task: str, share: float, short: bool = False) -> Task:
    """One conversation: what the person asks in turn, and what is right."""
    assistant, seed, draw = identified(task)
    core, *others = SPECIALISTS[assistant]
    context, asked, labels, before = context_of(draw, seed), [], [], None
    shown = context | {"month": context["month"] if short else MONTHS[context["month"] - 1]}
    turns = SHORT_TURNS if short else TURNS
    for _ in range(draw.choice(turns)):
        wanted = core if draw.random() < share_of_core(share, turns) else draw.choice(others)
        kinds = [
            kind
            for kind in KINDS.values()
            if kind.specialist in SPECIALISTS[assistant] and (kind.short or not short)
        ]
        kinds = [kind for kind in kinds if kind.name not in {label["kind"] for label in labels}]
        draw.shuffle(kinds)
        kinds.sort(
            key=lambda kind: (kind.specialist != wanted, kind.specialist != core)
        )  # another where nothing is left
        kind, label = next(
            (k, found) for k in kinds if (found := truth(k, seed, context)) is not None
        )
        known = (
            before is not None
            and "other" not in before.about
            and kind.about - {"other"} <= before.about
        )
        text = kind.short if short else kind.later if known else kind.opening
        asked.append(text.format(**shown))
        labels.append(label | {"specialist": kind.specialist})
        before = kind
    prompt = f"Store {seed}. {asked[0]}"
    metadata = {"store": seed, "questions": asked, "type": labels[0]["specialist"]}
    return Task(task, prompt, labels, metadata)


def load(assistant: str, split: str, tasks: int, share: float, short: bool = False) -> list[Task]:
    """So many conversations to train on, or a fifth as many about stores that nobody has seen."""
    seeds, count = (TRAIN_STORES, tasks) if split == "train" else (EVAL_STORES, tasks // 5)
    return [make(f"{assistant}-{seeds[n % len(seeds)]}-{n}", share, short) for n in range(count)]


def shown(value: object) -> str:
    """A value as the lookups show it."""
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def kind_of(question: str) -> Kind | None:
    """The kind that a question is of, by its words."""
    return next((kind for kind, pattern in PATTERNS if pattern.fullmatch(question)), None)


PATTERNS = [
    (kind, re.compile(re.sub(r"\\{\w+\\}", "[a-zA-Z0-9-]+", re.escape(text))))
    for kind in KINDS.values()
    for text in (kind.opening, kind.later, kind.short)
    if text
]
