"""The coach's flags, what can be wrong with them, and the endpoint that they describe."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import fields
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from marl_plugins import (
    ConfigurationError,
    Problem,
    above,
    at,
    at_least,
    between,
    meant,
    recipe_file,
)
from marl_plugins.asking.flags import (
    add_endpoint_flags,
    address_problems,
    key_problems,
    price_problems,
)

if TYPE_CHECKING:
    from marl_plugins import Run
    from marl_plugins.asking.endpoint import CoachEndpoint

PREFIX = "coach"
"""Of all flags, as messages of the client name them."""
DEFAULT_URL = "https://api.openai.com/v1"
NEEDED = ("httpx",)
"""Modules that a model at an endpoint requires."""
KINDS = {"rubric": "a rubric", "model": "a model at an endpoint", "policy": "a policy of the run"}
OF_A_MODEL = ("prompt", "last_prompt", "max_tokens", "deadline", "corrections", "memory")
OF_AN_ENDPOINT = (
    "base_url",
    "api_key_env",
    "form",
    "body",
    "cache",
    "record",
    "replay",
    "timeout",
    "retries",
    "concurrency",
    "per_minute",
    "price_in",
    "price_out",
    "budget",
    "budget_tokens",
)
OF_A_POLICY = {
    "train_every": "a policy of the run (--coach.policy NAME), which alone can be trained",
    "learn": "a policy of the run (--coach.policy NAME), which alone can be trained",
}
IRRELEVANT = {
    "rubric": dict.fromkeys(OF_A_MODEL + OF_AN_ENDPOINT, "a model's verdicts") | OF_A_POLICY,
    "policy": dict.fromkeys(OF_AN_ENDPOINT, "an endpoint"),
    "model": OF_A_POLICY,
}
"""By kind of coach: flags without effect on it, and what they are about."""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Adds the coach's flags to a parser."""
    group = parser.add_argument_group("coach (marl_plugins.coach)")
    kind = group.add_mutually_exclusive_group()
    kind.add_argument(
        "--coach.rubric",
        type=recipe_file,
        metavar="FILE",
        help="rules in a .py file with `RUBRIC`; no model, no network",
    )
    kind.add_argument(
        "--coach.model",
        metavar="NAME",
        help="a model at an OpenAI-compatible endpoint, in the rubric's place",
    )
    kind.add_argument(
        "--coach.policy",
        metavar="NAME",
        help="a policy of the recipe with `trainable: false`, on the run's own engines",
    )
    group.add_argument(
        "--coach.train_every",
        type=at_least(1),
        metavar="N",
        help="train the policy that judges in every N-th step, on how well its scores predict what "
        "--coach.learn says",
    )
    group.add_argument(
        "--coach.learn",
        choices=["outcome", "effect"],
        default="outcome",
        help="what a policy that is trained predicts: the outcome, or how far it lies above that "
        "of the task's other samples",
    )
    add = group.add_argument
    add(
        "--coach.ground_truth",
        choices=["last", "none"],
        default="last",
        help="what is judged with the label: the last action of the last role, or no action",
    )
    add(
        "--coach.max_missing",
        type=between(0, 1),
        default=0.2,
        metavar="SHARE",
        help="leave a step out when more of its verdicts are missing",
    )
    add(
        "--coach.debias",
        action="store_true",
        help="correct the scores of a task's type (`metadata: type`) by the bias that the bias "
        "monitor finds",
    )
    _add_flags_of_models(group)
    _add_flags_of_endpoints(group)


def _add_flags_of_models(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--coach.prompt",
        type=recipe_file,
        metavar="FILE",
        help="prompt for every action but the last; default: the package's",
    )
    add(
        "--coach.last_prompt",
        type=recipe_file,
        metavar="FILE",
        help="prompt for the last role's last action; may use {label} and {answer}",
    )
    add(
        "--coach.max_tokens",
        type=at_least(1),
        default=1024,
        help="length of one verdict, its correction included",
    )
    add(
        "--coach.corrections",
        action="store_true",
        help="ask for a better action as well; `openrlhf export RUN --table sft` has them",
    )
    add(
        "--coach.memory",
        action="store_true",
        help="tell the model how the role that it judges has been doing in training, and of its "
        "own bias ({training} in prompts)",
    )
    add(
        "--coach.deadline",
        type=above(0),
        default=300.0,
        metavar="SECONDS",
        help="for one verdict, queueing and repeats included: the longest that a step waits after "
        "its last action",
    )


def _add_flags_of_endpoints(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--coach.base_url",
        metavar="URL",
        default=DEFAULT_URL,
        help="the endpoint: OpenAI, vLLM, SGLang, Ollama (http://localhost:11434/v1), or another "
        "that speaks its protocol",
    )
    add(
        "--coach.api_key_env",
        metavar="NAME",
        default="OPENAI_API_KEY",
        help="environment variable that holds the key; the key itself is never written anywhere",
    )
    add(
        "--coach.form",
        choices=["auto", "json", "text"],
        default="auto",
        help="structured output, lines of text, or the first of the two that the endpoint has",
    )
    add_endpoint_flags(group, PREFIX, "verdicts")
    add("--coach.record", type=recipe_file, metavar="FILE", help="keep all verdicts of this run")
    add(
        "--coach.replay",
        type=recipe_file,
        metavar="FILE",
        help="answer from what was recorded, without an endpoint",
    )


def kind_of(args: Any) -> str | None:
    """Returns the kind of coach that the flags (`args.rubric`, ...) name; they exclude each other,
    so there is at most one."""
    return next((kind for kind in KINDS if getattr(args, kind)), None)


def check_flags(run: Run) -> list[Problem]:
    """Returns what is wrong with the flags beyond the range of each, and warnings."""
    kind = kind_of(run.args.coach)
    if kind is None:
        return [
            Problem(
                "coach.none",
                where=at(plugin="marl_plugins.coach"),
                got="none",
                expected="one of --coach.rubric FILE, --coach.model NAME and --coach.policy NAME",
                fix="several together are `coach: {members: ...}` in the recipe",
            )
        ]
    problems = _irrelevant_flags(run, kind)
    if kind == "policy":
        problems += policy_problems(run, run.args.coach)
    problems += _short_corrections(run)
    if kind == "model":
        problems += _too_slow(run)
    return problems


def _irrelevant_flags(run: Run, kind: str) -> list[Problem]:
    """Flags that were given together with the coach and have no effect on its kind."""
    args = run.args.coach
    named = run.on_command_line if f"coach.{kind}" in run.on_command_line else run.given
    return [
        Problem(
            "coach.irrelevant",
            where=at(flag=f"coach.{flag}"),
            got=f"is about {what}, and this coach is {KINDS[kind]} ({getattr(args, kind)})",
            fix="remove it",
        )
        for flag, what in IRRELEVANT[kind].items()
        if f"coach.{flag}" in named
    ]


def policy_problems(run: Run, coach: Any) -> list[Problem]:
    """Returns what is wrong with the policy that is to judge (`coach.policy`,
    `coach.max_tokens`)."""
    name, longest = coach.policy, coach.max_tokens
    trainable = {p.name: p.trainable or bool(p.follows) for p in run.policies}
    if name not in trainable:
        frozen = {known for known, is_trained in trainable.items() if not is_trained}
        frozen |= {known for known, config in run.recipe.policies.items() if not config.trainable}
        fix = (
            meant(name, frozen)
            or f"add it to the recipe: `policies: {{{name}: {{model: ..., trainable: false}}}}`"
        )
        got = f"there is no frozen policy of the name {name!r}"
        return [Problem("coach.no_policy", at(flag="coach.policy"), got, fix=fix)]
    if coach.train_every:
        problems = _training_problems(run, coach)
    elif trainable[name]:
        problems = [
            Problem(
                "coach.trained_policy",
                at(flag="coach.policy", policy=name),
                "is trained, and would be on its own verdicts, which is not supported",
                fix=(
                    "name one with `trainable: false` that follows none, or one without a role and "
                    "--coach.train_every N, which trains it on how well its scores predict the "
                    "outcome"
                ),
            )
        ]
    else:
        problems = []
    if problems:
        return problems
    args = run.policy_args.get(name)
    if args is not None and longest >= args.data.max_len:
        return [
            Problem(
                "coach.no_room",
                got=(
                    f"--coach.max_tokens {longest} leaves no room for a question in --data.max_len "
                    f"{args.data.max_len} of policy {name!r}"
                ),
                flags=("coach.max_tokens", "data.max_len"),
            )
        ]
    return []


def _training_problems(run: Run, coach: Any) -> list[Problem]:
    """Returns what is wrong with a policy of the run that is to judge and to be trained on it."""
    name = coach.policy
    (policy,) = (p for p in run.policies if p.name == name)
    if policy.follows or not policy.trainable:
        return [
            Problem(
                "coach.untrained",
                at(flag="coach.train_every", policy=name),
                f"follows {policy.follows!r}" if policy.follows else "has `trainable: false`",
                fix="give it a `model` of its own that is trained, or leave out the flag",
            )
        ]
    if roles := run.recipe.roles_of(name):
        return [
            Problem(
                "coach.plays",
                at(flag="coach.train_every", policy=name),
                (
                    f"plays {' and '.join(map(repr, roles))}, and would be trained on its own "
                    "word, because it scores these actions itself"
                ),
                fix="map the role to another policy, or let another one judge",
            )
        ]
    if coach.learn == "effect" and run.args.rollout.n_samples_per_prompt == 1:
        return [
            Problem(
                "coach.one_sample",
                at(flag="coach.learn", policy=name),
                "compares the outcomes of a task's samples, and each task has one",
                fix="raise --rollout.n_samples_per_prompt, or leave out the flag",
            )
        ]
    return []


def judging_themselves(run: Run, coaches: Iterable[str | None]) -> list[Problem]:
    """Returns the policies of the run that judge roles which they play themselves.

    Args:
        coaches: The policies that judge.
    """
    return [
        Problem(
            "coach.judges_itself",
            at(policy=name),
            f"judges its own actions, as {' and '.join(map(repr, roles))}: such scores favour what "
            "it would say itself",
            fix="let another policy judge, or map the role to another one",
            severity="warning",
        )
        for name in dict.fromkeys(filter(None, coaches))
        if (roles := run.recipe.roles_of(name))
    ]


def _short_corrections(run: Run) -> list[Problem]:
    """Room for a verdict that does not hold a correction as long as an action may be."""
    longest = max(
        role.max_new_tokens or run.args.rollout.max_new_tokens or 0
        for role in run.recipe.roles.values()
    )
    if not run.args.coach.corrections or run.args.coach.max_tokens > longest:
        return []
    got = (
        f"{run.args.coach.max_tokens} leaves no room for a correction of {longest} tokens, which "
        "an action may have; a verdict that is cut off is missing"
    )
    where, fix = at(flag="coach.max_tokens"), "raise it, or lower --rollout.max_new_tokens"
    return [Problem("coach.short_corrections", where, got, fix=fix, severity="warning")]


def _too_slow(run: Run) -> list[Problem]:
    """A limit per minute at which a step's verdicts cannot come in time."""
    args, rollout = run.args.coach, run.args.rollout
    if not args.per_minute:
        return []
    actions = rollout.batch_size * rollout.n_samples_per_prompt * len(run.recipe.roles)
    in_time = args.per_minute * args.deadline / 60
    if in_time >= actions:
        return []
    got = (
        f"{args.per_minute:g} is {in_time:.0f} verdicts within --coach.deadline {args.deadline:g} "
        f"s, and a step has some {actions} actions: verdicts will be missing"
    )
    where, fix = at(flag="coach.per_minute"), "raise one of the two, or lower --rollout.batch_size"
    return [Problem("coach.too_slow", where, got, fix=fix, severity="warning")]


def endpoint_of(args: Any) -> CoachEndpoint:
    """Returns the endpoint that the flags describe (`args.base_url`, ...).

    Raises:
        ConfigurationError: They contradict each other.
    """
    from marl_plugins.asking.endpoint import CoachEndpoint

    problems = [
        *price_problems(PREFIX, args),
        *address_problems(args.base_url, at(flag="coach.base_url")),
        *(key_problems(args.api_key_env, "--coach.api_key_env") if args.model else []),
    ]
    if problems:
        raise ConfigurationError(problems)
    names = {f.name for f in fields(CoachEndpoint)} - {"prefix", "body", "keys"}
    return CoachEndpoint(
        PREFIX, body=json.loads(args.body or "{}"), **{n: getattr(args, n) for n in names}
    )


def require_modules() -> None:
    """Checks that what asks an endpoint is installed.

    Raises:
        ConfigurationError: It is not.
    """
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigurationError(
            Problem(
                "coach.modules",
                got=(
                    f"--coach.model needs {', '.join(missing)}, which is not installed: pip "
                    "install 'openrlhf-marl[coach]'"
                ),
                flags=("coach.model",),
            )
        )
