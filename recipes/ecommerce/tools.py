"""The recipe's plugin: its tasks, and the tools of the specialists. Task `merchant-3-17` is about
store 3.

query      a fenced SQL block, on the task's store: the built-in tool, with a database per task
lookup     <lookup>units tea 5</lookup>: one of a dozen queries by name, with its parameters in turn
what_if    <what_if>tea -10</what_if>: the profit at other prices, from the elasticities that the
           store was generated with
"""

import argparse
import asyncio
import json
import re

from marl_plugins import (
    ConfigurationError,
    SqlToolConfig,
    Tool,
    ToolResult,
    at_least,
    hookimpl,
    nearest,
    query_database,
    sql_tool,
)

from . import questions

store = questions.store
LIMITS = SqlToolConfig(database="", today=store.TODAY, calls_per_answer=4)
WRITTEN = {"query": "```sql", "lookup": "<lookup>", "what_if": "<what_if>"}
"""How a prompt shows that its role has a tool."""


@hookimpl
def marl_options(parser):
    parser.add_argument(
        "--ecommerce.assistant",
        choices=list(questions.SPECIALISTS),
        default="merchant",
        help="whose questions",
    )
    parser.add_argument(
        "--ecommerce.share",
        type=float,
        default=0.76,
        help="of all calls, those of the router and the first specialist",
    )
    parser.add_argument(
        "--ecommerce.tasks",
        type=at_least(5),
        default=2000,
        help="conversations to train on; a fifth as many are held out",
    )
    parser.add_argument(
        "--ecommerce.short",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="questions of a few words, for tiny models",
    )


@hookimpl
def marl_configure(run):
    return [*problems(run), *tools_without_role(run)]


def problems(run):
    """What is wrong with the mix of the questions and with their queries."""
    flags, found = run.args.ecommerce, []
    least, most = questions.reachable(flags.short)
    if not least <= flags.share <= most:
        found.append(
            f"--ecommerce.share {flags.share:g}: expected {least:.2f} to {most:.2f}; the router "
            "takes part in every question, the "
            "composer in every conversation, and the first specialist in all or none of the "
            "questions"
        )
    return found + questions.wrong_queries(LIMITS)


def tools_without_role(run):
    """Prompts that tell a role of a tool that it does not have."""
    found = []
    for name, role in run.recipe.roles.items():
        for file in filter(None, (role.prompt, role.system, role.followup)):
            text = (
                (run.folder / file).read_text(encoding="utf-8")
                if (run.folder / file).is_file()
                else ""
            )
            found += [
                f"{run.folder / file}: tells role {name!r} of the tool {tool!r}, which it does not "
                "have; add it to "
                f"roles.{name}.tools, or remove it from the prompt"
                for tool, written in WRITTEN.items()
                if written in text and tool not in role.tools
            ]
    return found


@hookimpl
def marl_tasks(run, split):
    flags = run.args.ecommerce
    if wrong := problems(run):
        raise ConfigurationError(wrong)
    return questions.load(flags.assistant, split, flags.tasks, flags.share, flags.short)


@hookimpl
def marl_tools(run):
    return [
        sql_tool(LIMITS, lambda call: store.database(store_of(call)), "query"),
        Tool(
            "lookup",
            lookup,
            re.compile(r"<lookup>(.*?)</lookup>", re.DOTALL).findall,
            calls_per_answer=4,
        ),
        Tool(
            "what_if",
            what_if,
            re.compile(r"<what_if>(.*?)</what_if>", re.DOTALL).findall,
            calls_per_answer=4,
        ),
    ]


def store_of(call):
    """The seed of a call's store."""
    return int(call.task.split("-")[1])


async def lookup(call):
    name, *given = call.text.split() or [""]
    if name not in questions.LOOKUPS:
        return ToolResult(
            "lookup",
            call.text,
            f"there is no lookup {name!r}{nearest(name, questions.LOOKUPS)}",
            ok=False,
        )
    wanted = questions.KINDS[name].parameters
    if len(given) != len(wanted):
        return ToolResult(
            "lookup",
            call.text,
            f"{name} takes {' '.join(wanted)}, got {len(given)} words",
            ok=False,
        )
    values = {
        key: int(word) if word.isdecimal() else word
        for key, word in zip(wanted, given, strict=True)
    }
    sql, bound = questions.KINDS[name].bound(values)
    text = f"{sql.strip()}\n{json.dumps(bound)}"
    answer = await asyncio.to_thread(
        lambda: query_database(store.database(store_of(call)), text, LIMITS)
    )
    found = [value for row in answer.rows for value in row if value is not None]
    said = answer.problem or "\n".join(map(questions.shown, found)) or "nothing is there"
    return ToolResult("lookup", call.text, said, ok=bool(found))


async def what_if(call):
    matched = re.fullmatch(r"\s*(\w+)\s+([+-]?\d{1,2})\s*%?\s*", call.text)
    if matched is None or matched[1] not in store.CATEGORIES:
        wrong = (
            "what_if takes a category and a change of its prices in percent, such as "
            f"`{store.CATEGORIES[0]} -10`"
        )
        return ToolResult("what_if", call.text, wrong, ok=False)
    market, percent = store.market_of(store_of(call)), int(matched[2])
    now, then = round(market.profit(matched[1], 0)), round(market.profit(matched[1], percent))
    said = (
        f"{matched[1]} at {percent:+d} percent: {then} cents of profit a day, {now} at today's "
        "prices"
    )
    return ToolResult("what_if", call.text, said, ok=True)
