"""A run as one page that needs neither server nor network: `openrlhf inspect RUN --html FILE`.

    page/page.html, .css, .js    what is shown, by the browser's own means
    index                        the list, the metrics of the curves, and what the page is of
    t0-0, t0-1, ...              blocks of trajectories, without tokens; t1-0, ... of the second of
                                 two runs
    k0-0, k0-1, ...              their tokens: numbers of texts, log-probs, advantages
    texts                        the texts of all tokens

Data is JSON, compressed and in base64, so nothing in it can end an element; the browser unpacks a
block when it is shown. The page allows its own script and style alone, by their digests, and puts
everything from the run in as text (Trusted Types).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from marl_plugins.commands.inspect.index import Entry, RunIndex
from marl_plugins.commands.inspect.shown import trajectory_values
from marl_plugins.commands.query import Query, nothing_found
from marl_plugins.core.files import finite, replacing
from marl_plugins.core.redaction import encodable
from marl_plugins.core.trajectory import Action
from marl_plugins.engine.records.panels import Panel, panels_of
from marl_plugins.engine.records.read import RunReader
from marl_plugins.engine.records.tokenizers import recorded_tokenizer

FOLDER = Path(__file__).with_name("page")
BLOCK_TRAJECTORIES = 64
"""Trajectories that are compressed together: opening one unpacks so many."""
GZIP_LEVEL = 6
"""Level 9 takes twice as long for 1 % of the size."""
SIGNIFICANT_DIGITS = 3
"""Decimals of log-probs and advantages in the page."""


def write_page(run: RunReader, query: Query, file: Path, most: int) -> str:
    """Writes the page of a run; the file is there when all of it is, and an earlier one stays until
    then.

    Args:
        most: Trajectories that the page holds; of more, each step gives its share.

    Returns:
        A sentence about it, for the console.

    Raises:
        ConfigurationError: Nothing is found, records cannot be read, or the page cannot be written.
    """
    index = RunIndex(run, query)
    if not index.entries:
        raise nothing_found(run, query)
    entries = sampled(index.entries, most)
    command = ["openrlhf", "fork", str(run.folder)]
    command += ["--evaluations"] if query.wanted.split == "eval" else []
    values = {**index_values(index, entries), "fork": "" if run.file else shlex.join(command)}
    write(file, pieces([Side(index, entries)], values))
    said = f"{file}: {len(entries):,} trajectories"
    if len(entries) < len(index.entries):
        said += f" of {len(index.entries):,}, evenly over the steps"
    return f"{said}, {file.stat().st_size / 2**20:.1f} MB"


def sampled(entries: Sequence[Entry], most: int) -> list[Entry]:
    """Chooses at most so many entries, evenly over the steps and their tasks."""
    most = min(most, len(entries))
    return [entries[place * len(entries) // most] for place in range(most)]


@dataclass(frozen=True)
class Side:
    """A run of a page, and which of its trajectories the page holds."""

    index: RunIndex
    entries: Sequence[Entry]


def write_comparison(a: Side, b: Side, file: Path) -> str:
    """Writes a page of pairs, whose places in the sides are the same; as `write_page`."""
    values = index_values(a.index, a.entries, more=b.entries)
    runs = [side.index.run.metrics() for side in (a, b)]
    panels = [panel for metrics in runs for panel in panels_of(metrics, values["roles"])]
    metrics, drawn = side_by_side(
        runs, ["A", "B"], {panel.title: panel for panel in panels}.values()
    )
    for row, other in zip(values["list"], b.entries, strict=True):
        row.append(finite(other.outcome))
    names = [side.index.run.folder.absolute().name for side in (a, b)]
    values |= {
        "title": " against ".join(names),
        "sides": names,
        "metrics": metrics,
        "panels": [p.values() for p in drawn],
    }
    write(file, pieces([a, b], values))
    return f"{file}: {len(a.entries):,} pairs, {file.stat().st_size / 2**20:.1f} MB"


def side_by_side(
    runs: Sequence[Sequence[Mapping[str, Any]]], names: Sequence[str], panels: Iterable[Panel]
) -> tuple[list[dict[str, Any]], list[Panel]]:
    """Draws the same panels for several runs: their metrics by step as one, and each line once for
    each run that has it.

    Args:
        runs: The metrics of each run.
        names: Short names of the runs, which begin the labels of their lines.
    """
    steps: dict[int, dict[str, Any]] = {}
    for name, metrics in zip(names, runs, strict=True):
        for line in metrics:
            merged = steps.setdefault(line["step"], {"step": line["step"]})
            merged |= {
                f"{name} {metric}": value for metric, value in line.items() if metric != "step"
            }
    known = {
        metric for line in steps.values() for metric, value in line.items() if value is not None
    }
    drawn = []
    for panel in panels:
        lines = {
            f"{name} {label}".strip(): f"{name} {metric}"
            for label, metric in panel.lines.items()
            for name in names
            if f"{name} {metric}" in known
        }
        bands = [(f"{name} {low}", f"{name} {high}") for low, high in panel.bands for name in names]
        if lines:
            drawn.append(
                replace(
                    panel,
                    lines=lines,
                    bands=[band for band in bands if band[0] in known],
                    crosses={},
                )
            )
    return [steps[step] for step in sorted(steps)], drawn


def write(file: Path, parts: Iterable[str]) -> None:
    """Writes a file of parts, such that an earlier one stays until all of it is there.

    Raises:
        ConfigurationError: It cannot be written.
    """
    with replacing(file, "html") as part, part.open("w", encoding="utf-8") as page:
        page.writelines(parts)


def pieces(sides: Sequence[Side], values: Mapping[str, Any]) -> Iterator[str]:
    """Yields the page piece by piece.

    Args:
        values: What it begins with; whether it has texts of tokens is added.
    """
    template, style, script = (
        FOLDER.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js")
    )
    fill = {
        "{{style-hash}}": _hash(style),
        "{{script-hash}}": _hash(script),
        "{{style}}": style,
        "{{script}}": script,
    }
    for name, text in fill.items():
        template = template.replace(name, text)
    before, after = template.split("{{data}}")
    yield before
    table: dict[str, int] = {}
    reasons = []
    for number, side in enumerate(sides):
        tokens = Tokens(side.index.run.folder, table)
        for n in range(0, len(side.entries), BLOCK_TRAJECTORIES):
            trajectories = [
                side.index.open(entry) for entry in side.entries[n : n + BLOCK_TRAJECTORIES]
            ]
            name = f"{number}-{n // BLOCK_TRAJECTORIES}"
            yield data(f"t{name}", [trajectory_values(t) for t in trajectories])
            yield data(
                f"k{name}", [[tokens.of(action) for action in t.actions] for t in trajectories]
            )
        reasons.append(tokens.reason)
    yield data("texts", list(table))
    yield data(
        "index", {**values, "no_tokens": "" if table else reasons[0] or "nothing was sampled"}
    )
    yield after


def data(name: str, value: Any) -> str:
    """Writes an element with compressed data."""
    raw = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    packed = base64.b64encode(gzip.compress(encodable(raw).encode(), GZIP_LEVEL, mtime=0)).decode()
    return f'<script type="application/gzip+base64" id="{name}">{packed}</script>\n'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class Tokens:
    """The tokens of the actions of a page, whose texts are in one table.

    A byte-level token may be a part of a character: its text is then U+FFFD, and the action's text
    says what it was.

    Args:
        folder: The run's, with its tokenizers.
        table: The number of each text; grows.
    """

    def __init__(self, folder: Path, table: dict[str, int]):
        self.folder = folder
        self.table = table
        self.reason = ""
        """Why there are no texts; empty where there are."""
        self._tokenizers: dict[str, Any] = {}
        self._numbers: dict[tuple[str, int], int] = {}

    def of(self, action: Action) -> dict[str, Any]:
        """Returns numbers in the table of texts (t), the engine's (e) and the trainer's (r)
        log-probs and the advantages (a)."""
        uneven = len(set(action.advantages)) > 1
        return {
            "t": self._texts(action.policy, action.generation.ids),
            "e": _rounded(action.generation.logprobs),
            "r": _rounded(action.trainer_logprobs),
            "a": _rounded(action.advantages) if uneven else finite(action.advantage),
        }

    def _texts(self, policy: str, ids: Sequence[int]) -> list[int]:
        """The numbers of the texts of a policy's ids; none where its tokenizer is not known."""
        if policy not in self._tokenizers:
            self._tokenizers[policy] = self._load(policy)
        tokenizer = self._tokenizers[policy]
        if tokenizer is None:
            return []
        for token in ids:
            if (policy, token) not in self._numbers:
                text = tokenizer.decode([token], skip_special_tokens=False)
                self._numbers[policy, token] = self.table.setdefault(text, len(self.table))
        return [self._numbers[policy, token] for token in ids]

    def _load(self, policy: str) -> Any:
        from tokenizers import Tokenizer

        text = recorded_tokenizer(self.folder, policy)
        if text is None:
            self.reason = f"the run has left no tokenizer of policy {policy}"
            return None
        try:
            return Tokenizer.from_str(text)
        except Exception as error:  # the package raises its own bare kind
            self.reason = f"the tokenizer of policy {policy} cannot be read: {error}"
            return None


def _rounded(values: Sequence[float]) -> list[float | None]:
    return [
        None if (known := finite(value)) is None else round(known, SIGNIFICANT_DIGITS)
        for value in values
    ]


def index_values(
    index: RunIndex, entries: Sequence[Entry], more: Sequence[Entry] = ()
) -> dict[str, Any]:
    """Makes what the page begins with.

    Args:
        more: Entries of another run, whose roles and policies are named too.
    """
    actions = [action for entry in (*entries, *more) for action in entry.actions]
    roles, policies = (
        list(dict.fromkeys(getattr(action, name) for action in actions))
        for name in ("role", "policy")
    )
    metrics = index.run.metrics()
    panels = panels_of(metrics, roles)
    names = {"step", *(name for panel in panels for name in panel.names)}
    return {
        "title": index.run.folder.absolute().name,
        "of": len(index.entries),
        "block": BLOCK_TRAJECTORIES,
        "roles": roles,
        "policies": policies,
        "list": [_row(entry, roles, policies) for entry in entries],
        "metrics": [
            {name: value for name, value in line.items() if name in names} for line in metrics
        ],
        "panels": [panel.values() for panel in panels],
    }


def _row(entry: Entry, roles: Sequence[str], policies: Sequence[str]) -> list[Any]:
    actions = [
        [
            roles.index(a.role),
            policies.index(a.policy),
            finite(a.score),
            finite(a.advantage),
            a.left_out,
        ]
        for a in entry.actions
    ]
    return [
        entry.step,
        entry.name,
        entry.sample,
        finite(entry.outcome),
        entry.failure,
        entry.prompt,
        actions,
    ]
