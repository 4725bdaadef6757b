"""Flags of OpenRLHF 0.10.1 and older under their names of today, for people whose command line was
written then.

Release 0.10.2 gave every flag a dotted name (`--pretrain` became `--actor.model_name_or_path`). The
old names are refused by upstream and here; `old_flags.yaml` says what to write instead, in errors
and in `docs/from_openrlhf.md`. A test compares it with upstream's parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml


@dataclass(frozen=True)
class OldFlags:
    """The content of `old_flags.yaml`."""

    renamed: Mapping[str, str]
    notes: Mapping[str, str]
    gone: Mapping[str, str]
    other_values: Mapping[str, Mapping[str, str]]


@cache
def old_flags() -> OldFlags:
    """Returns the table, which is read where it is first needed."""
    text = Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8")
    return OldFlags(**yaml.safe_load(text))


def successor(name: str) -> str | None:
    """Returns what to write for an old flag, as the fix; None if the name is no old flag."""
    old = old_flags()
    if name in old.gone:
        return f"{old.gone[name]}: remove it"
    if name not in old.renamed:
        return None
    note = f" ({old.notes[name]})" if name in old.notes else ""
    return f"since OpenRLHF 0.10.2 it is --{old.renamed[name]}{note}"
