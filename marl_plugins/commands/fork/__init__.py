"""`openrlhf fork RUN`: what an action of a recorded trajectory has caused, by live continuations
with its words and with others.

    originals    which trajectories, what is refused, whose weights
    effects      the two arms of an action, and what their difference says
    scan         the coach's scores of many actions against their effects
    shown        all of it for people, as JSON, and as records
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.options import at_least, step_range
from marl_plugins.core.problems import Problem
from marl_plugins.core.recipe.texts import read_text
from marl_plugins.engine.hosts.upstream_cli import UpstreamParser

FORKS, SCANNED_FORKS = 32, 8
"""Forks of each arm, of one trajectory's actions and of a scan's."""


def make_parser() -> UpstreamParser:
    """Builds the command line."""
    parser = UpstreamParser(
        prog="openrlhf fork",
        allow_abbrev=False,
        usage="openrlhf fork RUN --step N --task ID [--sample N] --action ROLE.N [--say TEXT]\n"
        "       openrlhf fork RUN --step N --task ID [--sample N] --all\n"
        "       openrlhf fork RUN --scan N [--step A:B] [--report]",
        description="What would have come of other words: a recorded trajectory is said again up "
        "to one action, and goes on live from there, several times with its recorded words and "
        "several times with others. Nothing is written into RUN, unless by --report. See openrlhf "
        "docs fork.",
        epilog="Flags of openrlhf train change the engines, such as --vllm.num_engines 2.",
    )
    add = parser.add_argument
    add("run", type=Path, metavar="RUN", help="a run's output folder")
    add("--step", type=step_range, metavar="N", help="the step; of a scan A:B, default: the last")
    add("--task", metavar="ID", help="the task's id")
    add("--sample", type=at_least(0), default=0, metavar="N", help="the task's sample, from 0")
    add("--evaluations", action="store_true", help="of the evaluation after the step")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--action", metavar="ROLE.N", help="a role's N-th action, from 1; or an action's path"
    )
    what.add_argument("--all", action="store_true", help="every action, errors bounded over all")
    what.add_argument(
        "--scan",
        type=at_least(4),
        metavar="N",
        help="N actions at random, and how well their scores say what they cause",
    )
    said = parser.add_mutually_exclusive_group()
    said.add_argument("--say", metavar="TEXT", help="what the action says, in place of new words")
    said.add_argument("--say-file", type=Path, metavar="FILE", help="the same, from a file")
    add(
        "-n",
        type=at_least(1),
        metavar="N",
        help=f"forks of each arm ({FORKS}; of a scan {SCANNED_FORKS})",
    )
    add(
        "--models",
        metavar="FOLDER|N",
        help="weights: a folder with one per policy, or the copies of step N (--ckpt.save_hf; 0: "
        "the recipe's models); default: those that sampled it, where they are kept, else the "
        "run's last",
    )
    add(
        "--tools",
        choices=("call", "recorded"),
        default="call",
        help="recorded: calls are not made, and answered from the record",
    )
    add("--to", type=Path, metavar="FILE", help="write originals and forks, for openrlhf inspect")
    add("--report", action="store_true", help="of a scan: add what it prints to RUN's report.md")
    add("--json", action="store_true", help="print one JSON object")
    return parser


def main(words: Sequence[str]) -> int:
    """Forks, and returns the exit code.

    Raises:
        ConfigurationError: Something cannot be forked, with the reason.
    """
    options, train_flags = make_parser().parse_known_args(words)
    check(options)
    from marl_plugins.commands.fork.command import run_command

    return run_command(options, train_flags)


def check(options: argparse.Namespace) -> None:
    """Checks that flags which need each other are there, and fills in what depends on others.

    Raises:
        ConfigurationError: They are not.
    """
    one = options.action or options.all
    if one and (options.step is None or options.task is None):
        wrong = "an action is named with its trajectory: --step N --task ID [--sample N]"
    elif one and options.step[0] != options.step[1]:
        wrong = "one trajectory is of one step: --step N"
    elif not options.action and (options.say is not None or options.say_file):
        wrong = "--say is what one action says: --action ROLE.N"
    elif options.to and (options.to.is_dir() or not options.to.parent.is_dir()):
        wrong = f"--to {options.to}: expected a file in a folder that exists"
    elif options.report and not (options.scan and (options.run / "report.md").is_file()):
        wrong = "--report adds a scan (--scan N) to the report.md of a run that has finished"
    else:
        options.n = options.n or (SCANNED_FORKS if options.scan else FORKS)
        if options.say_file:
            options.say = read_text(options.say_file)
        return
    raise ConfigurationError(Problem("fork.flags", got=wrong))
