"""The name of a random tiny model: `tiny` or
`tiny:seed=1,hidden=128,layers=2,heads=2,positions=512`, with
`tools=1` for a chat template that shows tools.

Built by engine/runtime/tiny_model.py; here is only what can be known without torch.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at, meant

DEFAULTS = {"seed": 0, "hidden": 128, "layers": 2, "heads": 2, "positions": 512, "tools": 0}


SPECIAL = ("<pad>", "<eos>", "<unk>")
"""Texts that are one token each; every other byte is one."""
BYTES = 256 + len(SPECIAL)
"""Tokens of the vocabulary."""


WORDS = f"tiny:hidden=2,layers=1,heads=1,positions={2**20}"
"""Stands where the model of an external policy would: its conversations are words, a byte each."""


def is_tiny(model: str) -> bool:
    return model.partition(":")[0] == "tiny"


def parse(model: str) -> dict[str, int]:
    """Returns the settings of a `tiny` model.

    Raises:
        ConfigurationError: Unknown or wrong settings.
    """
    settings = dict(DEFAULTS)
    _, _, pairs = model.partition(":")
    for pair in filter(None, pairs.split(",")):
        name, _, value = pair.partition("=")
        if (
            name not in settings
            or not value.isdigit()
            or (name not in ("seed", "tools") and int(value) < 1)
        ):
            raise ConfigurationError(
                Problem(
                    "models.tiny_setting",
                    where=at(name=model),
                    got=f"{pair!r} is not a setting of a tiny model",
                    fix=meant(name, settings),
                )
            )
        settings[name] = int(value)
    if settings["hidden"] % settings["heads"]:
        raise ConfigurationError(
            Problem(
                "models.tiny_heads",
                where=at(name=model),
                got=f"hidden={settings['hidden']} is not a multiple of heads={settings['heads']}",
            )
        )
    return settings


def parameters(model: str) -> int:
    """Returns the number of parameters of a `tiny` model, embeddings once."""
    s = parse(model)
    return s["hidden"] * (BYTES + s["layers"] * (10 * s["hidden"] + 5) + 1)


def count_tokens(messages: Iterable[tuple[str, str]]) -> int:
    """Returns the tokens of opening messages (role and text) in a tiny model's chat template, the
    generation prompt open."""
    texts = [f"<{role}>\n{content}\n" for role, content in messages]
    return tokens_of("".join(texts) + "<assistant>\n") + len(texts)  # each has its <eos>


def tokens_of(text: str) -> int:
    """Returns the tokens of a text by itself."""
    return len(unicodedata.normalize("NFC", text).encode())
