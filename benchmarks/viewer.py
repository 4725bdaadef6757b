"""Looking at large runs: `python -m benchmarks.viewer [--scale 1.0]`

Runs are made as three roles with a tool and a coach leave them (tests/inspected_runs.py). Per thing
that a user does: wall and CPU seconds of a fresh process, the most memory it had, and the size of
what it wrote; for pages, a browser's first contentful paint and the time until the list is there
(Chromium, if there is one).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

import inspected_runs

from marl_plugins.engine.records.trajectory_record import to_record

RUNS = (
    ("2,000 trajectories of 8 tokens an action", 2000, 8, 2000),
    ("2,000 with 3.2 million sampled tokens", 2000, 400, 2000),
    ("100,000 actions", 25_000, 8, 5000),
)
"""What it is, trajectories, tokens of each of their four actions, trajectories in the page."""
WORDS = ("the", "sum", "of", "both", "is", "17", "so", "def", "return", "x", "=", "print")


def write(folder: Path, trajectories: int, tokens: int, per_step: int = 128) -> Path:
    """Write a run: so many trajectories of four actions, with so many sampled tokens per action."""
    inspected_runs.write_run(folder, steps=1, tasks=1, samples=1)
    inspected_runs.write_tokenizers(folder)
    draw, steps = random.Random(0), range(1, 2 + trajectories // per_step)
    with (folder / "trajectories.jsonl").open("w") as file:
        for number in range(trajectories):
            t = inspected_runs.trajectory(draw, 1 + number // per_step, f"t{number}", 0)
            for action in t.actions:
                fresh = inspected_runs.action(draw, action.role, action.path, tokens=tokens)
                action.generation, action.trainer_logprobs = (
                    fresh.generation,
                    fresh.trainer_logprobs,
                )
                action.advantages = (fresh.advantage,) * tokens
                action.text = " ".join(draw.choice(WORDS) for _ in range(tokens))
            file.write(json.dumps(to_record(t)) + "\n")
    metrics = "".join(json.dumps(inspected_runs.metrics_of(step, draw)) + "\n" for step in steps)
    (folder / "metrics.jsonl").write_text(metrics)
    return folder


def measured(*words: str | Path, first_line: bool = False) -> str:
    """Run `openrlhf inspect` once and say what it took."""
    began = time.monotonic()
    command = [sys.executable, "-m", "marl_plugins", "inspect", *map(str, words)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    process.stdout.readline()
    line = time.monotonic() - began
    if first_line:
        process.stdout.close()
    else:
        process.stdout.read()
    _, _, used = os.wait4(process.pid, 0)
    wall, cpu = time.monotonic() - began, used.ru_utime + used.ru_stime
    return (
        f"first line {line:.1f} s, end {wall:.1f} s, CPU {cpu:.1f} s, "
        f"{used.ru_maxrss / 1024:.0f} MB"
    )


def opened(page: Path) -> str:
    """Open a page in a browser, and say how long it took."""
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        return "no browser"
    from playwright.sync_api import sync_playwright

    with sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=program, args=["--no-sandbox"])
        view = browser.new_page()
        began = time.monotonic()
        view.goto(f"file://{page}")
        view.wait_for_selector("body[data-ready]")
        ready = time.monotonic() - began
        # A browser enters the paint with the next frame, which may come after the list.
        paint = view.wait_for_function(
            "performance.getEntriesByName('first-contentful-paint').map((e) => e.startTime)[0]"
        ).json_value()
        count = view.evaluate("Number(document.body.dataset.ready)")
        began = time.monotonic()
        view.locator("#list").press("Enter")
        view.wait_for_selector(f"body[data-ready='{count + 1}']")
        one = time.monotonic() - began
        browser.close()
    return f"first paint {paint / 1000:.2f} s, list {ready:.2f} s, one opened {one:.2f} s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of trajectories")
    parser.add_argument(
        "--only",
        type=int,
        nargs="*",
        choices=(0, 1, 2),
        default=(0, 1, 2),
        help="of the three runs",
    )
    options = parser.parse_args()
    scale = options.scale
    print(f"load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as name:
        for number in options.only:
            label, trajectories, tokens, most = RUNS[number]
            folder = write(Path(name) / "run", int(trajectories * scale), tokens)
            size = (folder / "trajectories.jsonl").stat().st_size / 1e6
            print(f"\n{label}, {size:.0f} MB of records")
            page = folder / "page.html"
            took = measured(folder, "--html", page, "--most", str(most))
            print(f"  --html: {took}; {page.stat().st_size / 2**20:.2f} MB; {opened(page)}")
            print(f"  the list: {measured(folder)}")
            print(f"  --json | head -1: {measured(folder, '--json', first_line=True)}")
            shutil.rmtree(folder)


if __name__ == "__main__":
    main()
