"""`openrlhf serve`: a run's models behind the endpoint that programs are trained at, until Ctrl-C.

A request is one call of a role, which opens a conversation; nothing is recorded. Temperature and
top-p are the request's, because nothing is trained.
"""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

from marl_plugins.builtin.agents.requests import CallReward, ChatRequest, EndpointRefusal
from marl_plugins.builtin.agents.server import AgentEndpoint
from marl_plugins.builtin.agents.session import EndpointAnswer, EndpointSession, SentToolFormats
from marl_plugins.core.failures import AgentFailure, ConfigurationError, InfrastructureFailure
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.roles import RoleSpec
from marl_plugins.core.trajectory import EVALUATION, Task
from marl_plugins.core.workflow import Roles, Tools, calls_of, run_workflow
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser
from marl_plugins.engine.plan.describe import first_lines
from marl_plugins.engine.plan.engines_only import models_parser, planned
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.records.run_folder import started_with
from marl_plugins.engine.runtime.engines_only import with_engines

if TYPE_CHECKING:
    from marl_plugins.engine.runtime.rollout import Rollout

T = TypeVar("T")
NEUTRAL: Mapping[str, Sequence[object]] = MappingProxyType(
    {
        "top_k": (None, 0, -1),
        "min_p": (None, 0),
        "repetition_penalty": (None, 1),
        "presence_penalty": (None, 0),
        "frequency_penalty": (None, 0),
    }
)
"""What changes nothing of the ways to sample that the engines are not asked for."""


def own_parser() -> UpstreamParser:
    """Returns the flags of `openrlhf serve` that `openrlhf train` does not have."""
    own = models_parser("openrlhf serve")
    own.usage = (
        "openrlhf serve RUN [--port PORT] [flags of openrlhf train]\n"
        "       openrlhf serve --recipe RECIPE [--models RUN] [--port PORT] [flags]"
    )
    own.description = (
        "A run's models behind OpenAI's chat completions and responses and Anthropic's messages, "
        "on this machine alone, until Ctrl-C. The model's name is the role; any key will do."
    )
    own.add_argument("--port", type=int, default=8000, help="of 127.0.0.1; 0: a free one")
    return own


def main(words: Sequence[str]) -> int:
    if "--help" in words or "-h" in words:
        print(own_parser().format_help(), end="")
        return 0
    if words and not words[0].startswith("-"):
        words = [*started_with(Path(words[0])), "--models", words[0], *words[1:]]
    plan, options = planned(words, own_parser())
    if plan.options.dry_run:
        print(*first_lines(plan), sep="\n")
        return 0
    try:
        listener = socket.create_server(("127.0.0.1", options.port))
    except (OSError, OverflowError) as error:
        raise ConfigurationError(Problem("serve.port", at(flag="port"), str(error))) from None
    display = Display(plan.options.json)
    try:
        with_engines(
            plan,
            display,
            lambda session: serve(
                session.rollout, plan.run.args.eval.temperature, listener, display.say
            ),
            options.models,
        )
    except KeyboardInterrupt:
        return 0
    return 1


async def serve(
    rollout: Rollout, temperature: float, listener: socket.socket, say: Callable[[str], object]
) -> None:
    """Answers requests until it is cancelled.

    Args:
        temperature: Where a request says none.
        say: Is told the address.
    """
    served = ServedRoles(rollout, temperature)

    class Endpoint(AgentEndpoint):
        def _session(self, request: object) -> Any:
            return served

    async with Endpoint(listener).running() as endpoint:
        say(f"serving {', '.join(served.roles)} at {endpoint.base_url} until Ctrl-C")
        await asyncio.Event().wait()


class ServedRoles:
    """Answers requests of anybody, in the place of one trajectory's `EndpointSession`.

    Args:
        temperature: Where a request says none.
    """

    def __init__(self, rollout: Rollout, temperature: float):
        self.refused = ""
        self._rollout = rollout
        self._temperature = temperature
        self._formats = SentToolFormats()
        self._requests = 0

    @property
    def roles(self) -> Mapping[str, RoleSpec]:
        """The roles, each as one of its policies plays it."""
        return self._rollout.cast(Task("request", ""), EVALUATION, self._requests)

    def fail(self, error: BaseException) -> None:
        """Says what was no fault of a request's."""
        print(f"error: {type(error).__name__}: {error}", file=sys.stderr, flush=True)

    def reward(self, rewards: Sequence[CallReward]) -> None:
        """Refuses rewards."""
        raise EndpointRefusal("reward: nothing is trained here")

    def ask(self, request: ChatRequest, body: bytes, *_: object) -> asyncio.Task[EndpointAnswer]:
        """Returns the work on a request."""
        return asyncio.create_task(
            self._worked(request, lambda session: session.ask(request, body, None, False))
        )

    def delivered(self, work: asyncio.Task[EndpointAnswer]) -> None:
        """Keeps nothing."""

    async def count(self, request: ChatRequest) -> int:
        """Returns the number of tokens that a request would show."""
        return await self._worked(request, lambda session: session.count(request))

    async def _worked(
        self, request: ChatRequest, work: Callable[[EndpointSession], Awaitable[T]]
    ) -> T:
        """Does some work in a trajectory of its own."""
        self._requests += 1
        results: list[T] = []

        async def workflow(task: Task, roles: Roles, tools: Tools) -> None:
            session = EndpointSession(calls_of(roles), self._formats, False, "openrlhf serve")
            try:
                results.append(await work(session))
            finally:
                await session.close()

        rollout, task = self._rollout, Task(f"request {self._requests}", "")
        sampling = {"temperature": self._temperature, **self._sampling(request)}
        async with rollout.workspace_of(task) as workspace:
            ended = await run_workflow(
                workflow,
                task,
                0,
                step=EVALUATION,
                run_seed=rollout.run.args.train.seed,
                roles={
                    name: replace(role, sampling=replace(role.sampling, **sampling))
                    for name, role in self.roles.items()
                },
                tools=rollout.tools,
                generate=rollout.generate,
                workspace=workspace,
                seconds=rollout.task_seconds,
            )
        if ended.agent_failure:
            raise AgentFailure(ended.agent_failure, ended.detail)
        if ended.infrastructure_failure:
            raise InfrastructureFailure(ended.infrastructure_failure, ended.detail)
        return results[0]

    def _sampling(self, request: ChatRequest) -> dict[str, Any]:
        """The temperature and the top-p of a request.

        Raises:
            EndpointRefusal: One of them is no number, or out of its range; or it asks for another
                way to sample.
        """
        for name, neutral in NEUTRAL.items():
            if (value := request.ignored.get(name)) not in neutral:
                raise EndpointRefusal(f"{name}: {value!r} is not applied here: leave it out")
        sampling = {}
        for name, least, most in (("temperature", 0.0, 2.0), ("top_p", 1e-9, 1.0)):
            if (value := request.ignored.get(name)) is not None:
                if not (isinstance(value, int | float) and least <= value <= most):
                    raise EndpointRefusal(f"{name}: {value!r}, expected {least:g} to {most:g}")
                sampling[name] = value
        return sampling
