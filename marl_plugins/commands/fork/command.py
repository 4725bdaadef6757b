"""The command's work: from its flags to what it prints."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from marl_plugins.commands.fork.effects import Effect, effect_of
from marl_plugins.commands.fork.originals import (
    HERE,
    Choice,
    check_tools,
    chosen,
    originals,
    recorded_tools,
    spoken,
    with_weights,
)
from marl_plugins.commands.fork.scan import account, adjusted
from marl_plugins.commands.fork.shown import add_to_report, lines_of, scan_lines, write
from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.problems import Problem
from marl_plugins.engine.plan.build import build_plan
from marl_plugins.engine.records.display import Display
from marl_plugins.engine.records.read import REPORT
from marl_plugins.engine.records.run_folder import started_with
from marl_plugins.engine.runtime.engines_only import with_engines
from marl_plugins.engine.runtime.forking import said_again

if TYPE_CHECKING:
    from marl_plugins.engine.runtime.session import Session

AT_ONCE = 256
"""Trajectories that are said at the same time."""


def run_command(options: argparse.Namespace, train_flags: Sequence[str]) -> int:
    """Forks what the flags name, prints what came of it, and returns the exit code.

    Raises:
        ConfigurationError: Something cannot be forked, with the reason.
    """
    choices = chosen(options)
    plan = build_plan([*started_with(options.run), *train_flags])
    run, whose = with_weights(plan.run, options, choices)
    plan = replace(plan, run=run)
    if options.tools == "recorded":
        plan.plugins.manager.register(recorded_tools(choices), "openrlhf fork")
    display = Display(options.json)
    effects, unlike = with_engines(
        plan, display, lambda session: forked(session, options, choices, display), options.run
    )
    if options.to:
        write(options.to, effects, options.step[0] if options.evaluations else None)
    show(options, effects, unlike, whose)
    return 0 if any(not effect.refused for effect in effects) else 1


async def forked(
    session: Session, options: argparse.Namespace, choices: Sequence[Choice], display: Display
) -> tuple[list[Effect], dict[str, str]]:
    """Says every trajectory again, and forks those that are equal.

    Returns:
        The effects, and by trajectory why it could not be said again.

    Raises:
        ConfigurationError: The one trajectory that was asked for could not.
    """
    if options.tools == "call":
        check_tools(session.plan.run, session.tools)
    made, free = originals(session, options, choices), asyncio.Semaphore(AT_ONCE)
    words = None
    if options.say is not None:
        words = spoken(made[0], choices[0][1][0], options.say)
    with display.phase("saying again", len(made)) as tick:

        async def again(number: int) -> str | None:
            async with free:
                why = await said_again(made[number])
            tick()
            return why

        whys = await asyncio.gather(*map(again, range(len(made))))
    unlike = {t.name: why for (t, _), why in zip(choices, whys, strict=True) if why}
    if unlike and not options.scan:
        got = f"the record cannot be said again: {next(iter(unlike.values()))}"
        fix = "it depends on more than words: openrlhf docs fork"
        raise ConfigurationError(Problem("fork.unlike", HERE, got, fix=fix))
    equal = [
        (original, action)
        for original, (_, actions), why in zip(made, choices, whys, strict=True)
        if not why
        for action in actions
    ]
    with display.phase("forking", 2 * options.n * len(equal), announce=True) as tick:
        work = [effect_of(*each, options.n, words, free, tick) for each in equal]
        return list(await asyncio.gather(*work)), unlike


def show(
    options: argparse.Namespace, effects: Sequence[Effect], unlike: dict[str, str], whose: str
) -> None:
    """Prints the effects; p values are as of all of them together."""
    of_all = [effect.values for effect in effects]
    told = [values for values in of_all if not values["refused"]]
    for values, p in zip(told, adjusted([v["p"] for v in told]), strict=True):
        values["p_adjusted"] = p
    forks = [f for effect in effects for arm in effect.arms for f in arm.forks]
    sampled = [len(a.generation.ids) for f in forks for a in f.actions if not a.replayed]
    result: dict[str, Any] = {
        "weights": whose,
        "unlike": unlike,
        "live_answers": len(sampled),
        "sampled_tokens": sum(sampled),
        "effects": of_all,
        **({"scan": account(effects)} if options.scan else {}),
    }
    if options.report and result["scan"]:
        steps = sorted(effect.original.step for effect in effects)
        of = " to ".join(map(str, dict.fromkeys((steps[0], steps[-1]))))
        about = (
            f"{len(effects)} actions, drawn at random from step {of}: {options.n} forks of each "
        )
        about += f"arm, by {whose}."
        add_to_report(options.run / REPORT, about, result["scan"])
    if options.json:
        print(json.dumps(result))
        return
    print(f"said again: {len({e.original for e in effects})} equal, {len(unlike)} not")
    for why, count in Counter(unlike.values()).most_common(3):
        print(f"  {count} x {why}")
    each = [line for values in of_all for line in lines_of(values)]
    print(*(scan_lines(result["scan"]) if options.scan else each), sep="\n")
    print(f"{len(sampled):,} live answers, {sum(sampled):,} sampled tokens, by {whose}")
