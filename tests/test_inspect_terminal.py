"""`openrlhf inspect` in a terminal: the list, filters, a trajectory as a tree, a run in progress;
driven as a person would."""

import asyncio

import inspected_runs
import pytest

from marl_plugins.commands.query import Query, query_of
from marl_plugins.engine.records.read import RunReader

pytest.importorskip("textual", reason="pip install textual")

from textual.widgets import Input, Static, Tree

from marl_plugins.commands.inspect.terminal import Browser, TrajectoryList, TrajectoryScreen


@pytest.fixture
def folder(tmp_path):
    inspected_runs.write_run(tmp_path, hostile=inspected_runs.HOSTILE)
    return tmp_path


def drive(app, act):
    """Run the program while `act` presses keys."""

    async def main():
        async with app.run_test(size=(110, 30)) as pilot:
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


def test_a_run_in_progress_is_followed_and_a_resumed_one_read_again(folder):
    file = folder / "trajectories.jsonl"
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-4]) + lines[-4][:50])
    app = Browser(RunReader(folder), Query(), follow=True)

    async def act(pilot):
        listed = app.query_one(TrajectoryList)
        assert len(listed.entries) == 20
        for kept in (lines, lines[:8]):
            file.write_bytes(b"".join(kept))
            app.follow()
            await pilot.pause()
            assert len(listed.entries) == len(kept)
            assert f"{len(kept)} trajectories" in text_of(app.screen, "#status")

    drive(app, act)
