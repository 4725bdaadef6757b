"""Peers learn from each other's attempts, as SAPO has it (arXiv 2509.08721): each run trains on its
own tasks and on groups of trajectories that others have made of the same tasks. Nobody waits for
anybody.

    openrlhf train --plugin marl_plugins.swarm --swarm.store /shared/swarm --swarm.peer alice
    --swarm.external 4 ...

After its rollout a run publishes the words of its trajectories, a record for each task (store.py),
and takes in up to J records of
others (taking.py): I + J groups a step, I being `--rollout.batch_size`. The run's own workflow says
the words again and its own graders score them (`marl_exchange`), so peers may have other models and
tokenizers, but need the same tasks and prompts: what is of another task or prompt is refused, and
labels do not travel. With `--swarm.external 0` a run trains as it does without the plugin.

The run's seed draws the groups from what is there (`--swarm.sampler`): `uniform`; `nonzero`, the
paper's, those whose outcomes differ; `reward`, the best of those. A filter
alone makes the rewards of training better, with no learning at
all: compare held-out tasks, and a run with learning rate 0.

A run of a population is as many peers as it has members: each publishes what it alone has played,
takes in J groups of the other members and of other runs, says their words in its own voice, and is
trained on its own part of them.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import TYPE_CHECKING, Any

from marl_plugins import (
    Command,
    Problem,
    Run,
    StepPart,
    all_of,
    applies_if,
    at,
    at_least,
    between,
    derive_seed,
    hookimpl,
)
from marl_plugins.swarm.peers import Swarm, learners_of, member_of, members_of, peer_of

if TYPE_CHECKING:
    from marl_plugins import Exchange, Trajectory
    from marl_plugins.swarm.store import RecordStore

PLUGIN = "marl_plugins.swarm"
UNNAMED = "peer"
AGAINST_SAMPLES = ("rloo", "dr_grpo", "group_norm", "reinforce_baseline")
"""Estimators that compare own and foreign samples of a task, apart from each other."""


@hookimpl
def marl_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("experience of peers (--plugin marl_plugins.swarm)")
    group.add_argument(
        "--swarm.store",
        metavar="ADDRESS",
        default=None,
        help="folder that the peers share, or another fsspec address",
    )
    group.add_argument(
        "--swarm.peer",
        metavar="NAME",
        default=UNNAMED,
        help="what this run is called in the store, also after a restart; needed with "
        "--swarm.external, unless the store is in memory",
    )
    group.add_argument(
        "--swarm.external",
        type=at_least(0),
        default=0,
        help="number of other peers' groups (all samples of a task) that each step takes in",
    )
    group.add_argument(
        "--swarm.publish",
        type=between(0, 1),
        default=1.0,
        help="share of the own tasks whose trajectories are published",
    )
    group.add_argument(
        "--swarm.staleness",
        type=at_least(0),
        default=1,
        help="rounds that a record may be old when it is taken in",
    )
    group.add_argument(
        "--swarm.sampler",
        choices=["uniform", "nonzero", "reward"],
        default="nonzero",
        help="which groups are taken: any; those whose outcomes differ, by their maker's graders "
        "and by this run's; of these, those with the best outcomes",
    )
    group.add_argument(
        "--swarm.spread",
        type=between(0.0, 1.0),
        default=0.0,
        help="unless --swarm.sampler is uniform: a group's outcomes differ if its largest and its "
        "smallest are further apart than this",
    )
    group.add_argument(
        "--swarm.quota",
        type=at_least(0),
        default=0,
        help="groups of one peer in a step, at most; 0: any number",
    )
    group.add_argument(
        "--swarm.weight",
        choices=["own", "capability"],
        default="own",
        help="own: peers' rows are trained on as if they were own; capability: they are weighted "
        "by how capable peers and this run are (HACPO)",
    )
    group.add_argument(
        "--swarm.alpha",
        type=at_least(0, float),
        default=1.0,
        help="with --swarm.weight capability: exponent of s in the weight of a peer's row, "
        "(P_peer / P_own) * s ** (1 + alpha). P is a mean outcome over the last five rounds; "
        "s = exp(mean log-prob of the row here - mean log-prob that the peer recorded)",
    )
    group.add_argument(
        "--swarm.delta",
        type=between(0, 1),
        default=0.5,
        help="with --swarm.weight capability: rows whose s (see --swarm.alpha) lies outside "
        "[1 - delta, 1] have weight 0",
    )
    group.add_argument(
        "--swarm.trust",
        choices=["tasks", "generator", "labels"],
        default="tasks",
        help="tasks: only tasks that this run has; generator: also those that the recipe's "
        "`task_of(id)` makes alike; labels: all, with the labels that peers send. Anyone who can "
        "write to the store can then teach any answer to any question",
    )
    group.add_argument(
        "--swarm.judge",
        metavar="URL",
        default=None,
        help="address of `openrlhf swarm judge`, which asks each peer once a step",
    )
    group.add_argument(
        "--swarm.keep",
        type=at_least(0),
        default=0,
        help="rounds after which own records are removed; 0: never",
    )


@hookimpl
def marl_commands() -> list[Command]:
    return [
        Command(
            "swarm",
            "show | add | judge",
            "a store of peers' records: what is there, and more answers; a judge of all peers",
            _main,
        )
    ]


def _main(words: Sequence[str]) -> int:
    from marl_plugins.swarm.command import main

    return main(words)


@hookimpl
def marl_configure(run: Run) -> list[Problem]:
    return list(check_flags(run))


def check_flags(run: Run) -> Iterator[Problem]:
    """Yields what is wrong with the flags."""
    import fsspec

    from marl_plugins.swarm.store import wrong_peer

    options = run.args.swarm
    names = {peer_of(options.peer, member) for member in ("", *members_of(run))}
    yield from wrong_peer(max(names, key=len), "swarm.peer")
    if options.store is None:
        fix = "give --swarm.store the folder that the peers share"
        yield Problem("swarm.store_missing", at(plugin=PLUGIN), "no store is named", fix=fix)
    else:
        try:
            fsspec.core.url_to_fs(options.store)
        except (ValueError, ImportError) as error:
            yield Problem("swarm.store", at(flag="swarm.store"), f"{options.store!r}: {error}")
        if options.external and options.peer == UNNAMED and not options.store.startswith("memory:"):
            got = "the store is shared, and a run takes nothing in that has its own name"
            fix = "give each run a name of its own, the same at every start"
            yield Problem("swarm.unnamed", at(flag="swarm.peer"), got, fix=fix)
    if 0 < options.keep < options.staleness:
        got = (
            f"{options.keep} is below --swarm.staleness {options.staleness}, so that peers like "
            "this one miss records"
        )
        yield Problem("swarm.keep", at(flag="swarm.keep"), got, severity="warning")
    if options.judge and not options.judge.startswith(("http://", "https://")):
        where = at(flag="swarm.judge")
        yield Problem("swarm.judge", where, repr(options.judge), "http://HOST:PORT")
    if options.trust == "generator" and not hasattr(run.tasks_module, "task_of"):
        fix = "write `task_of(id)`, which returns a Task or None, in the recipe's file of tasks"
        got = "the recipe cannot make a task from its id"
        yield Problem("swarm.no_generator", at(flag="swarm.trust"), got, fix=fix)
    if options.weight == "capability" and run.estimator in AGAINST_SAMPLES:
        got = f"{run.estimator} compares the samples of a task again, which undoes the baseline"
        where, fix = at(flag=("swarm.weight", "algo.advantage.estimator")), "take reinforce"
        yield Problem("swarm.compared_again", where, got, fix=fix, severity="warning")


@hookimpl
async def marl_exchange(
    trajectories: Sequence[Trajectory], run: Run, exchange: Exchange
) -> Sequence[Trajectory]:
    from marl_plugins.swarm.capability import note_round
    from marl_plugins.swarm.store import RecordStore
    from marl_plugins.swarm.taking import take

    swarm, options = run.state(Swarm), run.args.swarm
    store = RecordStore(options.store)
    try:
        swarm.round = await asyncio.to_thread(_round, store, swarm)
    except OSError:
        swarm.round += 1
    swarm.metrics = {"swarm/round": float(swarm.round)}
    await asyncio.to_thread(_publish, store, trajectories, run, exchange)
    if options.judge:
        swarm.metrics |= await _judged(run, exchange)
    if not options.external:
        return trajectories
    taken: list[Trajectory] = []
    numbers: defaultdict[str, float] = defaultdict(float)
    for learner in learners_of(run):
        fresh, metrics = await take(store, learner, run, exchange)
        taken += fresh
        for name, number in metrics.items():
            numbers[name] += number
    numbers["swarm/unreachable"] = min(numbers["swarm/unreachable"], 1.0)
    swarm.metrics |= numbers
    if by_capability(run):
        note_round(swarm.outcomes, [*_like_taken(trajectories, options), *taken], members_of(run))
    return [*trajectories, *taken]


async def _judged(run: Run, exchange: Exchange) -> dict[str, float]:
    """Lets the judge ask all learners; returns the mean of what it says."""
    from marl_plugins.swarm.judge import judged

    told = await all_of(judged(run, exchange, learner) for learner in learners_of(run))
    scores = [score for score in told if score is not None]
    metrics = {"swarm/unjudged": float(len(told) - len(scores))}
    return metrics | ({"swarm/judged": fmean(scores)} if scores else {})


def _like_taken(
    trajectories: Sequence[Trajectory], options: argparse.Namespace
) -> list[Trajectory]:
    """The own trajectories of the groups that would be taken if they were another's."""
    from marl_plugins.swarm.taking import differ

    own = [t for t in trajectories if t.is_original]
    if options.sampler == "uniform":
        return own
    groups: dict[str, list[Trajectory]] = {}
    for t in own:
        groups.setdefault(t.task.id, []).append(t)
    return [t for group in groups.values() if differ(group, options.spread) for t in group]


def by_capability(run: Run) -> bool:
    """Returns whether what others have made is weighted by how capable they are."""
    return bool(run.args.swarm.weight == "capability")


@hookimpl
@applies_if(by_capability)
def marl_credit_step(trajectories: Sequence[Trajectory], run: Run) -> Sequence[Trajectory]:
    from marl_plugins.swarm.capability import subtract_baselines

    subtract_baselines(trajectories, run.state(Swarm).outcomes, members_of(run))
    return trajectories


@hookimpl
def marl_step(run: Run) -> StepPart | None:
    from marl_plugins.swarm.capability import CapabilityWeights

    return CapabilityWeights(run) if by_capability(run) else None


def _round(store: RecordStore, swarm: Swarm) -> int:
    """Returns the round of the store in which a step publishes. A step that is repeated after a
    crash has its old one: that of its records, which are there already.

    Raises:
        OSError: The store cannot be read.
    """
    newest, following = store.newest(), swarm.round + 1
    later = store.names(range(following, newest + 1)) if swarm.round else []
    own = [n.round for n in later if n.run == swarm.run and n.round]
    return min(own, default=max(following, newest))


def _publish(
    store: RecordStore, trajectories: Sequence[Trajectory], run: Run, exchange: Exchange
) -> None:
    """Write the records of a step's tasks. A store that cannot be written costs these records, not
    the step."""
    from marl_plugins.swarm.record import key_of, packed
    from marl_plugins.swarm.store import RecordName

    swarm, options = run.state(Swarm), run.args.swarm
    draw = random.Random(derive_seed(run.args.train.seed, "swarm.publish", exchange.step))
    groups: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        if trajectory.is_original and not trajectory.infrastructure_failure:
            groups.setdefault(trajectory.task.id, []).append(trajectory)
    published, lost, members = 0, 0, members_of(run)
    for task, group in groups.items():
        if draw.random() >= options.publish:
            continue
        peer = peer_of(options.peer, member_of(group[0], members))
        name = RecordName(swarm.round, peer, swarm.run, key_of(task))
        try:
            carried = group[0].task if options.trust == "labels" else None
            store.put(name, packed([exchange.write(t) for t in group], carried))
            published += 1  # there already, where a resumed run repeats the step
        except (OSError, ValueError):
            lost += 1
    swarm.metrics |= {"swarm/published": float(published), "swarm/unpublished": float(lost)}
    if options.keep and (old := swarm.round - options.keep) > 0:
        try:
            own = {peer_of(options.peer, member) for member in ("", *members)}
            names = store.names(range(old))
            store.remove(n for n in names if n.peer in own and n.round is not None)
        except OSError:
            pass  # tried again in the next step


@hookimpl
def marl_log(run: Run, metrics: dict[str, float]) -> None:
    metrics |= run.state(Swarm).metrics


@hookimpl
def marl_state(run: Run) -> dict[str, object]:
    swarm = run.state(Swarm)
    return {
        "run": swarm.run,
        "round": swarm.round,
        "seen": sorted(swarm.seen),
        "outcomes": swarm.outcomes,
    }


@hookimpl
def marl_restore(run: Run, state: Mapping[str, Any]) -> None:
    swarm = run.state(Swarm)
    swarm.run, swarm.round = state["run"], state["round"]
    swarm.seen, swarm.outcomes = set(state["seen"]), dict(state["outcomes"])
