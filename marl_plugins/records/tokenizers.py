"""Keeps what a run leaves of its tokenizers, so that recorded ids can be read as text: one small file for each that differs.

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

from marl_plugins.core.files import json_value, replace_text

TOKENIZERS = "run/tokenizers.json"


def record_tokenizers(folder: Path, tokenizers: Mapping[str, Any]) -> None:
    """Leave the tokenizers of a run, by policy; one that is not of the fast kind is left out.

    Raises:
        OSError: The folder cannot be written.
    """
    digests: dict[str, str] = {}
    for policy, tokenizer in tokenizers.items():
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            continue
        text = backend.to_str()
        digests[policy] = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
        path = _file(folder, digests[policy])
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            part = path.with_name(f"{path.name}.part")
            part.write_bytes(gzip.compress(text.encode(), mtime=0))
            part.rename(path)
    if digests:
        replace_text(folder / TOKENIZERS, json.dumps(digests, indent=2) + "\n")


def recorded_tokenizer(folder: Path, policy: str) -> str | None:
    """Return what a run has left of a policy's tokenizer, or what was saved with its weights; None where there is neither."""
    try:
        digests = json_value((folder / TOKENIZERS).read_bytes())
        return gzip.decompress(_file(folder, digests[policy]).read_bytes()).decode()
    except (OSError, ValueError, KeyError, TypeError):  # a run of an earlier release, or one that was copied in part
        pass
    try:
        return (folder / policy / "tokenizer.json").read_text("utf-8")
    except (OSError, ValueError):
        return None


def _file(folder: Path, digest: str) -> Path:
    return (folder / TOKENIZERS).with_suffix("") / f"{digest}.json.gz"
