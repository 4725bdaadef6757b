"""Credit by contribution: an action's reward is its share of what the team has earned (Sandbox-RL,
equations 5 and 6).

    R_i = (1 - x) r_i + x U softmax(g / tau)_i        U = sum of the r_i of a team, g_i = r_i
        - mean of r of the others

x is `--cooperation.factor`, tau `--cooperation.tau`. The others of g are the actions of the same
role in other samples of the task; without any, all have the same share whatever tau is.
A team is a trajectory's actions, or those of some of its roles (`--cooperation.teams a+b,c+d`;
roles that are not named are one more team).
The shares add up to U: what one gets the others lose. With tau = 0 the best contribution gets all,
with tau = inf all get U / N, which is the paper's team sharing (its algorithm 5, a = 1 - x).

Where U is negative the paper's rule blames the best contributor most.
`--cooperation.negative mirror` (the default) takes softmax(-g / tau) there, so that whoever gave
more never gets less; `paper` is the rule as it is published. The paper calls the rule unbiased;
that needs shares which are the actions' advantages, and holds for no finite tau. What holds, and is
tested, is that nothing is lost or added. Where a plugin gives policies a tau of their own, g is
measured from the trajectory's mean, so that who gave more than the mean still has more than who
gave less. A tau of 0 or inf is the same for all.

The paper's methods are pairs of factors, for cooperation x and competition y, which it does not
relate to tau. `--cooperation.preset` sets factor x, tau 1 / y, and `--competence.eta` y times its
decay. `--cooperation.adapt` is the paper's equation 86,

    tau <- tau exp(-adapt (regret - regret before) / regret before)        regret = 1 - mean outcome
        of a step

within `--cooperation.bounds`: a team that does better shares more. Adaptive-OM (x from 0.5 to 0.8,
y from 0.5 to 0.2) is that rule within 2 and 5, with x = 1 - 1 / tau and y = 1 / tau.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from marl_plugins import (
    Action,
    Problem,
    Run,
    ShareTemperatures,
    Trajectory,
    above,
    at,
    at_least,
    between,
    hookimpl,
    meant,
)

PRESETS = {
    "PG": (0.0, 0.0),
    "AC": (1.0, 0.0),
    "AP": (0.0, 1.0),
    "ACP": (1.0, 1.0),
    "Adaptive-OM": (0.5, 0.5),
}
"""Factors of cooperation and competition at the start."""
ADAPTIVE, ADAPTIVE_BOUNDS = "Adaptive-OM", (2.0, 5.0)


@dataclass(frozen=True)
class Rule:
    """What the flags come to.

    Args:
        adapt: Rate at which tau follows the regret, within low and high.
        tied: Whether the factor goes with tau, as Adaptive-OM has it.
    """

    factor: float
    tau: float
    adapt: float
    low: float
    high: float
    tied: bool = False


class Temperature:
    """The temperature of a run that adapts, the regret that it was set by, and that of the step
    which was credited last."""

    def __init__(self) -> None:
        self.tau: float | None = None
        self.before: float | None = None
        self.latest: float | None = None


def temperature(word: str) -> float:
    """Parses `--cooperation.tau`: a number from 0 on, or `inf`."""
    value = float(word)
    if not value >= 0:
        raise argparse.ArgumentTypeError(
            f"{word} is out of range: expected a number of at least 0, or inf"
        )
    return value


class Preset(str):
    """A preset in the user's words; other plugins read its factors here.

    Attributes:
        factors: Of cooperation and competition at the start: of a preset, or those of a pair of
            numbers, `0.5,0.25`.
    """

    factors: tuple[float, float]

    def __new__(cls, word: str) -> Preset:
        preset, numbers = super().__new__(cls, word), word.split(",")
        if word not in PRESETS and len(numbers) != 2:
            raise argparse.ArgumentTypeError(
                f"{word!r}: expected {', '.join(PRESETS)}, or factors of cooperation and "
                "competition as in 0.5,0.25"
            )
        cooperation, competition = PRESETS.get(word) or map(between(0, 1), numbers)
        preset.factors = cooperation, competition
        return preset


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group(
        "credit by contribution (--plugin marl_plugins.cooperation)"
    ).add_argument
    factor = (
        "share x of the team's reward in an action's: (1 - x) * its own + x * its part of the sum; "
        "0: its own alone"
    )
    add("--cooperation.factor", type=between(0, 1), default=1.0, help=factor)
    tau = (
        "temperature of the softmax over contributions that splits the team's reward: 0 gives all "
        "to the largest contribution, inf gives all the same"
    )
    add("--cooperation.tau", type=temperature, default=1.0, help=tau)
    negative = (
        "a negative team's reward: the worst contribution has the largest share of it, or "
        "the best as in the paper"
    )
    add("--cooperation.negative", choices=["mirror", "paper"], default="mirror", help=negative)
    teams = "roles that share with each other; roles that are not named are one more team"
    add("--cooperation.teams", metavar="A+B,C+D", help=f"{teams}; default: all are one")
    methods = (
        f"one of the paper's methods ({', '.join(PRESETS)}), or its factors of cooperation and "
        "competition as in 0.5,0.25: sets --cooperation.factor, .tau and --competence.eta, and "
        "Adaptive-OM also .adapt and .bounds"
    )
    add("--cooperation.preset", type=Preset, metavar="NAME", help=methods)
    adapt = (
        "rate at which tau follows the regret of steps (1 - mean outcome): "
        "tau = tau * exp(-rate * relative change of the regret); 0: tau stays"
    )
    add("--cooperation.adapt", type=at_least(0, float), default=0.0, help=adapt)
    add(
        "--cooperation.bounds",
        type=above(0),
        nargs=2,
        default=[0.1, 10.0],
        metavar=("LOW", "HIGH"),
        help="bounds of a tau that adapts",
    )


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    problems, rule = list(check_flags(run)), rule_of(run)
    if rule.tau != math.inf and rule.factor:
        problems += run.lost_effect(at(flag="cooperation.tau"), "samples")
    return problems


def check_flags(run: Run) -> Iterator[Problem]:
    """Yields what is wrong with teams, preset and adaptation."""
    options = run.args.cooperation
    if options.teams:
        named = options.teams.replace("+", ",").split(",")
        for name in dict.fromkeys(named):
            if name not in run.recipe.roles or named.count(name) > 1:
                got = f"{name!r} is no role" if name not in run.recipe.roles else f"{name!r} twice"
                fix = meant(name, run.recipe.roles)
                yield Problem("cooperation.teams", at(flag="cooperation.teams"), got, fix=fix)
    if options.preset:
        yield from check_preset(run)
        share_competition(run)
    if options.adapt and rule_of(run).tau in (0, math.inf):
        got = f"{rule_of(run).tau:g} stays what it is: --cooperation.adapt multiplies it"
        fix = "begin with a tau between 0 and inf"
        where = at(flag="cooperation.tau")
        yield Problem("cooperation.adapt", where, got, fix=fix, flags=("cooperation.adapt",))


def check_preset(run: Run) -> Iterator[Problem]:
    """Yields the flags that were given beside a preset that sets them, and what it lacks."""
    preset, where = run.args.cooperation.preset, at(flag="cooperation.preset")
    sets = ["cooperation.factor", "cooperation.tau", "competence.eta"]
    if preset == ADAPTIVE:
        sets += ["cooperation.adapt", "cooperation.bounds"]
    if both := [flag for flag in sets if flag in run.given]:
        got = f"{preset}: it sets --{' and --'.join(both)}, which are given too"
        fix = "remove one of them"
        yield Problem("cooperation.preset", where, got, fix=fix, flags=tuple(both))
    if preset.factors[1] and not hasattr(run.args, "competence"):
        got = f"{preset}: its competition is marl_plugins.competence, which is not here"
        fix = "add --plugin marl_plugins.competence"
        yield Problem("cooperation.preset", where, got, fix=fix)


def rule_of(run: Run) -> Rule:
    """Returns what the flags come to."""
    options = run.args.cooperation
    if not options.preset:
        return Rule(options.factor, options.tau, options.adapt, *options.bounds)
    factor, competition = options.preset.factors
    tau = 1 / competition if competition else math.inf
    if options.preset == ADAPTIVE:
        return Rule(factor, tau, 1.0, *ADAPTIVE_BOUNDS, tied=True)
    return Rule(factor, tau, options.adapt, *options.bounds)


def factor_and_tau(run: Run) -> tuple[float, float]:
    """Returns the share of the team's reward, and the temperature, as they are now."""
    rule, tau = rule_of(run), run.state(Temperature).tau
    if tau is None:
        return rule.factor, rule.tau
    return 1 - 1 / tau if rule.tied else rule.factor, tau


def share_competition(run: Run) -> None:
    """Tells `marl_plugins.competence` the factor of competition of a preset."""
    if run.args.cooperation.preset:
        _, tau = factor_and_tau(run)
        run.state(ShareTemperatures).competition = 1 / tau


def adapted(tau: float, before: float | None, regret: float, rule: Rule) -> float:
    """Returns the temperature after a step (equation 86); a regret of 0 changes nothing, because
    nothing can be said relative to it."""
    change = (regret - before) / before if before else 0.0
    power = max(-50.0, min(-rule.adapt * change, 50.0))
    return min(max(tau * math.exp(power), rule.low), rule.high)


def teams_of(actions: Sequence[Action], teams: str | None) -> list[list[Action]]:
    """Returns the actions of each team of a trajectory, in their order."""
    if not teams:
        return [list(actions)]
    number = {role: n for n, team in enumerate(teams.split(",")) for role in team.split("+")}
    members: dict[int, list[Action]] = defaultdict(list)
    for action in actions:
        members[number.get(action.role, -1)].append(action)
    return list(members.values())


@hookimpl
def marl_credit_step(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    options, of_policies = run.args.cooperation, run.state(ShareTemperatures)
    factor, tau = factor_and_tau(run)
    sums: dict[tuple[str, str, str], float] = defaultdict(float)
    counts: dict[tuple[str, str, str], int] = defaultdict(int)
    own: dict[tuple[str, str, str, Trajectory], list[float]] = defaultdict(list)
    rewarded = [(t, [a for a in t.actions if a.reward is not None]) for t in trajectories]
    for trajectory, actions in rewarded:
        for action in actions:
            of = (trajectory.origin, trajectory.task.id, action.role)
            sums[of] += action.reward or 0.0
            counts[of] += 1
            own[*of, trajectory].append(action.reward or 0.0)
    outcomes = [t.outcome for t in trajectories if t.outcome is not None and not t.origin]
    run.state(Temperature).latest = 1 - fmean(sorted(outcomes)) if outcomes else None
    by_team = [(t, team) for t, actions in rewarded for team in teams_of(actions, options.teams)]
    for trajectory, actions in by_team:
        rewards, gains = [action.reward or 0.0 for action in actions], []
        for action, reward in zip(actions, rewards, strict=True):
            of = (trajectory.origin, trajectory.task.id, action.role)
            mine = own[*of, trajectory]
            others = counts[of] - len(mine)
            gains.append(reward - (sums[of] - sum(mine)) / others if others else 0.0)
        if of_policies and gains and 0 < tau < math.inf:
            mean = fmean(gains)
            gains = [
                (gain - mean) / of_policies.get(a.policy, 1.0)
                for gain, a in zip(gains, actions, strict=True)
            ]
        action_shares = shares(gains, sum(rewards), tau, options.negative)
        for action, reward, share in zip(actions, rewards, action_shares, strict=True):
            action.add_reward("cooperation", factor * (share - reward))
    return trajectories


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    rule, temperature, (_, tau) = rule_of(run), run.state(Temperature), factor_and_tau(run)
    if not rule.adapt or temperature.latest is None:
        return
    temperature.tau = adapted(tau, temperature.before, temperature.latest, rule)
    temperature.before, temperature.latest = temperature.latest, None
    share_competition(run)
    factor, tau = factor_and_tau(run)
    metrics |= {"cooperation/tau": tau, "cooperation/factor": factor}


@hookimpl
def marl_state(run: Run) -> list[float | None] | None:
    temperature = run.state(Temperature)
    return None if temperature.tau is None else [temperature.tau, temperature.before]


@hookimpl
def marl_restore(run: Run, state: Sequence[float]) -> None:
    run.state(Temperature).tau, run.state(Temperature).before = state
    share_competition(run)


def shares(
    gains: Sequence[float],
    utility: float,
    tau: float,
    negative: Literal["mirror", "paper"] = "mirror",
) -> list[float]:
    """Returns the shares of a utility, one for each gain; they add up to it, and ties share
    equally."""
    if not gains:
        return []
    sign = -1.0 if negative == "mirror" and utility < 0 else 1.0
    signed = [sign * gain for gain in gains]
    top = max(signed)
    if math.isinf(tau):
        weights = [1.0] * len(gains)
    elif tau == 0:
        weights = [float(gain == top) for gain in signed]
    else:
        weights = [
            math.exp((gain - top) / tau) for gain in signed
        ]  # at most 1, so that nothing overflows
    total = sum(weights)
    return [utility * weight / total for weight in weights]
