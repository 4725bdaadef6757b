"""The cast decides who plays a role: the one place where a role meets its policy, with its chat template and sampling, tried before
a run starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import SimpleNamespace

import jinja2

from marl_plugins.core.calls import clashes, functions_of
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.prompts import followup_renderer, prompt_renderer
from marl_plugins.core.roles import RoleSpec, Sampling
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Task, ToolResult
from marl_plugins.plan.lengths import empty_messages
from marl_plugins.run import Run
from marl_plugins.runtime.call_formats import find_calls


class Cast:
    """Says who plays a role on a task: `cast(role, task)` is the role as the policy plays it that has it on this task.

    Today a role has one policy in all tasks, that of the recipe's mapping.

    Args:
        roles: Every role by name, in the recipe's order.
    """

    def __init__(self, roles: Mapping[str, RoleSpec]):
        self.roles = dict(roles)

    def __call__(self, role: str, task: Task) -> RoleSpec:
        return self.roles[role]

    @property
    def policies(self) -> set[str]:
        """The policies that play a role."""
        return {spec.policy for spec in self.roles.values()}


def make_cast(
    run: Run, args: Mapping[str, SimpleNamespace], chats: Mapping[str, ChatFormat], tools: Mapping[str, Tool]
) -> Cast:
    """Returns the roles of a run with their policies.

    Args:
        args, chats: By policy: its flags, and its chat format.

    Raises:
        ConfigurationError: A chat template refuses what a role shows, a parser or a function's name does not fit.
    """
    roles: dict[str, RoleSpec] = {}
    problems: dict[Problem, None] = {}
    for name in run.recipe.roles:
        policy = run.recipe.policy_of(name)
        try:
            roles[name] = _role(run, name, args[policy], chats[policy], tools)
            _try_template(run, roles[name])
        except ConfigurationError as error:
            problems |= dict.fromkeys(error.problems)
    if problems:
        raise ConfigurationError(problems)
    return Cast(roles)


def _role(run: Run, name: str, args: SimpleNamespace, chat: ChatFormat, tools: Mapping[str, Tool]) -> RoleSpec:
    role = run.role(name)
    own, find = tuple(tools[tool] for tool in role.tools), None
    if wrong := clashes(own):
        raise ConfigurationError(problem.within(role=name) for problem in wrong)
    if role.calls is not None:
        try:
            find = find_calls(role.calls, role.reasoning, chat.tokenizer, own)
        except ConfigurationError as error:
            raise ConfigurationError(problem.within(role=name) for problem in error.problems) from error
        chat = ChatFormat(chat.tokenizer, chat.policy, tuple(function.schema for function in functions_of(own)))
    return RoleSpec(
        name=name,
        policy=chat.policy,
        render=prompt_renderer(run.prompt(name), run.system(name)),
        chat=chat,
        sampling=Sampling(
            temperature=args.rollout.temperature,
            top_p=args.rollout.top_p,
            max_new_tokens=role.max_new_tokens or args.rollout.max_new_tokens,
            max_len=args.data.max_len,
            stop=tuple(role.stop),
        ),
        tools=own,
        max_turns=role.max_turns,
        render_next=followup_renderer(run.followup(name)),
        endless_tools_fail=role.endless_tools == "fail",
        find_calls=find,
    )


def _try_template(run: Run, role: RoleSpec) -> None:
    """Render what a role will need, so that a template that refuses it is found before anything is started."""
    chat = role.chat
    opening = [{"role": r, "content": text or "?"} for r, text in empty_messages(run, role.name)]
    try:
        shown = chat.opening(opening)
        if role.find_calls and shown == ChatFormat(chat.tokenizer, chat.policy).opening(opening):
            raise ConfigurationError(
                Problem(
                    "calls.template",
                    at(role=role.name),
                    (
                        f"calls: the chat template of policy {role.policy!r} shows no tools, so its model has not learned "
                        "to call any"
                    ),
                    fix="leave `calls` out, and say in the prompt how tools are called",
                )
            )
        if role.max_turns > 1:
            each = [ToolResult(tool.name, "", "?", ok=True) for tool in role.tools]
            for results in (*([result] for result in each), *([each * 2] if role.find_calls else ())):
                chat.continuation([], role.answers(results))
            if role.find_calls and _shows_more(chat, role.answers(each)):
                raise ConfigurationError(
                    Problem(
                        "calls.template_ids",
                        at(role=role.name),
                        (
                            f"calls: the chat template of policy {role.policy!r} shows a tool's name or a call's id with its "
                            "answer, which it is not given"
                        ),
                        fix="leave `calls` out, and say in the prompt how tools are called",
                    )
                )
    except jinja2.TemplateError as error:
        raise ConfigurationError(
            Problem(
                "models.template_refuses",
                at(policy=chat.policy),
                f"its chat template refuses the messages of role {role.name!r}: {error}",
            )
        ) from None
    if role.find_calls and len(shown) >= role.sampling.max_len:
        raise ConfigurationError(
            Problem(
                "lengths.tools",
                at(role=role.name),
                (
                    f"its prompt and the tools that it may call have {len(shown)} tokens, which leaves no room for an "
                    f"answer in --data.max_len {role.sampling.max_len}"
                ),
                fix="name fewer tools, or raise --data.max_len",
            )
        )


def _shows_more(chat: ChatFormat, answers: Sequence[dict[str, str]]) -> bool:
    """Returns whether a template shows more of tools' answers than their text."""
    before = [{"role": "user", "content": "?"}, {"role": "assistant", "content": "?"}]
    named = [{**answer, "name": "?", "tool_call_id": "?"} for answer in answers]
    return chat.rendered([*before, *answers]) != chat.rendered([*before, *named])
