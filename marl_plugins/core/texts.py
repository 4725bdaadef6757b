"""Text files that users write: prompts and data."""

from __future__ import annotations

from pathlib import Path

from marl_plugins.core.failures import ConfigurationError


def read_text(path: Path) -> str:
    """Text of a regular file in UTF-8, without a byte-order mark.

    Raises:
        ConfigurationError: It cannot be read; a pipe is refused, because reading it would wait for whoever writes it.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():
            raise ConfigurationError(f"cannot read {path}: it is a pipe or a device; a regular file is expected")
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ConfigurationError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
