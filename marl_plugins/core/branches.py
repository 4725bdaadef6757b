"""The branches of a trajectory's work: the asyncio tasks into which it divides itself.

Nothing that is shown tells two calls of one role in one context apart. Where parallel branches make
them after calls that took some time, their order is a matter of timing, and the branch has to tell
them apart. A branch is named by the first call that is made in it or below it, not by a number: the
order in which a workflow creates its tasks may depend on timing, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any
from weakref import WeakKeyDictionary

from marl_plugins.core.failures import AgentFailure
from marl_plugins.core.trajectory import action_path


class Branch:
    """One of the tasks.

    Args:
        above: The branch that has created it; None: the work begins in this one.
    """

    __slots__ = ("_above", "_answered", "_inherited", "_name")

    def __init__(self, above: Branch | None = None):
        self._above = above
        self._name = ""
        """Path of the first call that was made here or below."""
        self._answered = False
        """Whether a call has ended here or below."""
        self._inherited = None if above is None else above._innermost()

    def name_for(self, parents: Iterable[Branch]) -> str:
        """Returns what the path of a call made here says in addition to what the call sees.

        It is empty until a call has ended in the branch, because until then calls are made in the
        order of the program; in the first of all branches; and where the call sees an action of the
        branch, which no other branch has made.

        Args:
            parents: The branches of the actions that are stated as the call's parents.
        """
        branch = self._innermost()
        if branch is None or any(parent._is_in(branch) for parent in parents):
            return ""
        return branch._name

    def asked(self, path: str) -> None:
        """Notes that a call is made here."""
        branch: Branch | None = self
        while branch is not None and not branch._name:
            branch._name = path
            branch = branch._above

    def answered(self) -> None:
        """Notes that a call has ended here, whatever has come of it."""
        branch: Branch | None = self
        while branch is not None and not branch._answered:
            branch._answered = True
            branch = branch._above

    def _innermost(self) -> Branch | None:
        """The innermost branch in which a call has ended: this one or, when this one began, one
        above; None: only the first."""
        return self if self._answered and self._above is not None else self._inherited

    def _is_in(self, other: Branch) -> bool:
        """Returns whether this is the other branch, or one below it."""
        branch: Branch | None = self
        while branch is not None and branch is not other:
            branch = branch._above
        return branch is other


class Branches:
    """The branches of one trajectory's work."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """Those that have asked for something."""
        self._ended = False
        self._first = Branch()
        self._branches: WeakKeyDictionary[asyncio.Task[Any], Branch] = WeakKeyDictionary()
        self._asked_in: dict[str, Branch] = {}
        """The branch of each call, by path."""
        self._twins: Counter[str] = Counter()

    async def begin(self, work: Callable[[], Awaitable[Any]]) -> Any:
        """Does the work in the current task; each task that it creates is a branch, and so are
        those that these create."""
        loop = asyncio.get_running_loop()
        factory = loop.get_task_factory()
        if not isinstance(factory, BranchingTasks):
            loop.set_task_factory(BranchingTasks(factory))
        first = asyncio.current_task()
        assert first is not None
        self._branches[first] = self._first
        before = _CURRENT.set(self)
        try:
            return await work()
        finally:
            _CURRENT.reset(before)

    def begun(
        self, task: asyncio.Task[Any], creator: asyncio.Task[Any], *, waited_for: bool
    ) -> None:
        """Notes that a task has been created, which is a branch if its creator is one.

        Args:
            waited_for: The creator does nothing until the task has ended, which then is a part of
                the same branch.
        """
        above = self._branches.get(creator)  # None: a server's that the work has started, say
        if above is not None:
            self._branches[task] = above if waited_for else Branch(above)

    def path(self, role: str, seen: tuple[str, ...], context_ids: Sequence[int]) -> str:
        """Returns the path of a role's action that is asked for in the current task."""
        parents = (self._asked_in[path] for path in seen if path in self._asked_in)
        return action_path(role, seen, context_ids, self._twins, self._current().name_for(parents))

    def path_of_call(self, tool: str, text: str) -> str:
        """Returns what stands for the path of a tool's call that the current task makes."""
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return self.path(f"tool {tool}", (digest,), ())

    @contextmanager
    def asking(self, path: str) -> Iterator[None]:
        """Notes that the current task makes a call, and that it has ended, whatever comes of it."""
        branch = self._asked_in[path] = self._current()
        branch.asked(path)
        try:
            yield
        finally:
            branch.answered()

    def enter(self) -> None:
        """Notes which branch asks.

        Raises:
            CancelledError: The branch slept through the end of its trajectory.
        """
        if self._ended:
            raise asyncio.CancelledError("this trajectory has ended")
        branch = asyncio.current_task()
        assert branch is not None
        self._tasks[branch] = None

    async def settle(self) -> None:
        """Lets the other branches run, after an agent failure in one, to their own end.

        Cancelling them would make it a matter of timing which of their actions exist.
        """
        main = asyncio.current_task()
        running = [
            b for b in self._tasks if b is not main and not b.done()
        ]  # earlier failures: the work's to handle
        for result in await asyncio.gather(*running, return_exceptions=True):
            if isinstance(result, BaseException) and not isinstance(
                result, AgentFailure | asyncio.CancelledError
            ):
                raise result

    async def finish(self) -> None:
        """Lets the branches that the work has left behind run to their own end, as `settle` does.

        Raises:
            BaseException: What one of them raised and nobody has asked it for, an agent's failure
                too; asyncio says that only in its log, and only once the task is collected.
        """
        others = [branch for branch in self._tasks if branch is not asyncio.current_task()]
        if running := [branch for branch in others if not branch.done()]:
            await asyncio.wait(running)
        await asyncio.sleep(0)  # whoever waits for one that has just ended hears of it first
        for branch in others:
            if (
                not branch.cancelled()
                and getattr(branch, "_log_traceback", False)
                and (error := branch.exception())
            ):
                raise error

    async def cancel(self, others: Iterable[asyncio.Task[Any]]) -> None:
        """Ends what still runs for the trajectory, `others` too."""
        self._ended = True
        main = asyncio.current_task()
        mine = [task for task in (*self._tasks, *others) if task is not main]
        for task in mine:
            task.cancel()
        # Finished ones are awaited too, or asyncio logs their exceptions as never retrieved.
        await asyncio.gather(*mine, return_exceptions=True)

    def _current(self) -> Branch:
        """The branch of the current task; the first, where that is no branch."""
        task = asyncio.current_task()
        return self._first if task is None else self._branches.get(task, self._first)


_CURRENT: ContextVar[Branches | None] = ContextVar("branches", default=None)


@contextmanager
def no_branches() -> Iterator[None]:
    """Makes what the current task creates meanwhile no branches, for work that states all that each
    of its calls depends on."""
    before = _CURRENT.set(None)
    try:
        yield
    finally:
        _CURRENT.reset(before)


class BranchingTasks:
    """A task factory of an event loop, which says who has created each task of a trajectory's work.

    Args:
        create: The loop's factory before, which still makes the tasks.
    """

    def __init__(self, create: Callable[..., Any] | None):
        self._create = create or _plain_task

    def __call__(self, loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> Any:
        task = self._create(loop, work, **options)
        branches, creator = _CURRENT.get(), asyncio.current_task(loop)
        if branches is not None and creator is not None:
            branches.begun(task, creator, waited_for=_in_wait_for())
        return task


def _plain_task(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(work, loop=loop, **options)


def _in_wait_for() -> bool:
    """Returns whether `asyncio.wait_for` creates the task, as it does before Python 3.12; its
    caller goes on only when that has ended."""
    if sys.version_info >= (3, 12):
        return False
    frame: FrameType | None = sys._getframe(2)
    for _ in range(4):  # `create_task`, except uvloop's, and two of `ensure_future` are between
        if frame is None:
            return False
        if frame.f_code is asyncio.wait_for.__code__:
            return True
        frame = frame.f_back
    return False
