"""Answers what servers print to their standard output, where messages of the protocol belong, with
one line of warning.

It is the commonest mistake of such servers (a `print`); the SDK logs every line with its traceback.
"""

from __future__ import annotations

import logging
import sys

LOGGER = "mcp.client.stdio"


class Noise(logging.Handler):
    """Counts the lines of all servers of a run, and warns of the first."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        self.count += 1
        if self.count == 1:
            print(
                "warning: an MCP server (tools.mcp) writes to its standard output what is no "
                "message of the protocol, which is "
                "passed over; have it write to standard error. Further lines are not reported",
                file=sys.stderr,
            )

    def listen(self) -> None:
        """Takes the place of the log's other handlers."""
        logger = logging.getLogger(LOGGER)
        logger.propagate = False
        for handler in logger.handlers[:]:
            logger.removeHandler(handler)
        logger.addHandler(self)
