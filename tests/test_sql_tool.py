"""The `sql` tool, on real files: what it answers, what it refuses, and that nothing a query says
changes the file."""

import asyncio
import hashlib
import random
import sqlite3
from datetime import date

import pytest
from hostile_queries import REFUSED, SLOW_STEPS, STOPPED
from hypothesis import given
from hypothesis import strategies as st
from planned_once import PlannedOnce
from refusals import refused

from marl_plugins.builtin.tools.sql import queries as sql
from marl_plugins.builtin.tools.sql.queries import (
    query_database,
    read_call,
    sql_tool,
)
from marl_plugins.builtin.tools.sql.section import SqlToolConfig
from marl_plugins.contracts.tools import ToolContract
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure
from marl_plugins.core.tools import ToolCall
from marl_plugins.engine.plan.build import build_plan

CONFIG = SqlToolConfig(database="shop.db", today="2025-12-31")


def make_shop(path, orders=200):
    draw = random.Random(0)
    with sqlite3.connect(path) as db:
        db.executescript(
            "CREATE TABLE orders(id INTEGER PRIMARY KEY, customer INTEGER, day TEXT, status TEXT);"
            "CREATE TABLE secrets(label TEXT); INSERT INTO secrets VALUES ('the answer');"
            "CREATE VIEW open_orders AS SELECT id, label FROM orders, secrets WHERE status = "
            "'paid';"
        )
        db.executemany(
            "INSERT INTO orders VALUES (?, ?, ?, ?)",
            [
                (
                    4000 + n,
                    draw.randint(1, 9),
                    f"2025-{n % 12 + 1:02}-03",
                    draw.choice(["paid", "shipped", "lost"]),
                )
                for n in range(orders)
            ],
        )
    db.close()
    return path


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    return make_shop(tmp_path_factory.mktemp("shop") / "shop.db")


def state(folder):
    """All bytes of a folder."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def call(text, tool=None, shop=None):
    return asyncio.run((tool or sql_tool(CONFIG, shop)).run(ToolCall(text, "t", 0, 1)))


# What is answered


def test_a_query_with_parameters(shop):
    result = call("SELECT id, day FROM orders WHERE id IN (?, ?)\n[4000, 4001]", shop=shop)
    assert (result.ok, result.output) == (True, "id,day\n4000,2025-01-03\n4001,2025-02-03")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT 1", ("SELECT 1", [])),
        ("SELECT ?,\n?\n[1, null]\n", ("SELECT ?,\n?", [1, None])),
        ('SELECT ?\n  ["a]"]', ("SELECT ?", ["a]"])),
        ("SELECT\n[id] FROM orders", ("SELECT\n[id] FROM orders", [])),
        ("SELECT\n[id]", ("SELECT\n[id]", [])),
        ("[1]", ("", [1])),
    ],
)
def test_the_last_line_holds_the_parameters(text, expected):
    assert read_call(text) == expected


@given(
    st.lists(st.sampled_from(["id", "customer", "day", "status"]), min_size=1, max_size=4),
    st.sampled_from(["paid", "shipped", "lost", "none", "x' OR 1 --"]),
    st.integers(1, 9),
)
def test_it_gives_what_sqlite_gives(shop, columns, status, customer):
    query = f"SELECT {', '.join(columns)} FROM orders WHERE status = ? AND customer < ? ORDER BY id"
    answer = query_database(shop, f'{query}\n["{status}", {customer}]', CONFIG)
    plain = sqlite3.connect(shop)
    expected = plain.execute(query, (status, customer)).fetchall()
    plain.close()
    assert answer.rows == expected[:20]
    assert answer.more == (len(expected) > 20)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT id FROM ordrs", "no such table: ordrs; did you mean 'orders'?"),
        ("SELECT stats FROM orders", "no such column: stats; did you mean 'status'?"),
        ("SELECT ?", "Incorrect number of bindings supplied"),
        (
            "DELETE FROM orders",
            "not authorized; a query can only read open_orders, orders, secrets",
        ),
        ("", "there is no query; write one SELECT"),
    ],
)
def test_a_wrong_query_is_answered_with_sqlites_words(shop, query, said):
    result = call(query, shop=shop)
    assert not result.ok and said in result.output


def test_only_the_tables_that_agents_may_read_can_be_read(shop):
    config = CONFIG.model_copy(update={"tables": ["Orders"]})
    for query in (
        *(
            "SELECT * FROM secrets",
            "SELECT count(*) FROM secrets",
            "SELECT label FROM orders, secrets",
        ),
        *(
            "SELECT * FROM open_orders",
            "SELECT sql FROM sqlite_master",
            "SELECT count(*) FROM SECRETS",
        ),
        "SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM secrets WHERE label > 'a')",
        "WITH orders AS (SELECT * FROM secrets) SELECT * FROM orders",
        'WITH "Orders"(label) AS MATERIALIZED (SELECT label FROM secrets) SELECT * FROM orders',
        'WITH orders("(") AS (SELECT label FROM secrets) SELECT * FROM orders',
        "SELECT * FROM (WITH orders AS (SELECT label FROM secrets) SELECT $x('), * FROM orders), "
        "(SELECT '')\n[1]",
        "SELECT count(*) FROM sqlite_schema",
        "SELECT count(*) FROM open_orders",
    ):
        answer = query_database(shop, query, config)
        assert answer.problem and not answer.rows, query
    assert not query_database(
        shop, "WITH t AS (SELECT 1 FROM orders) SELECT count(*) FROM t", config
    ).problem
    view = CONFIG.model_copy(update={"tables": ["open_orders"]})
    assert not query_database(shop, "SELECT id, label FROM open_orders", view).problem
    same_name = "WITH open_orders AS (SELECT id AS open FROM main.open_orders) SELECT open FROM"
    assert query_database(shop, f"{same_name} open_orders", view).rows
    for query in (
        "SELECT label FROM secrets",
        'WITH open_orders("(") AS (SELECT label FROM secrets) SELECT * FROM open_orders',
    ):
        assert "no such table: secrets" in query_database(shop, query, view).problem


# What is refused


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_query_is_refused_and_changes_nothing(name, shop):
    before = state(shop.parent)
    answer = query_database(shop, REFUSED[name], CONFIG)
    assert answer.problem and not answer.stopped
    assert state(shop.parent) == before


@pytest.mark.parametrize("name", [*STOPPED, *SLOW_STEPS])
def test_a_query_without_end_is_stopped_and_the_next_one_is_answered(name, shop, monkeypatch):
    before = state(shop.parent)
    if name in STOPPED:  # by steps alone, also on a slow machine
        monkeypatch.setattr(sql, "CPU_SECONDS", 60.0)
    answer = query_database(shop, (STOPPED | SLOW_STEPS)[name], CONFIG)
    assert (
        answer.stopped in ("steps", "seconds") if name in SLOW_STEPS else answer.stopped == "steps"
    )
    assert state(shop.parent) == before
    assert query_database(shop, "SELECT count(*) FROM orders", CONFIG).rows == [(200,)]


# Files, threads, plan


def test_the_event_loop_goes_on_while_a_query_runs(shop):
    async def both():
        query = asyncio.create_task(
            sql_tool(CONFIG, shop).run(ToolCall(STOPPED["cross join"], "t", 0, 1))
        )
        turns = 0
        while not query.done():
            turns += 1
            await asyncio.sleep(0)
        return turns, query.result()

    turns, result = asyncio.run(both())
    assert turns > 10 and not result.ok


@pytest.mark.parametrize("what", ["gone", "overwritten"])
def test_a_database_that_is_gone_is_infrastructure(what, tmp_path):
    path = make_shop(tmp_path / "shop ?#%.db")
    tool = sql_tool(CONFIG, path)
    assert call("SELECT count(*) FROM orders", tool).ok
    path.unlink()
    if what == "overwritten":
        path.write_bytes(b"no database" * 1000)
    with pytest.raises(InfrastructureFailure, match="database"):
        call("SELECT count(*) FROM orders", tool)


def test_a_damaged_database_is_infrastructure(tmp_path):
    path = make_shop(tmp_path / "shop.db", orders=5000)
    content = bytearray(path.read_bytes())
    content[4096 * 3 :] = b"\xff" * (len(content) - 4096 * 3)
    path.write_bytes(content)
    with pytest.raises(InfrastructureFailure, match="malformed"):
        call("SELECT sum(customer) FROM orders", sql_tool(CONFIG, path))


def test_it_keeps_the_contract_of_tools(shop, tmp_path):
    plugin = tmp_path / "shop_plugin.py"
    plugin.write_text(
        "from datetime import date\nfrom pathlib import Path\nfrom marl_plugins import hookimpl\n"
        "from marl_plugins.builtin.tools.sql.queries import sql_tool\nfrom "
        "marl_plugins.builtin.tools.sql.section import SqlToolConfig\n\n"
        "@hookimpl\ndef marl_tools(run):\n    return [sql_tool(SqlToolConfig(database='x'), "
        f"Path({str(shop)!r}))]\n"
    )
    fence = "```sql\nSELECT count(*) FROM orders\n```"
    kit = type(
        "Kit",
        (PlannedOnce,),
        {
            "plugin": str(plugin),
            "calls": {"sql": ["SELECT count(*) FROM orders", "SELECT ?\n[1]"]},
            "bad_calls": {"sql": ["DELETE FROM orders", *REFUSED.values()]},
            "answers": {"sql": [fence]},
            "deterministic": True,
        },
    )()
    for name in vars(ToolContract):
        if name.startswith("test_"):
            getattr(kit, name)()


RECIPE = """name: mine
roles:
  clerk: {prompt: clerk.md, tools: [sql], max_turns: 3}
workflow: workflow.py
tasks: tasks.py
grader: grader.py
model: tiny
tools:
  sql: {SQL}
flags: {rollout.batch_size: 2, train.batch_size: 2, rollout.max_new_tokens: 8, data.max_len: 64}
"""


def recipe(folder, sql):
    (folder / "recipe.yaml").write_text(RECIPE.replace("{SQL}", sql))
    (folder / "clerk.md").write_text("{question}")
    (folder / "workflow.py").write_text(
        "async def run(task, roles, tools):\n    return await roles.clerk(question=task.prompt)\n"
    )
    (folder / "grader.py").write_text("def score_outcome(trajectory):\n    return 1.0\n")
    (folder / "tasks.py").write_text(
        "from marl_plugins.core.trajectory import Task\n\n\ndef load(split):\n"
        "    return [Task(f'{split}{n}', f'{split} {n}', 'a') for n in range(4)]\n"
    )
    return build_plan(["--recipe", str(folder)])


def test_a_role_has_it_where_the_recipe_names_a_database(tmp_path):
    make_shop(tmp_path / "shop.db")
    plan = recipe(tmp_path, "{database: shop.db, tables: [orders], today: 2025-12-31}")
    assert plan.run.section(SqlToolConfig).today == date(2025, 12, 31)
    (tool,) = [
        t for given in plan.plugins.hook.marl_tools(run=plan.run) for t in given if t.name == "sql"
    ]
    assert call("SELECT date('now')", tool).output.endswith("2025-12-31")
    assert not call("SELECT * FROM secrets", tool).ok


WRONG = {
    "there is none": (
        "{database: shop.db}",
        None,
        "tools.sql.database: .*shop.db: .*unable to open database file.*; give an SQLite file",
    ),
    "a text": (
        "{database: shop.db}",
        b"id,day\n" * 1000,
        "is not an SQLite database that can be read .file is not a database",
    ),
    "empty": ("{database: shop.db}", b"", "has no table; give a database with"),
    "a table is missing": (
        "{database: shop.db, tables: [ordres]}",
        "shop",
        "no table 'ordres'; did you mean 'orders'",
    ),
    "no settings": ("shop.db", None, "tools.sql: expected a mapping such as {database: shop.db}"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_database_is_an_error_of_the_plan(name, tmp_path):
    sql, content, message = WRONG[name]
    if content == "shop":
        make_shop(tmp_path / "shop.db")
    elif content is not None:
        (tmp_path / "shop.db").write_bytes(content)
    with pytest.raises(ConfigurationError, match=message) as raised:
        recipe(tmp_path, sql)
    assert all("recipe.yaml:9" in problem for problem in [*map(str, raised.value.problems)]), [
        *map(str, raised.value.problems)
    ]


def test_changes_that_are_not_in_the_file_yet_are_an_error(tmp_path):
    path = make_shop(tmp_path / "shop.db")
    db = sqlite3.connect(path)
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("DELETE FROM orders")
    db.commit()
    with refused(("sql.database", "recipe.yaml:9", "tools.sql.database", "shop.db")):
        recipe(tmp_path, "{database: shop.db}")
    db.close()
