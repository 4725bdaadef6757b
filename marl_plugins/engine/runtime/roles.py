"""The cast decides who plays a role: the one place where a role meets its policy, with its chat
template and sampling, tried before a run starts."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from types import SimpleNamespace

from marl_plugins.core.calls import clashes, functions_of
from marl_plugins.core.conversation import ChatFormat
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.prompts import followup_renderer
from marl_plugins.core.roles import RoleSpec, Sampling
from marl_plugins.core.run import Run
from marl_plugins.core.seeds import derive_seed
from marl_plugins.core.templates import template_refuses
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import EVALUATION, Task, ToolResult
from marl_plugins.engine.plan.lengths import empty_messages
from marl_plugins.engine.records.tokenizers import digest_of_tokenizer
from marl_plugins.engine.runtime.call_formats import find_calls


class Cast:
    """Says who plays a role on a task: a role has one policy, or a population of which one member
    has it on each task.

    Each member of a population plays as many of a step's tasks as the others, give or take one, and
    all samples of a task. Which one it is depends on (seed, step, place of the task in the step,
    role). In evaluations the seed takes no part, so that runs can be compared task by task.

    Args:
        members: Every role by name, in the recipe's order, as each policy plays it that may have
            it.
        seed: The run's.
    """

    def __init__(self, members: Mapping[str, Sequence[RoleSpec]], seed: int = 0):
        self.members = {role: tuple(specs) for role, specs in members.items()}
        self.seed = seed

    def __call__(
        self, task: Task, step: int, place: int | None, policy: str | None = None
    ) -> dict[str, RoleSpec]:
        """Returns every role as it is played on a task.

        Args:
            place: The task's place in its step or evaluation; None for one that is not among them.
            policy: Plays every role that it may play.

        Raises:
            ValueError: This policy plays no role.
        """
        if policy is not None and policy not in self.policies:
            raise ValueError(
                f"policy {policy!r} plays no role; expected one of "
                f"{', '.join(sorted(self.policies))}"
            )
        roles = {}
        for role, specs in self.members.items():
            matching = [spec for spec in specs if spec.policy == policy]
            roles[role] = (
                matching[0] if matching else specs[self._turn(role, len(specs), task, step, place)]
            )
        return roles

    def played_by(self, role: str, policy: str) -> RoleSpec:
        """Returns a role as one of its policies plays it.

        Raises:
            KeyError: The policy does not play this role.
        """
        return {spec.policy: spec for spec in self.members[role]}[policy]

    @property
    def policies(self) -> set[str]:
        """The policies that play a role."""
        return {spec.policy for specs in self.members.values() for spec in specs}

    @property
    def has_population(self) -> bool:
        """Returns whether several policies play one role."""
        return any(len(specs) > 1 for specs in self.members.values())

    def _turn(self, role: str, members: int, task: Task, step: int, place: int | None) -> int:
        """Returns the number of the member that plays a role on a task."""
        if members == 1:
            return 0
        seed = 0 if step == EVALUATION else self.seed
        if place is None:
            return derive_seed(seed, "member", step, role, task.id) % members
        rounds, within = divmod(place, members)
        order = list(range(members))
        random.Random(derive_seed(seed, "members", step, role, rounds)).shuffle(order)
        return order[within]


def make_cast(
    run: Run,
    args: Mapping[str, SimpleNamespace],
    chats: Mapping[str, ChatFormat],
    tools: Mapping[str, Tool],
) -> Cast:
    """Returns the roles of a run with their policies.

    Args:
        args, chats: By policy: its flags, and its chat format.

    Raises:
        ConfigurationError: A chat template refuses what a role shows, a parser or a function's name
            does not fit.
    """
    members: dict[str, list[RoleSpec]] = {name: [] for name in run.recipe.roles}
    problems: dict[Problem, None] = {}
    for name, policy in [
        (role, policy) for role in run.recipe.roles for policy in run.recipe.policies_of(role)
    ]:
        try:
            members[name].append(_role(run, name, args[policy], chats[policy], tools))
            _try_template(run, members[name][-1])
        except ConfigurationError as error:
            problems |= dict.fromkeys(error.problems)
    problems |= dict.fromkeys(_unlike_members(run.recipe.populations, chats))
    if problems:
        raise ConfigurationError(problems)
    return Cast(members, run.args.train.seed)


def _unlike_members(
    populations: Mapping[str, Sequence[str]], chats: Mapping[str, ChatFormat]
) -> Iterator[Problem]:
    """Yields the populations whose members have different tokenizers: a role's limits and stops are
    in tokens of one."""
    for role, policies in populations.items():
        digests = {policy: digest_of_tokenizer(chats[policy].tokenizer) for policy in policies}
        first, digest = next(iter(digests.items()))
        for policy in (name for name, other in digests.items() if other != digest):
            got = f"policies {first!r} and {policy!r} play it, and their tokenizers differ"
            fix = (
                "give its policies models of one family; other tokenizers need a role, or a run, "
                "of their own"
            )
            yield Problem("roles.member_tokenizers", at(role=role), got, fix=fix)


def _role(
    run: Run, name: str, args: SimpleNamespace, chat: ChatFormat, tools: Mapping[str, Tool]
) -> RoleSpec:
    role = run.role(name)
    own, find, finder = tuple(tools[tool] for tool in role.tools), None, None
    try:
        if wrong := clashes(own):
            raise ConfigurationError(wrong)
        if role.calls is not None:
            find = find_calls(role.calls, role.reasoning, chat.tokenizer, own)
            if not own:
                finder = partial(find_calls, role.calls, role.reasoning, chat.tokenizer)
        shown = functions_of(own) if role.calls else ()
        chat = chat.given([function.schema for function in shown], role.template)
    except ConfigurationError as error:
        raise ConfigurationError(problem.within(role=name) for problem in error.problems) from error
    return RoleSpec(
        name=name,
        policy=chat.policy,
        render=run.opening(name),
        chat=chat,
        sampling=Sampling(
            temperature=args.rollout.temperature,
            top_p=args.rollout.top_p,
            max_new_tokens=role.max_new_tokens or args.rollout.max_new_tokens,
            max_len=args.data.max_len,
            stop=tuple(role.stop),
            stop_ids=chat.stops,
        ),
        tools=own,
        max_turns=role.max_turns,
        render_next=followup_renderer(run.followup(name)),
        endless_tools_fail=role.endless_tools == "fail",
        find_calls=find if own else None,
        finder=finder,
        external=any(p.served for p in run.policies if p.name == chat.policy),
    )


def _try_template(run: Run, role: RoleSpec) -> None:
    """Render what a role will need, so that a template that refuses it is found before anything is
    started."""
    chat = role.chat
    opening = [{"role": r, "content": text or "?"} for r, text in empty_messages(run, role.name)]
    try:
        shown = chat.opening(opening)
        if unsafe := chat.foreign.unsafe(chat.rendered(opening)):
            got = f"{len(unsafe)} control tokens of its tokenizer cannot be kept out of texts"
            got += f" ({', '.join(map(repr, unsafe[:3]))}): who spells one would write it"
            fix = "a control token has two characters or more, and the tokenizer looks for it first"
            raise ConfigurationError(
                Problem("models.control_tokens", at(policy=chat.policy), got, fix=fix)
            )
        if role.find_calls and shown == chat.given(()).opening(opening):
            raise ConfigurationError(
                Problem(
                    "calls.template",
                    at(role=role.name),
                    (
                        f"calls: the chat template of policy {role.policy!r} shows no tools, so "
                        "its model has not learned "
                        "to call any"
                    ),
                    fix="leave `calls` out, and say in the prompt how tools are called",
                )
            )
        if role.max_turns > 1:
            each = [ToolResult(tool.name, "", "?", ok=True) for tool in role.tools]
            for results in (
                *([result] for result in each),
                *([each * 2] if role.find_calls else ()),
            ):
                chat.continuation([], role.answers(results))
            if role.find_calls and chat.shows_more(role.answers(each)):
                raise ConfigurationError(
                    Problem(
                        "calls.template_ids",
                        at(role=role.name),
                        (
                            f"calls: the chat template of policy {role.policy!r} shows a tool's "
                            "name or a call's id with its "
                            "answer, which it is not given"
                        ),
                        fix="leave `calls` out, and say in the prompt how tools are called",
                    )
                )
    except ConfigurationError:
        raise
    except Exception as error:  # a template raises what it likes
        raise ConfigurationError(template_refuses(chat.policy, role.name, error)) from None
    if role.find_calls and len(shown) >= role.sampling.max_len:
        raise ConfigurationError(
            Problem(
                "lengths.tools",
                at(role=role.name),
                (
                    f"its prompt and the tools that it may call have {len(shown)} tokens, which "
                    "leaves no room for an "
                    f"answer in --data.max_len {role.sampling.max_len}"
                ),
                fix="name fewer tools, or raise --data.max_len",
            )
        )
