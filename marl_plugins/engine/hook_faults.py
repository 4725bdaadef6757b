"""Faults of plugins: what one raises in a run pauses it, with the names of the plugin, its hook and
the line.

Whatever it is: an exception, `sys.exit(0)`, a cancellation that nobody asked for. Before anything
starts it is a problem of the configuration instead (`users_code` of loading.py).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from marl_plugins.core.failures import (
    AgentFailure,
    ConfigurationError,
    InfrastructureFailure,
    RunEnded,
    RunPaused,
    is_from_outside,
    leaves_of,
)
from marl_plugins.core.hookspecs import KINDS
from marl_plugins.core.loading import text_of, users_line

SAMPLING = ("marl_generate", "marl_score_action", "marl_score_outcome")
"""Hooks that say of one trajectory that it failed, by `InfrastructureFailure` or `AgentFailure`."""
WHILE_WEIGHTS_CHANGE = ("marl_update", "marl_sync", "marl_stop")
"""Hooks in the middle of which nothing can be saved."""
DEBUG = " (--debug shows all of it)"
"""At the end of what a run prints of a fault."""
IN_RUNS = (
    *SAMPLING,
    *WHILE_WEIGHTS_CHANGE,
    "marl_batch",
    "marl_step",
    "marl_exchange",
    "marl_credit",
    "marl_credit_step",
    "marl_select",
    "marl_log",
    "marl_extensions",
    "marl_state",
    "marl_restore",
    "marl_files",
)


class HookFaults:
    """`with`: what the code of a plugin's hook raises inside ends the run.

    Args:
        plugin: As the run calls it.

    Raises:
        RunPaused: The code raised something; what the hooks themselves are documented to raise
            passes.
        RunEnded: The same, where weights may have changed in part.
    """

    def __init__(self, plugin: str, hook: str):
        self.plugin, self.hook = plugin, hook
        self._kind = RunEnded if hook in WHILE_WEIGHTS_CHANGE else RunPaused
        self._passing: tuple[type[Exception], ...] = (ConfigurationError, RunEnded)
        if hook in SAMPLING:
            self._passing += (InfrastructureFailure, AgentFailure)

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if error is None or self._passes(error):
            return
        leaves = list(leaves_of(error))
        if all(map(self._passes, leaves)):
            return
        if ended := next((leaf for leaf in leaves if isinstance(leaf, RunEnded)), None):
            raise ended if self._passes(ended) else self._kind(str(ended)) from error
        raise self._kind(self._sentence(leaves[0])) from error

    def _passes(self, error: BaseException) -> bool:
        if self._kind is RunEnded and isinstance(error, RunPaused):
            return False
        return isinstance(error, self._passing) or is_from_outside(error)

    def _sentence(self, error: BaseException) -> str:
        packages: Collection[str] = (
            () if self.plugin.endswith(".py") else {self.plugin.partition(".")[0]}
        )
        line, text = users_line(error, packages), text_of(error)
        return (
            f"plugin {self.plugin}: {self.hook} raised "
            f"{type(error).__name__}{f': {text}' if text else ''}"
            f"{f', at {line}' if line else ''}{DEBUG}"
        )


@contextmanager
def no_exit() -> Iterator[None]:
    """Turns an end of the program by a recipe's code, as by `sys.exit`, into a pause of the run,
    whatever its exit code (`with`).

    Raises:
        RunPaused: It did, with its line. asyncio would stop the event loop, and the run's own exit
            code would be the code's.
    """
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        if is_from_outside(error):
            raise
        line = users_line(error, ())
        raise RunPaused(
            f"code of the recipe or of a plugin raised {type(error).__name__}: "
            f"{text_of(error)}{f', at {line}' if line else ''}; "
            f"raise an exception that says what is wrong{DEBUG}"
        ) from error


def guarded(
    plugin: str, hook: str, function: Callable[..., Any], wraps: bool
) -> Callable[..., Any]:
    """Returns a hook's implementation that raises as `HookFaults` says, also while its answer is
    awaited; one of a hook that is awaited may be a plain function too.

    Args:
        wraps: Whether it is a generator function around others'.
    """
    faults = HookFaults(plugin, hook)

    async def awaited(answer: Any) -> Any:
        with faults:
            return await answer if inspect.isawaitable(answer) else answer

    def finished(answer: Any) -> Any:
        return answer if answer is None or not KINDS[hook].awaited else awaited(answer)

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with faults:
            answer = function(*arguments)
        return finished(answer)

    @functools.wraps(function)
    def around(*arguments: Any) -> Generator[Any, Any, Any]:
        with faults:
            answer = yield from function(*arguments)
        return finished(answer)

    return around if wraps else call
