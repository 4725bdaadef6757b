"""What a tiny recipe learns, over seeds, beside a control and with each role put back:

    python -m benchmarks.learning SYSTEM --out FOLDER [--seeds 0 1 2] [--arms trained frozen
    put_back]

SYSTEM is one of `SYSTEMS` below: `debate`, `merchant`, `category`, `search`, `extract`, `rounds`,
`reflect`, `task_graph`, `spread`, `trading`, `swarm` (a run on its own, `--swarm.external 0`),
`environments` (which needs recipes/environments/venv). An arm takes five to twenty minutes a seed
on two cores.

    trained     the recipe as it is
    frozen      learning rate 0 (two evaluations: nothing changes between)
    - ROLE      the trained weights with one policy's initial weights put back; every role in turn
                (arm `put_back`)

    shared          trained with one policy for all roles (`--mapping shared`), from the same start;
                    only where it is named
    adapters        trained as adapters of one model that all roles' demonstrations started
                    (`ADAPTERS`); only where it is named
    async           trained with the next rollout during each update, so by rows that are a version
                    old; only where it is named
    async_token     the same, its tokens weighed (`--algo.advantage.is_correction_level token`);
                    only where it is named
    conversations, trees
                    trained with each conversation as a sequence, which is the default, or with
                    trees of prefixes (`--sequences`); the same in exact arithmetic; only where they
                    are named

Of the two assistants also, each in a copy of the recipe, and only where they are named:

    outcome         the same rollouts without the coach: every action is rewarded with the outcome
                    of its conversation
    rare_trained    trained from a start with more slips, where a third as many conversations
                    succeed
    rare_outcome    outcome from that start
    rare_frozen     frozen at that start

Success on held-out tasks, sampled at the training temperature: "before" is step 0, "after" the mean
of the last three evaluations
(of "- ROLE": the final weights as they are, and with the role put back). Gains in points with 95 %
t-intervals over seeds. Of a game (`environments`) a line is a player's outcome against the other
one as it began. Finished runs in FOLDER are not repeated. Of graphs a second table has what
evaluations say beside the outcome: its parts, rounds, and calls and form by role, before and after,
over the seeds whose runs recorded it.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.demo import points, train, watched
from benchmarks.recorded import add_flag, restore
from marl_plugins.core.recipe.shipped import recipes_root
from marl_plugins.engine.records.read import RunReader


@dataclass(frozen=True)
class System:
    """A tiny recipe, how long it is trained, and the policies that can be put back.

    Args:
        slips: How often its demonstrations slip by role, where a third as many conversations are to
            succeed at the start.
        game: Whether two players play against each other: each is measured against the other one's
            initial weights.
    """

    recipe: str
    flags: tuple[str, ...] = ()
    policies: tuple[str, ...] = ()
    outcome: str = "eval/outcome"
    slips: str = ""
    game: bool = False

    @property
    def words(self) -> list[str]:
        return ["--recipe", str(recipes_root() / self.recipe), *self.flags]


ADAPTERS = (
    "--plugin",
    "marl_plugins.adapters",
    "--ds.lora.rank",
    "8",
    "--ds.lora.alpha",
    "16",
    "--actor.adam.lr",
    "1e-3",
)
ASYNC, CORRECTED = ("--train.async_enable",), ("--algo.advantage.is_correction_level", "token")
THIRTY = ("--max_steps", "30")
ALONE = ("--swarm.store", "memory://alone", "--swarm.external", "0", "--swarm.publish", "0")
RARE = '{"router": 0.4, "call": 0.6, "composer": 0.5}'
SYSTEMS = {
    "debate": System(
        "debate/tiny.yaml", policies=("debater", "judge"), outcome="eval/outcome/judge"
    ),
    "merchant": System(
        "ecommerce/tiny_merchant.yaml",
        THIRTY,
        ("router", "sales", "marketing", "aftersales", "composer"),
        slips=RARE,
    ),
    "category": System(
        "ecommerce/tiny_category.yaml",
        THIRTY,
        ("router", "order", "pricing", "inventory", "composer"),
        slips=RARE,
    ),
    "search": System("search/tiny.yaml", THIRTY, ("rewriter", "answerer")),
    "extract": System("search/tiny_extract.yaml", THIRTY, ("rewriter", "extractor", "answerer")),
    "rounds": System(
        "search/tiny_rounds.yaml",
        THIRTY,
        ("planner", "searcher", "summariser", "updater", "answerer"),
    ),
    "reflect": System("reflect/tiny.yaml", THIRTY, ("planner", "coder", "reflector")),
    "task_graph": System("task_graph/tiny.yaml", THIRTY, ("solver",)),
    "spread": System("spread/tiny.yaml", THIRTY, tuple(f"correct{n}" for n in range(1, 5))),
    "trading": System("trading/tiny.yaml", THIRTY, tuple(f"trader{n}" for n in range(1, 7))),
    "swarm": System("swarm/tiny.yaml", ALONE, ("solver",)),
    "environments": System("environments/tiny.yaml", policies=("dealer", "opener"), game=True),
}
BESIDE = ("eval/part/", "eval/rounds", "eval/role/")
"""Beginnings of what evaluations say of a graph beside its outcome."""
ANY_SYSTEM = {
    "shared": ("--mapping", "shared"),
    "adapters": ADAPTERS,
    "async": ASYNC,
    "async_token": (*ASYNC, *CORRECTED),
    "conversations": ("--sequences", "conversations"),
    "trees": ("--sequences", "trees"),
}
"""Arms of every system that run only where they are named, and their flags."""
PAIRED = {"async": "trained", "async_token": "trained", "trees": "conversations"}
"""Arms that are compared with another one seed by seed."""
FROZEN = ("--actor.adam.lr", "0", "--max_steps", "2", "--eval.steps", "2")


def curve(folder: Path, outcome: str) -> dict[int, float]:
    """Held-out success by step."""
    return {line["step"]: line[outcome] for line in RunReader(folder).metrics() if outcome in line}


def row(name: str, arm: str, seeds: Sequence[int], out: Path) -> str:
    """The line of an arm that is trained."""
    system = SYSTEMS[name]
    flags = [*words_of(system, arm, out), *(FROZEN if arm.endswith("frozen") else ())]
    seconds = [train(f"{name}-{arm}", flags, seed, out)["seconds"] for seed in seeds]
    curves = [list(curve(out / f"{name}-{arm}-{seed}", system.outcome).values()) for seed in seeds]
    before = [c[0] for c in curves]
    after = [statistics.fmean(c[1:][-3:]) for c in curves]
    return line(arm, before, after, f"{statistics.median(seconds):.0f}")


def beside(name: str, arm: str, seeds: Sequence[int], out: Path) -> list[str]:
    """The lines of what an arm's evaluations say beside the outcome: means over seeds, before and
    over the last three after."""
    evaluated = [
        [m for m in RunReader(out / f"{name}-{arm}-{seed}").metrics() if "eval/tasks" in m]
        for seed in seeds
    ]
    runs = [
        run for run in evaluated if any(key.startswith(BESIDE) for key in run[0])
    ]  # older ones did not say it
    lines = []
    for key in sorted({key for run in runs for m in run for key in m if key.startswith(BESIDE)}):
        before = statistics.fmean(run[0].get(key, 0.0) for run in runs)
        after = statistics.fmean(m.get(key, 0.0) for run in runs for m in run[1:][-3:])
        lines.append(
            f"| {arm} | {len(runs)} | {key.removeprefix('eval/')} | {before:.3f} | {after:.3f} |"
        )
    return lines


def over(name: str, arm: str, control: str, seeds: Sequence[int], out: Path) -> str:
    """Return the line of what an arm adds to its control, paired by seed."""
    means = [
        [
            statistics.fmean(
                list(curve(out / f"{name}-{each}-{seed}", SYSTEMS[name].outcome).values())[1:][-3:]
            )
            for seed in seeds
        ]
        for each in (arm, control)
    ]
    return (
        f"| {arm} over {control} | {len(seeds)} |  |  | "
        f"{points([a - b for a, b in zip(*means, strict=True)])} |  |"
    )


def words_of(system: System, arm: str, out: Path) -> list[str]:
    """Return the flags of an arm; `outcome` and those of the rare start are recipes in a copy of
    the recipe's folder."""
    if arm in ("trained", "frozen"):
        return system.words
    if arm in ANY_SYSTEM:
        return [*system.words, *ANY_SYSTEM[arm]]
    folder, _, file = system.recipe.partition("/")
    rare = arm.startswith("rare_")
    copy = out / f"{folder}-{'rare' if rare else 'same'}"
    if not copy.exists():
        shutil.copytree(recipes_root() / folder, copy)
        if rare:
            demonstrations = copy / "demonstrations.py"
            text, found = re.subn(
                r"^SLIPS = .*$", f"SLIPS = {system.slips}", demonstrations.read_text(), flags=re.M
            )
            assert found == 1
            demonstrations.write_text(text)
    if arm.endswith("outcome"):
        (copy / "outcome.yaml").write_text(
            f"extends: {file}\nplugins: [tools.py]\nflags:\n  coach.rubric: null\n"
        )
    return [
        "--recipe",
        str(copy / ("outcome.yaml" if arm.endswith("outcome") else file)),
        *system.flags,
    ]


def line(arm: str, before: Sequence[float], after: Sequence[float], seconds: str = "") -> str:
    gains = [b - a for a, b in zip(before, after, strict=True)]
    means = f"{statistics.fmean(before):.3f} | {statistics.fmean(after):.3f}"
    by_seed = ", ".join(f"{b:.2f}" for b in after)
    return f"| {arm} | {len(before)} | {means} ({by_seed}) | {points(gains)} | {seconds} |"


def put_back(name: str, policy: str, seed: int, out: Path, outcome: str = "") -> float:
    """Held-out success of the final weights, with one policy's initial weights; policy `none`
    changes nothing.

    Args:
        outcome: Whose; the system's if it is not given.
    """
    system = SYSTEMS[name]
    folder = out / f"{name}-trained-{seed}"
    done = folder / f"without-{policy}.json"
    if not done.exists():
        words = [
            "eval",
            *system.words,
            "--train.seed",
            str(seed),
            "--json",
            "--models",
            str(folder),
        ]
        words += ["--only", *[p for p in system.policies if p != policy]]
        done.write_text(watched(words, str(folder))[1].splitlines()[-1])
    return float(json.loads(done.read_text())[(outcome or system.outcome).removeprefix("eval/")])


def against(name: str, arm: str, player: str, seeds: Sequence[int], out: Path) -> str:
    """The line of a player of a game: its outcome against the other one as it began."""
    flags = [*words_of(SYSTEMS[name], arm, out), *(FROZEN if arm == "frozen" else ())]
    seconds = [train(f"{name}-{arm}", flags, seed, out)["seconds"] for seed in seeds]
    (other,) = {*SYSTEMS[name].policies} - {player}
    outcome = f"eval/outcome/{player}"
    curves = [list(curve(out / f"{name}-{arm}-{seed}", outcome).values()) for seed in seeds]
    if arm == "frozen":
        after = [values[-1] for values in curves]
    else:
        after = [put_back(name, other, seed, out, outcome) for seed in seeds]
    before = [values[0] for values in curves]
    return line(f"{arm}: {player}", before, after, f"{statistics.median(seconds):.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.learning", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("system", choices=list(SYSTEMS))
    parser.add_argument("--out", type=Path, default=Path("runs/bench-learning"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    arms = ["trained", "frozen", "put_back"]
    named = ["outcome", "rare_trained", "rare_outcome", "rare_frozen"]
    parser.add_argument("--arms", nargs="+", choices=[*arms, *ANY_SYSTEM, *named], default=arms)
    add_flag(parser)
    options = parser.parse_args()
    if not SYSTEMS[options.system].slips and set(options.arms) & set(named):
        parser.error(f"{options.system} has no arms {', '.join(named)}")
    options.out.mkdir(parents=True, exist_ok=True)
    for run in restore("learning", options.out) if options.recorded else ():
        print(f"recorded: {run}", file=sys.stderr)
    print(
        "| arm | seeds | before | after (by seed) | gain in points | seconds "
        "|\n|---|---|---|---|---|---|",
        flush=True,
    )
    if SYSTEMS[options.system].game:
        for arm in (arm for arm in options.arms if arm != "put_back"):
            for player in SYSTEMS[options.system].policies:
                print(against(options.system, arm, player, options.seeds, options.out), flush=True)
        return
    for arm in options.arms:
        if arm != "put_back":
            print(row(options.system, arm, options.seeds, options.out), flush=True)
            if (
                arm.endswith("outcome")
                and (coach := arm.replace("outcome", "trained")) in options.arms
            ):
                print(over(options.system, coach, arm, options.seeds, options.out), flush=True)
            if (control := PAIRED.get(arm, "")) in options.arms:
                print(over(options.system, arm, control, options.seeds, options.out), flush=True)
            continue
        whole = [put_back(options.system, "none", seed, options.out) for seed in options.seeds]
        for policy in SYSTEMS[options.system].policies:
            without = [
                put_back(options.system, policy, seed, options.out) for seed in options.seeds
            ]
            print(line(f"- {policy}", whole, without), flush=True)
    found = [
        said
        for arm in options.arms
        if arm != "put_back"
        for said in beside(options.system, arm, options.seeds, options.out)
    ]
    if found:
        print(
            "\n| arm | seeds | of evaluations | before | after |\n|---|---|---|---|---|",
            *found,
            sep="\n",
        )


if __name__ == "__main__":
    main()
