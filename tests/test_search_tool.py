"""The `search` tool: what it finds, beside BM25 written out, what it refuses, and corpora that are
wrong."""

import asyncio
import json
import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from marl_plugins.builtin.tools import search as plugin
from marl_plugins.builtin.tools.search.corpus import Document
from marl_plugins.builtin.tools.search.index import SearchIndex, SharedIndex, search_tool
from marl_plugins.builtin.tools.search.section import SearchToolConfig
from marl_plugins.contracts.tools import ToolContract
from marl_plugins.core.tools import ToolCall
from marl_plugins.engine.plan.build import build_plan

TOWNS = [
    ("Ulm", "Ulm lies on the Danube."),
    ("Bonn", "Bonn lies on the Rhine."),
    ("", "The Danube is a river."),
]
WORDS = ["ulm", "bonn", "danube", "rhine", "the", "lies", "a"]


def written(path, documents=TOWNS):
    path.write_text(
        "".join(json.dumps({"title": title, "text": text}) + "\n" for title, text in documents)
    )
    return path


def tool(path, **config):
    return search_tool(SearchToolConfig(corpus=path.name, **config), path, SharedIndex())


def asked(of, text):
    found = asyncio.run(of.run(ToolCall(text, "t", 0, 1)))
    return found.output, found.ok


def scores(texts, query, k1=1.5, b=0.75):
    """BM25 as Lucene has it, in float64, from its formula."""
    split = [re.findall(r"\w+", text.lower()) for text in texts]
    mean = sum(map(len, split)) / len(split)
    found = [0.0] * len(split)
    for word in re.findall(r"\w+", query.lower()):
        of = sum(word in words for words in split)
        idf = math.log(1 + (len(split) - of + 0.5) / (of + 0.5))
        for number, words in enumerate(split):
            times = words.count(word)
            found[number] += idf * times / (times + k1 * (1 - b + b * len(words) / mean))
    return found


@given(
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6), min_size=1, max_size=12),
    st.lists(st.sampled_from([*WORDS, "unknown"]), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_the_best_are_those_of_bm25_and_ties_keep_the_order(texts, query, most):
    documents = [Document(" ".join(words), str(number)) for number, words in enumerate(texts)]
    expected = scores([document.text for document in documents], " ".join(query))
    found = [
        int(document.title)
        for document in SearchIndex(documents, "text").best(" ".join(query), most)
    ]
    assert len(found) == len(set(found)) == min(most, sum(score > 0 for score in expected))
    by_score = sorted(expected, reverse=True)
    assert [expected[number] for number in found] == pytest.approx(by_score[: len(found)], rel=1e-4)
    for one, other in pairwise(found):
        assert texts[one] != texts[other] or one < other


def test_it_keeps_the_contract_of_tools(tmp_path):
    written(tmp_path / "c.jsonl")
    mine = tmp_path / "mine.py"
    mine.write_text(
        "from pathlib import Path\n"
        "from marl_plugins import hookimpl\n"
        "from marl_plugins.builtin.tools.search.index import SharedIndex, search_tool\n"
        "from marl_plugins.builtin.tools.search.section import SearchToolConfig\n\n\n"
        "@hookimpl\ndef marl_tools(run):\n"
        "    config = SearchToolConfig(corpus='c.jsonl')\n"
        "    return [search_tool(config, Path(__file__).with_name('c.jsonl'), "
        "run.state(SharedIndex))]\n"
    )
    kit = type(
        "Kit",
        (ToolContract,),
        {
            "plugin": str(mine),
            "calls": {"search": ["Ulm", "danube rhine"]},
            "bad_calls": {"search": ["Oder", "x" * 301]},
            "answers": {"search": ["I look: <search>Ulm</search>"]},
            "deterministic": True,
        },
    )()
    for name in vars(ToolContract):
        if name.startswith("test_"):
            getattr(kit, name)()


# --- as a part of a recipe
# ------------------------------------------------------------------------------------------------


RECIPE = """name: mine
roles:
  clerk: {prompt: clerk.md, tools: [search], max_turns: 3}
workflow: workflow.py
tasks: tasks.py
grader: grader.py
model: tiny
tools:
  search: {SEARCH}
flags: {rollout.batch_size: 2, train.batch_size: 2, rollout.max_new_tokens: 8, data.max_len: 64}
"""


def recipe(folder, search, *words):
    (folder / "recipe.yaml").write_text(RECIPE.replace("{SEARCH}", search))
    (folder / "clerk.md").write_text("{question}")
    (folder / "workflow.py").write_text(
        "async def run(task, roles, tools):\n    return await roles.clerk(question=task.prompt)\n"
    )
    (folder / "grader.py").write_text("def score_outcome(trajectory):\n    return 1.0\n")
    (folder / "tasks.py").write_text(
        "from marl_plugins.core.trajectory import Task\n\n\ndef load(split):\n"
        "    return [Task(f'{split}{n}', f'{split} {n}', 'a') for n in range(4)]\n"
    )
    return build_plan(["--recipe", str(folder), *words])


def test_a_role_has_it_where_the_recipe_or_a_flag_names_a_corpus(tmp_path):
    written(tmp_path / "c.jsonl")
    plan = recipe(tmp_path, "{corpus: c.jsonl, index: text}")
    (of,) = [
        t
        for given in plan.plugins.hook.marl_tools(run=plan.run)
        for t in given
        if t.name == "search"
    ]
    assert asked(of, "rhine")[1]
    other = written(tmp_path / "other.jsonl", [("Köln", "A town.")])
    plan = recipe(tmp_path, "{corpus: c.jsonl}", "--search.corpus", str(other))
    asyncio.run(plugin.marl_start(plan.run))
    (of,) = [
        t
        for given in plan.plugins.hook.marl_tools(run=plan.run)
        for t in given
        if t.name == "search"
    ]
    assert asked(of, "köln") == ("Köln: A town.", True) and not asked(of, "Ulm")[1]


KEY = "tools.search.corpus"
HERE = ("recipe.yaml:9", KEY)
WRONG = {
    "an empty document": (
        '{"text": "a"}\n{"text": " "}\n',
        [("search.document", KEY, "c.jsonl:2")],
    ),
    "no text": ('{"title": "a"}\n', [("search.document", KEY, "c.jsonl:1")]),
    "a text that is none": ('{"text": ["a"]}\n', [("search.document", KEY, "c.jsonl:1")]),
    "a broken line and a list": (
        '{"text": "a"\n["b"]\n',
        [("search.line", KEY, "c.jsonl:1"), ("search.no_object", KEY, "c.jsonl:2")],
    ),
    "an empty line": ('{"text": "a"}\n\n{"text": "b"}\n', [("search.line", KEY, "c.jsonl:2")]),
    "an empty file": ("", [("search.no_documents", *HERE, "c.jsonl")]),
    "no file": (None, [("search.corpus", *HERE, "c.jsonl")]),
    "no text in UTF-8": (b"\xff\xfe", [("search.encoding", *HERE, "c.jsonl")]),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_corpus_is_an_error_of_the_plan_by_file_and_line(name, tmp_path):
    content, problems = WRONG[name]
    if content is not None:
        (tmp_path / "c.jsonl").write_bytes(
            content if isinstance(content, bytes) else content.encode()
        )
    with refused(*problems):
        recipe(tmp_path, "{corpus: c.jsonl}")
