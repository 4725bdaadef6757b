"""Every two of the shipped plugins together, and each with every estimator: does a run work, or is
it refused before it starts?

`python tests/plugin_pairs.py` runs every pair alone and writes the table of docs/plugin_pairs.md
anew. tests/test_plugin_pairs.py makes the same table from fewer runs: the pairs that the page says
are refused are planned alone, and all others stand in runs of many parts at once. A run is of two
steps on simulated engines (simulated_session.py).
"""

import argparse
import functools
import itertools
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from reward_models import same_tokenizer
from simulated import without_seconds
from simulated_session import killed_after, recorded, run_planned

from marl_plugins.core.failures import ConfigurationError
from marl_plugins.core.plugin_names import BUILTINS, SHIPPED
from marl_plugins.core.problems import Problem
from marl_plugins.engine.hosts import upstream_cli
from marl_plugins.engine.plan.build import build_plan

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "recipes" / "pairs"
OF_ONE = "estimator "
PAGE, HEADING = ROOT / "docs" / "plugin_pairs.md", "## The table"


@dataclass(frozen=True)
class Part:
    """One of two things that are put together.

    Args:
        plugin: None for what is only flags.
        flags: Flags with which it has something to do.
        yaml: Keys of the recipe that it needs.
    """

    plugin: str | None
    flags: Mapping[str, str | None] = field(default_factory=dict)
    yaml: str = ""


SETTINGS = {
    "coach": {"coach.rubric": str(FOLDER / "rubric.py")},
    "opponent_pool": {"opponents.every": "1", "opponents.size": "2"},
    "streaming": {"streaming.gradients": None},
    "adapters": {"ds.lora.rank": "8"},
    "mean_group": {"mean_group.rate": "0.5"},
    "replay": {"replay.groups": "2"},
    "transfer": {"transfer.groups": "2"},
    "swarm": {"swarm.store": "STORE", "swarm.external": "2", "swarm.peer": "alice"},
    "filter_agents_data": {"filter_agents_data.multiple": "3"},
}
"""What gives a plugin something to do in this recipe, where its defaults do not."""
SMALL = {
    "rollout.batch_size": "2",
    "rollout.micro_batch_size": "4",
    "train.batch_size": "4",
    "train.micro_batch_size": "4",
}
"""Half of the recipe's steps, which is enough to see whether a run works."""
FLAGS = {
    "filtering": {"algo.dynamic_filtering_enable": None, "algo.dynamic_filtering_range": "0 1"},
    "async": {"train.async_enable": None},
    "partial": {"train.async_enable": None, "train.partial_rollout_enable": None},
    "ema": {"train.enable_ema": None, "eval.steps": "1"},
    "reward_model": {"reward.model_name_or_path": "MODEL"},
}
"""What is built in and only switched on."""
GROUPS = {
    name: {"groups.by": "task+role+turn"}
    for name in ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
}
"""What an estimator that compares samples needs where several roles act."""
TIMED = {"partial"}
"""What a step has depends on timing with it, so that a resumed run is another one."""
KEYS = {
    "rewards": "rewards: {terms: [{kind: outcome}, {kind: format, roles: [critic], weight: 0.5}]}\n"
}


@functools.cache
def estimators():
    """Upstream's estimators by name."""
    parser = upstream_cli.build_parser(upstream_cli.upstream_root())
    (action,) = [a for a in parser._actions if "--algo.advantage.estimator" in a.option_strings]
    return sorted(action.choices)


def parts():
    """Everything that is put together, by its short name: plugins that are named, what is built in,
    then estimators."""
    found = {}
    for name in SHIPPED:
        short = name.rpartition(".")[2]
        if name not in BUILTINS:
            found[short] = Part(name, SETTINGS.get(short, {}), KEYS.get(short, ""))
    found |= {name: Part(None, flags) for name, flags in FLAGS.items()}
    return found | {
        f"{OF_ONE}{name}": Part(None, {"algo.advantage.estimator": name, **GROUPS.get(name, {})})
        for name in estimators()
    }


def pairs():
    """Every pair; of two estimators a run has only one."""
    every = parts()
    return [
        (a, b)
        for a, b in itertools.combinations(every, 2)
        if not (a.startswith(OF_ONE) and b.startswith(OF_ONE))
    ]


def words(folder, names, **more):
    """The command line of a run of some parts, whose recipe is written into the folder."""
    chosen = [parts()[name] for name in names]
    shutil.copytree(FOLDER, folder / "recipe")
    recipe = folder / "recipe" / "both.yaml"
    recipe.write_text("".join(["extends: recipe.yaml\n", *(part.yaml for part in chosen)]))
    flags = {
        "ckpt.output_dir": str(folder / "run"),
        "ckpt.path": str(folder / "saved"),
        "max_steps": "2",
    } | more
    for part in chosen:
        flags |= part.flags
    places = {"STORE": str(folder / "store"), "MODEL": str(folder / "reward_model")}
    if "MODEL" in flags.values():
        same_tokenizer(places["MODEL"])
    found = ["--recipe", str(recipe)]
    for part in chosen:
        found += ["--plugin", part.plugin] if part.plugin else []
    for name, value in flags.items():
        found += [f"--{name}", *(places.get(word, word) for word in (value or "").split())]
    return found


@dataclass(frozen=True)
class Outcome:
    """What became of a pair: why it is refused, or what is wrong with it; neither where it
    works."""

    problems: tuple[Problem, ...] = ()
    wrong: str = ""

    @property
    def codes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(problem.code for problem in self.problems))


def tried(folder, names, store):
    """Runs a pair for two steps, then the second one again from what the first has saved.

    Args:
        store: What peers have published.
    """
    folder.mkdir()
    shutil.copytree(store, folder / "store")
    try:
        plan = build_plan(words(folder, names, **SMALL))
    except ConfigurationError as error:
        without_fix = [p.code for p in error.problems if not p.fix]
        wrong = f"refused without a fix: {', '.join(without_fix)}" if without_fix else ""
        return Outcome(tuple(error.problems), wrong)
    try:
        run_planned(plan)
        once = records_of(plan)
        killed_after(plan, 1)
        run_planned(plan, resume=True)
        again = records_of(plan)
        return Outcome(
            wrong="; ".join(differences(plan, again if TIMED & set(names) else once, again))
        )
    except Exception as error:  # what a pair that is neither refused nor works does
        return Outcome(wrong=f"{type(error).__name__}: {error}")


def records_of(plan):
    files = ("trajectories.jsonl", "ledger.jsonl", "metrics.jsonl")
    return {name: without_seconds(recorded(plan, name)) for name in files}


def differences(plan, once, again):
    """What is wrong with the records of a run and of the same run resumed."""
    run = plan.run
    for line in once["ledger.jsonl"]:
        if line["trajectories"] < run.trajectories:
            yield (
                f"step {line['step']} has {line['trajectories']} trajectories of at least "
                f"{run.trajectories}"
            )
        for ledger in (line, line.get("received", {"roles": {}})):
            for role, n in ledger["roles"].items():
                if n["generated"] != n["trained"] + sum(n["left_out"].values()):
                    yield f"the ledger of step {line['step']} does not add up for {role}: {n}"
        if not sum(n["trained"] for n in line["roles"].values()):
            yield f"step {line['step']} trains nothing"
    for name, lines in once.items():
        measured = (
            [_without_times(line) for line in lines],
            [_without_times(line) for line in again[name]],
        )
        if measured[0] != measured[1]:
            yield f"{name} of the resumed run differs: {first_difference(*measured)}"


def first_difference(one, other, at=""):
    """Where two JSON values differ first."""
    if isinstance(one, dict) and isinstance(other, dict):
        if keys := one.keys() ^ other.keys():
            return f"{at}: {', '.join(sorted(keys))} in one alone"
        return next(
            first_difference(one[key], other[key], f"{at}.{key}")
            for key in one
            if one[key] != other[key]
        )
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return next(
            first_difference(a, b, f"{at}.{n}")
            for n, (a, b) in enumerate(zip(one, other, strict=True))
            if a != b
        )
    return f"{at} {one!r:.80} and {other!r:.80}"


def _without_times(line):
    return {
        k: v
        for k, v in line.items()
        if not k.startswith("time/") and "seconds" not in k and "per_second" not in k
    }


def refused_by(page):
    """The pairs that a page says are refused."""
    rows = re.findall(r"^\| (.+?) \| (.+?) \| `.+ \|$", page[page.index(HEADING) :], re.MULTILINE)
    return {(first, other) for first, others in rows for other in others.split(", ")}


def stacks(working):
    """Parts that run together, so that each of these pairs stands in one of the runs.

    Greedy: an uncovered pair, then whatever adds most uncovered pairs, while every two of the stack
    work. A pair without one of TIMED stands in a run without any, whose resumed records are the
    same.
    """
    works, left, found = set(working), dict.fromkeys(working), []

    def shown(stack):
        """The pairs of which a run of this stack says something."""
        ordered = [part for part in parts() if part in stack]
        timed = TIMED & {*stack}
        return [p for p in itertools.combinations(ordered, 2) if not timed or timed & {*p}]

    def fits(part, stack):
        return part not in stack and all({(part, b), (b, part)} & works for b in stack)

    def gain(part, stack):
        return sum(pair in left for pair in shown([*stack, part]))

    while left:
        stack = list(next(iter(left)))
        may = [part for part in parts() if part not in TIMED or TIMED & {*stack}]
        while candidates := [part for part in may if fits(part, stack)]:
            best = max(candidates, key=lambda part: gain(part, stack))
            if gain(best, stack) == sum(pair in left for pair in shown(stack)):
                break
            stack.append(best)
        for pair in shown(stack):
            left.pop(pair, None)
        found.append([part for part in parts() if part in stack])
    return found


def store_of_a_peer(folder):
    """What a peer of the swarm has published."""
    peer = folder / "peer"
    peer.mkdir()
    (peer / "store").mkdir()
    run_planned(
        build_plan(
            [
                *words(peer, ["swarm"], **SMALL),
                "--swarm.peer",
                "bob",
                "--swarm.external",
                "0",
                "--train.seed",
                "7",
            ]
        )
    )
    return peer / "store"


def outcomes(folder, refused=None):
    """Every pair with what became of it.

    Args:
        refused: The pairs that are expected to be refused. These are run alone, all others many at
            once, and alone where that does not work. None: every pair is run alone.
    """
    store, numbers = store_of_a_peer(folder), itertools.count()

    def become(names):
        return tried(folder / f"{next(numbers)}", names, store)

    found = {pair: become(pair) for pair in pairs() if refused is None or pair in refused}
    for stack in stacks([pair for pair in pairs() if pair not in found]):
        together = become(stack)
        fails = together.wrong or ", ".join(together.codes)
        inside = [*itertools.combinations(stack, 2)]
        for pair in inside:
            if fails:
                found[pair] = become(pair)
            else:
                found.setdefault(pair, Outcome())
        if fails and all(found[pair] == Outcome() for pair in inside):
            found[inside[0]] = Outcome(wrong=f"together with {', '.join(stack[2:])}: {fails}")
    return {pair: found[pair] for pair in pairs()}


def table(found):
    """The table as Markdown: who is refused with whom, and that all others work."""
    refused = {pair: outcome.codes for pair, outcome in found.items() if outcome.codes}
    lines = ["| of | with | refused as |", "|---|---|---|"]
    for first in parts():
        by_codes = {}
        for (a, b), codes in refused.items():
            if a == first:
                by_codes.setdefault(codes, []).append(b)
        for codes, others in by_codes.items():
            lines.append(
                f"| {first} | {', '.join(others)} | {', '.join(f'`{code}`' for code in codes)} |"
            )
    works = len(found) - len(refused)
    return (
        f"{len(found)} pairs: {works} work, {len(refused)} are refused.\n\n"
        + "\n".join(lines)
        + "\n"
    )


def written(text, content):
    """A page with what stands under its last heading replaced."""
    return text[: text.index(HEADING) + len(HEADING)] + "\n\n" + content


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "pairs",
        nargs="*",
        help="A+B: two parts, to see what is wrong with them; default: all pairs",
    )
    some = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        if some:
            (Path(folder) / "store").mkdir()
            for number, pair in enumerate(some):
                found = tried(Path(folder) / str(number), pair.split("+"), Path(folder) / "store")
                print(pair, *(found.problems or [found.wrong or "works"]), sep="\n  ")
            return
        began = time.process_time()
        found = outcomes(Path(folder))
    for pair, outcome in found.items():
        if outcome.wrong:
            print(*pair, outcome.wrong, sep=" | ")
    print(f"{time.process_time() - began:.0f} CPU seconds")
    PAGE.write_text(written(PAGE.read_text(), table(found)))


if __name__ == "__main__":
    main()
