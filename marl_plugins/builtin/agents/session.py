"""One trajectory's side of the endpoint: its requests become calls of roles, as those of a workflow
are."""

from __future__ import annotations

import asyncio
import hashlib
import json
import secrets
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

import jinja2

from marl_plugins.builtin.agents.conversations import Conversations, Prefix
from marl_plugins.builtin.agents.parents import derived_parents, texts_of
from marl_plugins.builtin.agents.requests import (
    CalledFunction,
    CallReward,
    ChatRequest,
    EndpointRefusal,
    Message,
    SentCall,
    SentTool,
    parse_rewards,
)
from marl_plugins.core.calls import TAGGED
from marl_plugins.core.concurrency import end
from marl_plugins.core.failures import (
    AgentFailure,
    ConfigurationError,
    InfrastructureFailure,
    nearest,
)
from marl_plugins.core.roles import RoleSpec
from marl_plugins.core.tools import Function, FunctionCall, Tool
from marl_plugins.core.trajectory import Action, ToolResult, in_graph_order
from marl_plugins.core.workflow import RoleCalls
from marl_plugins.engine.plan.scripted_roles import ScriptedChat

T = TypeVar("T")
NOTE = "agents"
"""Under which what is known of a call is recorded (`Action.notes`)."""


@dataclass(frozen=True)
class EndpointAnswer:
    """The answer to a request: a role's last action, as a message of the protocol."""

    action: Action
    message: Message
    stopped_by: str | None
    """The request's stop string before which the message ends; the action's ids have it."""
    tokens: tuple[str, ...]
    """The text of each sampled token, where the request wants their log-probs."""

    @property
    def finish(self) -> str:
        """The reason why it ends, in the protocol's words."""
        return "tool_calls" if self.message.tool_calls else self.action.generation.finish


class SentToolFormats:
    """Chat formats that show the tools that programs send, by role and tools: what one has rendered
    is kept.

    A rehearsal has a chat format of its own for each run, so that nothing of it is kept for a real
    one.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[object, str, str], RoleSpec] = {}

    def spec(self, role: RoleSpec, sent: Sequence[SentTool]) -> RoleSpec:
        """Returns a role that is shown tools which it does not have itself.

        Raises:
            Refusal: It cannot be.
        """
        shown = json.dumps([tool.model_dump() for tool in sent], sort_keys=True)
        key = role.chat, role.name, shown
        if key not in self._known:
            self._known[key] = _shown_tools(role, sent)
        known = self._known[key]
        return replace(role, chat=known.chat, find_calls=known.find_calls)


def _shown_tools(role: RoleSpec, sent: Sequence[SentTool]) -> RoleSpec:
    if role.tools:
        own = ", ".join(tool.name for tool in role.tools)
        raise EndpointRefusal(
            f"role {role.name!r} has tools of the recipe ({own}), and takes none with a request"
        )
    if role.finder is None:
        raise EndpointRefusal(
            f"tools: role {role.name!r} does not say how its model calls them; add `calls: PARSER` "
            "to it"
        )
    if isinstance(role.chat, ScriptedChat):
        return replace(role, find_calls=role.finder([]))
    functions = tuple(
        Function(f.name, f.description or "", f.parameters or {"type": "object", "properties": {}})
        for f in (tool.function for tool in sent)
    )
    chat = role.chat.given([function.schema for function in functions])
    question, answers = [{"role": "user", "content": "?"}], [{"role": "tool", "content": "?"}]
    if chat.rendered(question) == role.chat.rendered(question):
        raise EndpointRefusal(
            f"tools: the chat template of policy {role.policy!r} shows none, so its model cannot "
            "call any"
        )
    if chat.shows_more(answers):
        what = "shows a tool's name or a call's id with its answer, which it is not given"
        raise EndpointRefusal(f"tools: the chat template of policy {role.policy!r} {what}")
    return replace(
        role,
        chat=chat,
        find_calls=role.finder([Tool("sent", _never_run, None, functions=functions)]),
    )


async def _never_run(call: object) -> ToolResult:
    raise AssertionError("a program's tools are answered by the program")


class ProgramTools:
    """The calls of one trajectory that the program answers. An action with calls is scored once
    they are, or at the end."""

    def __init__(self, calls: RoleCalls):
        self._builder = calls.builder
        self._waiting: dict[Action, dict[str, CalledFunction]] = {}
        """Actions whose calls have not been answered, and these by their ids."""

    def called(self, action: Action, calls: Sequence[SentCall]) -> None:
        """Notes the calls of an action."""
        if calls:
            self._waiting[action] = {call.id: call.function for call in calls}

    def take_answers(
        self, before: Action | None, messages: Sequence[Message], new: Sequence[Message]
    ) -> None:
        """Gives the turn before what its tools have answered, and lets it be scored.

        Args:
            messages: All of a request.
            new: Those after the turn before.

        Raises:
            Refusal: A message answers a call that nobody made.
        """
        made = {call.id for message in messages for call in message.tool_calls or ()}
        answers = [message for message in new if message.role == "tool"]
        for message in answers:
            if message.tool_call_id not in made:
                raise EndpointRefusal(
                    f"a message of role tool answers {message.tool_call_id!r}, which is no call in "
                    "these messages"
                )
        if before is None or before not in self._waiting:
            return
        waiting = self._waiting.pop(before)
        before.tool_results = tuple(
            ToolResult(
                called.name,
                _spelled(called),
                message.text,
                ok=not message.is_error,
                start=before.answered,
            )
            for message in answers
            if (called := waiting.get(str(message.tool_call_id)))
        )
        before.end = self._builder.trajectory.now()
        self._builder.scoring.acted(before)

    def end(self) -> None:
        """Lets the actions be scored whose calls nobody has answered."""
        for action in self._waiting:
            self._builder.scoring.acted(action)
        self._waiting.clear()


class EndpointSession:
    """The requests of one trajectory.

    Args:
        calls: Those of the roles.
        derive: As in `AgentConfig`.
        place: Where the program is, for messages.
        rewards: The lowest and the highest that the program may give an answer; None: it gives
            none.
    """

    def __init__(
        self,
        calls: RoleCalls,
        formats: SentToolFormats,
        derive: bool | Literal["all"],
        place: str,
        rewards: tuple[float, float] | None = None,
    ):
        self.key = f"marl-{secrets.token_urlsafe(24)}"
        self.calls = calls
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Ends the trajectory by its exception: an infrastructure's failure, or a bug."""
        self.agent_failure: AgentFailure | None = None
        """In which the last request ended, if it did; clients are told, and mostly raise it in the
        program."""
        self.refused = ""
        """Why the last request was that was refused; a client may keep it to itself."""
        self.waits: set[asyncio.Task[EndpointAnswer]] = set()
        """The works on requests whose clients have been given nothing since they asked."""
        self.ignored: set[str] = set()
        """What requests said of sampling, which is the run's."""
        self._formats = formats
        self._derive = derive
        self._place = place
        self._range = rewards
        self._rewarded: set[str] = set()
        """The ids of answers that have a reward."""
        self._conversations = Conversations()
        self._answers: dict[Action, list[str]] = {}
        """What each action that has been answered said, and so may have been shown."""
        self._by_path: dict[str, EndpointAnswer] = {}
        self._tools = ProgramTools(calls)
        self._requests: dict[bytes, list[asyncio.Task[EndpointAnswer]]] = {}
        """The works on equal requests, those last that were asked for last."""

    @property
    def roles(self) -> Mapping[str, RoleSpec]:
        return self.calls.builder.roles

    @property
    def answered(self) -> bool:
        """Returns whether any request has been answered."""
        return bool(self._answers)

    def ask(
        self, request: ChatRequest, body: bytes, after: str | None, repeats: bool
    ) -> asyncio.Task[EndpointAnswer]:
        """Returns the work on a request.

        Args:
            body: As it was sent.
            after: What the header `x-marl-after` says; None without it.
            repeats: Whether its client marks it as sent before; it then gets what that one got,
                also where it is on its way. Of equal requests whose clients got nothing, it is the
                one that was asked for longest ago: with equal timeouts, its client is the one that
                has given up.
        """
        works = self._requests.setdefault(hashlib.blake2b(body, digest_size=16).digest(), [])
        if repeats and works:
            work = next((work for work in works if work in self.waits), works[-1])
            works.remove(work)
        else:
            work = asyncio.create_task(as_refusals(self._answered(request, after)))
            work.add_done_callback(self._done)
        works.append(work)
        self.waits.add(work)
        return work

    def delivered(self, work: asyncio.Task[EndpointAnswer]) -> None:
        """Notes that a client which is still there gets what became of its request."""
        self.waits.discard(work)

    def _done(self, work: asyncio.Task[EndpointAnswer]) -> None:
        """Keeps what ended a request and ends the trajectory."""
        if work.cancelled():
            return
        error = work.exception()
        if error is None or isinstance(error, AgentFailure):
            self.agent_failure = error
        elif not isinstance(error, EndpointRefusal):
            self.fail(error)

    def fail(self, error: BaseException) -> None:
        """Ends the trajectory by an exception, if nothing has yet."""
        if not self.failed.done():
            self.failed.set_exception(error)

    def reward(self, rewards: Sequence[CallReward]) -> None:
        """Gives answers their rewards, one after the other, as scores in [0, 1].

        Raises:
            EndpointRefusal: One cannot be given; those before it have been.
        """
        for one in rewards:
            if self._range is None:
                wrong = "the recipe declares none; add `agent: {rewards: [LOWEST, HIGHEST]}` to it"
            elif one.id not in self._by_path:
                wrong = f"{one.id!r} is the id of no answer of this trajectory"
            elif one.id in self._rewarded:
                wrong = f"{one.id!r} has one already"
            elif not self._range[0] <= one.reward <= self._range[1]:
                wrong = f"{one.reward} for {one.id!r} is not in {list(self._range)} (agent.rewards)"
            else:
                low, high = self._range
                self._rewarded.add(one.id)
                action = self._by_path[one.id].action
                self.calls.builder.scoring.scored(action, (one.reward - low) / (high - low))
                continue
            raise EndpointRefusal(f"reward: {wrong}")

    async def count(self, request: ChatRequest) -> int:
        """Returns the number of tokens that a request would show if it opened a conversation.

        Raises:
            EndpointRefusal: The request cannot be answered.
        """
        return len(self._spec(request).chat.opening(_messages(request.messages)))

    def said(self, text: str) -> Action | None:
        """Returns the last action that has said a text and nothing else."""
        for action in reversed(in_graph_order(list(self._answers))):
            message = self._by_path[action.path].message
            if message.text == text and not message.tool_calls:
                return action
        return None

    async def close(self) -> None:
        """Cancels what is on its way, and lets be scored what has waited for its tools' answers."""
        asked = [work for works in self._requests.values() for work in works]
        await end(asked)
        if self.failed.done() and not self.failed.cancelled():
            self.failed.exception()  # whoever did not wait for it has ended for another reason
        for turn in self._conversations.branches():
            turn.notes[NOTE] = {"reopened": "branch"}
        self._tools.end()

    async def _answered(self, request: ChatRequest, after: str | None) -> EndpointAnswer:
        """Makes the call of a role that a request is, and returns its answer.

        Raises:
            Refusal: The request cannot be answered.
            AgentFailure, InfrastructureFailure: The role's call ends so.
        """
        spec = self._spec(request)
        self.ignored.update(request.ignored)
        self.reward(parse_rewards(request.rewards))
        prefix = self._conversations.beginning(request.model, request.offered, request.messages)
        new = request.messages[prefix.count :]
        stated = None if after is None else self._stated(after)
        self._tools.take_answers(prefix.before, request.messages, new)
        action = await self.calls.show(
            request.model,
            _messages(new),
            after=stated or (),
            continues=prefix.before,
            place=self._place,
            spec=spec,
            derived=self._derived(new, prefix) if stated is None else (),
            notes={NOTE: {"reopened": prefix.reason}} if prefix.reason else None,
            waits=(lambda turn: bool(_calls(spec, turn))) if request.offered else None,
        )
        answer = self._answer(spec, action, request)
        self._conversations.add(prefix, answer.message, action)
        return answer

    def _spec(self, request: ChatRequest) -> RoleSpec:
        """The role as a request wants it: with its tools, and perhaps ended sooner."""
        if request.model not in self.roles:
            what = f"there is no role {request.model!r}{nearest(request.model, self.roles)}"
            raise EndpointRefusal(what, 404, "model_not_found")
        role = shortened(self.roles[request.model], request)
        if role.external and request.logprobs:
            what = f"logprobs: role {role.name!r} is somebody else's model, which gives words alone"
            raise EndpointRefusal(what)
        return self._formats.spec(role, request.offered) if request.offered else role

    def _stated(self, after: str) -> list[Action]:
        """The actions that a header names."""
        names = [name.strip() for name in after.split(",") if name.strip()]
        for name in names:
            if name not in self._by_path:
                raise EndpointRefusal(
                    f"x-marl-after: {name!r} is the id of no answer of this trajectory"
                )
        return [self._by_path[name].action for name in names]

    def _derived(self, new: Sequence[Message], prefix: Prefix) -> list[Action]:
        """The actions that a request has probably seen."""
        if self._derive == "all":
            return list(self._answers)
        if not self._derive:
            return []
        text = "\n".join(
            [m.text for m in new] + [c.function.arguments for m in new for c in m.tool_calls or ()]
        )
        return derived_parents(
            text, {a: texts for a, texts in self._answers.items() if a is not prefix.before}
        )

    def _answer(self, spec: RoleSpec, action: Action, request: ChatRequest) -> EndpointAnswer:
        """The message that answers a request, which is remembered as what may be shown to
        others."""
        called = _calls(spec, action) if request.offered else []
        calls = [
            SentCall(
                id=f"call_{action.path}_{number}",
                function=CalledFunction(
                    name=call.name, arguments=json.dumps(call.arguments, ensure_ascii=False)
                ),
            )
            for number, call in enumerate(called)
        ]
        if request.parallel_tool_calls is False:
            del calls[1:]  # as vLLM's server does; the ids have all
        text = outside_calls(spec.chat.said(action.generation.ids)) if calls else action.text
        text, stopped_by = before_stop(str.__str__(text), request.stops)
        message = Message(
            role="assistant", content=text if text or not calls else None, tool_calls=calls or None
        )
        self._tools.called(action, calls)
        shown = [text] if stopped_by else []
        self._answers[action] = texts_of(action, [*shown, *(call.arguments for call in called)])
        ids = action.generation.ids if request.logprobs else ()
        tokens = tuple(spec.chat.said([token]) for token in ids)
        self._by_path[action.path] = EndpointAnswer(action, message, stopped_by, tokens)
        return self._by_path[action.path]


def before_stop(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """Returns a text up to the first of some strings, and that string; None: there is none."""
    places = [(text.index(stop), stop) for stop in stops if stop in text]
    if not places:
        return text, None
    place, stop = min(places)
    return text[:place], stop


def shortened(role: RoleSpec, request: ChatRequest) -> RoleSpec:
    """Returns a role that ends no later than a request wants."""
    wanted = role.sampling.max_new_tokens, request.max_tokens, request.max_completion_tokens
    limits = [limit for limit in wanted if limit is not None]
    stop = tuple(dict.fromkeys((*role.sampling.stop, *request.stops)))
    return replace(
        role, sampling=replace(role.sampling, max_new_tokens=min(limits, default=None), stop=stop)
    )


async def as_refusals(answer: Awaitable[T]) -> T:
    """Returns an answer.

    Raises:
        Refusal: The model's chat template refuses the messages; a program chooses these, and not
            the recipe.
    """
    try:
        return await answer
    except jinja2.TemplateError as error:
        raise EndpointRefusal(
            f"the model's chat template refuses these messages: {error}"
        ) from None
    except ConfigurationError as error:
        raise EndpointRefusal(str(error)) from None


def _calls(spec: RoleSpec, action: Action) -> list[FunctionCall]:
    """The calls of a program's tools in an action."""
    return spec.find_calls(spec.chat.said(action.generation.ids)) if spec.find_calls else []


def outside_calls(answer: str) -> str:
    """Returns what stands in an answer beside its calls; nothing where these are not between
    tags."""
    return TAGGED.sub("", answer).strip() if TAGGED.search(answer) else ""


def _messages(new: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as a chat template takes them; calls that the conversation did not make itself stand
    in the text."""
    shown = []
    for message in new:
        calls = [_spelled(call.function) for call in message.tool_calls or ()]
        text = "\n".join(
            filter(None, [message.text, *(f"<tool_call>\n{call}\n</tool_call>" for call in calls)])
        )
        shown.append({"role": message.shown_role, "content": text})
    return shown


def _spelled(called: CalledFunction) -> str:
    """A call as records and chat templates have it."""
    try:
        return FunctionCall(called.name, json.loads(called.arguments or "{}")).text
    except (ValueError, RecursionError):
        return FunctionCall(called.name, called.arguments).text


def failure_of(error: BaseException) -> tuple[int, str, str]:
    """Returns the status, the message and the code of what ended a request."""
    if isinstance(error, EndpointRefusal):
        return error.status, str(error), error.code
    if isinstance(error, AgentFailure):
        return 400, str(error), "context_length_exceeded" if error.kind == "context" else error.kind
    if isinstance(error, InfrastructureFailure):
        return 503, str(error), error.kind
    return 503, "the run ends", ""
