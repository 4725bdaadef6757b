"""Checks of the services that a run connects to: trackers. What plugins connect to, they check
themselves (`marl_doctor`)."""

from __future__ import annotations

import netrc
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from marl_plugins.core.findings import Finding, error_if, note, ok


def check_trackers(logger: Any) -> list[Finding]:
    """Checks TensorBoard and W&B: an error only if the run's flags require one that is missing.

    Args:
        logger: The run's `--logger` flags, or None.
    """
    findings = []
    uses_tensorboard = bool(logger and logger.tensorboard_dir)
    uses_wandb = bool(logger and logger.wandb.key)
    if find_spec("tensorboard"):
        findings.append(ok("tensorboard", "installed: --logger.tensorboard_dir FOLDER"))
    else:
        fix = "pip install 'openrlhf-marl[tensorboard]'"
        findings.append(
            error_if(
                uses_tensorboard, "tensorboard", "not installed, for --logger.tensorboard_dir", fix
            )
        )
    if find_spec("wandb"):
        findings.append(
            note("wandb", f"installed; {describe_wandb_account(Path.home() / '.netrc')}")
        )
    else:
        findings.append(
            error_if(
                uses_wandb, "wandb", "not installed, for --logger.wandb.key", "pip install wandb"
            )
        )
    return findings


def describe_wandb_account(file: Path) -> str:
    """Reports whether W&B knows an account for us; the key itself is not read."""
    mode = os.environ.get("WANDB_MODE", "")
    if mode in ("offline", "disabled", "dryrun"):
        return f"{mode} ($WANDB_MODE)"
    if os.environ.get("WANDB_API_KEY"):
        return "the key is in $WANDB_API_KEY"
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        known = netrc.netrc(os.environ.get("NETRC", file)).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        known = False
    return f"logged in at {host}" if known else "not logged in (wandb login, or WANDB_MODE=offline)"
