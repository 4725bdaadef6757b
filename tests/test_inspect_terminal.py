"""`openrlhf inspect` in a terminal: the list, filters, a trajectory as a tree, a run in progress;
driven as a person would."""

import asyncio
import json
import random

import inspected_runs
import pytest

from marl_plugins.commands.inspect.query import Query, query_of
from marl_plugins.engine.records.read import RunReader
from marl_plugins.engine.records.trajectory_record import to_record

pytest.importorskip("textual", reason="pip install textual")

from textual.widgets import Input, Static, Tree

from marl_plugins.commands.inspect.terminal import Browser, TrajectoryList, TrajectoryScreen


@pytest.fixture
def folder(tmp_path):
    inspected_runs.write_run(tmp_path, hostile=inspected_runs.HOSTILE)
    return tmp_path


def drive(app, act, size=(110, 30)):
    """Run the program while `act` presses keys."""

    async def main():
        async with app.run_test(size=size) as pilot:
            await act(pilot)

    asyncio.run(main())


def text_of(screen, name):
    return str(screen.query_one(name, Static).render())


def test_the_list_moves_filters_and_opens(folder):
    app = Browser(RunReader(folder), Query())

    async def act(pilot):
        listed = app.query_one(TrajectoryList)
        assert len(listed.entries) == 24 and "24 trajectories" in text_of(app.screen, "#status")
        await pilot.press("j", "down", "k", "pagedown")
        assert listed.cursor == 21
        await pilot.press("slash")
        app.query_one("#filter", Input).value = "role=reviewer score=0.5: step=2"
        await pilot.press("enter")
        asked = query_of({"role": "reviewer", "score": "0.5:", "step": "2"}).wanted
        expected = list(RunReader(folder).trajectories(asked))
        assert len(listed.entries) == len(expected) and app.focused is listed
        await pilot.press("home", "enter")
        await pilot.pause()
        assert isinstance(app.screen, TrajectoryScreen)
        tree = app.screen.query_one(Tree)
        assert [node.data["role"] for node in tree.root.children] == ["planner"]
        assert tree.root.children[0].children[0].data["action"] == "coder.00000002"
        await pilot.press("down", "down")
        await pilot.pause()
        assert "print(6*7)" in text_of(app.screen, "#text") and "right 0.5, ends 1" in text_of(
            app.screen, "#text"
        )
        first = app.screen.shown
        await pilot.press("n")
        await pilot.pause()
        assert app.screen.shown != first
        await pilot.press("escape")
        assert not isinstance(app.screen, TrajectoryScreen)

    drive(app, act)


def test_a_wrong_filter_is_said_and_changes_nothing(folder):
    app = Browser(RunReader(folder), Query())

    async def act(pilot):
        await pilot.press("slash")
        app.query_one("#filter", Input).value = "roel=x"
        await pilot.press("enter")
        assert (
            "roel" in text_of(app.screen, "#status")
            and len(app.query_one(TrajectoryList).entries) == 24
        )
        await pilot.press("escape")
        app.query_one(TrajectoryList).focus()
        await pilot.press("slash")
        app.query_one("#filter", Input).value = "role=nobody"
        await pilot.press("enter", "enter", "j")
        assert app.query_one(TrajectoryList).entries == []

    drive(app, act)


@pytest.mark.parametrize("size", [(20, 6), (200, 60)])
def test_hostile_texts_are_shown_in_any_window(folder, size):
    app = Browser(RunReader(folder), Query())

    async def act(pilot):
        for place in range(len(inspected_runs.HOSTILE)):
            app.open(place)
            await pilot.pause()
            await pilot.press("down")
            await pilot.pause()
            shown = text_of(app.screen, "#text")
            assert not any((ord(c) < 32 and c != "\n") or c in "\u202e\u2066\x7f" for c in shown)
            await pilot.press("escape")

    drive(app, act, size)


def test_a_run_in_progress_grows(folder):
    app = Browser(RunReader(folder), Query(), follow=True)

    async def act(pilot):
        line = json.dumps(to_record(inspected_runs.trajectory(random.Random(1), 9, "t0", 0)))
        with (folder / "trajectories.jsonl").open("a") as file:
            file.write(line + "\n")
        app.follow()
        await pilot.pause()
        assert app.query_one(TrajectoryList).entries[-1].step == 9 and "25 trajectories" in text_of(
            app.screen, "#status"
        )

    drive(app, act)


def test_a_run_that_is_damaged_or_removed_meanwhile_is_said(folder):
    app = Browser(RunReader(folder), Query(), follow=True)

    async def act(pilot):
        def said(word):
            assert word in text_of(app.screen, "#status")

        with (path := folder / "trajectories.jsonl").open("a") as file:
            file.write("no record\nnor this\n")
        app.follow()
        said("not a record of a run")
        assert len(app.query_one(TrajectoryList).entries) == 24
        path.unlink()
        app.open(0)
        said("No such file")
        await pilot.press("slash", *"role=coder", "enter")
        said("No such file")

    drive(app, act)


def test_only_visible_lines_are_drawn(folder, monkeypatch):
    app = Browser(RunReader(folder), Query())
    drawn = []

    async def act(pilot):
        listed = app.query_one(TrajectoryList)
        listed.show(listed.entries * 5000)
        render = listed.render_line
        monkeypatch.setattr(listed, "render_line", lambda y: drawn.append(y) or render(y))
        await pilot.press("end")
        await pilot.pause()
        assert listed.cursor == 119_999 and 0 < len(set(drawn)) <= 30

    drive(app, act)
