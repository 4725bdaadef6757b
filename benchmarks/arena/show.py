"""A record of the arena as tables and as a picture."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
RECORDED = Path(__file__).resolve().parents[1] / "recorded" / "arena.json"
BASELINE = "rloo"
"""The way that others are compared with."""
FAR = 5.0
"""Standard errors of the scale from 1 that contradict a claim."""
KINDS = {
    "estimator": "of this package, from outcomes",
    "coach": "of this package, from scores",
    "reference": "of others",
    "exact": "for whoever knows the truth",
}


def recorded() -> Record:
    record: Record = json.loads(RECORDED.read_text())
    return record


def broken(record: Record) -> list[str]:
    """Returns the ways that claim to be unbiased, and are not, with the game."""
    return [
        f"{name} on {game}: {result['angle']:.1f} degrees, scale {result['scale']:.2f} "
        f"({result['off']:+.1f} standard errors from 1)"
        for name, way in record["ways"].items()
        for game, result in way["games"].items()
        if way["unbiased"] and (result["biased"] or abs(result["off"]) > FAR)
    ]


def ratios(record: Record, name: str, column: str) -> list[float]:
    """Returns a way's signal to noise on every game beside the baseline's; a signal that points the
    other way, or hardly any, is a thousandth."""
    mine, theirs = (record["ways"][way]["games"] for way in (name, BASELINE))
    return [max(mine[game][column] / theirs[game][column], 1e-3) for game in mine]


def mean_ratio(record: Record, name: str, column: str) -> float:
    return statistics.geometric_mean(ratios(record, name, column))


def mean(record: Record, name: str, column: str) -> float:
    return statistics.fmean(r[column] for r in record["ways"][name]["games"].values())


def angle_of(result: Record) -> str:
    star = "\\*" if result["biased"] else ""
    return f"{result['angle']:.0f}{star} ({result['noise']:.0f})"


def worst_angle(way: Record) -> str:
    """Returns the largest angle that noise does not explain, with its game."""
    biased = [(r["angle"], game) for game, r in way["games"].items() if r["biased"]]
    return "{:.0f} ({})".format(*max(biased)) if biased else "none"


def overview(record: Record) -> str:
    """A line for each way over all games, as Markdown."""
    steps = record["steps"]
    lines = [
        "| way | unbiased, it says | largest angle beyond noise | scale | signal beside "
        f"{BASELINE}: of an answer | of an outcome | gained, % | steps to half, of {steps} |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, way in record["ways"].items():
        scales = [result["scale"] for result in way["games"].values()]
        lines.append(
            f"| {name} | {'yes' if way['unbiased'] else ''} | {worst_angle(way)} | "
            f"{min(scales):.2f} to {max(scales):.2f} | "
            f"{mean_ratio(record, name, 'per_answer'):.2f} | "
            f"{mean_ratio(record, name, 'per_outcome'):.2f} | "
            f"{100 * mean(record, name, 'area'):.0f} | {mean(record, name, 'steps'):.1f} |"
        )
    return "\n".join(lines)


def by_game(record: Record) -> str:
    """All numbers, as Markdown."""
    angle = "Angle to the exact gradient in degrees, * significant (what noise alone would show)"
    half = f"Steps to half of what there is to gain, of {record['steps']}"
    columns = {
        angle: angle_of,
        "Scale along it": lambda r: f"{r['scale']:.2f}",
        "Signal to noise of 1,000 sampled answers": lambda r: f"{r['per_answer']:.2f}",
        "Signal to noise of 1,000 evaluated outcomes": lambda r: f"{r['per_outcome']:.2f}",
        half: lambda r: f"{r['steps']:.0f}",
        "Gained on the way, % (mean over what was sampled)": lambda r: f"{100 * r['area']:.0f}",
    }
    blocks = []
    for title, show in columns.items():
        lines = [f"{title}\n", f"| way | {' | '.join(record['games'])} |"]
        lines.append("|---|" + "---|" * len(record["games"]))
        for name, way in record["ways"].items():
            lines.append(f"| {name} | {' | '.join(map(show, way['games'].values()))} |")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def the_games(record: Record) -> str:
    """What is exactly known of every game, as Markdown."""
    lines = [
        "| game | ways it can go | longest | outcome at the start | at best | exact gradient from "
        "finite differences |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {name} | {game['leaves']} | {game['longest']} | {game['start']:.3f} | "
        f"{game['best']:.2f} | {game['finite differences']:.0e} |"
        for name, game in record["games"].items()
    ]
    return "\n".join(lines)


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Spearman's, with ties shared."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [
            statistics.fmean(n for n, v in enumerate(sorted(values)) if v == value)
            for value in values
        ]

    return statistics.correlation(ranks(xs), ranks(ys))


def predictions(record: Record) -> str:
    """How well signal to noise and angle at the start predict what is gained.

    Rank correlations over the ways, the mean and the least of the games.
    """
    groups = {
        "without a coach": [n for n, w in record["ways"].items() if w["kind"] != "coach"],
        "all": list(record["ways"]),
        "that say unbiased": [n for n, w in record["ways"].items() if w["unbiased"]],
    }
    lines = ["| ways | signal of an answer | angle |", "|---|---|---|"]
    for label, names in groups.items():
        cells = []
        for column in ("per_answer", "angle"):
            found = []
            for game in record["games"]:
                rows = [record["ways"][name]["games"][game] for name in names]
                found.append(rank_correlation([r[column] for r in rows], [r["area"] for r in rows]))
            cells.append(f"{statistics.fmean(found):+.2f} ({min(found):+.2f})")
        lines.append(f"| {label} ({len(names)}) | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(record: Record, picture: Path) -> None:
    """Every way's signal beside the baseline's, and what signal says of learning."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    colours = dict(zip(KINDS, ("C0", "C1", "C2", "0.45"), strict=True))
    ways = sorted(record["ways"], key=lambda name: mean_ratio(record, name, "per_answer"))
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(15, 9), layout="constrained")
    places: dict[str, tuple[float, float]] = {}
    for height, name in enumerate(ways):
        way = record["ways"][name]
        colour = colours[way["kind"]]
        biased = any(result["biased"] for result in way["games"].values())
        shown = [max(ratio, 0.01) for ratio in ratios(record, name, "per_answer")]
        left.plot(shown, [height] * len(shown), "|", color=colour, alpha=0.5)
        middle = max(mean_ratio(record, name, "per_answer"), 0.01)
        face = "white" if biased else colour
        left.plot(middle, height, "o", color=colour, markerfacecolor=face)
        places[name] = middle, 100 * mean(record, name, "area")
        right.plot(*places[name], "o", color=colour, markerfacecolor=face)
    named: list[tuple[float, float]] = []
    """Places that have a name: names of neighbours would cover each other."""
    for name in (BASELINE, *reversed(ways)):
        middle, gained = places[name]
        if all(not x / 1.8 < middle < 1.8 * x or abs(y - gained) > 1.2 for x, y in named):
            named.append(places[name])
            right.annotate(name, places[name], (6, -3), textcoords="offset points", fontsize=8)
    left.set_yticks(range(len(ways)), ways, fontsize=8)
    left.axvline(1, color="0.7", linewidth=0.8, zorder=0)
    left.set(xscale="log", xlabel=f"signal to noise of a sampled answer, beside {BASELINE}'s")
    left.set_title("bars: games; points: their geometric mean; hollow: biased on some game")
    for kind, label in KINDS.items():
        left.plot([], [], "o", color=colours[kind], label=label)
    left.legend(loc="lower right", fontsize=8)
    right.set(
        xscale="log",
        xlabel=f"signal to noise of a sampled answer, beside {BASELINE}'s (mean of the games)",
        ylabel=f"gained over {record['steps']} steps, % (mean of the games)",
    )
    right.margins(x=0.2)
    right.set_title("more signal at the start, more learned at the same cost")
    figure.savefig(picture, dpi=90)
