"""Checks of the services that a run connects to: trackers. What plugins connect to, they check
themselves (`marl_doctor`)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from marl_plugins.core.findings import Finding, check_extra, error_if, ok


def check_trackers(logger: Any) -> list[Finding]:
    """Checks TensorBoard and W&B: an error only if the run's flags require one that is missing.

    Args:
        logger: The run's `--logger` flags, or None.
    """
    uses_tensorboard = bool(logger and logger.tensorboard_dir)
    uses_wandb = bool(logger and logger.wandb.key)
    what = "--logger.tensorboard_dir FOLDER"
    findings = [check_extra("tensorboard", ["tensorboard"], what, uses_tensorboard)]
    if find_spec("wandb"):
        findings.append(ok("wandb", "installed: --logger.wandb.key KEY"))
    else:
        findings.append(
            error_if(
                uses_wandb, "wandb", "not installed, for --logger.wandb.key", "pip install wandb"
            )
        )
    return findings
