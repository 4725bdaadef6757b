"""Checks whether prompts and tasks leave room in `--data.max_len`, counted with the tokenizer of
each role's model.

What is counted is the least that a role is shown: its prompt files with empty fields and, where the
rehearsal showed it the task, each task's prompt; the answers of others are counted apart, at their
greatest length. A folder's tokenizer is asked without its chat template, whose own tokens are not
counted.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from marl_plugins.core.calls import functions_of
from marl_plugins.core.problems import Problem, at
from marl_plugins.core.recipe.prompts import fields_of, prompt_renderer
from marl_plugins.core.recipe.tiny import count_tokens, is_tiny, tokens_of
from marl_plugins.core.run import Run
from marl_plugins.core.tools import Tool
from marl_plugins.core.trajectory import Task, Trajectory
from marl_plugins.engine.plan.models import read_object
from marl_plugins.engine.plan.plan import Plan, RoleLengths
from marl_plugins.engine.plan.rehearsed import RehearsalResult
from marl_plugins.engine.plan.resolve_plugins import tools_of
from marl_plugins.engine.plan.script import ONES
from marl_plugins.engine.plan.tasks import known_tasks

Messages = Sequence[tuple[str, str]]
"""Chat messages: role and text of each."""


@dataclass(frozen=True)
class Counter:
    """A counter of tokens, and what it counts with."""

    count_messages: Callable[[Messages], int]
    count_text: Callable[[str], int]
    source: str


@dataclass
class Lengths:
    """The lengths of prompts and tasks, and what they show: what cannot work or may not, and what
    each role is shown."""

    problems: list[Problem] = field(default_factory=list)
    roles: dict[str, RoleLengths] = field(default_factory=dict)


def check_lengths(plan: Plan) -> Lengths:
    """Compares what each role is shown with the length of its policy, after the rehearsal."""
    run, report = plan.run, Lengths()
    tasks = [t for split in ("train", "eval") for t in known_tasks(plan, split) or ()]
    models = {p.name: p.model for p in run.policies}
    tools = tools_of(plan.plugins, run)
    counters = {model: counter_of(model) for model in dict.fromkeys(models.values())}
    for role in run.recipe.mapped_roles:
        found = []
        for limit, model in _looked_at(run, role, models):
            counter = counters[model]
            if counter is None:
                found.append(RoleLengths("not checked: no tokenizer here"))
                continue
            line, shown = _check_role(report, run, role, limit, counter, tasks, tools)
            lengths = RoleLengths(line, shown, _alike(run, role, counter))
            if plan.options.sequences == "trees":
                lengths = replace(lengths, line=line + _saved_by_trees(run, role, lengths.alike))
            found.append(lengths)
        lines = dict.fromkeys(lengths.line for lengths in found)
        longest = max(found, key=lambda lengths: lengths.shown)
        report.roles[role] = replace(longest, line="; ".join(lines))
    report.problems = list(dict.fromkeys(report.problems))
    return report


def _looked_at(run: Run, role: str, models: Mapping[str, str]) -> list[tuple[int, str]]:
    """Returns length and model of the policies that play a role, of equal ones once."""
    policies = run.recipe.policies_of(role)
    return list(dict.fromkeys((int(run.policy_args[p].data.max_len), models[p]) for p in policies))


def _offered(run: Run, role: str, tools: Mapping[str, Tool]) -> str:
    """Returns what a chat template has to show of a role's tools, as far as it is known; empty for
    a role without `calls`."""
    config = run.role(role)
    schemas = (
        [f.schema for f in functions_of([tools[name] for name in config.tools])]
        if config.calls
        else []
    )
    return json.dumps(schemas) if schemas else ""


def _check_role(
    report: Lengths,
    run: Run,
    role: str,
    limit: int,
    counter: Counter,
    tasks: Sequence[Task],
    tools: Mapping[str, Tool],
) -> tuple[str, int]:
    """Checks a role as one of its policies plays it, and returns the line that says what was
    counted, and its tokens without answers.

    Args:
        limit: Tokens of the policy's longest sequence.
    """
    empty = empty_messages(run, role)
    fixed = counter.count_messages(empty)
    line, longest = f"{fixed} tokens of prompt", 0
    if offered := _offered(run, role, tools):
        fixed += (tokens := counter.count_text(offered))
        line += f" + {tokens} of its tools"
    if unknown := [tool for tool in run.role(role).tools if tools[tool].functions == ()]:
        line += f" + what {', '.join(unknown)} offers, known at the start" * bool(
            run.role(role).calls
        )
    flags = ("data.max_len",)
    if fixed >= limit:
        file = run.folder / (run.role(role).prompt or "")
        got = (
            f"its prompt ({file}) has {fixed} tokens with empty fields, which leaves no room for "
            f"an answer in --data.max_len {limit}"
        )
        fix = "shorten it or raise --data.max_len"
        report.problems.append(Problem("lengths.prompt", at(role=role), got, fix=fix, flags=flags))
    elif tasks and (times := _times_shown(run, role, empty)):
        lengths = _task_lengths(tasks, counter, times, limit - fixed - 1)
        longest = max(lengths)
        line += f" + {longest} of the longest task"
        full = sum(fixed + length >= limit for length in lengths)
        if full == len(tasks):
            got, fix = f"no task leaves room for an answer in --data.max_len {limit}", "raise it"
            report.problems.append(
                Problem("lengths.tasks", at(role=role), got, fix=fix, flags=flags)
            )
        elif full:
            got = (
                f"{full} of {len(tasks)} tasks leave no room for an answer in --data.max_len "
                f"{limit} (the longest is {tasks[lengths.index(longest)].id!r}, "
                f"{fixed + longest} tokens with the prompt)"
            )
            fix = "they count as failures of the agents"
            report.problems.append(
                Problem("lengths.some_tasks", at(role=role), got, fix=fix, flags=flags).as_warning()
            )
    if times := _times_continued(run, role):
        later = counter.count_messages(empty_messages(run, role, later=True))
        line += f" + {times} x {later} of later messages"
        fixed += times * later
    answers = answers_shown(run, role)
    if answers:
        line += f" + up to {answers} of answers"
    if answers and fixed < limit <= (total := fixed + longest + answers):
        got = (
            f"its prompt, the longest task and the answers that it is shown have up to {total} "
            "tokens"
        )
        fix = (
            f"where that leaves no room for its own in --data.max_len {limit}, the trajectory "
            "counts as a failure of the agents"
        )
        report.problems.append(
            Problem("lengths.answers", at(role=role), got, fix=fix, flags=flags).as_warning()
        )
    line += f", of {limit} (max_new_tokens {run.longest_answer(role)}; {counter.source})"
    return line, fixed + longest


def _alike(run: Run, role: str, counter: Counter) -> int:
    """Returns the tokens with which a role's rows begin alike, at least."""
    one, other = ("".join(text for _, text in empty_messages(run, role, value=v)) for v in "01")
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return counter.count_text("".join(letter for letter, _ in same))


def _saved_by_trees(run: Run, role: str, alike: int) -> str:
    samples = run.args.rollout.n_samples_per_prompt
    of_task = samples > 1 and not answers_shown(run, role)
    once = f", all of it once for {samples} samples of a task" * of_task
    return f"; as trees {alike} tokens of prompt once in an optimiser step{once}"


def _times_continued(run: Run, role: str) -> int:
    """Returns how many calls continued one conversation of a role in the rehearsal, at most."""
    calls = [
        a.call
        for t in run.state(RehearsalResult).trajectories.values()
        for a in t.actions
        if a.role == role
    ]
    return max(calls, default=0)


def empty_messages(run: Run, role: str, later: bool = False, value: str = "") -> Messages:
    """Returns a role's opening messages with nothing, or always the same, in their fields; or
    `later`, the message of a call that continues them."""
    prompt, system = run.prompt(role), run.system(role)
    if later:
        prompt, system = run.followup(role) or prompt, None
    names = fields_of((prompt, system or ""))
    render = prompt_renderer(prompt, None) if later else run.opening(role)
    return [(m["role"], m["content"]) for m in render(dict.fromkeys(names, value))]


def _times_shown(run: Run, role: str, empty: Messages) -> int:
    """Returns how often a role's opening messages in the rehearsal contain the task's prompt,
    beyond the prompt files."""

    def times(text: str, messages: Messages) -> int:
        return sum(content.count(text) for _, content in messages)

    return max(
        (
            times(t.task.prompt, action.opening) - times(t.task.prompt, empty)
            for t in run.state(RehearsalResult).trajectories.values()
            for action in t.actions
            if action.role == role
        ),
        default=0,
    )


def answers_shown(run: Run, role: str) -> int:
    """Returns the maximum number of tokens of the answers, its own earlier ones included, that a
    role's conversation contains when a call begins in the rehearsal, if each is as long as it may
    be."""

    def tokens(trajectory: Trajectory, number: int) -> int:
        shown = " ".join(content for _, content in trajectory.actions[number].opening)
        earlier = {a.text: a for a in trajectory.actions[:number] if a.text and a.text in shown}
        return sum(run.longest_answer(a.role) for a in earlier.values())

    return max(
        (
            tokens(t, number)
            for kind, t in run.state(RehearsalResult).trajectories.items()
            if kind != ONES.when  # which is a part of other texts
            for number, action in enumerate(t.actions)
            if action.role == role
        ),
        default=0,
    )


def _task_lengths(tasks: Sequence[Task], counter: Counter, times: int, room: int) -> list[int]:
    """Tokens of each task; 0 for those that fit anyhow, because a token has at least one byte. The
    longest is always counted."""
    sizes = [times * len(task.prompt.encode()) for task in tasks]
    bound = min(room, max(sizes) - 1)
    return [
        times * counter.count_text(task.prompt) if size > bound else 0
        for task, size in zip(tasks, sizes, strict=True)
    ]


def counter_of(model: str) -> Counter | None:
    """Returns the counter of a model's tokens; None where its tokenizer is not on this machine in a
    form that is quick to read.

    Raises:
        ConfigurationError: Its tokenizer is broken.
    """
    if is_tiny(model):
        return Counter(count_tokens, tokens_of, "one token per byte")
    file = Path(model) / "tokenizer.json"
    if not file.is_file():
        return None
    try:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(file))
    except ImportError:
        return None
    except Exception:  # nothing more specific is raised; transformers may still read the folder
        read_object(file)
        return None

    def count_text(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    return Counter(
        lambda messages: sum(count_text(content) for _, content in messages),
        count_text,
        f"with the tokenizer in {model}",
    )
