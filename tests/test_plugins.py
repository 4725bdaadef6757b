"""Finding, checking and calling plugins."""

import argparse
import asyncio
import dataclasses
import inspect
import textwrap
from types import SimpleNamespace

import pytest
from refusals import refused

from marl_plugins.core import hookspecs
from marl_plugins.core.failures import ConfigurationError, RunEnded, RunPaused
from marl_plugins.core.hookspecs import KINDS
from marl_plugins.core.run import Run
from marl_plugins.engine.manager import Plugins, claims_of
from marl_plugins.engine.plan.build import build_plan


@pytest.fixture
def plugin(tmp_path):
    def write(name, body):
        file = tmp_path / f"{name}.py"
        file.write_text("from marl_plugins import hookimpl\n" + textwrap.dedent(body))
        return str(file)

    return write


def problems(*names):
    with pytest.raises(ConfigurationError) as caught:
        Plugins(names)
    return [*map(str, caught.value.problems)]


def test_a_misspelt_hook_is_corrected(plugin):
    file = plugin("typo", "@hookimpl\ndef marl_slect(rows): return rows")
    with refused(("hook.unknown", "typo.py", "typo.py:2", "marl_slect")):
        Plugins([file])


def test_an_unknown_argument_names_plugin_and_argument(plugin):
    file = plugin("wrong", "@hookimpl\ndef marl_select(rowz): return rowz")
    with refused(("plugin.signature", "wrong.py")):
        Plugins([file])


def test_an_unmarked_function_would_never_be_called(plugin):
    file = plugin(
        "unmarked", "def marl_select(rows): return rows\n@hookimpl\ndef marl_log(metrics): pass"
    )
    with refused(("hook.unmarked", "unmarked.py", "unmarked.py:2", "marl_select")):
        Plugins([file])


def test_two_answers_to_one_question_are_an_error_that_names_both(plugin):
    one = plugin("one", "@hookimpl\ndef marl_estimator(run): return 1")
    two = plugin("two", "@hookimpl\ndef marl_estimator(run): return 2")
    with refused(("plugin.both", "one.py", "two.py", "marl_estimator")):
        Plugins([one, two])


@pytest.mark.parametrize(
    ("stated", "code"),
    [
        ('"99.0"', "plugin.newer"),
        ('"1.0"', "plugin.older"),
        ('"one"', "plugin.version"),
    ],
)
def test_another_version_of_the_hooks_is_refused_with_the_reason(plugin, stated, code):
    file = plugin("other", f"MARL_HOOKS = {stated}\n@hookimpl\ndef marl_log(metrics): pass")
    with refused((code, "other.py", "MARL_HOOKS")):
        Plugins([file])


def test_every_hook_has_a_kind_and_the_run():
    assert {kind.name for kind in KINDS.values()} == {"each", "first", "chain", "around"}
    for name in KINDS.keys() - {
        "marl_options",
        "marl_rehearse",
        "marl_commands",
        "marl_sections",
        "marl_tables",
    }:  # these are asked before there is a run
        assert "run" in inspect.signature(getattr(hookspecs, name)).parameters, name


async def taking_part(plugins, inside=lambda: None, purpose="train"):
    async with plugins.started(build_plan(["--recipe", "kuhn_poker/tiny.yaml"]).run, purpose):
        inside()


LIFE = """
log = []
@hookimpl
def marl_start(run, purpose):
    log.append(("start", {0!r}, run.recipe.name, purpose))
    {1}
@hookimpl
async def marl_stop(run):
    log.append(("stop", {0!r}, run.recipe.name))
"""


def life(plugins):
    """What each of the plugins noted."""
    return [line for name in plugins.names for line in plugins.manager.get_plugin(name).log]


def test_what_was_started_is_stopped_in_reverse(plugin):
    plugins = Plugins([plugin("l1", LIFE.format("l1", "")), plugin("l2", LIFE.format("l2", ""))])
    shared = plugins.manager.get_plugin(plugins.names[0]).log
    plugins.manager.get_plugin(plugins.names[1]).log = shared
    asyncio.run(taking_part(plugins, lambda: shared.append("between"), "evaluate"))
    starts = [("start", name, "kuhn_poker", "evaluate") for name in ("l1", "l2")]
    assert shared == [
        *starts,
        "between",
        ("stop", "l2", "kuhn_poker"),
        ("stop", "l1", "kuhn_poker"),
    ]


def test_a_start_that_fails_stops_those_that_were_reached_and_no_more(plugin):
    """The one that failed may have opened something first; the third was never asked."""
    plugins = Plugins(
        [plugin(n, LIFE.format(n, more)) for n, more in (("l1", ""), ("l2", "1 / 0"), ("l3", ""))]
    )
    with refused(("code.failed", "l2.py:7", "marl_start")):
        asyncio.run(taking_part(plugins))
    assert [line[:2] for line in life(plugins)] == [
        ("start", "l1"),
        ("stop", "l1"),
        ("start", "l2"),
        ("stop", "l2"),
    ]


def test_one_that_cannot_stop_keeps_no_other_from_it(plugin):
    plugins = Plugins(
        [plugin("l1", LIFE.format("l1", "")), plugin("bad", "@hookimpl\ndef marl_stop(run): 1 / 0")]
    )
    with pytest.raises(RunEnded, match=r"bad\.py: marl_stop raised ZeroDivisionError"):
        asyncio.run(taking_part(plugins))
    assert [line[0] for line in plugins.manager.get_plugin(plugins.names[0]).log] == [
        "start",
        "stop",
    ]


def test_a_named_plugin_answers_before_the_built_in(plugin):
    file = plugin("mine", "@hookimpl\ndef marl_estimator(run): return 'mine'")
    assert Plugins([file]).hook.marl_estimator(run=None) == "mine"


def test_requirements_come_first_and_once(plugin):
    log = "@hookimpl\ndef marl_select(rows): return [*rows, {0!r}]"
    needed = plugin("needed", log.format("needed"))
    wanting = plugin("wanting", f"requires = [{needed!r}]\n" + log.format("wanting"))
    plugins = Plugins([wanting, needed])
    assert asyncio.run(plugins.chain("marl_select", [], run=None)) == ["needed", "wanting"]


def test_chains_follow_the_order_given_and_await_what_is_async(plugin):
    one = plugin("c1", "@hookimpl\nasync def marl_credit(trajectories): return trajectories + [1]")
    two = plugin("c2", "@hookimpl\ndef marl_credit(trajectories): return trajectories + [2]")
    assert asyncio.run(Plugins([two, one]).chain("marl_credit", [], run=None)) == [2, 1]


def test_a_link_of_a_chain_that_returns_nothing_is_named(plugin):
    file = plugin("mute", "@hookimpl\ndef marl_credit(trajectories): return trajectories or None")
    with pytest.raises(RunPaused, match=r"mute\.py: marl_credit returned nothing"):
        asyncio.run(Plugins([file]).chain("marl_credit", [], run=None))


def test_around_a_wrapper_sees_the_awaitable(plugin):
    inner = plugin("inner", "@hookimpl\nasync def marl_generate(call): return call * 2")
    outer = plugin(
        "outer",
        """
        @hookimpl(wrapper=True)
        def marl_generate():
            answer = yield
            async def more():
                return await answer + 1
            return more()
        """,
    )

    async def ask():
        return await Plugins([outer, inner]).hook.marl_generate(run=None, call=20, engines=None)

    assert asyncio.run(ask()) == 41


def test_state_is_kept_and_given_back_by_name(plugin):
    body = """
        class Count:
            seen = 3
        @hookimpl
        def marl_state(run): return {"n": run.state(Count).seen}
        @hookimpl
        def marl_restore(run, state): run.state(Count).seen = state["n"]
    """
    file = plugin("stateful", body)
    plugins, one, two = Plugins([file]), Run(None, None, None, "cpu"), Run(None, None, None, "cpu")
    assert plugins.state(one)["stateful.py"] == {"n": 3}
    plugins.restore(one, {"stateful.py": {"n": 4}})
    assert plugins.state(one)["stateful.py"] == {"n": 4}
    further = dataclasses.replace(one, device="cuda")  # the same run, further planned
    assert plugins.state(further)["stateful.py"] == {"n": 4}
    assert plugins.state(two)["stateful.py"] == {"n": 3}


def test_versions_of_files_follow_their_content(plugin):
    file = plugin("v", "@hookimpl\ndef marl_log(metrics): pass")
    before = Plugins([file]).versions()
    with open(file, "a") as f:
        f.write("# more\n")
    assert Plugins([file]).versions() != before


def test_one_file_by_two_paths_is_one_plugin(plugin, tmp_path, monkeypatch):
    file = plugin("same", "@hookimpl\ndef marl_log(metrics): pass")
    monkeypatch.chdir(tmp_path)
    assert Plugins([file, "./same.py"]).names == (file,)


def test_the_hooks_say_who_needs_the_whole_step(plugin):
    credit = "@hookimpl\ndef {}(trajectories): return trajectories\n"
    near, far = (
        plugin("near", credit.format("marl_credit")),
        plugin("far", credit.format("marl_credit_step")),
    )
    plugins = Plugins([near, far])
    run = dataclasses.replace(
        build_plan(["--recipe", "vote/tiny.yaml"]).run, claims=claims_of(plugins)
    )
    assert run.called("marl_credit") == [plugins.names[0]]
    assert run.need_step == (f"{plugins.names[1]} (marl_credit_step)",)


def test_an_implementation_may_apply_to_some_runs_alone(plugin):
    body = """
from marl_plugins import applies_if

@hookimpl
@applies_if(lambda run: run.max_steps == 1)
async def marl_credit_step(trajectories): return [*trajectories, 1]
"""
    plugins = Plugins([plugin("some", body)])
    planned = build_plan(["--recipe", "vote/tiny.yaml"]).run
    apart = dataclasses.replace(planned, claims=claims_of(plugins))
    whole = dataclasses.replace(apart, max_steps=1)
    assert [len(run.need_step) for run in (whole, apart)] == [1, 0]
    assert asyncio.run(plugins.chain("marl_credit_step", [], run=whole)) == [1]
    assert asyncio.run(plugins.chain("marl_credit_step", [], run=apart)) == []


def test_a_chain_cannot_be_wrapped(plugin):
    file = plugin(
        "wrapped", "@hookimpl(wrapper=True)\ndef marl_credit(trajectories): return (yield)"
    )
    with refused(("hook.wraps_chain", "wrapped.py", "wrapped.py:2", "marl_credit")):
        Plugins([file])


def test_what_would_never_be_asked_is_refused(plugin):
    with refused(("hook.trylast", "a.py", "a.py:2", "marl_estimator")):
        Plugins([plugin("a", "@hookimpl(trylast=True)\ndef marl_estimator(run): return 1")])
    with refused(("hook.wraps_chain", "b.py", "b.py:2", "marl_select")):
        Plugins([plugin("b", "@hookimpl(hookwrapper=True)\ndef marl_select(rows):\n    yield")])
    with refused(
        ("hook.wraps_own", "c.py", "c.py:2", "marl_state"),
        ("plugin.no_restore", "c.py", "marl_state"),
    ):
        Plugins([plugin("c", "@hookimpl(wrapper=True)\ndef marl_state(run):\n    return (yield)")])


def test_a_score_may_be_plain_or_awaited(plugin):
    """The likeliest slip of all: a recipe's grader may be a plain function as well."""
    run = SimpleNamespace(state=lambda kind: kind())
    for name, body in (
        ("plain", "def marl_score_outcome(trajectory): return 0.5"),
        ("late", "async def marl_score_outcome(): return 0.5"),
    ):
        plugins = Plugins([plugin(name, "@hookimpl\n" + body)])

        async def score(plugins=plugins):
            return await plugins.hook.marl_score_outcome(run=run, trajectory=None)

        assert asyncio.run(score()) == 0.5
    silent = Plugins(
        [plugin("silent", "@hookimpl\ndef marl_score_outcome(trajectory): return None")]
    )
    last = [i for i in silent.hook.marl_score_outcome.get_hookimpls() if not i.wrapper][-1]
    assert (
        last.plugin_name.endswith("silent.py") and last.function(None) is None
    )  # so that the next is asked


def test_what_is_not_awaited_may_not_be_async(plugin):
    with refused(("hook.async", "late.py", "late.py:2", "marl_configure")):
        Plugins([plugin("late", "@hookimpl\nasync def marl_configure(run): pass")])


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("parser.add_argument('--limit')", ("plugin.flag_name", "late.py", "limit")),
        ("parser.add_argument('--taken.flag')", ("plugin.flag_exists", "late.py")),
        ("1 / 0", ("code.failed", "late.py:4", "marl_options")),
    ],
)
def test_a_plugins_flags_are_its_own(plugin, body, problem):
    plugins = Plugins([plugin("late", f"@hookimpl\ndef marl_options(parser):\n    {body}")])
    parser = argparse.ArgumentParser()
    parser.add_argument("--taken.flag")
    with refused(problem):
        plugins.options(parser)


def test_what_a_plugin_raises_while_planning_names_its_file_and_line(plugin):
    plugins = Plugins(
        [plugin("clumsy", "@hookimpl\ndef marl_tasks(run, split):\n    return run.nothing")]
    )
    with refused(("code.failed", "clumsy.py:4", "marl_tasks")):
        plugins.call_while_planning("marl_tasks", run=object(), split="train")
