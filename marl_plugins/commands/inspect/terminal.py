"""A run in the terminal: a list of its trajectories, drawn line by line as they become visible, and
one of them as a tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.geometry import Size
from textual.message import Message
from textual.reactive import reactive
from textual.screen import Screen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Input, Static, Tree
from textual.widgets.tree import TreeNode

from marl_plugins.commands.inspect.index import Entry, RunIndex
from marl_plugins.commands.inspect.shown import trajectory_values
from marl_plugins.commands.inspect.text import (
    HEADER,
    action_text,
    action_title,
    entry_line,
    one_line,
    summary,
)
from marl_plugins.commands.query import TERMS, Query, query_of, terms_of
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.engine.records.read import Filter, RunReader

FOLLOW_SECONDS = 2.0
"""How often a run in progress is looked at."""
LINE_CHARACTERS = 400
"""What is drawn of a line; the terminal is narrower."""


class TrajectoryList(ScrollView, can_focus=True):
    """A list of entries with a cursor; only visible lines are drawn, so that its length does not
    matter."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", "up", show=False),
        Binding("down,j", "move(1)", "down", show=False),
        Binding("pageup", "move(-20)", "page up", show=False),
        Binding("pagedown", "move(20)", "page down", show=False),
        Binding("home,g", "move(-1000000000)", "first", show=False),
        Binding("end,G", "move(1000000000)", "last", show=False),
        Binding("enter", "open", "open"),
    ]
    cursor: reactive[int] = reactive(0)

    class Opened(Message):
        """The entry at the cursor was chosen."""

    def __init__(self, entries: list[Entry]):
        super().__init__(id="list")
        self.show(entries)

    def show(self, entries: list[Entry]) -> None:
        """Shows other entries; the cursor stays in its place as far as there is one."""
        self.entries = entries
        self.virtual_size = Size(LINE_CHARACTERS, len(entries))
        self.cursor = min(self.cursor, max(0, len(entries) - 1))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        place = y + self.scroll_offset.y
        text = (
            entry_line(self.entries[place])[:LINE_CHARACTERS] if place < len(self.entries) else ""
        )
        style = Style(reverse=place == self.cursor and bool(self.entries))
        left = self.scroll_offset.x
        return Strip([Segment(text.ljust(LINE_CHARACTERS), style)]).crop(
            left, left + self.size.width
        )

    def action_move(self, by: int) -> None:
        self.cursor = min(max(0, self.cursor + by), max(0, len(self.entries) - 1))
        top, height = self.scroll_offset.y, max(1, self.size.height)
        if not top <= self.cursor < top + height:
            self.scroll_to(
                y=self.cursor if self.cursor < top else self.cursor - height + 1, animate=False
            )
        self.refresh()

    def action_open(self) -> None:
        if self.entries:
            self.post_message(self.Opened())

    def on_click(self, event: Any) -> None:
        self.action_move(event.y + self.scroll_offset.y - self.cursor)
        self.action_open()


class TrajectoryScreen(Screen[None]):
    """One trajectory: its actions as a tree, and what is recorded of the chosen one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "app.pop_screen", "back"),
        Binding("n", "app.neighbour(1)", "next"),
        Binding("p", "app.neighbour(-1)", "previous"),
        Binding("tab", "focus_next", "other side", show=False),
    ]

    def __init__(self, shown: dict[str, Any]):
        super().__init__()
        self.shown = shown

    def compose(self) -> ComposeResult:
        title = one_line(
            f"{self.shown['task']}, step {self.shown['step']}, sample {self.shown['sample']}"
        )
        tree: Tree[dict[str, Any]] = Tree(title, data=self.shown)
        nodes: dict[str, TreeNode[dict[str, Any]]] = {}
        for action in self.shown[
            "actions"
        ]:  # below the turn that it continues, or the last action that it saw
            above = action["continues"] or (action["parents"] or [None])[-1]
            node = nodes.get(above, tree.root).add(action_title(action), data=action, expand=True)
            nodes[action["action"]] = node
        tree.root.expand()
        with Horizontal():
            yield tree
            with VerticalScroll(can_focus=True):
                yield Static(summary(self.shown), id="text")
        yield Footer()

    def on_tree_node_highlighted(self, event: Tree.NodeHighlighted[dict[str, Any]]) -> None:
        data = event.node.data or self.shown
        self.query_one("#text", Static).update(
            action_text(data) if "action" in data else summary(data)
        )
        self.query_one(VerticalScroll).scroll_home(animate=False)


class Browser(App[None]):
    """The program.

    Args:
        follow: Whether the run is looked at again and again for what it adds.
    """

    TITLE = "openrlhf inspect"
    ENABLE_COMMAND_PALETTE = False
    CSS = """
    #head { height: 1; color: $text-muted; } #status { height: 1; background: $panel; }
    Tree { width: 40%; }
    VerticalScroll { width: 60%; border-left: solid $panel; padding: 0 1; }
    #filter { display: none; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter"),
        Binding("q", "quit", "quit"),
        Binding("escape", "leave_filter", "list", show=False),
    ]

    def __init__(self, run: RunReader, query: Query, follow: bool = False):
        super().__init__()
        self.run_reader, self.base = run, Filter(split=query.wanted.split, received=True)
        self.follows = follow
        self.look(query)

    def look(self, query: Query) -> None:
        """Reads what is asked for."""
        self.seen = self.written(query)
        self.index = RunIndex(self.run_reader, query)
        self.asked = query

    def written(self, query: Query) -> dict[Path, int]:
        """Returns when the files of what is asked for were last written."""
        paths = [path for path, _ in self.run_reader.parts(query.wanted)]
        return {path: path.stat().st_mtime_ns for path in paths if path.exists()}

    def compose(self) -> ComposeResult:
        yield Static(HEADER, id="head", markup=False)
        yield TrajectoryList(self.index.entries)
        yield Input(placeholder=f"role=coder outcome=0 find=boxes; {' '.join(TERMS)}", id="filter")
        yield Static("", id="status", markup=False)
        yield Footer()

    def on_mount(self) -> None:
        self.say()
        if self.follows:
            self.set_interval(FOLLOW_SECONDS, self.follow)

    def say(self, problem: str = "") -> None:
        """Shows how many there are, or what is wrong with a filter."""
        counted = f"{len(self.index.entries):,} trajectories"
        counted += f" with {self.asked}" if self.asked.words else ""
        self.screen_stack[0].query_one("#status", Static).update(one_line(problem or counted))

    def on_trajectory_list_opened(self) -> None:
        self.open(self.query_one(TrajectoryList).cursor)

    def open(self, place: int) -> None:
        """Shows the trajectory at a place of the list, or says why it cannot be read."""
        try:
            trajectory = self.index.open(self.index.entries[place])
        except ConfigurationError as error:
            self.say(said(error))
        else:
            self.push_screen(TrajectoryScreen(trajectory_values(trajectory)))

    def action_neighbour(self, by: int) -> None:
        listed = self.screen_stack[0].query_one(TrajectoryList)
        listed.action_move(by)
        self.pop_screen()
        self.open(listed.cursor)

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.display = True
        box.value = str(self.asked)
        box.focus()

    def action_leave_filter(self) -> None:
        self.query_one("#filter", Input).display = False
        self.query_one(TrajectoryList).focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        try:
            self.look(query_of(terms_of(event.value), self.base))
        except ConfigurationError as error:
            self.say(said(error))
            return
        self.query_one(TrajectoryList).show(self.index.entries)
        self.action_leave_filter()
        self.say()

    def follow(self) -> None:
        """Shows what the run has added; a run that can no longer be read stays as it was."""
        try:
            if self.written(self.asked) != self.seen:
                self.look(self.asked)
                self.screen_stack[0].query_one(TrajectoryList).show(self.index.entries)
                self.say()
        except ConfigurationError as error:
            self.say(said(error))


def said(error: ConfigurationError) -> str:
    """Writes what is wrong on one line."""
    return "; ".join(map(str, error.problems))


def browse(run: RunReader, query: Query, follow: bool) -> None:
    """Shows a run until the user leaves."""
    Browser(run, query, follow).run()
