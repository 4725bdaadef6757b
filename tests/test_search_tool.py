"""The `search` tool: what it finds, beside BM25 written out, what it refuses, and corpora that are
wrong."""

import asyncio
import json
import math
import re
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai_server import Reply, openai_server
from refusals import found_by, refused

from marl_plugins.builtin.tools import search as plugin
from marl_plugins.builtin.tools.search.corpus import Document
from marl_plugins.builtin.tools.search.dense import DenseIndex
from marl_plugins.builtin.tools.search.index import SearchIndex, SharedIndex, search_tool
from marl_plugins.builtin.tools.search.section import SearchToolConfig
from marl_plugins.contracts.tools import ToolContract
from marl_plugins.core.failures import InfrastructureFailure
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
    "a text that is none": ('{"text": ["a"]}\n', [("search.document", KEY, "c.jsonl:1")]),
    "a broken line and a list": (
        '{"text": "a"\n["b"]\n',
        [("search.line", KEY, "c.jsonl:1"), ("search.document", KEY, "c.jsonl:2")],
    ),
    "an empty file": ("", [("search.no_documents", *HERE, "c.jsonl")]),
    "no file": (None, [("search.corpus", *HERE, "c.jsonl")]),
    "no text in UTF-8": (b"\xff\xfe", [("search.corpus", *HERE, "c.jsonl")]),
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


def letters(texts):
    """An embedding: how often each letter stands in a text."""
    return [
        [text.lower().count(letter) for letter in "abcdefghijklmnopqrstuvwxyz"] for text in texts
    ]


@given(
    st.lists(st.text("abc ", min_size=1).filter(str.strip), min_size=1, max_size=9), st.text("abc")
)
def test_a_dense_index_finds_what_the_cosine_of_each_document_says(texts, query):
    def cosine(one, other):
        lengths = [math.sqrt(sum(x * x for x in vector)) for vector in (one, other)]
        if not all(lengths):
            return 0.0
        return sum(x * y for x, y in zip(one, other, strict=True)) / lengths[0] / lengths[1]

    index = DenseIndex([Document(text) for text in texts], letters)
    found = [document.text for document in index.best(query, 3)]
    (asked_for,), each = letters([query]), letters(texts)
    best = sorted((cosine(asked_for, one) for one in each), reverse=True)[:3]
    by_text = dict(zip(texts, each, strict=True))
    assert [cosine(asked_for, by_text[t]) for t in found] == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda texts: [[1.0]],
        lambda texts: [[float("nan")] * 2] * len(texts),
        lambda texts: [[1.0] * (n + 1) for n in range(len(texts))],
        len,
    ],
)
def test_embeddings_that_are_none_are_refused_before_anything_is_searched(wrong):
    documents = [Document(text) for text in "abc"]
    assert found_by(DenseIndex, documents, wrong)[0][0] == "search.embeddings"


def by_server(url, **config):
    return search_tool(
        SearchToolConfig(kind="http", address=url, results=2, **config), None, SharedIndex()
    )


def retrieved(*documents):
    return Reply(raw=json.dumps({"result": [list(documents)]}).encode())


def test_a_server_is_asked_as_search_r1_asks_and_its_documents_are_read_in_either_form():
    documents = (
        {"document": {"contents": '"Ulm"\nUlm is a town.'}, "score": 2},
        {"title": "Bonn", "text": "A town, too."},
        {"text": "one too many"},
    )
    with openai_server(lambda body, count: retrieved(*documents)) as (url, bodies):
        found = asked(by_server(f"{url}/retrieve"), " town ")
    assert found == ("Ulm is a town.\nBonn: A town, too.", True)
    assert bodies == [{"queries": ["town"], "topk": 2, "return_scores": False}]
    assert bodies.paths == ["/v1/retrieve"]


def test_a_server_without_documents_finds_nothing_and_that_is_no_failure():
    with openai_server(lambda body, count: retrieved()) as (url, _):
        assert asked(by_server(f"{url}/retrieve"), "town") == ("nothing was found", False)


@pytest.mark.parametrize(
    "reply",
    [
        Reply(raw=b"<html>log in</html>"),
        Reply(raw=b"[" + b"1," * 5_000_000 + b"1]"),
        Reply(raw=b'{"result": [["Ulm"]]}'),
        Reply("no such place", status=404),
        Reply(reset=True),
        Reply("down", status=503),
        Reply(seconds=4),
    ],
)
def test_a_server_that_answers_anything_else_or_nothing_is_infrastructure(reply, monkeypatch):
    monkeypatch.setattr("marl_plugins.builtin.tools.search.server.REPEATS", 1)
    seconds = 1.0 if reply.seconds else 30.0
    with openai_server(lambda body, count: reply) as (url, bodies):
        with pytest.raises(InfrastructureFailure) as caught:
            asked(by_server(f"{url}/retrieve", seconds=seconds), "town")
        passing = reply.reset or reply.seconds or reply.status == 503
        assert len(bodies) == (2 if passing else 1)
    assert caught.value.kind == "search"
    assert len(str(caught.value)) < 500


def test_a_server_that_was_busy_once_is_asked_again():
    def busy(body, count):
        return Reply("busy", status=429) if count == 1 else retrieved({"text": "here"})

    with openai_server(busy) as (url, _):
        assert asked(by_server(f"{url}/retrieve"), "town") == ("here", True)


def test_each_kind_reads_its_own_keys_and_a_plan_has_the_tool(tmp_path):
    shutil.copytree(Path(__file__).parent / "recipes" / "sums", tmp_path / "sums")
    (tmp_path / "sums" / "embed.py").write_text("def embed(texts): return [[1.0]] * len(texts)")
    written(tmp_path / "sums" / "towns.jsonl")
    recipe = tmp_path / "sums" / "searching.yaml"

    def planned(search):
        recipe.write_text(f"extends: tiny.yaml\ntools: {{search: {search}}}\n")
        return build_plan(["--recipe", str(recipe)])

    for search, key in (
        ("{kind: http}", "address"),
        ("{corpus: towns.jsonl, embed: 'embed.py:embed'}", "embed"),
        ("{kind: http, address: 'http://x/y', corpus: towns.jsonl}", "corpus"),
    ):
        code, *_, place = found_by(planned, search)[0]
        assert (code, place) == ("search.keys", f"tools.search.{key}")
    for wrong in ("embed.py:other", "embed.py"):  # one without a function is not searched by words
        missing = f"{{kind: dense, corpus: towns.jsonl, embed: '{wrong}'}}"
        assert found_by(planned, missing)[0][0] == "search.embed"
    tools = planned("{kind: dense, corpus: towns.jsonl, embed: 'embed.py:embed'}").run.tools
    assert asked(tools["search"], "?")[0].count("\n") == 2
