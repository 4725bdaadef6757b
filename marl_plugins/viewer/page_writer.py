"""A run as one page that needs neither server nor network: `openrlhf inspect RUN --html FILE`.

    page/page.html, .css, .js    what is shown, by the browser's own means
    index                        the list, the metrics of the curves, and what the page is of
    t0, t1, ...                  blocks of trajectories, without tokens
    k0, k1, ...                  their tokens: numbers of texts, log-probs, advantages
    texts                        the texts of all tokens

Data is JSON, compressed and in base64, so nothing in it can end an element; the browser unpacks a block when it is shown. The page
allows its own script and style alone, by their digests, and puts everything from the run in as text (Trusted Types).
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.redaction import encodable
from marl_plugins.core.trajectory import Action
from marl_plugins.records.read import RunReader
from marl_plugins.viewer.index import Entry, Index
from marl_plugins.viewer.panels import panels_of
from marl_plugins.viewer.query import Query, nothing_found
from marl_plugins.viewer.shown import finite, trajectory_values
from marl_plugins.viewer.tokens import TokenTexts

FOLDER = Path(__file__).with_name("page")
BLOCK_TRAJECTORIES = 64
"""Trajectories that are compressed together: opening one unpacks so many."""
GZIP_LEVEL = 6
"""Level 9 takes twice as long for 1 % of the size."""
DIGITS = 3
"""Decimals of log-probs and advantages in the page."""


def write_page(run: RunReader, query: Query, file: Path, most: int) -> str:
    """Write the page; the file is there when all of it is, and an earlier one stays until then.

    Args:
        most: Trajectories that the page holds; of more, each step gives its share.

    Returns:
        A sentence about it, for the console.

    Raises:
        ConfigurationError: Nothing is found, records cannot be read, or the page cannot be written.
    """
    index = Index(run, query.wanted, query.find)
    if not index.entries:
        raise nothing_found(run, query)
    entries = sampled(index.entries, most)
    part = file.with_name(f"{file.name}.part")
    try:
        with part.open("w", encoding="utf-8") as page:
            for piece in pieces(index, entries):
                page.write(piece)
        os.replace(part, file)
    except OSError as error:
        raise ConfigurationError(
            Problem("viewer.unwritable", at(flag="html", file=file), f"cannot be written: {error.strerror or error}")
        ) from None
    finally:
        part.unlink(missing_ok=True) if part.parent.is_dir() else None
    share = "" if len(entries) == len(index.entries) else f" of {len(index.entries):,}, an equal share of each step"
    return f"{file}: {len(entries):,} trajectories{share}, {file.stat().st_size / 2**20:.1f} MB"


def sampled(entries: Sequence[Entry], most: int) -> list[Entry]:
    """Choose at most so many entries, of each step an equal share, evenly over its tasks."""
    if len(entries) <= most:
        return list(entries)
    steps = [list(group) for _, group in groupby(entries, key=lambda entry: entry.step)]
    share, chosen = max(1, most // len(steps)), list[Entry]()
    for group in steps:
        count = min(share, len(group))
        chosen += [group[place * len(group) // count] for place in range(count)]
    return chosen[:most]


def pieces(index: Index, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the page piece by piece."""
    template, style, script = (FOLDER.joinpath(f"page.{kind}").read_text("utf-8") for kind in ("html", "css", "js"))
    before, after = template.split("{{data}}")
    fill = {
        "{{style-hash}}": _hash(style),
        "{{script-hash}}": _hash(script),
        "{{style}}": style,
        "{{script}}": script,
    }
    for name, text in fill.items():
        before, after = before.replace(name, text), after.replace(name, text)
    yield before
    tokens = Tokens(TokenTexts(index.run.folder))
    for n in range(0, len(entries), BLOCK_TRAJECTORIES):
        trajectories = [index.open(entry) for entry in entries[n : n + BLOCK_TRAJECTORIES]]
        number = n // BLOCK_TRAJECTORIES
        yield data(f"t{number}", [trajectory_values(t) for t in trajectories])
        yield data(f"k{number}", [[tokens.of(action) for action in t.actions] for t in trajectories])
    yield data("texts", list(tokens.table))
    yield data("index", index_values(index, entries, tokens))
    yield after


def data(name: str, value: Any) -> str:
    """Write an element with compressed data."""
    raw = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    packed = base64.b64encode(gzip.compress(encodable(raw).encode(), GZIP_LEVEL, mtime=0)).decode()
    return f'<script type="application/gzip+base64" id="{name}">{packed}</script>\n'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


class Tokens:
    """The tokens of a page's actions, whose texts are in one table.

    Args:
        texts: Where token ids get their texts.
    """

    def __init__(self, texts: TokenTexts):
        self.texts = texts
        self.table: dict[str, int] = {}

    def of(self, action: Action) -> dict[str, Any]:
        """Return numbers in the table of texts (t), the engine's (e) and the trainer's (r) log-probs and the advantages (a)."""
        texts = self.texts.of(action.policy, action.generation.ids)
        uneven = len(set(action.advantages)) > 1
        return {
            "t": [self.table.setdefault(text, len(self.table)) for text in texts or ()],
            "e": _rounded(action.generation.logprobs),
            "r": _rounded(action.trainer_logprobs),
            "a": _rounded(action.advantages) if uneven else finite(action.advantage),
        }


def _rounded(values: Sequence[float]) -> list[float | None]:
    return [None if (known := finite(value)) is None else round(known, DIGITS) for value in values]


def index_values(index: Index, entries: Sequence[Entry], tokens: Tokens) -> Mapping[str, Any]:
    """Make what the page begins with."""
    roles = list(dict.fromkeys(action.role for entry in entries for action in entry.actions))
    policies = list(dict.fromkeys(action.policy for entry in entries for action in entry.actions))
    metrics = index.run.metrics()
    panels = panels_of(metrics, roles, policies)
    names = {"step", *(name for panel in panels for name in panel.names)}
    return {
        "title": index.run.folder.absolute().name,
        "of": len(index.entries),
        "block": BLOCK_TRAJECTORIES,
        "roles": roles,
        "policies": policies,
        "list": [_row(entry, roles, policies) for entry in entries],
        "metrics": [{name: value for name, value in line.items() if name in names} for line in metrics],
        "panels": [panel.values() for panel in panels],
        "no_tokens": "" if tokens.table else tokens.texts.reason,
    }


def _row(entry: Entry, roles: Sequence[str], policies: Sequence[str]) -> list[Any]:
    actions = [
        [roles.index(a.role), policies.index(a.policy), finite(a.score), finite(a.advantage), a.left_out]
        for a in entry.actions
    ]
    return [entry.step, entry.name, entry.sample, finite(entry.outcome), entry.failure, entry.prompt, actions]
