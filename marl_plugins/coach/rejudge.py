"""`openrlhf coach RUN --recipe RECIPE`: the recorded actions of a run, judged again with another
coach.

records -> trajectories -> scored again (core/scoring.py), outcomes as recorded -> a table by role
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marl_plugins import (
    Action,
    ConfigurationError,
    Filter,
    Problem,
    RunReader,
    Seen,
    Trajectory,
    at,
    meant,
    score_trajectory,
)
from marl_plugins.asking.askers import Askers
from marl_plugins.coach.flags import add_flags
from marl_plugins.coach.members import members_of
from marl_plugins.coach.metrics import agreements
from marl_plugins.coach.state import judged_in

# inside: plans a run and reads its records
from marl_plugins.core.options import step_range
from marl_plugins.core.recipe.schema import find_recipe
from marl_plugins.engine.records.read import EXPECTED, TRAJECTORIES, Steps

if TYPE_CHECKING:
    from rich.progress import Progress

    from marl_plugins import Run
    from marl_plugins.engine.plan.plan import Plan

EXAMPLE = """\
Example: how far does a language model agree with the rubric that a run was trained with?

  openrlhf coach runs/mine --recipe mathchat/tiny.yaml --steps 1:10 \\
      --coach.model qwen3-32b --coach.base_url http://127.0.0.1:8000/v1

Nothing of the run is changed. Outcomes stay as recorded. --coach.record FILE keeps the new
verdicts, --coach.budget_tokens N limits what they cost. A frozen policy cannot be asked
(--coach.policy): no engines are started here."""


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the command line; flags of `openrlhf train` that are not listed are
    passed on."""
    from marl_plugins.engine.hosts.upstream_cli import UpstreamParser

    parser = UpstreamParser(
        prog="openrlhf coach",
        usage="openrlhf coach RUN --recipe RECIPE [--plugin NAME ...] [--coach.* ...] [--steps "
        "A:B] [--json]",
        description="Judge the recorded actions of a run again, with whatever coach the flags "
        "name, and compare the scores.",
        epilog=EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("source", type=Path, metavar="RUN", help=f"a run's output folder, or its {TRAJECTORIES}")
    add(
        "--recipe",
        required=True,
        metavar="PATH",
        help="the run's recipe: a YAML file, its folder, or a shipped recipe",
    )
    add(
        "--plugin",
        action="append",
        default=[],
        metavar="NAME",
        help="a further plugin; marl_plugins.coach is always used",
    )
    add(
        "--steps",
        type=step_range,
        default=(0, None),
        metavar="A:B",
        help="steps A to B only, both included",
    )
    add("--json", action="store_true", help="print one JSON object instead of a table")
    add_flags(parser)
    return parser


def main(words: Sequence[str]) -> int:
    """Runs the command, and returns its exit code.

    Raises:
        ConfigurationError: The flags, the records or the coach cannot be used.
    """
    from marl_plugins.engine.plan.build import build_plan

    parsed = read_words(make_parser(), words)
    if parsed is None:
        return 0
    options, passed_on = parsed
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # the account of what is spent here is not the run's
        plan = build_plan([*passed_on, "--ckpt.output_dir", folder])
        members = members_of(plan.run)
        if policy := next(
            (m.policy for m in members.values() if m.policy),
            None if members else plan.run.args.coach.policy,
        ):
            raise ConfigurationError(
                Problem(
                    "coach.policy_without_engines",
                    at(flag="coach.policy"),
                    f"{policy}: no engines are started here",
                    fix="name a rubric (--coach.rubric FILE) or a model at an endpoint "
                    "(--coach.model NAME)",
                )
            )
        trajectories = read_trajectories(options.source, options.steps, list(plan.run.recipe.roles))
        report = asyncio.run(rejudge(plan, trajectories))
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        print_report(report)
    return 0


def read_words(
    parser: argparse.ArgumentParser, words: Sequence[str], own: Sequence[str] = ("steps",)
) -> tuple[argparse.Namespace, list[str]] | None:
    """Returns the options of a command on a run's records, and the words of its plan; None where
    only help was asked for.

    Args:
        own: Flags that are the command's alone.

    Raises:
        ConfigurationError: The run or the recipe is missing, or a flag of the command's has a wrong
            value.
    """
    from marl_plugins.engine.plan.flags import COMMAND_LINE, split_flags

    if "--help" in words or "-h" in words:
        print(parser.format_help(), end="")
        return None
    if not words or words[0].startswith("-"):
        raise ConfigurationError(
            Problem(
                "command.run_first",
                where=at(command=parser.prog),
                got=f"give the run first, its output folder or its {TRAJECTORIES}",
                fix="then --recipe RECIPE",
            )
        )
    flags = split_flags(words[1:], COMMAND_LINE)
    problems = (
        []
        if Path(words[0]).exists()
        else [
            Problem(
                "files.missing",
                where=at(file=words[0]),
                got="No such file or directory",
                fix=EXPECTED,
            )
        ]
    )
    try:
        options, _ = parser.parse_known_args([words[0], *(w for f in flags for w in f.argv)])
        find_recipe(options.recipe)
    except ConfigurationError as error:
        problems += error.problems
    if problems:
        raise ConfigurationError(problems)
    passed_on = [w for f in flags if f.name not in own for w in f.argv]
    return options, [*passed_on, "--plugin", "marl_plugins.coach"]


def read_trajectories(source: Path, steps: Steps, roles: Sequence[str]) -> list[Trajectory]:
    """Returns the recorded trajectories of some steps that infrastructure did not lose.

    Args:
        steps: First and last step.
        roles: Those of the recipe.

    Raises:
        ConfigurationError: A file is missing, lines cannot be read, an action's role is unknown, or
            nothing is left.
    """
    kept, unknown = [], dict[str, Problem]()
    for record in RunReader(source).recorded(Filter(steps)):
        for role in {action.role for action in record.value.actions}.difference(roles, unknown):
            unknown[role] = Problem(
                "records.role",
                at(line=record.place),
                f"the recipe has no role {role!r}",
                fix=meant(role, roles),
            )
        if record.value.actions and not record.value.infrastructure_failure:
            kept.append(record.value)
    if unknown:
        raise ConfigurationError(list(unknown.values()))
    if not kept:
        raise ConfigurationError(
            Problem(
                "records.no_trajectories",
                where=at(file=source),
                got=f"holds no trajectory with actions to judge in steps {shown_steps(steps)}",
            )
        )
    return kept


def shown_steps(steps: Steps) -> str:
    return f"{steps[0]} to {'the last' if steps[1] is None else steps[1]}"


@dataclass
class RoleReport:
    """Scores of one role, in [0, 1]; None where there are too few.

    Args:
        missing: Actions without a new score.
        recorded, score, spread: Mean recorded score; mean and standard deviation of the new ones.
        correlation: Of the recorded and the new scores of actions that have both.
        agreement: Share of the new verdicts on the last action that agree with the recorded
            outcome.
    """

    actions: int
    missing: int
    recorded: float | None
    score: float | None
    spread: float | None
    correlation: float | None
    agreement: float | None = None


async def rejudge(plan: Plan, trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Judges every action again, and compares."""
    run = plan.run
    recorded = {action: action.score for t in trajectories for action in t.actions}
    async with plan.plugins.started(run, "judge"):
        await score_all(plan, trajectories)
        metrics: dict[str, float] = {}
        for name, asker in run.state(Askers).by_member.items():
            metrics |= {
                f"{name}/{metric}" if name else metric: v for metric, v in asker.metrics().items()
            }
    return compare(run, trajectories, recorded) | {"metrics": metrics}


async def score_all(plan: Plan, trajectories: Sequence[Trajectory]) -> None:
    """Writes new scores, in as many trajectories at a time as requests may be in flight."""
    run, hook = plan.run, plan.plugins.hook
    waiting = iter(trajectories)

    def score_action(action: Action, seen: Seen) -> Awaitable[float | None] | None:
        verdict: Awaitable[float | None] | None = hook.marl_score_action(
            run=run, action=action, seen=seen
        )
        return verdict

    with progress(len(trajectories)) as (bar, task):

        async def work() -> None:
            for trajectory in waiting:
                await score_trajectory(trajectory, score_action, None, roles=list(run.recipe.roles))
                bar.advance(task)

        workers = [
            asyncio.create_task(work())
            for _ in range(min(run.args.coach.concurrency, len(trajectories)))
        ]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)


@contextmanager
def progress(total: int) -> Iterator[tuple[Progress, Any]]:
    """Provides a progress bar on standard error, if that is a terminal."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("judging trajectories"), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()
    ) as bar:
        yield bar, bar.add_task("", total=total)


def compare(
    run: Run, trajectories: Sequence[Trajectory], recorded: dict[Action, float | None]
) -> dict[str, Any]:
    """Compares the new scores with the recorded ones, by role.

    Args:
        recorded: By `id` of the action.
    """
    actions = [action for t in trajectories for action in t.actions]
    roles: dict[str, RoleReport] = {}
    for role in run.recipe.roles:
        of_role = [a for a in actions if a.role == role]
        new = [a.score for a in of_role if a.score is not None]
        both = [
            (old, a.score)
            for a in of_role
            if (old := recorded[a]) is not None and a.score is not None
        ]
        roles[role] = RoleReport(
            actions=len(of_role),
            missing=len(of_role) - len(new),
            recorded=mean([old for a in of_role if (old := recorded[a]) is not None]),
            score=mean(new),
            spread=statistics.pstdev(new) if new else None,
            correlation=correlation(both),
        )
    roles[list(roles)[-1]].agreement = mean(
        [float(agreed) for agreed in agreements(judged_in(run, trajectories))]
    )
    return {
        "trajectories": len(trajectories),
        "steps": [min(t.step for t in trajectories), max(t.step for t in trajectories)],
        "roles": {role: asdict(report) for role, report in roles.items()},
        "missing": dict(Counter(a.unscored or "unscored" for a in actions if a.score is None)),
        "shown": any(a.shown for a in actions),
    }


def mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def correlation(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Returns Pearson's correlation; None for fewer than two pairs, or where one side does not
    vary."""
    try:
        return statistics.correlation(*zip(*pairs, strict=True)) if pairs else None
    except statistics.StatisticsError:
        return None


def print_report(report: dict[str, Any]) -> None:
    """Prints the report as a table, and what has to be known to read it."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    first, last = report["steps"]
    title = f"{report['trajectories']} trajectories of steps {first} to {last}, judged again"
    table = Table(title=title, title_justify="left", show_edge=False, pad_edge=False)
    names = ("actions", "missing", "recorded", "score", "spread", "correlation", "agreement")
    table.add_column("role", overflow="fold")
    for name in names:
        table.add_column(name, justify="right")
    for role, numbers in report["roles"].items():
        table.add_row(Text(role), *(in_cell(numbers[name]) for name in names))
    Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 120).print(
        table
    )
    if report["missing"]:
        print(
            "missing: "
            + ", ".join(f"{reason} {count}" for reason, count in sorted(report["missing"].items()))
        )
    if not report["shown"]:
        print(
            "the records hold no messages that were shown (an earlier release wrote them); the "
            "coach judged without them"
        )
    if report["metrics"]:
        print(
            "coach: " + ", ".join(f"{name} {value:g}" for name, value in report["metrics"].items())
        )


def in_cell(value: float | None) -> str:
    return "-" if value is None else str(value) if isinstance(value, int) else f"{value:.3f}"
