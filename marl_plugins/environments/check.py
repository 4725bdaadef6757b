"""What is tried of an environment before a run, and `openrlhf environments`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from math import isfinite
from pathlib import Path
from typing import Any

from marl_plugins import ConfigurationError, Parser, Problem, Run, at, inert
from marl_plugins.environments.section import DRIVERS, SCRIPT, SETTINGS, EnvConfig
from marl_plugins.environments.servers import ServerPool

GAME_SECONDS = 5.0
"""Longest reset or step of a game in the table."""
EPISODES = 3
"""That a check plays."""
MOST_TURNS = 20
"""Of an episode that a check plays."""
LEAST_SECONDS = 60.0
"""That a check may take, in which the environment's packages are imported."""
HEADER = ("game", "players", "turns", "repeatable", "rewards", "what is wrong")


def report_of(driver: Path, settings: Mapping[str, Any], python: str, seconds: float) -> Any:
    """Returns what a driver reports; `{"error": ...}` where it does not."""
    try:
        done = subprocess.run(
            [python, str(driver)],
            env={**os.environ, SETTINGS: json.dumps(settings), "PYTHONHASHSEED": "0"},
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=seconds,
        )
        return json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return {"error": f"{EPISODES} episodes have not ended within {seconds:g} s"}
    except OSError as error:
        return {"error": f"{python} cannot be started: {error.strerror}"}
    except ValueError:
        written = done.stderr.strip().rpartition("\n")[2]
        return {"error": written or f"its process has ended with {done.returncode}"}


def check_environment(config: EnvConfig, run: Run) -> list[Problem]:
    """Returns what is wrong with an environment, which is played with scripted answers, as far as
    this needs no models; a verifiers environment is played in the rehearsal alone."""
    server, of_packages = config.openenv, "is `python` the Python that has its packages?"
    python = sys.executable if server else config.interpreter(run.folder)
    if config.verifiers:
        if not subprocess.run([python, "-c", "import verifiers"], capture_output=True).returncode:
            return []
        got = f"{python} cannot import verifiers"
        return [Problem("env.episode", at(key="env.verifiers"), got, fix=of_packages)]
    if server:
        run.state(ServerPool).wait(server.ready_seconds)
    settings = config.settings(run) | {"turns": min(config.turns, MOST_TURNS)}
    # its driver bounds every reset and step by itself, and how long it waits for a server
    seconds = EPISODES * (1 + settings["turns"]) * config.seconds + settings["ready_seconds"]
    report = report_of(config.driver(), settings, python, LEAST_SECONDS + seconds)
    key = "env.openenv" if server else "env.textarena"
    if "error" in report:
        got = f"an episode with scripted answers fails: {report['error']}"
        fix = of_packages if "ModuleNotFound" in got else ""
        if "not found in registry" in got:
            fix = "openrlhf environments textarena:ALL --python PYTHON has the names"
        return [Problem("env.episode", at(key=key, name=config.name), got, fix=fix)]
    if report["repeatable"]:
        return []
    return [
        Problem(
            "env.repeatable",
            at(key=key, name=config.name),
            "two episodes with the same seed and the same answers differ",
            fix="an evaluation does not repeat, nor does a resumed run bit for bit; say so of "
            "results",
            severity="warning",
        )
    ]


def main(words: Sequence[str]) -> int:
    """Plays games of TextArena with scripted answers, and prints a table; 1 where one that is named
    cannot be played, or none can."""
    parser = Parser(
        prog="openrlhf environments",
        description="Play games of TextArena offline, with scripted answers: two episodes of one "
        "seed and one of another. A game is repeatable if the first two are alike.",
    )
    parser.add_argument("env", metavar="textarena:NAME", help="a game, or ALL")
    parser.add_argument("--python", default=sys.executable, help="that has textarena")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(list(words))
    kind, _, name = options.env.partition(":")
    if kind != "textarena" or not name:
        raise ConfigurationError(
            Problem("env.kind", at(command="environments"), options.env, "textarena:NAME")
        )
    driver, python = DRIVERS / "textarena_games.py", options.python
    settings = {
        **{"name": name, "players": [], "options": {}, "conversation": True, "turns": 40},
        **{"seconds": GAME_SECONDS, "rewards": [float("-inf"), float("inf")], "invalid": -1.0},
        **{"scored": "episode", "answers": list(SCRIPT)},
    }
    names = report_of(driver, settings, python, LEAST_SECONDS) if name == "ALL" else [name]
    if isinstance(names, dict):
        got, fix = names["error"], "give --python the one that has textarena"
        raise ConfigurationError(Problem("env.episode", at(name="textarena"), got, fix=fix))

    def play(game: str) -> dict[str, Any]:
        return {"game": game, **report_of(driver, settings | {"name": game}, python, LEAST_SECONDS)}

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        reports = list(pool.map(play, names))
    played = [report for report in reports if "error" not in report]
    if options.json:
        print(json.dumps(reports, indent=2))
    else:
        rows = [HEADER, *map(row_of, reports)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        for row in rows:
            print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))
        print(f"\n{len(played)} of {len(names)} play here")
    return int(not played)


def row_of(report: Mapping[str, Any]) -> list[str]:
    """Returns a game's line of the table."""
    if "error" in report:
        error = " ".join(report["error"].replace("*", "").split())
        return [report["game"], "", "", "", "", inert(error)[:100]]
    rewards = [f"{reward:g}" for reward in report["rewards"] if isfinite(reward)]
    return [
        report["game"],
        str(report["players"]),
        str(report["turns"]),
        "yes" if report["repeatable"] else "no",
        " to ".join(rewards) or f"none in {report['turns']} turns",
        "",
    ]
