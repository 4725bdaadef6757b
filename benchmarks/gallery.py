"""The pictures of docs/inspect.md, from a run:
`python -m benchmarks.gallery RUN [--query "step=3 role=coder"] [--out docs]`

inspect.png            the page, with the trajectory whose action has the lowest advantage of the
                       query
inspect_terminal.png   the same trajectory in the terminal
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

from marl_plugins.commands.inspect.index import Entry, RunIndex
from marl_plugins.commands.inspect.page_writer import write_page
from marl_plugins.commands.inspect.terminal import Browser
from marl_plugins.commands.query import Query, query_of, terms_of
from marl_plugins.engine.records.read import RunReader

MOST_TRAJECTORIES = 100_000
"""In the page: all of a run's, so that none of the query is left out of the sample."""


def draw_page(run: RunReader, entry: Entry, action: str, file: Path) -> None:
    """Take a picture of the page in Chromium."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as engine:
        page = Path(folder) / "page.html"
        write_page(run, Query(), page, MOST_TRAJECTORIES)
        program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = engine.chromium.launch(executable_path=program, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1200, "height": 760}, color_scheme="light")
        opened = {"step": entry.step, "task": entry.name, "sample": entry.sample, "action": action}
        view.goto(f"file://{page}#{urlencode(opened)}")
        view.wait_for_selector("details.action.on")
        view.select_option("#tokens", "advantage")
        view.wait_for_selector("details.action.on .tokens")
        view.locator("#detail").evaluate("(detail) => { detail.scrollTop = 0; }")
        view.screenshot(path=file)
        browser.close()


async def terminal(run: RunReader, query: Query, place: int) -> str:
    """Draw the terminal as SVG."""
    app = Browser(run, query)
    async with app.run_test(size=(120, 28)) as pilot:
        await pilot.press(*["j"] * place, "enter")
        await pilot.press("down", "down")
        await pilot.pause()
        return app.export_screenshot(title="openrlhf inspect")


def draw_terminal(svg: str, file: Path) -> None:
    """Take a picture of an SVG, without the fonts that it asks a server for."""
    with sync_playwright() as engine:
        program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
        browser = engine.chromium.launch(executable_path=program, args=["--no-sandbox"])
        view = browser.new_context(offline=True).new_page()
        view.set_viewport_size({"width": 1200, "height": 620})
        view.set_content(f"<style>body {{ margin: 0 }} svg {{ width: 1200px }}</style>{svg}")
        view.locator("svg").screenshot(path=file)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path)
    parser.add_argument("--query", default="")
    parser.add_argument("--out", type=Path, default=Path("docs"))
    options = parser.parse_args()
    run, query = RunReader(options.run), query_of(terms_of(options.query))
    entries = RunIndex(run, query).entries
    role = query.words.get("role")
    found = [
        (action.advantage, place, action.action)
        for place, entry in enumerate(entries)
        for action in entry.actions
        if action.advantage is not None and role in (None, action.role)
    ]
    _, place, action = min(found)
    draw_page(run, entries[place], action, options.out / "inspect.png")
    draw_terminal(asyncio.run(terminal(run, query, place)), options.out / "inspect_terminal.png")
    print(f"{options.out}: inspect.png, inspect_terminal.png")


if __name__ == "__main__":
    main()
