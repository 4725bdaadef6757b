"""Types of a role when it is called: what it is, what it asks an engine, and who answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from marl_plugins.core.calls import FindCalls
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Generation, ToolResult


@dataclass(frozen=True)
class Sampling:
    """The settings with which a policy is sampled: temperature, nucleus mass, and the limits in
    tokens."""

    temperature: float
    top_p: float
    max_new_tokens: int | None
    max_len: int
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    """Ids that end an answer beside those of the model's configuration."""


@dataclass(frozen=True)
class Call:
    """One request to an engine, as `marl_generate` gets it.

    Args:
        policy: Whose engine has to answer.
        context_ids: The exact prompt.
        max_tokens: Maximum number of new tokens.
        seed: Derived from (run seed, step, task, sample, action path).
        role, task, sample, path, step: What the request is for; empty in a plugin's question
            (`run.ask`), which belongs to no action, and whose seed is derived from the run's and
            what is asked.
    """

    policy: str
    context_ids: tuple[int, ...]
    sampling: Sampling
    max_tokens: int
    seed: int
    role: str
    task: str
    sample: int
    path: str
    step: int
    place: int = -1
    """The task's place in its step or evaluation: what waits for an engine is answered in this
    order. A question is before all tasks, because it is asked about an action that has been
    made."""
    shown: str = ""
    """Digest of the words that the role is shown, whatever its policy's tokenizer and chat template
    make of them."""


@dataclass(frozen=True)
class RoleSpec:
    """A role, ready to be called: its policy, its prompt, its limits."""

    name: str
    policy: str
    render: Callable[[Mapping[str, str]], list[dict[str, str]]]
    """Fields to opening messages. Raises `KeyError` for a field that the prompt requires and the
    call does not give."""
    chat: ChatFormat
    sampling: Sampling
    tools: tuple[Tool, ...] = ()
    max_turns: int = 1
    render_next: Callable[[Mapping[str, str]], list[dict[str, str]]] | None = None
    """Fields to the message of a call that continues a conversation; None: the last of the opening
    messages."""
    endless_tools_fail: bool = True
    """Whether a tool call in the last of several turns is an agent failure; otherwise the workflow
    continues with that action."""
    find_calls: FindCalls | None = None
    """Finds calls in the model's own format; None: by the syntax of each tool."""
    finder: Callable[[Sequence[Tool]], FindCalls] | None = None
    """Makes the same for tools that come with a call, and are answered by who makes it; None where
    the role takes none."""
    external: bool = False
    """Whether its model is somebody else's, of which there are words alone: no tokens, no
    log-probs."""

    def answers(self, results: Sequence[ToolResult]) -> list[dict[str, str]]:
        """Renders what tools answered as the next messages: one each in the model's own format,
        else one for all."""
        if self.find_calls is not None:
            return [{"role": "tool", "content": result.output} for result in results]
        called = [tool for tool in self.tools if tool.name == results[0].tool]
        role = (called or self.tools)[0].message_role if self.tools else "user"
        return [{"role": role, "content": "\n".join(result.output for result in results)}]


class NotInRecipe(AttributeError):
    """A workflow uses a role or a tool that the recipe does not have.

    Args:
        written: Whether the name stands in the code (`roles.NAME`), and does not depend on an
            answer (`getattr(roles, text)`).
    """

    def __init__(self, problem: str, *, written: bool = True):
        self.written = written
        super().__init__(problem)


Generate = Callable[[Call], Awaitable[Generation]]
"""Answers the request of a role; raises `InfrastructureFailure` where no engine can."""
