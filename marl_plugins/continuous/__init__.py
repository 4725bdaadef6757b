"""A step that does not wait for its last trajectory: it takes the tasks that are complete first.

    openrlhf train --recipe R --train.async_enable --plugin marl_plugins.continuous
    --continuous.late 1

Rollout n has the tasks of step n and, begun before their turn, the first `--continuous.ahead` of
the next ones. It ends with as many complete tasks (all samples of each) as the step has; the others
run on during updates and count for the next rollout. A task that was begun `--continuous.late`
rollouts ago is waited for, and so is one whose next turn comes: so no task is left out, none is
twice in a step, and rows are at most queue + late versions old. Short answers come earlier, not
more often.

Requests and new weights of a policy take turns (gate.py): an answer is by the weights of one
version, a trajectory by those of several. With `--train.partial_rollout_enable` they do not:
engines pause in the middle of answers. Which tasks a step takes depends
on timing: a run cannot be repeated. A saved step names the tasks that have been begun and not
taken; a run that goes on begins them anew, before all others.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Awaitable, Generator
from typing import TYPE_CHECKING, Any

from marl_plugins import Lateness, Problem, Run, at, at_least, hookimpl
from marl_plugins.continuous.flight import ContinuousPart, Flight
from marl_plugins.continuous.gate import Gates

if TYPE_CHECKING:
    from marl_plugins import Call, Generation, PolicyProcesses, Step, StepPart

ASYNC, EMA = "train.async_enable", "train.enable_ema"


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "the tasks that are complete first (--plugin marl_plugins.continuous)"
    ).add_argument
    add(
        "--continuous.late",
        type=at_least(1),
        default=1,
        metavar="N",
        help="a task may end up to N rollouts after the one that began it, and is waited for then",
    )
    add(
        "--continuous.ahead",
        type=at_least(1),
        metavar="N",
        help="tasks of the next step that begin early; default: a quarter of a step's",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    args, who = run.args, at(plugin="marl_plugins.continuous")
    if not run.queue_size:
        got = "late tasks run on during updates, and nothing is sampled then"
        return [Problem("continuous.async", who, got, fix=f"add --{ASYNC}", flags=(ASYNC,))]
    run.state(Lateness).steps = args.continuous.late
    problems = list[Problem]()
    if args.train.enable_ema:
        got = (
            "engines hold the averaged weights while these are evaluated, and late tasks are "
            "sampled then"
        )
        problems.append(
            Problem("continuous.ema", who + at(flag=EMA), got, fix="leave out one of the two")
        )
    got = (
        "which tasks a step has depends on timing, so a run cannot be repeated, and one that is "
        "resumed is another one"
    )
    problems.append(
        Problem(
            "continuous.timing",
            who,
            got,
            fix="leave out the plugin where that matters",
            severity="warning",
        )
    )
    return problems


def ahead_of(run: Run) -> int:
    """Returns how many tasks of the next step begin early."""
    ahead: int | None = run.args.continuous.ahead
    return ahead or math.ceil(run.args.rollout.batch_size / 4)


@hookimpl
def marl_step(run: Run, step: Step) -> StepPart:
    args = run.args
    samples, late, queue = args.rollout.n_samples_per_prompt, args.continuous.late, run.queue_size
    return ContinuousPart(step, run.state(Flight), samples, ahead_of(run), late, queue)


@hookimpl(wrapper=True)
def marl_generate(run: Run, call: Call) -> Generator[None, Any, Awaitable[Generation]]:
    answer = yield
    return answer if run.is_partial else run.state(Gates)[call.policy].ask(answer)


@hookimpl(wrapper=True)
def marl_sync(run: Run, policy: PolicyProcesses) -> Generator[None, Any, Awaitable[bool]]:
    done = yield
    return done if run.is_partial else run.state(Gates)[policy.name].change(done)


@hookimpl
def marl_state(run: Run) -> dict[str, Any]:
    return run.state(Flight).saved


@hookimpl
def marl_restore(run: Run, state: dict[str, Any]) -> None:
    run.state(Flight).restore(state)


@hookimpl
async def marl_stop(run: Run) -> None:
    await run.state(Flight).close()
