"""Keeps what a run leaves of its tokenizers, so that recorded ids can be read as text: one small
file for each that differs.

run/tokenizers.json              the digest of each policy's tokenizer
run/tokenizers/DIGEST.json.gz    the tokenizer, as the package `tokenizers` saves it
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from marl_plugins.core.files import json_value, replace_bytes, replace_text

TOKENIZERS = "run/tokenizers.json"


def record_tokenizers(folder: Path, tokenizers: Mapping[str, Any]) -> None:
    """Leaves the tokenizers of a run, by policy; one that is not of the fast kind is left out.

    Raises:
        OSError: The folder cannot be written.
    """
    digests: dict[str, str] = {}
    for policy, tokenizer in tokenizers.items():
        text = _text_of(tokenizer)
        if text is None:
            continue
        digests[policy] = _digest(text)
        path = _file(folder, digests[policy])
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_bytes(path, gzip.compress(text.encode(), mtime=0))
    if digests:
        replace_text(folder / TOKENIZERS, json.dumps(digests, indent=2) + "\n")


def digest_of_tokenizer(tokenizer: Any) -> str | None:
    """Returns what two tokenizers have in common if they give every text the same ids; None for one
    that is not of the fast kind."""
    text = _text_of(tokenizer)
    return None if text is None else _digest(text)


def recorded_tokenizer(folder: Path, policy: str) -> str | None:
    """Returns what a run has left of a policy's tokenizer, or what was saved with its weights; None
    where there is neither."""
    try:
        digests = json_value((folder / TOKENIZERS).read_bytes())
        return gzip.decompress(_file(folder, digests[policy]).read_bytes()).decode()
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
    ):  # a run of an earlier release, or one that was copied in part
        pass
    try:
        return (folder / policy / "tokenizer.json").read_text("utf-8")
    except (OSError, ValueError):
        return None


def _text_of(tokenizer: Any) -> str | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return None if backend is None else str(backend.to_str())


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _file(folder: Path, digest: str) -> Path:
    return (folder / TOKENIZERS).with_suffix("") / f"{digest}.json.gz"
