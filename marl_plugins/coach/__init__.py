"""The coach: a score from 0 to 10 for every action, while the rollout goes on (MAPPA, section 3).

Three kinds: `--coach.rubric FILE`, clear rules, offline and deterministic; `--coach.model NAME`, a language model behind any
OpenAI-compatible endpoint; `--coach.policy NAME`, a frozen policy of the run, on the run's own engines. Each sees what the
agent saw and did, never the label; only for the last action of the last role does it get the label too, and with
`--coach.ground_truth none` not even there.

A verdict that cannot be had is missing: that action is not trained on, enters no statistics, and is counted. Where more than
`--coach.max_missing` of a step's verdicts are missing the whole step is left out, and three such steps end the run.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Generator, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from marl_plugins import hookimpl
from marl_plugins.core.failures import ConfigurationError, InfrastructureFailure, RunPaused, nearest
from marl_plugins.core.workflow import Seen, SeenLast
from marl_plugins.run import recipe_policy

if TYPE_CHECKING:
    import argparse

    from marl_plugins.asking.accounts import Budget
    from marl_plugins.asking.asker import Asker
    from marl_plugins.asking.endpoint import Endpoint
    from marl_plugins.coach.verdict import Verdict
    from marl_plugins.core.trajectory import Action, Trajectory
    from marl_plugins.run import Policy, Run

PROMPTS = Path(__file__).parent / "prompts"
NEEDED = ("openai", "tenacity", "aiolimiter")
"""What a model at an endpoint wants installed."""


class Coach(Protocol):
    """Judges an action; raises `InfrastructureFailure` where it has no verdict."""

    async def judge(self, action: Action, seen: Seen) -> Verdict: ...


class _State:
    """The coach of the run, and the verdicts of the step in hand."""

    def __init__(self) -> None:
        self.coach: Coach | None = None
        self.asker: Asker | None = None
        self.budget: Budget | None = None
        self.ground_truth = True
        self.max_missing = 0.0
        self.verdicts: dict[int, tuple[Verdict | None, bool]] = {}
        """By `id(action)`: the verdict, None for a missing one, and whether it was that of a last action."""
        self.metrics: dict[str, float] = {}


_state = _State()


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("coach (marl_plugins.coach)")
    add = group.add_argument
    add("--coach.rubric", metavar="FILE", help="rules in a .py file with `RUBRIC`; no model, no network")
    add("--coach.model", metavar="NAME", help="a model at an OpenAI-compatible endpoint, in the rubric's place")
    add("--coach.policy", metavar="NAME", help="a policy of the recipe with `trainable: false`, on the run's own engines")
    add(
        "--coach.ground_truth",
        choices=["last", "none"],
        default="last",
        help="who is judged with the label: the last action of the last role, or nobody",
    )
    add(
        "--coach.max_missing",
        type=float,
        default=0.2,
        metavar="SHARE",
        help="leave a step out when more of its verdicts are missing",
    )
    add(
        "--coach.base_url",
        metavar="URL",
        default="https://api.openai.com/v1",
        help="the endpoint: OpenAI, vLLM, SGLang, Ollama (http://localhost:11434/v1), or another that speaks its protocol",
    )
    add(
        "--coach.api_key_env",
        metavar="NAME",
        default="OPENAI_API_KEY",
        help="environment variable that holds the key; the key itself is never written anywhere",
    )
    add("--coach.prompt", metavar="FILE", help="prompt for every action but the last; default: the package's")
    add("--coach.last_prompt", metavar="FILE", help="prompt for the last role's last action; may use {label} and {answer}")
    add(
        "--coach.form",
        choices=["auto", "json", "text"],
        default="auto",
        help="structured output, lines of text, or the first of the two that the endpoint has",
    )
    add("--coach.max_tokens", type=int, default=1024, help="length of one verdict")
    add("--coach.body", metavar="JSON", help="fields for every request; null takes one out: '{\"temperature\": null}'")
    add("--coach.timeout", type=float, default=60.0, metavar="SECONDS", help="for one request")
    add(
        "--coach.deadline",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="for one verdict, queueing and repeats included: a step waits at most so long after its last action",
    )
    add(
        "--coach.retries",
        type=int,
        default=6,
        help="repeats of a request that failed in a way that may pass (429, 5xx, ...)",
    )
    add("--coach.concurrency", type=int, default=32, help="requests in flight, in the whole run")
    add("--coach.per_minute", type=float, metavar="N", help="requests begun per minute, in the whole run")
    add("--coach.price_in", type=float, default=0.0, metavar="USD", help="of a million tokens of prompts")
    add("--coach.price_out", type=float, default=0.0, metavar="USD", help="of a million tokens of answers")
    add("--coach.budget", type=float, metavar="USD", help="what the run may spend; past it the run is saved and ends")
    add("--coach.budget_tokens", type=int, metavar="N", help="the same in tokens, of prompts and answers together")
    add("--coach.cache", metavar="FILE", help="verdicts of earlier runs, added to; the same question is never paid twice")
    add("--coach.record", metavar="FILE", help="keep all verdicts of this run")
    add("--coach.replay", metavar="FILE", help="answer from what was recorded, without an endpoint")


@hookimpl(wrapper=True)
def marl_policies(run: Run) -> Generator[None, list[Policy], list[Policy]]:
    """The policies with the coach's among them, which need not play a role."""
    policies = yield
    name = run.args.coach.policy
    if name not in run.recipe.policies or any(p.name == name for p in policies):
        return policies
    kinds = _kinds(run)
    if "policy" in kinds:
        return [*policies, recipe_policy(run, name)]
    run.idle[name] = f"--coach.{kinds[0]}"
    return policies


@hookimpl
def marl_configure(run: Run) -> list[str]:
    global _state
    _state = _State()
    args, kinds = run.args.coach, _kinds(run)
    if len(kinds) != 1:
        got = " and ".join(f"--coach.{kind}" for kind in kinds) or "none"
        return [
            "marl_plugins.coach needs one of --coach.rubric FILE, --coach.model NAME and --coach.policy NAME, got " + got
        ]
    kind, name = kinds[0], getattr(args, kinds[0])
    run.given -= {f"coach.{other}" for other in KINDS if other != kind}  # a recipe's, which the command line beats
    problems = _without_effect(run, kind) + _out_of_range(args)
    _state.ground_truth, _state.max_missing = args.ground_truth == "last", args.max_missing
    try:
        if kind == "rubric":
            from marl_plugins.coach.rubric import RubricCoach, load_rubric

            path = _path(run, "rubric")
            assert path is not None
            _state.coach = RubricCoach(load_rubric(path, list(run.recipe.roles)))
        elif kind == "policy":
            problems += _policy_problems(run, name)
            _state.coach = _policy_coach(run, name)
        else:
            problems += _endpoint_problems(args)
            run.warnings += _too_slow(run)
            if not problems:
                _state.coach = _endpoint_coach(run)
    except ConfigurationError as error:
        problems += error.problems
    return problems


KINDS = {"rubric": "a rubric", "model": "a model at an endpoint", "policy": "a policy of the run"}
AT_LEAST = {"max_tokens": 1, "retries": 0, "concurrency": 1, "price_in": 0, "price_out": 0}
MORE_THAN_0 = ("timeout", "deadline", "per_minute", "budget", "budget_tokens")
OF_A_MODEL = ("prompt", "last_prompt", "max_tokens", "deadline")
OF_AN_ENDPOINT = (
    *("base_url", "api_key_env", "form", "body", "cache", "record", "replay", "timeout", "retries", "concurrency"),
    *("per_minute", "price_in", "price_out", "budget", "budget_tokens"),
)


def _kinds(run: Run) -> list[str]:
    """The kinds of coach that are asked for: on the command line, which beats the recipe, or else in the recipe."""
    given = [kind for kind in KINDS if getattr(run.args.coach, kind)]
    return [kind for kind in given if f"coach.{kind}" in run.on_command_line] or given


def _without_effect(run: Run, kind: str) -> list[str]:
    """Flags that were given beside the coach and mean nothing to its kind."""
    about = {
        "rubric": dict.fromkeys(OF_A_MODEL + OF_AN_ENDPOINT, "a model's verdicts"),
        "policy": dict.fromkeys(OF_AN_ENDPOINT, "an endpoint"),
    }
    beside = run.on_command_line if f"coach.{kind}" in run.on_command_line else run.given
    nobody = "coach.last_prompt" in beside and run.args.coach.ground_truth == "none" and kind != "rubric"
    with_label = ["--coach.last_prompt is about the action that is judged with the label, and --coach.ground_truth is none"]
    return (with_label if nobody else []) + [
        f"--coach.{flag} is about {what}, and this coach is {KINDS[kind]} ({getattr(run.args.coach, kind)})"
        for flag, what in about.get(kind, {}).items()
        if f"coach.{flag}" in beside
    ]


def _policy_problems(run: Run, name: str) -> list[str]:
    trainable = {p.name: p.trainable for p in run.policies}
    if trainable.get(name):
        return [
            f"--coach.policy {name}: that policy is trained, and would be on its own verdicts, which is not supported; name one "
            "with `trainable: false`"
        ]
    if name not in trainable:
        frozen = {p.name for p in run.policies if not p.trainable}
        frozen |= {known for known, config in run.recipe.policies.items() if not config.trainable}
        cure = nearest(name, frozen) or f"; add it to the recipe: `policies: {{{name}: {{model: ..., trainable: false}}}}`"
        return [f"--coach.policy {name}: there is no frozen policy of that name{cure}"]
    args, longest = run.policy_args.get(name), run.args.coach.max_tokens
    if args is not None and longest >= args.data.max_len:
        return [
            f"--coach.max_tokens {longest} leaves no room for a question in --data.max_len {args.data.max_len} of policy {name!r}"
        ]
    return []


def _out_of_range(args: Any) -> list[str]:
    problems = []
    for name, least in AT_LEAST.items():
        if not least <= getattr(args, name) < math.inf:
            problems.append(f"--coach.{name} {getattr(args, name):g}: expected {least} or more")
    for name in MORE_THAN_0:
        value = getattr(args, name)
        if value is not None and not 0 < value < math.inf:
            problems.append(f"--coach.{name} {value:g}: expected more than 0")
    if not 0.0 <= args.max_missing <= 1.0:
        problems.append(f"--coach.max_missing {args.max_missing:g}: expected a share, 0 to 1")
    return problems


def _endpoint_problems(args: Any) -> list[str]:
    problems = []
    if args.budget is not None and not (args.price_in or args.price_out):
        problems.append(
            "--coach.budget counts dollars and needs --coach.price_in and --coach.price_out, or use --coach.budget_tokens"
        )
    if args.replay and (args.cache or args.record):
        problems.append(
            "--coach.replay answers from a recording; --coach.cache and --coach.record would have nothing to add"
        )
    try:
        if not isinstance(json.loads(args.body or "{}"), dict):
            raise ValueError("expected an object")
    except ValueError as error:
        problems.append(f"--coach.body {args.body!r}: {error}; expected a JSON object of request fields")
    return problems


def _too_slow(run: Run) -> list[str]:
    """What is said of a limit per minute at which a step's verdicts cannot come in time."""
    args, rollout = run.args.coach, run.args.rollout
    if not args.per_minute:
        return []
    actions = rollout.batch_size * rollout.n_samples_per_prompt * len(run.recipe.roles)
    in_time = args.per_minute * args.deadline / 60
    if in_time >= actions:
        return []
    return [
        f"--coach.per_minute {args.per_minute:g} is {in_time:.0f} verdicts within --coach.deadline {args.deadline:g} s, and a step "
        f"has some {actions} actions: verdicts will be missing; raise one of the two, or lower --rollout.batch_size"
    ]


def _path(run: Run, name: str) -> Path | None:
    """A flag's file: a recipe's is relative to the recipe."""
    value = getattr(run.args.coach, name)
    return None if value is None else Path(value) if f"coach.{name}" in run.on_command_line else run.folder / value


def _policy_coach(run: Run, name: str) -> Coach:
    from marl_plugins.asking.policy import PolicyAsker

    _state.asker = PolicyAsker(run, name, run.args.coach.max_tokens, run.args.coach.deadline)
    return _model_coach(run, _state.asker)


def endpoint_of(args: Any) -> Endpoint:
    """The endpoint that the flags describe (`args.base_url`, ...).

    Raises:
        ConfigurationError: They do not.
    """
    from marl_plugins.asking.endpoint import Endpoint

    if problems := _endpoint_problems(args):
        raise ConfigurationError(problems)
    names = {f.name for f in fields(Endpoint)} - {"body"}
    return Endpoint(body=json.loads(args.body or "{}"), **{n: getattr(args, n) for n in names})


def _endpoint_coach(run: Run) -> Coach:
    if missing := [name for name in NEEDED if find_spec(name) is None]:
        raise ConfigurationError(
            f"--coach.model needs {', '.join(missing)}, which is not installed: pip install 'openrlhf-marl[coach]'"
        )
    from marl_plugins.asking.accounts import Answers, Budget
    from marl_plugins.asking.endpoint import Client

    args = run.args.coach
    replay = _path(run, "replay")
    answers = Answers(replay) if replay else Answers()
    if replay is not None and not answers.known:
        raise ConfigurationError(f"--coach.replay {replay}: holds no verdicts; --coach.record FILE keeps those of a run")
    _state.budget = Budget(args.budget_tokens, args.budget, (args.price_in, args.price_out))
    _state.asker = Client(endpoint_of(args), _state.budget, answers, replay is not None)
    return _model_coach(run, _state.asker)


@hookimpl
def marl_start(run: Run) -> None:
    """Open the endpoint's files, and ask it once.

    Raises:
        ConfigurationError: A file cannot be had, or the endpoint does not answer.
    """
    from marl_plugins.coach.model import ModelCoach

    if _state.budget is not None:
        from marl_plugins.asking.accounts import Answers
        from marl_plugins.asking.endpoint import Client

        assert isinstance(_state.asker, Client)
        _state.budget.open(run.output / "coach_spent.json", run.args.ckpt.load_enable)
        cache, record = _path(run, "cache"), _path(run, "record")
        if not _state.asker.replay:
            _state.asker.answers = Answers(cache, [path for path in (cache, record) if path is not None])
    if isinstance(_state.coach, ModelCoach):
        _state.coach.probe()


def _model_coach(run: Run, asker: Asker) -> Coach:
    from marl_plugins.coach.model import ModelCoach, read_prompt

    prompts = (
        read_prompt(_path(run, "prompt") or PROMPTS / "action.md", with_label=False),
        read_prompt(_path(run, "last_prompt") or PROMPTS / "last_action.md", with_label=True),
    )
    duties = {name: (run.folder / role.prompt).read_text(encoding="utf-8") for name, role in run.recipe.roles.items()}
    return ModelCoach(asker, prompts, duties)


def shared_asker() -> Asker | None:
    """What the coach is asked through, where it is a model: what else asks it does so within the same limits."""
    return _state.asker


@hookimpl
def marl_score_action(action: Action, seen: Seen) -> Awaitable[float]:
    return _score(action, seen)


async def _score(action: Action, seen: Seen) -> float:
    assert _state.coach is not None
    last = isinstance(seen, SeenLast)
    if last and not _state.ground_truth:
        seen = Seen(**{f.name: getattr(seen, f.name) for f in fields(Seen)})
    try:
        verdict = await _state.coach.judge(action, seen)
    except (InfrastructureFailure, asyncio.CancelledError) as failure:  # cancelled: it did not come in time
        _state.verdicts[id(action)] = (None, last)
        action.explanation = f"no verdict: {failure or 'it did not come in time'}"
        raise
    _state.verdicts[id(action)] = (verdict, last)
    action.explanation = verdict.explanation
    return verdict.share


@hookimpl
def marl_credit(trajectories: Sequence[Trajectory]) -> Sequence[Trajectory]:
    """Count the step's verdicts, and leave the step out where too many are missing.

    Raises:
        RunPaused: The budget is spent.
    """
    judged = [
        (t, a, *_state.verdicts[id(a)])
        for t in trajectories
        if not t.infrastructure_failure
        for a in t.actions
        if id(a) in _state.verdicts
    ]
    _state.metrics = _measured(judged)
    leave_out_if_too_many_are_missing([a for _, a, _, _ in judged], [a for _, a, verdict, _ in judged if verdict is None])
    return trajectories


def leave_out_if_too_many_are_missing(judged: Sequence[Action], missing: Sequence[Action]) -> None:
    """Leave a step out whole, whose judgements by a model are missing to too large a part.

    Raises:
        RunPaused: They are missing because the budget is spent.
    """
    spent = _state.budget and _state.budget.spent()
    if spent and missing:
        raise RunPaused(f"the coach's budget is spent: {spent}; raise it to go on")
    if len(missing) > _state.max_missing * len(judged):
        for action in judged:
            action.reward, action.unscored = None, action.unscored or "coach_step_left_out"
        _state.metrics["coach/step_left_out"] = 1.0


def _measured(judged: Sequence[tuple[Trajectory, Action, Verdict | None, bool]]) -> dict[str, float]:
    """The step's verdicts in numbers: by role and by the tasks' `type`, and how far they agree with the verifier."""
    metrics: dict[str, float] = {}
    by_role: dict[str, list[float]] = defaultdict(list)
    by_type: dict[str, list[float]] = defaultdict(list)
    missing: dict[str, int] = defaultdict(int)
    agree: list[bool] = []
    for trajectory, action, verdict, last in judged:
        if verdict is None:
            missing[action.role] += 1
            continue
        by_role[action.role].append(verdict.share)
        if "type" in trajectory.task.metadata:
            by_type[f"{action.role}/{trajectory.task.metadata['type']}"].append(verdict.share)
        if last and trajectory.outcome is not None:
            right = verdict.share >= 0.5 if verdict.correct is None else verdict.correct
            agree.append(right == (trajectory.outcome >= 0.5))
    for role in sorted(by_role.keys() | missing.keys()):
        scores = by_role[role]
        if scores:
            metrics[f"coach/{role}/score"] = statistics.fmean(scores)
            metrics[f"coach/{role}/spread"] = statistics.pstdev(scores)
        metrics[f"coach/{role}/missing"] = missing[role] / (missing[role] + len(scores))
    for name, scores in sorted(by_type.items()):
        metrics[f"coach/{name}/score"] = statistics.fmean(scores)
    if judged:
        metrics["coach/missing"] = sum(missing.values()) / len(judged)
    if agree:
        metrics["coach/agreement"] = statistics.fmean(agree)
    return metrics


@hookimpl
def marl_log(step: int, metrics: dict[str, float]) -> None:
    """What was judged in the step, how long it took and what it has cost so far."""
    metrics |= _state.metrics
    if _state.asker is not None:
        counts, seconds = _state.asker.take()
        metrics |= {f"coach/{name}": float(counts[name]) for name in _state.asker.counted}
        if seconds:
            metrics["coach/seconds/mean"] = statistics.fmean(seconds)
            metrics["coach/seconds/p99"] = sorted(seconds)[int(0.99 * (len(seconds) - 1))]
    if _state.budget is not None:
        metrics["coach/tokens"] = float(_state.budget.spent_in + _state.budget.spent_out)
        if _state.budget.price != (0.0, 0.0):
            metrics["coach/cost"] = _state.budget.cost
    _state.verdicts.clear()
    _state.metrics = {}
