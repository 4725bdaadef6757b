"""Recomputes the figures of README.md and docs/ from the runs that are recorded, and names those
that it cannot.

    python -m benchmarks.claims [--rerun]   (some seconds; exit code 1 where a figure differs)

A paragraph or table of docs/benchmarks.md belongs to the last command before it. Where that is
called with `--recorded`, the section's commands (`COMMANDS`) are run on benchmarks/recorded, in
which nothing is trained, and every figure has to be among those that they print: a mean with its
interval or its seeds, all of them, to the digits of the page. A figure is a number in a table, or
one in a text that has a decimal point or an interval; what a paper reports is none of ours. All
others are repeated by the command that stands before them, and are counted by section: no record
holds them. Of the other pages what they say in points is looked up. With `--rerun` the commands are
run too that are as quick as they are exact, on virtual time (`EXACT`: some minutes), and the tables
behind them are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import itertools
import re
import shlex
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

from benchmarks import demo, dsbench, laptop, learning
from benchmarks.demo import points
from marl_plugins.core.recipe.shipped import recipes_root

ROOT = recipes_root().parent
PAGE = ROOT / "docs" / "benchmarks.md"
TITLE = "Benchmarks"
"""What stands under it describes the machine."""
SEEDS = "--seeds 0 1 2 3 4"
RARE = "--arms rare_trained rare_outcome rare_frozen"
COMMANDS = {
    "The demo over seeds": ["demo --control_seeds 1 --arms coach async frozen"],
    "A language model on two cores": [
        "laptop learn mails",
        "laptop learn mathchat",
    ],
    "Two assistants over a store": [
        f"learning {system} --arms {arms}"
        for system in ("merchant", "category")
        for arms in (
            f"trained outcome {SEEDS}",
            f"rare_trained rare_outcome {SEEDS}",
            "trained frozen put_back",
            "rare_frozen",
        )
    ],
    "Search and reflection": [
        *(f"learning {s} --arms trained shared adapters frozen" for s in ("search", "rounds")),
        *(f"learning {system} --arms trained frozen" for system in ("extract", "reflect")),
    ],
    "A graph of cases": ["learning task_graph --arms trained frozen"],
    "A public game": ["learning environments --arms trained frozen"],
    "Trees instead of conversations": [
        *(f"learning {s} --arms conversations trees" for s in ("swarm", "task_graph")),
        *(
            f"learning search --arms conversations trees --seeds {seeds}"
            for seeds in ("0 1 2 3 4", "5 6 7 8 9", "0 1 2 3 4 5 6 7 8 9")
        ),
    ],
    "Two tasks of Sandbox-RL": [
        *(f"learning {s} --arms trained frozen" for s in ("trading", "spread")),
        "temperatures trading --seeds 0",
        "temperatures trading --seeds 0 1 --factors 0 0.5 1",
        "temperatures spread --seeds 0",
        "temperatures spread --factors 0 0.5 1",
    ],
    "Peers that share their attempts": [
        "learning swarm --arms trained frozen",
        f"learning swarm --arms trained async async_token {SEEDS}",
        f"swarm {SEEDS} --arms 8/0 4/4 2/6 uniform stronger",
        "swarm --arms 6/2 alone capability",
        "swarm --arms 'stream 8/0' 'stream 6/2' 'stream 4/4' 'stream 2/6'",
    ],
    "A judge that is trained": [
        f"judge dsbench --seeds 0 1 2 3 --arms {arms}"
        for arms in (
            "frozen trained effect outcome",
            "outcome effect frozen trained",
            "trained effect",
        )
    ],
    "Which tasks a step has": ["dsbench --arms uniform curriculum --seeds 0 1 2 3 --steps 40"],
    "When a coach pays": [
        "dsbench --steps 40",
        f"dsbench --steps 40 --arms strict outcome {SEEDS}",
        "dsbench --steps 40 --arms to_go shared shifted outcome",
        "dsbench --steps 40 --arms own own_to_go",
        "dsbench --steps 20 --arms easy_strict easy_outcome",
    ],
}
"""The commands whose figures a section gives, without `--recorded`."""
EXACT = {
    "scheduling": "scheduling",
}
"""Commands that print the same whenever they are run."""
NUMBER = r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?"
FIGURE = re.compile(
    rf"(?<![\w.-])({NUMBER})(?: points)?(?: apart)?"
    rf"(?: [\[(]({NUMBER}(?:, {NUMBER})+|{NUMBER}-{NUMBER}|{NUMBER} to {NUMBER})[\])])?(?![\w])"
)
OTHERS = re.compile(
    r"`[^`]*`|\]\([^)]*\)|\d{4}-\d\d-\d\d|reports [\d.]+|\(the paper[^)]*\)|paper has [\d.]+"
)
"""Code, addresses, days, and what others report."""


class NotRecorded(Exception):
    """A run would have to be made."""


@dataclass(frozen=True)
class Figure:
    """A figure of a page: its mean and what stands in brackets behind it, as they are written."""

    section: str
    line: int
    words: tuple[str, ...]
    in_table: bool = False

    def is_among(self, printed: Sequence[tuple[str, ...]]) -> bool:
        return any(
            len(other) >= len(self.words)
            and all(map(same, self.words, sorted_like(other[: len(self.words)], self.words)))
            for other in printed
        )


def same(word: str, printed: str) -> bool:
    """Whether a printed number is a page's, to its digits; its sign is the sentence's."""
    digits, more = (len(text.partition(".")[2]) for text in (word, printed))
    page, other = (abs(float(text.replace(",", ""))) for text in (word, printed))
    return abs(page - other) <= (0.5 * 10**-digits if more > digits else 0) + 1e-9


def sorted_like(printed: Sequence[str], words: Sequence[str]) -> Sequence[str]:
    """What was printed, its bounds turned round where the sentence states the negative of it."""
    mean, *bounds = printed
    negative = len(bounds) == 2 and mean.startswith("-") and not words[0].startswith("-")
    return [mean, *(reversed(bounds) if negative else bounds)]


def figures_of(text: str, section: str, line: int, least: str = "") -> list[Figure]:
    """The figures in a line.

    Args:
        least: What one has at least: `.` a decimal point or an interval, `[` an interval.
    """
    found = []
    for match in FIGURE.finditer(OTHERS.sub("`", text)):
        bounds = (
            re.findall(NUMBER, match[2].replace("-", " -", 1) if "-" in match[2] else match[2])
            if match[2]
            else []
        )
        if bounds or (least != "[" and (not least or "." in match[1])):
            found.append(Figure(section, line, (match[1], *bounds)))
    return found


def sections() -> Iterator[tuple[str, str, list[Figure]]]:
    """The blocks of docs/benchmarks.md: their section, the last command before them, and their
    figures."""
    section, command, start = "", "", 1
    for block in PAGE.read_text().split("\n\n"):
        lines = block.split("\n")
        for line in lines:
            if line.startswith("#"):
                section, command = line.strip("# "), ""
        if commands := re.findall(
            r"`((?:python -m benchmarks|make) ?[^`]*)`", block.replace("\n", " ")
        ):
            command = (
                " ".join(commands) if any("--recorded" in c for c in commands) else commands[-1]
            )
        figures = []
        table = lines[0].startswith("|")
        for number, line in enumerate(lines, start):
            if table and number >= start + 2:
                cells = [c for c in line.split("|")[2:] if re.match(r"\s*[+-]?\d", c)]
                found = [f for cell in cells for f in figures_of(cell, section, number)]
                figures += [replace(figure, in_table=True) for figure in found]
        if not table and not lines[0].startswith(("#", "    ")):
            figures += figures_of(" ".join(lines), section, start, ".")
        yield section, command, figures
        start += len(lines) + 1


def cited() -> Iterator[Figure]:
    """What README.md and the other pages of docs/ say in points."""
    for page in (ROOT / "README.md", *sorted(PAGE.parent.glob("*.md"))):
        for number, line in enumerate(page.read_text().split("\n") if page != PAGE else (), 1):
            for words in re.findall(rf"({NUMBER}) points(?: of ({NUMBER}))?", line):
                yield from (Figure(page.name, number, (word,)) for word in words if word)


def printed_by(command: str, out: Path | None = None) -> str:
    """What a benchmark prints; with a folder, of the runs that are recorded."""
    name, *flags = shlex.split(command)
    module = importlib.import_module(f"benchmarks.{name}")
    argv = [name, *flags, *(["--recorded", "--out", str(out / name)] if out else [])]
    text = io.StringIO()
    with (
        mock.patch.object(sys, "argv", argv),
        mock.patch.object(demo, "watched", missing),
        mock.patch.object(learning, "watched", missing),
        mock.patch.object(laptop, "watched", missing),
        contextlib.redirect_stdout(text),
        contextlib.redirect_stderr(io.StringIO()),
        contextlib.suppress(NotRecorded),  # the lines before are printed
    ):
        module.main()
    return text.getvalue()


def missing(words: Sequence[str], mark: str) -> tuple[float, str]:
    raise NotRecorded(mark)


def compared(out: Path) -> str:
    """What the section on coaches compares beside its tables: arms of three or five seeds, after 20
    and 40 steps."""
    lines = []
    pairs = itertools.combinations(("strict", "outcome", "to_go", "shared"), 2)
    for one, other in (*pairs, ("own", "own_to_go")):
        for seeds, step in itertools.product((3, 5), (20, 40)):
            runs = [[out / "dsbench" / f"{arm}-{n}" for n in range(seeds)] for arm in (one, other)]
            if all(run.exists() for each in runs for run in each):
                curves = [[dsbench.curve(run)[step] for run in each] for each in runs]
                lines.append(points([a - b for a, b in zip(*curves, strict=True)]))
    ends = [
        [dsbench.curve(out / "dsbench" / f"easy_{arm}-{n}")[20] for n in range(3)]
        for arm in ("strict", "outcome")
    ]
    lines += [
        points([a - b for a, b in zip(*ends, strict=True)]),
        *(f"{statistics.fmean(end):.4f}" for end in ends),
    ]
    return "\n".join(lines)


def ends(out: Path) -> str:
    """What arms of the workflows end at, as shares of the separate policies'."""

    def end(system: str, arm: str) -> float:
        folders = [out / "learning" / f"{system}-{arm}-{seed}" for seed in range(3)]
        curves = [[*learning.curve(folder, "eval/outcome").values()] for folder in folders]
        return statistics.fmean(statistics.fmean(curve[1:][-3:]) for curve in curves)

    pairs = itertools.product(("search", "rounds"), ("shared", "adapters"))
    return "\n".join(f"{end(name, arm) / end(name, 'trained'):.4f}" for name, arm in pairs)


BESIDE = {"When a coach pays": compared, "Search and reflection": ends}
"""What a section states that its commands do not print."""


def words_of(text: str) -> list[tuple[str, ...]]:
    """The figures in what was printed."""
    return [figure.words for line in text.split("\n") for figure in figures_of(line, "", 0)]


def check(rerun: bool = False) -> tuple[list[Figure], list[Figure], Counter[tuple[str, str]]]:
    """Figures that were recomputed, those that differ, and how many no record holds, by section and
    command."""
    equal: list[Figure] = []
    different: list[Figure] = []
    unrecorded: Counter[tuple[str, str]] = Counter()
    printed: dict[str, list[tuple[str, ...]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for section, commands in COMMANDS.items():
            text = "\n".join(printed_by(command, Path(folder)) for command in commands)
            text += "\n" + BESIDE[section](Path(folder)) if section in BESIDE else ""
            printed[section] = words_of(text)
    for name, command in EXACT.items() if rerun else ():
        printed[name] = words_of(printed_by(command))
    for section, command, figures in sections():
        name = re.sub(r".*python -m benchmarks\.(\w+).*", r"\1", command)
        known = printed.get(section if "--recorded" in command else name)
        for figure in figures if section != TITLE else ():
            if known is None or ("--recorded" not in command and not figure.in_table):
                unrecorded[section, command] += 1
            else:
                (equal if figure.is_among(known) else different).append(figure)
    everything = [words for known in printed.values() for words in known]
    for figure in cited():
        (equal if figure.is_among(everything) else different).append(figure)
    return equal, different, unrecorded


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.claims", description=__doc__.partition("\n\n")[0]
    )
    parser.add_argument("--rerun", action="store_true", help="run what is exact and quick, too")
    equal, different, unrecorded = check(parser.parse_args().rerun)
    print(f"{len(equal)} figures of README.md and docs/ are what the recorded runs give")
    for figure in different:
        print(f"differs: line {figure.line}, {figure.section}: {' '.join(figure.words)}")
    print("\nNo record holds, and the command before them repeats:\n")
    for (section, command), count in unrecorded.items():
        print(f"{count:4}  {section}: {command or 'NO COMMAND'}")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
