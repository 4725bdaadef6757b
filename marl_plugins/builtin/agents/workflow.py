"""A program as the workflow of a run."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from marl_plugins.builtin.agents.programs import AgentProgram, AgentProgramResult, find_program
from marl_plugins.builtin.agents.section import AgentConfig
from marl_plugins.builtin.agents.server import AgentEndpoint
from marl_plugins.builtin.agents.session import EndpointSession, SentToolFormats
from marl_plugins.core.concurrency import end
from marl_plugins.core.deadlines import in_turn
from marl_plugins.core.failures import (
    AgentFailure,
    ConfigurationError,
    InfrastructureFailure,
    RecipeError,
)
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.trajectory import Action, Task
from marl_plugins.core.workflow import RoleCalls, Roles, Tools, calls_of
from marl_plugins.engine.plan.scripted_roles import ScriptedChat
from marl_plugins.engine.plan.workflow_file import Explorer, WorkflowFile
from marl_plugins.sandbox.levels import try_bubblewrap

LOST = "program"
"""The kind of a trajectory that is lost because its program ended before any answer, or because one
was late."""
TIMED_OUT = re.compile(r"^[\s|]*[\w.]*Timeout\w*(:|$)|timed out", re.MULTILINE)
"""Finds a timeout among the exceptions of a traceback, those in groups and causes too."""
DETAIL_CHARS = 4000
"""Of a traceback, and of what a program has written, its last."""


class AgentWorkflow(WorkflowFile):
    """Runs the recipe's program on a task, and answers what it asks.

    Args:
        folder: The recipe's.
    """

    def __init__(self, config: AgentConfig, folder: Path):
        self.config = config
        self.files = [file for file in config.files().values() if (folder / file).is_file()]
        self.place = str(folder / config.file) if config.file else " ".join(config.command)
        self.program = AgentProgram(config, folder)
        self._open: dict[
            asyncio.AbstractEventLoop, tuple[AsyncExitStack, asyncio.Future[AgentEndpoint]]
        ] = {}
        """The endpoint of each event loop that programs use."""
        self._users: Counter[asyncio.AbstractEventLoop] = Counter()
        self.ignored: set[str] = set()
        """What requests have said of sampling."""
        self._formats = SentToolFormats()

    @asynccontextmanager
    async def _endpoint(self) -> AsyncIterator[AgentEndpoint]:
        """Provides the event loop's endpoint, which is open for as long as anybody uses it."""
        loop = asyncio.get_running_loop()
        if loop not in self._open:
            endpoint = AgentEndpoint(self.program.listener(), self.config.concurrency)
            stack = AsyncExitStack()
            opening = asyncio.create_task(stack.enter_async_context(endpoint.running()))
            self._open[loop] = stack, opening
        stack, opened = self._open[loop]
        self._users[loop] += 1
        try:
            yield await asyncio.shield(opened)
        finally:
            self._users[loop] -= 1
            if not self._users[loop]:
                del self._open[loop], self._users[loop]
                await end([opened])
                await stack.aclose()

    async def __call__(self, task: Task, roles: Roles, tools: Tools) -> str | Action:
        """Returns the program's answer: an action, where it is what a role has said.

        Raises:
            AgentFailure: A call of a role failed, and the program with it; or it has crashed after
                an answer.
            InfrastructureFailure: An engine's; or the program has ended before any answer, or
                because one was late.
            RecipeError: It ends without an answer in a rehearsal.
        """
        calls, config = calls_of(roles), self.config
        async with self._endpoint() as endpoint, in_turn(endpoint.places):
            session = EndpointSession(
                calls, self._formats, config.derive, self.place, config.rewards
            )
            try:
                with endpoint.serving(session):
                    ended = await self._run(
                        session, request_of(task, calls, session.key, endpoint.base_url)
                    )
                if ended.answer is None:
                    raise self._failure(ended, session)
            finally:
                await session.close()
                self.ignored |= session.ignored
        action = session.said(ended.answer)
        # Its text may have a stop string at its end, which the program was not given.
        return ended.answer if action is None else replace(action, text=ended.answer)

    async def _run(
        self, session: EndpointSession, request: Mapping[str, Any]
    ) -> AgentProgramResult:
        """Runs the program to its end, or until an engine or a bug ends the trajectory."""
        work = asyncio.create_task(self.program.run(request))
        try:
            waited: list[asyncio.Future[Any]] = [work, session.failed]
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if session.failed.done():
                session.failed.result()
            return work.result()
        finally:
            await end([work])

    def _failure(self, ended: AgentProgramResult, session: EndpointSession) -> Exception:
        """Returns what a program that has ended without an answer is to the run."""
        # The trajectory's clock stands still while an engine is waited for; a client's does not.
        # Other exceptions are the program's own, whatever else it has asked for meanwhile.
        late = session.waits and (not ended.kind or TIMED_OUT.search(ended.traceback))
        if session.agent_failure is not None and not late:
            return session.agent_failure
        refused = f"a request was refused: {session.refused}" if session.refused else ""
        if any(isinstance(role.chat, ScriptedChat) for role in session.roles.values()):
            line = "; ".join(
                filter(None, [ended.line, refused if session.refused not in ended.text else ""])
            )
            return RecipeError(ended.place or self.place, ended.kind, line)
        waited = "a request had no answer yet; is its client's timeout too short?" if late else ""
        traceback = ended.traceback[-DETAIL_CHARS:]
        detail = "\n".join(filter(None, [ended.said, refused, waited, traceback]))
        if session.answered and not late and self.config.crash == "failed":
            return AgentFailure("crashed", detail)
        return InfrastructureFailure(LOST, detail)

    def explorer(self) -> Explorer:
        return ProgramExplorer(self)

    def outline(self) -> list[str]:
        return [f"{self.place}: {self.config.function}" if self.config.file else self.place]

    def mermaid(self) -> str:
        return ""  # who sees whom is known of its rehearsal alone


class ProgramExplorer(Explorer):
    """Knows nothing of what leads where in a program, and what its requests have said in vain."""

    def __init__(self, workflow: AgentWorkflow):
        self._workflow = workflow

    def remarks(self) -> list[Problem]:
        if not self._workflow.ignored:
            return []
        got = (
            f"requests say {', '.join(sorted(self._workflow.ignored))}, without effect: "
            "sampling is the run's, and nothing is stored or billed"
        )
        fix = "set --rollout.temperature and --rollout.top_p; the seed is derived from --train.seed"
        return [
            Problem(
                "agents.sampling", at(file=self._workflow.place), got, fix=fix, severity="warning"
            )
        ]


def request_of(task: Task, calls: RoleCalls, key: str, base_url: str) -> dict[str, Any]:
    """Returns what a program is given: the task without its label, and how it calls roles."""
    item = {"id": task.id, "prompt": task.prompt, "metadata": task.metadata, "files": task.files}
    trajectory = calls.builder.trajectory
    local = {
        name: ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
        for name in ("NO_PROXY", "no_proxy")
    }
    return {
        "prompt": task.prompt,
        "item": item,
        "endpoint": {"base_url": base_url, "api_key": key},
        "seed": f"{trajectory.step}/{task.id}/{trajectory.sample}",
        "environment": {
            "OPENAI_BASE_URL": base_url,
            "OPENAI_API_KEY": key,
            "ANTHROPIC_BASE_URL": base_url.removesuffix("/v1"),
            "ANTHROPIC_API_KEY": key,
            "MARL_TASK": json.dumps(item),
            **local,
        },
    }


def make_workflow(config: AgentConfig, folder: Path) -> AgentWorkflow:
    """Returns the workflow that a recipe's program is, its launcher started.

    Raises:
        ConfigurationError: All that is wrong with it.
    """
    problems = list(_problems(config, folder))
    if problems:
        raise ConfigurationError(problems)
    try:
        workflow = AgentWorkflow(config, folder)
        workflow.program.start()
    except (OSError, ValueError) as error:
        what = f"cannot be started: {error}"
        raise ConfigurationError(
            Problem("agents.start", at(key="agent"), what, fix="is `python` a Python?")
        ) from error
    return workflow


def _problems(config: AgentConfig, folder: Path) -> Iterator[Problem]:
    if bool(config.file) == bool(config.command):
        got = f"has {'both' if config.file else 'neither'} of file and command"
        yield Problem(
            "agents.program",
            at(key="agent"),
            got,
            fix=f"give one of the two: {AgentConfig.EXAMPLE}",
        )
        return
    if config.sandbox and (config.command or (why := try_bubblewrap()[1])):
        got = "a command runs as the run's user" if config.command else why
        yield Problem(
            "agents.sandbox",
            at(key="agent.sandbox"),
            got,
            fix="remove it, or give a Python file as `file`",
        )
    if config.rewards and not config.rewards[0] < config.rewards[1]:
        got = f"{list(config.rewards)} is no range from the lowest reward to the highest"
        yield Problem("agents.range", at(key="agent.rewards"), got, fix="[0, 1] is one")
    command = config.command[0] if config.command else None
    for key, name in (("command", command), ("python", config.python)):
        if name and not find_program(name, folder):
            got = f"there is no program {name!r} on PATH or in {folder}"
            yield Problem("agents.no_program", at(key=f"agent.{key}"), got, fix="is it executable?")
