"""Seeds that depend on what a request is for, never on when it arrives."""

from __future__ import annotations

import hashlib


def derive_seed(*key: int | str) -> int:
    """Returns a 31-bit seed from a key such as (run seed, step, task, sample, action).

    Equal keys give equal seeds in every process and Python version (no use of `hash`), so that
    results do not depend on batching or order and a resumed run repeats. 31 bits: vLLM and torch
    take signed 64-bit seeds, numpy 32-bit ones.
    """
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 33
